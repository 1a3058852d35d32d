"""What is plotted: worked out by hand on three jobs, and equal to the metrics on a real replay."""

from __future__ import annotations

import numpy as np
import pytest
from builders import a_cluster, a_job
from report_cases import Case, a_case

from slurm_rl.domain.cluster import NodeClass
from slurm_rl.report import overtime, waits
from slurm_rl.report.charts import Chart
from slurm_rl.report.measured import Comparison, largest, size_groups

FCFS, SJF = 1, 2  # the place of these replays in `long_before_short`


def by_name(chart: Chart | None, run: int) -> dict[object, float | None]:
    assert chart is not None
    return dict(zip(chart.xs, chart.panels[0].series[run], strict=True))


def test_waits_by_user_size_and_priority(long_before_short: Case) -> None:
    measured = Comparison(*long_before_short)
    user, size, priority = waits.by_user(measured), waits.by_size(measured), waits.by_priority(measured)
    assert by_name(user, FCFS) == {"long": 90, "first": 0, "short": 1080}
    assert by_name(user, SJF) == {"long": 190, "first": 0, "short": 80}
    assert by_name(size, FCFS) == {"2 GPUs": 1080, "3–4 GPUs": 45}
    assert by_name(priority, SJF) == {"priority 2": 80, "priority 1": 95}
    assert user is not None
    assert user.xs == ["long", "first", "short"]  # 4000, 400 and 200 GPU-seconds
    assert user.counts == [1, 1, 1]


def test_what_the_trace_does_not_tell_is_not_plotted() -> None:
    prepared, runs = a_case([a_job(0, 10, gpus=1), a_job(0, 10, gpus=1)], "fcfs")
    measured = Comparison(prepared, runs)
    assert waits.by_user(measured) is None
    assert waits.users(measured) is None
    assert waits.by_priority(measured) is None
    assert waits.by_partition(measured) is None
    assert waits.glance(measured, 0) is None
    assert overtime.queue(measured) is None  # nobody waits
    assert overtime.fragmented(measured) is None


def test_waits_by_partition_most_jobs_first() -> None:
    cluster = a_cluster(NodeClass(1, gpus=1, partition="a"), NodeClass(1, gpus=1, partition="b"))
    jobs = [a_job(0, 10, gpus=1, partition="a")] + [a_job(0, 10, gpus=1, partition="b") for _ in range(3)]
    chart = waits.by_partition(Comparison(*a_case(jobs, "fcfs", cluster)))
    assert by_name(chart, 0) == {"b": 10, "a": 0}  # 0, 10 and 20 s
    assert chart is not None
    assert chart.counts == [3, 1]


def test_many_priorities_become_quarters_highest_first() -> None:
    jobs = [a_job(100 * i, 10, gpus=1, priority=i) for i in range(40)]
    chart = waits.by_priority(Comparison(*a_case(jobs, "fcfs")))
    assert chart is not None
    assert len(chart.xs) == 4
    assert chart.counts == [10, 10, 10, 10]
    assert str(chart.xs[0]).endswith("39")


def test_a_distribution_is_the_share_of_jobs_at_or_below(long_before_short: Case) -> None:
    chart = waits.distribution(Comparison(*long_before_short), "wait")
    assert chart is not None
    xs, ys = np.array(chart.xs, dtype=float), np.array(chart.panels[0].series[FCFS])
    assert xs[0] == 1
    assert xs[-1] == 1080
    assert ys[xs < 90] == pytest.approx(1 / 3)
    assert ys[(xs >= 90) & (xs < 1080)] == pytest.approx(2 / 3)
    assert ys[-1] == 1


def test_the_glance_is_a_multiple_of_the_baseline(hetero: Case) -> None:
    prepared, runs = hetero
    chart = waits.glance(Comparison(prepared, runs), 0)
    for run in (0, 1, 2):
        expected = runs[run].metrics["mean_wait"] / runs[0].metrics["mean_wait"]  # type: ignore[operator]
        assert by_name(chart, run)["mean wait"] == pytest.approx(expected)


def test_sizes_are_powers_of_two() -> None:
    sizes = (0.5, 1, 2, 3, 4, 5, 8, 9)
    cluster = a_cluster(NodeClass(4, gpus=16, cpus=64))
    jobs = [a_job(0, 10, gpus=g) for g in sizes] + [a_job(0, 10)]
    group, names = size_groups(Comparison(*a_case(jobs, "fcfs", cluster)))
    assert names == ["no GPU", "under 1 GPU", "1 GPU", "2 GPUs", "3–4 GPUs", "5–8 GPUs", "9–16 GPUs"]
    assert group.tolist() == [1, 2, 3, 4, 4, 5, 5, 6, 0]


def test_on_a_cluster_without_gpus_sizes_are_cpus() -> None:
    jobs = [a_job(0, 10, cpus=c) for c in (1, 2, 4)]
    assert size_groups(Comparison(*a_case(jobs, "fcfs", a_cluster(1, cpus=8))))[1] == ["1 CPU", "2 CPUs", "3–4 CPUs"]


def test_the_lightest_groups_become_one() -> None:
    code, names = largest(np.array([0, 1, 2, 3]), ["a", "b", "c", "d"], np.array([1, 5, 0, 3]), 2, "others")
    assert names == ["b", "others (2)"]
    assert code.tolist() == [1, 0, -1, 1]


def test_queues_and_utilization_add_up_to_the_metrics(hetero: Case) -> None:
    prepared, runs = hetero
    measured = Comparison(prepared, runs)
    queue, utilization = overtime.queue(measured), overtime.utilization(measured)
    assert queue is not None
    assert utilization is not None
    gpus = {"A100 (128)": 128, "V100 (192)": 192, "T4 (128)": 128}
    assert {p.name for p in utilization.panels} == set(gpus)
    first = int(prepared.trace.submit_time.min())
    for i, run in enumerate(runs):
        span = int(run.result.end.max()) - first
        waited = sum(sum(p.series[i]) for p in queue.panels) * measured.grid.width  # type: ignore[arg-type]
        assert waited / span == pytest.approx(run.metrics["queue_mean"])
        held = sum(gpus[p.name] * sum(p.series[i]) for p in utilization.panels) * measured.smooth.width  # type: ignore[arg-type]
        assert held / (448 * span) == pytest.approx(run.metrics["utilization"])


def test_queues_are_told_apart_by_the_type_asked_for(hetero: Case) -> None:
    queue = overtime.queue(Comparison(*hetero))
    assert queue is not None
    assert {"A100", "T4", "any GPU"} <= {p.name for p in queue.panels}


def test_on_a_cluster_without_gpus_there_is_one_queue() -> None:
    jobs = [a_job(0, 100, cpus=1), a_job(0, 100, cpus=1)]
    measured = Comparison(*a_case(jobs, "fcfs", a_cluster(1, cpus=1)))
    queue = overtime.queue(measured)
    assert queue is not None
    assert [p.name for p in queue.panels] == ["all jobs"]
    assert sum(v or 0 for v in queue.panels[0].series[0]) * measured.grid.width == pytest.approx(100)


def test_occupancy_of_each_node(long_before_short: Case) -> None:
    heat = overtime.occupancy(Comparison(*long_before_short))
    assert heat is not None
    # First and long hold all four GPUs for 1100 of 1200 s, then short two of them.
    row = heat.cells[FCFS][0].astype(int)
    assert set(row[: 168 * 1100 // 1200]) == {100}
    assert set(row[168 * 1100 // 1200 + 1 :]) == {50}
    assert heat.rows == ["batch, node 0"]


def test_a_large_cluster_shares_rows_among_neighbours_of_one_type() -> None:
    cluster = a_cluster(NodeClass(300, gpus=1, gpu_type="A"), NodeClass(50, gpus=1, gpu_type="B"))
    heat = overtime.occupancy(Comparison(*a_case([a_job(0, 10, gpus=350)], "fcfs", cluster)))
    assert heat is not None
    assert len(heat.rows) <= overtime.NODE_ROWS
    assert [(label, end - first) for label, first, end in heat.groups] == [("A", 100), ("B", 17)]
    assert (heat.rows[0], heat.rows[-1]) == ("A, nodes 0–2", "B, nodes 348–349")
    assert (heat.cells[0] == 100).all()


def test_only_measured_jobs_count(long_before_short: Case) -> None:
    from dataclasses import replace

    prepared, runs = long_before_short
    only_last = replace(prepared, measured=np.array([False, False, True]))
    chart = waits.by_user(Comparison(only_last, runs))
    assert by_name(chart, FCFS) == {"short": 1080}
