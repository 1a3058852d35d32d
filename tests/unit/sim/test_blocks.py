"""Gangs in blocks (P11), by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import a_job, a_trace, replay

from slurm_rl.domain.cluster import Cluster, NodeClass, read_cluster, write_cluster
from slurm_rl.domain.topology import read_topology, with_topology
from slurm_rl.errors import InputError
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace


def blocks(nodes: int = 6, of: int = 3, span: float = 0.5, gpus: int = 4) -> Cluster:
    return Cluster("blocks", (NodeClass(nodes, "A", gpus, 8, block=of, span_speed=span),))


def nodes_of(cluster: Cluster, *jobs: object, placement: str = "topology") -> list[list[int]]:
    ran = replay(cluster, jobs, "fcfs", "firstfit", placement)  # type: ignore[arg-type]
    return [[n for n, _ in ran[j.id].nodes] for j in jobs]  # type: ignore[attr-defined]


def gang(nodes: int, submit: int = 0, run: int = 100, **more: object) -> object:
    return a_job(submit, run, 10 * run, gpus=4 * nodes, nodes=nodes, **more)


def test_a_gang_stays_inside_the_tightest_block() -> None:
    # The pair fills the first block up, so that the second stays whole for three.
    found = nodes_of(blocks(), gang(1, submit=0), gang(2, submit=1), gang(3, submit=2))
    assert found == [[0], [1, 2], [3, 4, 5]]


def test_a_gang_that_spans_runs_slower() -> None:
    jobs = [gang(2, run=1000), gang(2, 1, 1000), gang(2, 2, 100)]
    ran = replay(blocks(), jobs, "fcfs", "firstfit", "topology")  # type: ignore[arg-type]
    assert [n for n, _ in ran[jobs[2].id].nodes] == [2, 5]  # type: ignore[attr-defined]
    assert ran[jobs[2].id].end - ran[jobs[2].id].start == 200  # type: ignore[attr-defined]
    assert ran[jobs[0].id].end - ran[jobs[0].id].start == 1000  # type: ignore[attr-defined]


def test_small_jobs_leave_blocks_whole() -> None:
    small = [a_job(i, 100, gpus=1, cpus=1) for i in range(1, 4)]
    first, second, third = (nodes_of(blocks(), gang(1), *small))[1:]
    assert first == second == third == [1]


@pytest.mark.parametrize("placement", ["topology", "best-fit", "first-fit", "greedy", "slurm", "mip"])
def test_switches_hold_whatever_the_placement(placement: str) -> None:
    jobs = [gang(2), gang(2, 1), gang(2, 2, switches=1), gang(2, 3)]
    ran = replay(blocks(), jobs, "fcfs", "firstfit", placement)  # type: ignore[arg-type]
    third, fourth = ran[jobs[2].id], ran[jobs[3].id]  # type: ignore[attr-defined]
    inside = {n // 3 for n, _ in third.nodes}
    assert len(inside) == 1
    if placement == "topology":
        assert third.start >= 100  # it waits, and the one behind it takes the two nodes at once
        assert fourth.start == 3


def test_segments_lie_inside_blocks() -> None:
    # Of the three nodes left in the first block, one segment takes two.
    assert nodes_of(blocks(8, 4), gang(1), gang(6, 1, segment=2)) == [[0], [1, 2, 4, 5, 6, 7]]
    ran = replay(blocks(6, 3), [job := gang(4, segment=2)], "fcfs", "none", "first-fit")  # type: ignore[arg-type]
    found = [n // 3 for n, _ in ran[job.id].nodes]  # type: ignore[attr-defined]
    assert found == [0, 0, 1, 1]


@pytest.mark.parametrize(("job", "why"), [(gang(4, switches=1), "1 switch"), (gang(3, segment=2), "no multiple")])
def test_what_no_empty_cluster_has_is_rejected(job: object, why: str) -> None:
    from builders import a_simulation

    simulation, _ = a_simulation(blocks(), [job])  # type: ignore[list-item]
    assert why in simulation.workload.rejected[0]


def test_blocks_in_a_cluster_file(tmp_path: Path) -> None:
    rows = [
        {"count": 4, "gpus": 4, "gpu_type": "A", "block": 2, "span_speed": 0.8},
        {"count": 2, "gpus": 4, "gpu_type": "A", "block": "x"},
        {"count": 2, "cpus": 4, "nodes": "cpu[1-2]"},
    ]
    path = tmp_path / "c.json"
    path.write_text(json.dumps(rows))
    cluster = read_cluster(path)
    assert cluster.blocks == ("1.0", "1.0", "1.1", "1.1", "x", "x", "", "")
    assert cluster.classes[0].span_speed == 0.8
    write_cluster(cluster, tmp_path / "d.json")
    assert read_cluster(tmp_path / "d.json").classes == cluster.classes


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"block": 0}, "block must be"),
        ({"block": True}, "block must be"),
        ({"span_speed": 1.2}, "span_speed must be"),
        ({"span_speed": 0}, "span_speed must be"),
        ({"nodes": "a[1-3]"}, "names 3 nodes, count says 2"),
        ({"nodes": "a[1-"}, "unreadable host list"),
    ],
)
def test_wrong_blocks_are_named(tmp_path: Path, more: dict[str, object], message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps([{"count": 2} | more]))
    with pytest.raises(InputError, match=message):
        read_cluster(path)


TREE = """# two leaves under a core
SwitchName=leaf1 Nodes=gpu[1-2]
SwitchName=leaf2 Nodes=gpu[3-4]  # far away
SwitchName=core Switches=leaf[1-2]
"""
BLOCK = "BlockName=b1 Nodes=gpu[1-3]\nBlockName=b2 Nodes=gpu4\nBlockSizes=2\n"
YAML = """---
- topology: flat
  cluster_default: false
  flat: true
- topology: racks
  cluster_default: true
  block:
    block_sizes:
      - 2
    blocks:
      - block: b1
        nodes: gpu[1-2]
      - block: b2
        nodes: "gpu[3-4]"
"""


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("topology.conf", TREE, ["leaf1", "leaf1", "leaf2", "leaf2"]),
        ("topology.conf", BLOCK, ["b1", "b1", "b1", "b2"]),
        ("topology.yaml", YAML, ["b1", "b1", "b2", "b2"]),
    ],
)
def test_a_topology_file_puts_nodes_into_blocks(tmp_path: Path, name: str, text: str, found: list[str]) -> None:
    (tmp_path / name).write_text(text)
    cluster = Cluster("named", (NodeClass(4, "A", 4, names="gpu[1-4]"),))
    assert list(with_topology(cluster, read_topology(tmp_path / name), name).blocks) == found


def test_a_topology_needs_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no nodes"):
        with_topology(Cluster("c", (NodeClass(4),)), {"gpu1": "b"}, "topology.conf")
    (tmp_path / "empty.conf").write_text("# nothing\n")
    with pytest.raises(InputError, match="names no switch"):
        read_topology(tmp_path / "empty.conf")


def test_the_columns_of_a_trace_are_read_back_equal(tmp_path: Path) -> None:
    trace = a_trace([a_job(switches=2), a_job(segment=4), a_job()])
    write_native(trace, tmp_path / "t.csv")
    again = read_trace(tmp_path / "t.csv")
    assert again.asked["switches"].strings() == ["2", "", ""]
    assert again.asked["segment"].strings() == ["", "4", ""]
