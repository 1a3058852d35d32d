"""`slurm-rl advise-mig`: layouts, who may use a slice, and what it would have changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.cli import main
from slurm_rl.domain.cluster import Cluster, NodeClass, write_cluster
from slurm_rl.errors import InputError
from slurm_rl.evaluate.mig import MigLayout, advise, layouts, memory_needs, on_slices, profiles
from slurm_rl.place.speed import SpeedMatrix
from slurm_rl.traces.native import write_native
from slurm_rl.traces.trace import Trace, make_trace
from slurm_rl_sim.replay import parse_contenders, prepare, replay

TWO = Cluster("two", (NodeClass(2, "A100", 1, 16, speed=2.0),))
SEVEN = MigLayout("A100", "batch", 1, 1, 2, (("A100_1g.5gb", 7),))


def small_jobs(count: int = 14, mem: float = 3.0, util: float = 10.0, gpus: int = 1) -> Trace:
    """Jobs of one GPU each, all at once, that hardly use it; blank type, so that their run times are at speed 1."""
    return make_trace(
        "small",
        [0] * count,
        run_time=[2000] * count,
        time_limit=[4000] * count,
        num_gpus=[float(gpus)] * count,
        cpus=[1.0] * count,
        user=["u"] * count,
        measured={"gpu_mem_gb": np.full(count, mem), "gpu_util": np.full(count, util)},
    )


def test_profiles_by_type() -> None:
    assert profiles("A100") == {1: 5, 2: 10, 3: 20}
    assert profiles("a100-80gb") == {1: 10, 2: 20, 3: 40}
    assert profiles("H100") == {1: 10, 2: 20, 3: 40}
    assert profiles("A100_3g.20gb") == profiles("V100") == {}


def test_what_could_be_cut() -> None:
    cluster = Cluster("c", (NodeClass(8, "A100", 4), NodeClass(4, "V100", 8), NodeClass(1, "H100", 8)))
    found = layouts(cluster)
    assert {(x.row, x.nodes) for x in found} == {(1, 1), (1, 2), (1, 4)}  # one H100 node is all of its class
    assert {x.slices for x in found} >= {(("A100_1g.5gb", 7),), (("A100_2g.10gb", 3), ("A100_1g.5gb", 1))}
    with pytest.raises(InputError, match="MIG can cut"):
        layouts(Cluster("v", (NodeClass(4, "V100", 8),)))


def test_a_job_that_hardly_uses_its_gpu_loses_nothing_on_a_slice() -> None:
    prepared = prepare(small_jobs(), TWO)
    (before,) = replay(prepared, parse_contenders("fcfs", "easy"), placement="greedy")
    assert before.metrics["mean_jct"] == 4000.0  # seven rounds of two jobs of 1,000 s
    sliced, may = on_slices(prepared, SEVEN, memory_needs(prepared.trace, 1.1))
    assert may == 1.0
    (after,) = replay(sliced, parse_contenders("fcfs", "easy"), placement="greedy")
    # Seven on slices and one on the GPU that is whole, then the other six.
    assert after.metrics["mean_jct"] == pytest.approx((8 * 1000 + 6 * 2000) / 14, abs=2)


def test_a_busy_job_is_slower_there_and_a_large_one_stays_away() -> None:
    prepared = prepare(small_jobs(2, util=100.0), TWO)
    sliced, _ = on_slices(prepared, SEVEN, memory_needs(prepared.trace, 1.1))
    # 1,000 s at the speed of a whole GPU, seven times that on a seventh: beyond its limit.
    assert "A100_1g.5gb" not in sliced.trace.gpu_type.names[0]
    prepared = prepare(small_jobs(2, mem=4.8), TWO)
    sliced, may = on_slices(prepared, SEVEN, memory_needs(prepared.trace, 1.1))
    assert (sliced.trace.gpu_type.names, may) == (("A100",), 0.0)
    (run,) = replay(sliced, parse_contenders("fcfs", "easy"), placement="greedy")
    assert run.metrics["mean_jct"] == 1500.0  # both on the whole GPU that is left


def test_the_best_layout_comes_first_with_its_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster("site", (NodeClass(4, "A100", 1, 16, speed=2.0),))
    write_native(small_jobs(60), tmp_path / "t.csv")
    write_cluster(cluster, tmp_path / "t.cluster.json")
    with pytest.raises(SystemExit) as ended:
        main(["advise-mig", str(tmp_path / "t.csv"), "--replicates", "2", "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    best = said["layouts"][0]
    assert best["slices"] == {"A100_1g.5gb": 7}
    assert best["nodes"] == 2
    assert best["ratio"]["mean_jct"] < 0.6
    assert best["low"]["mean_jct"] <= best["ratio"]["mean_jct"] <= best["high"]["mean_jct"]
    assert best["worth_it"]


def test_gangs_gain_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster("site", (NodeClass(4, "A100", 1, 16, speed=2.0),))
    _, found = advise(small_jobs(8, gpus=2), cluster, parse_contenders("fcfs", "easy")[0], replicates=2)
    assert not any(a.worth_it for a in found)


def test_unknown_memory_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = make_trace("t", [0], run_time=[10], time_limit=[10], num_gpus=[1.0])
    write_native(trace, tmp_path / "t.csv")
    write_cluster(TWO, tmp_path / "t.cluster.json")
    with pytest.raises(SystemExit) as ended:
        main(["advise-mig", str(tmp_path / "t.csv")])
    assert ended.value.code != 0
    assert "how much GPU memory" in capsys.readouterr().err


def test_the_planner_leaves_the_whole_gpu_to_who_gains_by_it() -> None:
    """Untyped requests on a node with a whole GPU and a slice: prices, not the order, say who gets which."""
    node = NodeClass(1, cpus=16, gres=(("gpu:A100", 1), ("gpu:A100_3g.20gb", 1)), speed=2.0)
    trace = make_trace(
        "two",
        [0, 0],
        run_time=[1000, 1000],
        time_limit=[9000, 9000],
        num_gpus=[1.0, 1.0],
        cpus=[1.0, 1.0],
        user=["a", "b"],
        job_name=["light", "heavy"],
    )
    matrix = SpeedMatrix(
        {"A100": 2.0, "A100_3g.20gb": 0.9},
        {
            ("a", "light"): {"A100": 1.0, "A100_3g.20gb": 0.99},
            ("b", "heavy"): {"A100": 2.0, "A100_3g.20gb": 0.5},
        },
    )
    prepared = prepare(trace, Cluster("one", (node,)), speeds=matrix)
    jct = {}
    for placement in ("greedy", "mip"):
        (run,) = replay(prepared, parse_contenders("fcfs", "easy"), placement=placement)
        jct[placement] = run.metrics["mean_jct"]
    assert jct["greedy"] == 1500.0  # the first in order takes the whole GPU: 1,000 and 2,000 s
    assert jct["mip"] == pytest.approx((1010 + 500) / 2)
