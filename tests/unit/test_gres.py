"""GRES and constraints in cluster files, traces and requests, by hand-computed answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import a_job, a_trace, replay

from slurm_rl.domain.cluster import Cluster, NodeClass, published_speed, read_cluster, write_cluster
from slurm_rl.domain.constraint import holds, parse_constraint
from slurm_rl.domain.gres import Device, node_gres, parse_request, slice_of
from slurm_rl.errors import InputError
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace


def test_a_slice_knows_its_parent() -> None:
    part = slice_of("a100_3g.20gb")
    assert part is not None
    assert (part.parent, part.compute, part.mem_gb) == ("a100", pytest.approx(3 / 7), 20)
    assert slice_of("A30_1g.6gb").compute == 0.25  # type: ignore[union-attr]
    assert slice_of("nvidia_h100_mig_1g.10gb+me").parent == "nvidia_h100"  # type: ignore[union-attr]
    assert slice_of("a100") is None
    assert published_speed("a100_3g.20gb") == pytest.approx(published_speed("a100") * 3 / 7)


def test_shards_are_dealt_out_over_whole_gpus() -> None:
    has = node_gres({"gpu:a100": 2, "gpu:a100_1g.5gb": 1, "shard": 5, "fpga": 1})
    assert has.devices == (Device("a100", 2, "shard"), Device("a100", 3, "shard"), Device("a100_1g.5gb"))
    assert has.others == {"fpga": 1}
    with pytest.raises(InputError, match="without a GPU to share"):
        node_gres({"shard": 4})
    with pytest.raises(InputError, match="both shard and mps"):
        node_gres({"gpu:a": 1, "shard": 1, "mps": 100})


def test_requests_that_slurm_refuses_are_refused() -> None:
    assert parse_request("gres/gpu:a100:2,fpga").types == (("a100", 2),)
    for wrong in ("gpu:a100:1,gpu:1", "shard:1,gpu:1", "shard:1,mps:1", "gpu:a:b:c"):
        with pytest.raises(InputError):
            parse_request(wrong)


@pytest.mark.parametrize(
    ("text", "features", "good"),
    [
        ("fast&ib", {"fast", "ib"}, True),
        ("fast&ib", {"fast"}, False),
        ("fast|ib", {"ib"}, True),
        ("a|b&c", {"a"}, False),  # from the left: (a|b)&c
        ("a|(b&c)", {"a"}, True),
        ("x,y;a|b", {"x", "y", "b"}, True),
        ("x;a|b", {"b"}, False),
    ],
)
def test_constraints(text: str, features: set[str], good: bool) -> None:
    (term,) = parse_constraint(text)
    assert holds(term, features) == good


def test_one_of_several_features_for_all_nodes() -> None:
    assert len(parse_constraint("[rack1|rack2]")) == 2
    for counted in ("[a*2&b*2]", "a*2", "[a&b]"):
        with pytest.raises(InputError, match="understood"):
            parse_constraint(counted)


def test_a_cluster_file_with_gres_is_read_back_equal(tmp_path: Path) -> None:
    rows = [
        {
            "count": 2,
            "cpus": 64,
            "mem_gb": 512,
            "speed": 2.0,
            "gres": {"gpu:a100": 4, "gpu:a100_3g.20gb": 8, "shard": 16},
            "features": ["ib"],
        }
    ]
    path = tmp_path / "site.cluster.json"
    path.write_text(json.dumps(rows))
    cluster = read_cluster(path)
    (c,) = cluster.classes
    assert (c.gpus, c.gpu_type, c.gpu_types, c.features) == (12, "a100", ("a100", "a100_3g.20gb"), ("ib",))
    assert c.speed_of("a100") == 2.0
    assert c.speed_of("a100_3g.20gb") == pytest.approx(2.0 * 3 / 7, abs=1e-6)
    # Four GPUs, and eight slices that draw 3/7 of one each.
    assert c.watts_busy == pytest.approx(450 + 4 * 400 + 8 * 400 * 3 / 7)
    write_cluster(cluster, tmp_path / "again.cluster.json")
    assert read_cluster(tmp_path / "again.cluster.json").classes == cluster.classes


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"gres": {"gpu:a": 65}}, "at most 64"),
        ({"gres": {"gpu:a": 2}, "gpus": 3}, "gres has 2 GPUs and slices, gpus says 3"),
        ({"gres": {"gpu:a": 2}, "gpu_type": "b"}, "gres has no gpu:b"),
        ({"gres": {"gpu:a": -1}}, "whole number"),
        ({"gres": "gpu:a:2"}, "must be an object"),
        ({"features": "ib"}, "list of names"),
    ],
)
def test_wrong_gres_in_a_cluster_file_is_named(tmp_path: Path, more: dict[str, object], message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps([{"count": 1} | more]))
    with pytest.raises(InputError, match=message):
        read_cluster(path)


def test_the_columns_of_a_trace_are_read_back_equal(tmp_path: Path) -> None:
    jobs = [a_job(gres="gpu:a:1,fpga:2", partition="p,q"), a_job(constraint="[a|b]", prefer="c"), a_job(exclusive=True)]
    trace = a_trace(jobs)
    write_native(trace, tmp_path / "t.csv")
    again = read_trace(tmp_path / "t.csv")
    assert {name: labels.strings() for name, labels in again.asked.items()} == {
        "gres": ["gpu:a:1,fpga:2", "", ""],
        "constraint": ["", "[a|b]", ""],
        "prefer": ["", "c", ""],
        "exclusive": ["", "", "yes"],
    }
    assert again.partition.strings() == ["p,q", "", ""]
    kept = read_trace(tmp_path / "t.csv")  # from the cache
    assert kept.asked["gres"].strings() == again.asked["gres"].strings()


def mixed(**more: object) -> Cluster:
    gres = (("gpu:A", 2), ("gpu:B", 1), ("shard", 6))
    return Cluster("mixed", (NodeClass(1, cpus=16, gres=gres, **more),))  # type: ignore[arg-type]


def starts(cluster: Cluster, *asks: str, placement: str = "best-fit", **more: object) -> list[int]:
    jobs = [a_job(i, run=100, gres=ask, **more) for i, ask in enumerate(asks)]
    ran = replay(cluster, jobs, "fcfs", "firstfit", placement)
    return [ran[j.id].start for j in jobs]


def test_one_gpu_of_a_node_serves_mps_at_a_time() -> None:
    served = Cluster("served", (NodeClass(1, cpus=16, gres=(("gpu:P", 2), ("mps", 200))),))
    # Half and half on the first GPU; the third waits though the second GPU is idle, which goes out whole meanwhile.
    assert starts(served, "mps:50", "mps:50", "mps:50", "gpu:1") == [0, 1, 100, 3]
    # A GPU given out whole serves no MPS, and keeps no other from it; one that is all MPS does.
    assert starts(served, "gpu:1", "mps:100", "mps:1") == [0, 1, 101]
    assert starts(served, "mps:100", "mps:1", "gpu:1") == [0, 100, 2]


def test_a_typed_request_waits_for_its_type() -> None:
    assert starts(mixed(), "gpu:B:1", "gpu:B:1", "gpu:A:2") == [0, 100, 2]


def test_an_untyped_request_takes_several_types_of_one_node() -> None:
    assert starts(mixed(), "gpu:3", "gpu:B:1") == [0, 100]


def test_a_gpu_is_whole_or_in_shards() -> None:
    # Two shards a GPU: the first is cut up, so that two are left whole; then all are taken. At 100 a shard comes free,
    # at 101 two GPUs.
    assert starts(mixed(), "shard:1", "gpu:2", "shard:1", "gpu:1", "shard:1") == [0, 1, 2, 101, 100]


def test_all_shards_of_a_job_lie_on_one_gpu() -> None:
    ran = starts(mixed(), "shard:1", "shard:1", "shard:2", "shard:2", "shard:1")
    assert ran == [0, 1, 2, 3, 100]
    assert starts(mixed(), "shard:3") == [-1]  # no GPU has three


def test_greedy_chooses_a_type_on_mixed_nodes() -> None:
    gres = (("gpu:A", 2), ("gpu:A_1g.5gb", 2))
    cluster = Cluster("slices", (NodeClass(2, cpus=16, speed=1.0, gres=gres),))
    jobs = [a_job(i, run=70, limit=1000, gpus=gpus) for i, gpus in enumerate((1, 4, 1))]
    ran = replay(cluster, jobs, "fcfs", "firstfit", "greedy")
    # The first takes an A; four of one type are then only slices, at a seventh of the speed.
    assert [ran[j.id].end - ran[j.id].start for j in jobs] == [70, 490, 70]


def test_greedy_chooses_a_type_on_the_only_node() -> None:
    cluster = Cluster("one", (NodeClass(1, cpus=16, gres=(("gpu:A", 2), ("gpu:A_1g.5gb", 2))),))
    jobs = [a_job(i, run=70, limit=1000, gpus=gpus) for i, gpus in enumerate((1, 2, 1))]
    ran = replay(cluster, jobs, "fcfs", "firstfit", "greedy")
    assert [ran[j.id].end - ran[j.id].start for j in jobs] == [70, 490, 70]


def test_a_job_in_two_partitions_stays_in_one() -> None:
    cluster = Cluster("two", (NodeClass(1, cpus=2, partition="p"), NodeClass(2, cpus=2, partition="q")))
    jobs = [a_job(0, run=10, cpus=4, nodes=2, partition="p,q"), a_job(1, run=10, cpus=2, nodes=1, partition="p,q")]
    ran = replay(cluster, jobs)
    assert [n for n, _ in ran[jobs[0].id].nodes] == [1, 2]
    assert [n for n, _ in ran[jobs[1].id].nodes] == [0]


def test_whole_nodes_and_wishes() -> None:
    cluster = Cluster("f", (NodeClass(1, cpus=4), NodeClass(1, cpus=4, features=("ib",))))
    jobs = [a_job(0, prefer="ib"), a_job(1, exclusive=True), a_job(2), a_job(3, prefer="ib", cpus=4)]
    ran = replay(cluster, jobs, backfill="firstfit")
    # At 11 the whole node is free again; the wished one has room for three of four CPUs.
    assert [ran[j.id].nodes[0][0] for j in jobs] == [1, 0, 1, 0]
    assert [ran[j.id].start for j in jobs] == [0, 1, 2, 11]


def test_what_is_not_understood_is_rejected_with_its_reason() -> None:
    from builders import a_simulation

    simulation, _ = a_simulation(
        mixed(), [a_job(constraint="[a*2&b*2]"), a_job(gres="gpu:A:1,gpu:1"), a_job(gres="gpu:C:1")]
    )
    reasons = list(simulation.workload.rejected.values())
    assert "counts of features" in reasons[0]
    assert "with and without a type" in reasons[1]
    assert "GPU type, GRES or features" in reasons[2]
