"""The reference of Slurm's own rules, by hand on small cases; tests/unit/evaluate compares with recorded schedules."""

from __future__ import annotations

import itertools

from builders import Job, a_cluster, a_job
from reference.model import View, ask_of, nodes_of
from reference.place import consecutive
from reference.sched_backfill import Planned, SlurmReference

from slurm_rl.domain.cluster import Cluster, NodeClass


def chosen(cluster: Cluster, job: Job, busy: dict[int, int]) -> list[int]:
    nodes = nodes_of(cluster)
    ask = ask_of(cluster, nodes, job)
    assert ask is not None
    view = View.empty(nodes, told_apart=False)
    for n, gpus in busy.items():
        view.gpus[n] -= gpus
    return [n for n, _ in consecutive(view, ask) or []]


MIXED = a_cluster(NodeClass(2, gpu_type="A100", gpus=8, cpus=64), NodeClass(2, gpu_type="T4", gpus=4, cpus=32))


def test_the_tightest_sufficient_run_is_taken() -> None:
    """P10."""
    assert chosen(MIXED, a_job(gpus=2, nodes=1), {}) == [0]
    # The busy third node leaves the runs {0, 1} and {3}: one node is enough.
    assert chosen(MIXED, a_job(gpus=2, nodes=1), {2: 3}) == [3]
    assert chosen(MIXED, a_job(gpus=4, nodes=2), {2: 3}) == [0, 1]


def test_without_a_sufficient_run_the_largest_comes_first() -> None:
    assert chosen(MIXED, a_job(gpus=6, nodes=3), {2: 4}) == [0, 1, 3]
    assert chosen(MIXED, a_job(gpus=8, nodes=4), {2: 4}) == []


def test_a_reservation_takes_whole_nodes_for_its_time() -> None:
    table = Planned([(0, 1000, {0, 1})])
    table.reserve({1}, 300, 600)
    assert table.records == [(0, 300, {0, 1}), (300, 600, {0}), (600, 1000, {0, 1})]
    assert table.free({0, 1}, 0, 299) == ({0, 1}, 600)
    assert table.free({0, 1}, 0, 300) == (
        {0},
        600,
    )  # an end that touches a reservation is within it
    assert table.overlaps({1}, 590, 700)
    assert not table.overlaps({1}, 600, 700)


def test_a_reservation_keeps_even_free_gpus_of_its_node() -> None:
    """One GPU of the node stays free beside the reserved job, and backfill still lets nobody long use it."""
    cluster = a_cluster(NodeClass(1, gpus=4, cpus=64))
    first = a_job(0, run=600, gpus=2)
    wide = a_job(1, run=600, gpus=3)
    long = a_job(2, run=900, gpus=1)
    short = a_job(3, run=400, gpus=1)
    ran = SlurmReference(cluster, [first, wide, long, short], placement="slurm").run()
    assert ran[wide.id].start == 600
    assert ran[short.id].start < 600
    assert ran[long.id].start >= 600


def test_ends_are_taken_in_batches_that_double() -> None:
    """A job that fits when the first of a batch ends is planned for the end of the batch's last."""
    cluster = a_cluster(4, cpus=1)
    running = [a_job(0, run=limit) for limit in (1000, 1020, 1500, 1900)]
    replay = SlurmReference(cluster, [*running, a_job(1, run=100)], placement="slurm")
    for job in replay.jobs[:4]:
        replay._enqueue(job)
        assert replay._start_if_it_fits(job)
    ask = replay.jobs[4].ask
    found = replay._will_run(ask, set(range(4)), ask.pool)
    assert found is not None
    # 1000 and 1020 end within one batch of 30 s around the first.
    assert found[0] == 1020


def test_runs_of_one_node_follow_brute_force() -> None:
    """Every pattern of five nodes, free or not: the chosen node is the first of the shortest run."""
    cluster = a_cluster(NodeClass(5, gpus=1, cpus=1))
    for pattern in itertools.product((0, 1), repeat=5):
        runs = [list(g) for free, g in itertools.groupby(range(5), key=lambda n: pattern[n]) if not free]
        expected = [min(runs, key=lambda run: (len(run), run[0]))[0]] if runs else []
        assert chosen(cluster, a_job(gpus=1), dict(enumerate(pattern))) == expected
