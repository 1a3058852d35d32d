"""The public API: what it exports, that it is cheap to import, and that it gives what the commands give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import a_cluster, a_job, a_trace

import slurm_rl
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.traces.trace import Trace

EXPORTED = """
FIGURES JOB_FEATURES NODE_FIGURES POOL_FEATURES Cluster Evaluation Explanation Model NodeClass Queue Results Simulation
SlurmRlError Trace evaluate explain from_sb3 from_torch heuristic load_model placement policy read_cluster read_trace
replay save_onnx
""".split()
CLUSTER = a_cluster(NodeClass(2, "A100", 4, 32, 256.0, "gpu"))


def some_jobs(count: int = 60) -> Trace:
    dice = np.random.default_rng(5)
    runs = np.exp(dice.normal(5.0, 1.0, count)).astype(int) + 1
    return a_trace(
        [
            a_job(7 * i, int(run), int(run) * 2, gpus=float(2 ** dice.integers(0, 4)), user=f"u{i % 4}")
            for i, run in enumerate(runs)
        ]
    )


def test_the_exported_names_are_pinned() -> None:
    assert sorted(slurm_rl.__all__) == sorted(EXPORTED)
    for name in EXPORTED:
        assert getattr(slurm_rl, name) is not None
        assert name in Path("docs/api.md").read_text(encoding="utf-8"), f"docs/api.md does not name {name}"


def test_an_import_loads_nothing_heavy() -> None:
    """What takes time is loaded on first use."""
    heavy = "numba numpy pandas torch gymnasium scipy".split()
    code = f"import sys, slurm_rl; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_packages_of_that_name_can_still_be_imported() -> None:
    from slurm_rl.evaluate import paired
    from slurm_rl.policy import registry

    assert callable(slurm_rl.policy)
    assert callable(slurm_rl.evaluate)
    assert slurm_rl.policy.registry is registry
    assert slurm_rl.evaluate.paired is paired


def test_a_replay_as_frames_report_and_html(tmp_path: Path) -> None:
    trace = some_jobs()
    results = slurm_rl.replay(trace, CLUSTER, policies=["fcfs", "sjf@user", "fcfs+firstfit"])
    assert results.table().index.tolist() == ["fcfs", "sjf@user", "fcfs+firstfit"]
    jobs = results.jobs
    assert isinstance(jobs, pd.DataFrame)
    assert len(jobs) == 3 * len(trace)
    fcfs = jobs[jobs.policy == "fcfs"]
    assert results.table("mean_wait").loc["fcfs", "mean_wait"] == pytest.approx(fcfs["wait"].astype(float).mean())
    first = results.timeline.query("policy == 'fcfs'")
    assert first["gpus"].max() <= 8
    assert first.iloc[-1][["queued", "running", "gpus"]].tolist() == [0, 0, 0.0]
    assert results.report(tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    shown = results._repr_html_()
    assert "<table" in shown
    assert shown.count("data:image/svg+xml;base64,") == 2
    assert "sjf@user" in repr(results)


def test_policies_in_every_form_give_the_same() -> None:
    trace = some_jobs()
    named = slurm_rl.replay(trace, CLUSTER, policies="rl:default").runs[0].result.start
    model = slurm_rl.replay(trace, CLUSTER, policies=[slurm_rl.load_model("default")]).runs[0].result.start
    assert np.array_equal(named, model)

    def shortest(queue: slurm_rl.Queue) -> np.ndarray:
        return -queue.estimate

    by_hand = slurm_rl.replay(trace, CLUSTER, policies=[shortest, "sjf@user"])
    assert np.array_equal(by_hand.runs[0].result.start, by_hand.runs[1].result.start)
    assert by_hand.labels[0] == "shortest"


def test_an_evaluation_as_a_table() -> None:
    found = slurm_rl.evaluate(some_jobs(), CLUSTER, ["sjf@user"], base="fcfs", replicates=2)
    table = found.table("mean_wait")
    assert table.loc["fcfs", "ratio"] == 1.0
    row = table.loc["sjf@user"]
    assert row["low"] <= row["ratio"] <= row["high"]
    assert "<table" in found._repr_html_()


def test_stepping_by_hand_follows_the_callers_order() -> None:
    jobs = [a_job(0, 100, cpus=1), a_job(1, 10, cpus=1), a_job(2, 10, cpus=1), a_job(3, 10, cpus=1)]
    ids = [j.id for j in jobs]
    simulation = slurm_rl.Simulation(a_trace(jobs), a_cluster(1, cpus=1))
    while simulation.to_next_pass():
        waiting = simulation.pending.index.tolist()
        simulation.step(sorted(waiting, reverse=True))  # the last to come goes first
    started = simulation.results().jobs.set_index("job_id")["start_time"]
    assert [started[i] for i in ids] == [0, 120, 110, 100]


def test_a_step_with_an_order_needs_a_simulation_without_a_policy() -> None:
    simulation = slurm_rl.Simulation(some_jobs(), CLUSTER, "fcfs")
    with pytest.raises(slurm_rl.SlurmRlError, match="makes the order"):
        simulation.step([1])


def test_an_explanation_tells_rank_score_and_figures() -> None:
    jobs = [a_job(0, 100, cpus=1), a_job(1, 50, cpus=1), a_job(2, 10, cpus=1)]
    simulation = slurm_rl.Simulation(a_trace(jobs), a_cluster(1, cpus=1), "sjf")
    simulation.run(2)
    assert simulation.order() == [jobs[2].id, jobs[1].id]
    assert simulation.running.index.tolist() == [jobs[0].id]
    told = slurm_rl.explain(jobs[1].id, simulation)  # at the next pass: the first job has ended
    assert (told.now, told.rank, told.of, told.starts_now) == (100, 2, 2, False)
    assert told.figures["estimate"] == 50
    assert told.figures["wait"] == 99
    assert slurm_rl.explain(jobs[2].id, simulation).starts_now
    with pytest.raises(slurm_rl.SlurmRlError, match="does not wait"):
        slurm_rl.explain(jobs[0].id, simulation)
