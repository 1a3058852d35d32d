"""GRES as three releases print it; the texts are those of a lab with mixed nodes, shards and MPS."""

from __future__ import annotations

import pytest
from recordings import FIXTURES

from slurm_rl.domain.topology import blocks_of
from slurm_rl.slurm import squeue_more
from slurm_rl.slurm.gres import (
    SHARED,
    asked_of_each_node,
    gpus_by_unit,
    node_counts,
    plain,
    reports_parts,
    shared_parts,
)
from slurm_rl.slurm.release import TABLE

MARK = "\x1fmarkx"


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (
            "gpu:a100:2,gpu:a100_3g.20gb:4,gpu:t4:2,fpga:2",
            {"gpu:a100": 2, "gpu:a100_3g.20gb": 4, "gpu:t4": 2, "fpga": 2},
        ),
        ("gpu:v100:4(S:0-1),shard:v100:16(S:0-1)", {"gpu:v100": 4, "shard:v100": 16}),
        ("gpu:p100:1(IDX:1),shard:p100:0(IDX:N/A),mps:p100:1(IDX:0),fpga:0", {"gpu:p100": 1, "mps:p100": 1}),
        ("gpu:v100:1(IDX:2),shard:v100:5(3/4,2/4,-/4,0/4)", {"gpu:v100": 1, "shard:v100": 5}),
        ("gpu:4090:8", {"gpu:4090": 8}),
        ("gpu:8", {"gpu": 8}),
        ("craynetwork:no_consume:4", {"craynetwork": 2**31 - 1}),
        ("lscratch:900G", {"lscratch": 2**31 - 1}),
        ("(null)", {}),
    ],
)
def test_counts_of_a_node(said: str, counts: dict[str, int]) -> None:
    assert node_counts(said) == counts


def test_a_node_with_one_type_of_gpu_is_plain() -> None:
    assert plain({"gpu:a100": 8})
    assert plain({})
    assert not plain({"gpu:a100": 4, "gpu:t4": 1})
    assert not plain({"gpu:a100": 4, "shard:a100": 16})
    assert not plain({"fpga": 1})


def test_parts_of_shared_gpus() -> None:
    old = "gpu:v100:2(IDX:2-3),shard:v100:2(IDX:0-1),mps:0,fpga:0"  # 22.05: the number of GPUs that are shared
    assert shared_parts(old) == {"shard": (SHARED, SHARED)}
    assert shared_parts("gpu:v100:2(IDX:1,3),shard:v100:2(IDX:0,2)") == {"shard": (SHARED, 0, SHARED)}
    assert shared_parts("mps:p100:0(IDX:N/A)") == {"mps": ()}
    assert not reports_parts(old)
    new = "gpu:v100:1(IDX:2),shard:v100:5(3/4,2/4,-/4,0/4)"  # 26.05
    assert shared_parts(new) == {"shard": (3, 2, -1, 0)}
    assert reports_parts(new)
    assert shared_parts("gpu:p100:0(IDX:N/A),mps:p100:60(60/100,0/100)") == {"mps": (60, 0)}


@pytest.mark.parametrize("prefix", ["gres:", "gres/"])
def test_what_a_job_asks_for_of_each_node(prefix: str) -> None:
    def per_node(*items: str) -> tuple[str, str]:
        return asked_of_each_node("N/A", ",".join(prefix + i for i in items), "N/A", "N/A", 2, 2)

    assert per_node("gpu:a100:2") == ("", "")  # GPUs of one type are told elsewhere
    assert per_node("gpu:2") == ("", "")
    assert per_node("gpu:a100:1", "gpu:t4:1") == ("gpu:a100:1,gpu:t4:1", "")
    assert per_node("shard:3") == ("shard:3", "")
    assert per_node("mps:50", "fpga") == ("mps:50,fpga:1", "")


def test_what_is_not_understood_says_why() -> None:
    def why(job: str = "", node: str = "", task: str = "", socket: str = "", nodes: int = 1) -> str:
        asked, problem = asked_of_each_node(job, node, task, socket, nodes, 2)
        assert bool(asked) != bool(problem)
        return problem

    assert "by socket" in why(socket="gres:gpu:1")
    assert "by task" in why(task="gres/shard:1")
    assert "over several nodes" in why(job="gres/gpu:a100:1,gres/gpu:t4:1", nodes=2)
    assert "with and without a type" in why(node="gres/gpu:a100:1,gres/gpu:1")
    assert asked_of_each_node("gres/gpu:a100:1,gres/gpu:t4:1", "", "", "", 1, 1) == ("gpu:a100:1,gpu:t4:1", "")
    assert asked_of_each_node("", "gres/fpga:1", "gres/gpu:t4=1", "", 1, 3) == ("fpga:1,gpu:t4:3", "")


def test_cpus_of_each_gpu() -> None:
    assert gpus_by_unit("gres:gpu:3") == gpus_by_unit("gres/gpu:3") == 3
    assert gpus_by_unit("N/A") == 0


def test_exclusions_sockets_and_cpus_per_gpu_come_from_calls_of_their_own() -> None:
    rows = (("9", "N/A", "gres:gpu:3", "0", "0:00"), ("10", "gres:gpu:1", "N/A", "0", "0:00"))
    rows += (("11", "N/A", "N/A", "0", "0:00"), ("12", "N/A", "N/A", "1", "5:00"))
    said = "".join("".join(value + MARK for value in row) + "\n" for row in rows)
    excluded = f"9{MARK}{MARK}\n8{MARK}mp-[1-2],sh-1{MARK}\n"
    assert squeue_more.details(said, excluded, MARK, TABLE[(22, 5)]) == {
        12: squeue_more.RequestDetails(switches=1, switch_wait=300),
        9: squeue_more.RequestDetails("", 3),
        10: squeue_more.RequestDetails("gres:gpu:1"),
        8: squeue_more.RequestDetails(excluded=("mp-1", "mp-2", "sh-1")),
    }


def test_segments_are_told_by_26_05() -> None:
    said = "".join(value + MARK for value in ("7", "N/A", "N/A", "0", "0:00", "4")) + "\n"
    assert squeue_more.details(said, "", MARK, TABLE[(26, 5)]) == {7: squeue_more.RequestDetails(segment=4)}


@pytest.mark.parametrize(
    "file",
    [
        "22.05/topology-tree",
        "24.11/topology-tree",
        "24.11/topology-block",
        "26.05/topology-tree",
        "26.05/topology-block",
    ],
)
def test_blocks_and_leaf_switches_as_releases_print_them(file: str) -> None:
    names = {f"a100-{i + 1}": f"{'s' if 'tree' in file else 'b'}{i // 2 + 1}" for i in range(6)}
    assert blocks_of((FIXTURES / f"{file}.txt").read_text()) == names
