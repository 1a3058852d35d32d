"""The rules of docs/backfill.md one by one, each on a case small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Event, Ran, a_cluster, a_job, a_simulation, outcome, replay, starts

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.cluster import NodeClass

ONE = a_cluster(1, cpus=1)
FOUR = a_cluster(1, cpus=4)


# --- instants -------------------------------------------------------------------------------------------------------


def test_all_events_of_an_instant_come_before_its_pass() -> None:
    # At 10 the first job ends and a shorter one arrives: the pass sees both, and sjf prefers the newcomer.
    jobs = [a_job(0, 10), a_job(1, 9), a_job(10, 3)]
    assert starts(ONE, jobs, "sjf") == [0, 13, 10]


def test_ties_go_by_submit_time_then_id() -> None:
    late, early, twin = a_job(5, 10), a_job(4, 10), a_job(5, 10)
    ran = replay(ONE, [twin, late, early, a_job(0, 20)], "sjf")
    assert [ran[j.id].start for j in (early, late, twin)] == [20, 30, 40]


def test_a_job_of_no_length_starts_and_ends_at_once_and_the_pool_is_looked_at_again() -> None:
    jobs = [a_job(3, 0), a_job(3, 5)]
    ran = replay(ONE, jobs)
    assert [(ran[j.id].start, ran[j.id].end) for j in jobs] == [(3, 3), (3, 8)]


# --- limits and speeds ----------------------------------------------------------------------------------------------


def test_a_job_is_killed_at_its_limit() -> None:
    job, exact = a_job(0, 30, limit=20), a_job(0, 20, limit=20)
    ran = replay(FOUR, [job, exact])
    assert ran[job.id] == Ran(0, 20, "killed", ((0, 1),))
    assert ran[exact.id].state == "completed"


@pytest.mark.parametrize(
    ("speed", "run", "seconds"),
    [(2.0, 10, 5), (2.0, 5, 3), (2.0, 1, 1), (4.0, 1, 1), (4.0, 0, 0), (0.5, 10, 20), (1.3, 10, 8)],
)
def test_run_time_on_other_gpus_is_rounded_half_up_but_work_takes_at_least_a_second(
    speed: float, run: int, seconds: int
) -> None:
    # 5 s on a card twice as fast are 2.5 s: 3. 10 s on one 1.3 times as fast are 7.69 s: 8.
    job = a_job(0, run, limit=100, gpus=1)
    assert replay(a_cluster(NodeClass(1, "A", 1, speed=speed)), [job])[job.id].end == seconds


def test_the_run_time_of_a_row_that_names_its_gpu_type_was_measured_on_it() -> None:
    cluster = a_cluster(NodeClass(1, "A", 1, speed=2.0), NodeClass(1, "B", 1, speed=1.0))
    on_a, anywhere = a_job(0, 10, limit=50, gpus=1, gpu_type="A"), a_job(0, 10, limit=50, gpus=1, gpu_type="A|B")
    ran = replay(cluster, [on_a, anywhere])
    assert ran[on_a.id] == Ran(0, 10, "completed", ((0, 1),))
    assert ran[anywhere.id] == Ran(0, 10, "completed", ((1, 1),))


def test_a_gang_goes_at_the_pace_of_its_slowest_node() -> None:
    cluster = a_cluster(NodeClass(1, "A", 1, speed=2.0), NodeClass(1, "B", 1, speed=0.5))
    job = a_job(0, 10, limit=50, gpus=2, nodes=2)
    assert replay(cluster, [job])[job.id].end == 20


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_job_that_no_empty_cluster_could_run_is_rejected_with_a_reason() -> None:
    cluster = a_cluster(NodeClass(2, "A", 2, cpus=4, partition="p"), NodeClass(1, cpus=1, partition="q"))
    wide, typed, lost = a_job(0, gpus=5), a_job(0, gpus=1, gpu_type="H100"), a_job(0, partition="r")
    simulation, ids = a_simulation(cluster, [wide, typed, lost])
    simulation.run()
    assert {r.state for r in outcome(simulation, ids).values()} == {"rejected"}
    assert [simulation.workload.rejected[i] for i in range(3)] == [
        "asks for 5 × (1 GPU), but only 4 of these fit on the 2 nodes it may use, even empty ones",
        "no node of its partition has an acceptable GPU type",
        "unknown partition 'r'",
    ]


def test_shares_of_a_gpu_fill_one_gpu_before_the_next() -> None:
    # 0.5 + 0.5 on the first GPU leave the second whole for a job of one.
    jobs = [a_job(0, 10, gpus=0.5), a_job(0, 10, gpus=0.5), a_job(0, 10, gpus=1), a_job(0, 10, gpus=0.1)]
    assert starts(a_cluster(NodeClass(1, gpus=2)), jobs) == [0, 0, 0, 10]


def test_pools_do_not_block_each_other_but_overlapping_partitions_are_one_pool() -> None:
    def jobs() -> list:  # type: ignore[type-arg]
        return [a_job(0, 9, partition="p"), a_job(1, 9, partition="p", cpus=2, nodes=1), a_job(2, 9, partition="q")]

    apart = a_cluster(NodeClass(1, cpus=2, partition="p"), NodeClass(1, cpus=2, partition="q"))
    shared = a_cluster(NodeClass(1, cpus=2, partition="p"), NodeClass(1, cpus=2, partition="p,q"))
    blocked = a_cluster(NodeClass(1, cpus=2, partition="p,q"))
    assert starts(apart, jobs()) == [0, 9, 2]
    assert starts(shared, jobs()) == [0, 1, 10]
    assert starts(blocked, jobs()) == [0, 9, 18]


# --- easy -----------------------------------------------------------------------------------------------------------


def test_easy_counts_nodes_not_sums() -> None:
    """E2."""
    # At 10 two CPUs are free, one on each node; the head wants two on one node: its shadow time is 20, not 10.
    cluster = a_cluster(2, cpus=2)
    jobs = [a_job(0, 10), a_job(0, 20), a_job(0, 20), a_job(0, 10), a_job(1, 5, cpus=2, nodes=1)]
    ran = replay(cluster, jobs, "fcfs", "easy")
    assert [ran[j.id].nodes for j in jobs[:4]] == [((0, 1),), ((0, 1),), ((1, 1),), ((1, 1),)]
    assert ran[jobs[4].id].start == 20
    filler = a_job(10, 10)
    assert starts(cluster, [*jobs, filler], "fcfs", "easy")[-2:] == [20, 10]


def test_easy_plans_the_reservation_anew_at_each_pass() -> None:
    """E4."""
    # The head is reserved for 100; when the running job ends at 10 instead, it starts at 10.
    jobs = [a_job(0, 10, limit=100, cpus=4), a_job(1, 5, cpus=4), a_job(2, 200)]
    assert starts(FOUR, jobs, "fcfs", "easy") == [0, 10, 15]


# --- conservative ---------------------------------------------------------------------------------------------------


def test_conservative_books_arrivals_behind_all_bookings() -> None:
    """C1, C3."""
    # Job 2 is booked for 10–20, job 3 for 20–30. Job 4 fits beside nobody before 30; under easy it would pass job 3.
    jobs = [a_job(0, 10, cpus=3), a_job(1, 10, cpus=4), a_job(2, 10, cpus=3), a_job(3, 12, cpus=1)]
    assert starts(FOUR, jobs, "fcfs", "conservative") == [0, 10, 20, 20]
    long = a_job(3, 18, cpus=2)
    assert starts(FOUR, [*jobs[:3], long], "fcfs", "conservative") == [0, 10, 20, 30]


def test_conservative_moves_bookings_forward_in_order_after_a_release() -> None:
    """C2."""
    # Job 1 ends at 5 instead of 10: job 2 moves from 10 to 5, and job 3 behind it from 20 to 15.
    jobs = [a_job(0, 5, limit=10, cpus=4), a_job(1, 10, cpus=4), a_job(2, 10, cpus=4)]
    assert starts(FOUR, jobs, "fcfs", "conservative") == [0, 5, 15]


# --- slurm ----------------------------------------------------------------------------------------------------------


def test_slurm_starts_heads_at_once_and_backfills_an_interval_after_the_last_cycle() -> None:
    """S1, S2, S8."""
    # The start of job 1 is followed by a cycle at 0. Job 2 waits for job 1 until 1000 and blocks the main pass; job 3
    # is backfilled by the cycle at 30. Job 4 would end at 990, after its reservation begins, which is at 960.
    jobs = [a_job(0, 1000, cpus=3), a_job(1, 10, cpus=4), a_job(2, 600), a_job(3, 960)]
    assert starts(FOUR, jobs, "fcfs", "slurm") == [0, 1000, 30, 1010]


def test_slurm_looks_again_at_once_when_the_last_cycle_is_long_past() -> None:
    """S2: job 3 arrives at 500, behind a blocked head; no cycle was since 30."""
    jobs = [a_job(0, 1000, cpus=3), a_job(1, 10, cpus=4), a_job(500, 60)]
    assert starts(FOUR, jobs, "fcfs", "slurm") == [0, 1000, 500]


def test_a_partition_with_a_blocked_job_keeps_its_nodes_from_others_until_backfill() -> None:
    """S1: the job of q could run on the node that p and q share, and the main scheduler keeps it free for p."""
    cluster = a_cluster(NodeClass(1, cpus=2, partition="p"), NodeClass(1, cpus=2, partition="p,q"))
    wide = a_job(1, 60, cpus=4, partition="p")
    jobs = [a_job(0, 1000, cpus=2, nodes=1, partition="p"), wide, a_job(2, 60, cpus=2, partition="q")]
    assert starts(cluster, jobs, "fcfs", "slurm", "slurm") == [0, 1000, 30]


def test_a_reservation_of_slurm_takes_whole_nodes_from_a_whole_minute_on() -> None:
    """S5, S7: a GPU stays free beside the reserved job, and nobody may use it beyond 600."""
    cluster = a_cluster(NodeClass(1, gpus=4, cpus=64))
    jobs = [a_job(0, 630, gpus=2), a_job(1, 600, gpus=3), a_job(2, 900, gpus=1), a_job(3, 400, gpus=1)]
    assert starts(cluster, jobs, "fcfs", "slurm") == [0, 630, 630, 30]


def test_slurm_plans_for_the_end_of_a_batch_of_ends() -> None:
    """S4: job 3 could have nodes 1 and 3 at 1000, but is planned on 1 and 2 at 1020: job 4 may keep node 3 beyond."""
    jobs = [a_job(0, 1000), a_job(0, 1020), a_job(1, 60, cpus=2, nodes=2), a_job(2, 2000)]
    assert starts(a_cluster(3, cpus=1), jobs, "fcfs", "slurm", "slurm") == [0, 0, 1020, 30]


def test_slurm_makes_no_reservation_beyond_a_day() -> None:
    """S6."""
    # Job 2 could only start in two days: it is not reserved, and job 3 may take the free CPU for a week.
    day = 86400
    jobs = [a_job(0, 2 * day, cpus=3), a_job(1, 10, cpus=4), a_job(2, 7 * day)]
    assert starts(FOUR, jobs, "fcfs", "slurm") == [0, 7 * day + 30, 30]


def test_slurmctld_looks_for_jobs_over_their_limit_every_half_minute() -> None:
    """S9: the job of 100 s begins at 5 and ends at 120; the one that has done its work by then has completed."""
    settings = SlurmSettings(limit_check=30, start_overhead=2)
    jobs = [a_job(5, 500, limit=100), a_job(5, 101, limit=100), a_job(5, 50, limit=100)]
    ran = replay(FOUR, jobs, "fcfs", "slurm", slurm=settings)
    assert [(ran[j.id].end, ran[j.id].state) for j in jobs] == [(120, "killed"), (108, "completed"), (57, "completed")]


# --- failures and preemption ----------------------------------------------------------------------------------------


def test_a_job_whose_node_fails_goes_back_into_the_queue_and_starts_over() -> None:
    job = a_job(0, 10)
    events = [Event(4, 0, False), Event(6, 0, True)]
    assert replay(ONE, [job], events=events)[job.id] == Ran(6, 16, "completed", ((0, 1),))


def test_a_job_that_ends_when_its_node_fails_has_ended() -> None:
    job = a_job(0, 10)
    assert replay(ONE, [job], events=[Event(10, 0, False)])[job.id] == Ran(0, 10, "completed", ((0, 1),))


def test_node_events_of_one_instant_keep_their_order_and_may_come_before_the_first_job() -> None:
    down_again = [Event(0, 0, False), Event(5, 0, True), Event(5, 0, False), Event(9, 0, True)]
    assert starts(ONE, [a_job(2, 10)], events=down_again) == [9]


def test_nodes_are_known_of_every_job_however_often_it_starts() -> None:
    jobs = [a_job(0, 10), a_job(0, 10)]
    events = [Event(t, 0, up) for a in (1, 3, 5, 7) for t, up in ((a, False), (a + 1, True))]
    assert [r.nodes for r in replay(ONE, jobs, events=events).values()] == [((0, 1),)] * 2


def test_a_warm_start_puts_running_jobs_in_place() -> None:
    # At 10, job 1 has been running since 0 and has 40 s to go; job 2, submitted at 5, waits for it.
    simulation, ids = a_simulation(ONE, [a_job(0, 50), a_job(5, 10)])
    simulation.warm(np.array([0]), np.array([0]), 10)
    simulation.run()
    assert [(r.start, r.end) for r in outcome(simulation, ids).values()] == [(0, 50), (50, 60)]


def test_srpt_counts_work_done_not_time_passed() -> None:
    # At 40 the first job has 20 of its 100 s of work left on a card twice as fast: less than the newcomer's 50.
    cluster = a_cluster(NodeClass(1, "A", 1, speed=2.0))
    simulation, ids = a_simulation(cluster, [a_job(0, 100, gpus=1), a_job(40, 50, gpus=1)], "srpt", preempt=True)
    simulation.run()
    assert [(r.start, r.end) for r in outcome(simulation, ids).values()] == [(0, 50), (50, 75)]
    assert simulation.world["requeued"] == 0


def test_easy_sees_when_shared_gpus_become_whole() -> None:
    # The head wants both GPUs, of which one is shared until 10: it is reserved for 10, and a long job must wait.
    jobs = [a_job(0, 10, gpus=0.5), a_job(1, 10, gpus=2), a_job(1, 100, gpus=0.5)]
    assert starts(a_cluster(NodeClass(1, gpus=2)), jobs, "fcfs", "easy") == [0, 10, 20]


def test_a_head_that_waits_for_a_failed_node_holds_nobody_up_under_easy() -> None:
    """E5."""
    cluster = a_cluster(2, cpus=1)
    jobs = [a_job(1, 10, cpus=2), a_job(2, 1000)]
    events = [Event(1, 1, False), Event(50, 1, True)]
    assert starts(cluster, jobs, "fcfs", "easy", events=events) == [1002, 2]


def test_a_preempted_job_keeps_its_work() -> None:
    low, high = a_job(0, 100, priority=1.0), a_job(30, 10, priority=2.0)
    ran = replay(ONE, [low, high], "static-priority", preempt=True)
    assert (ran[high.id].start, ran[high.id].end) == (30, 40)
    assert (ran[low.id].start, ran[low.id].end) == (40, 110)  # 30 s done, 70 to go


def test_preemption_takes_the_lowest_first_and_of_equals_the_last_to_start() -> None:
    cluster = a_cluster(1, cpus=3)
    low = [a_job(0, 50, priority=1.0), a_job(1, 50, priority=1.0), a_job(0, 50, priority=1.5)]
    high = a_job(10, 5, priority=2.0)
    ran = replay(cluster, [*low, high], "static-priority", preempt=True)
    assert [ran[j.id].start for j in (*low, high)] == [0, 15, 0, 10]


def test_equal_rank_does_not_preempt() -> None:
    first, second = a_job(0, 100, priority=1.0), a_job(30, 10, priority=1.0)
    assert starts(ONE, [first, second], "static-priority", preempt=True) == [0, 100]


# --- clauses that the ones above leave ------------------------------------------------------------------------------


def test_without_backfill_a_job_that_does_not_fit_holds_up_all_behind_it() -> None:
    """N1."""
    jobs = [a_job(0, 10, cpus=3), a_job(1, 10, cpus=2), a_job(2, 10, cpus=1)]
    assert starts(a_cluster(1, cpus=4), jobs, "fcfs", "none") == [0, 10, 10]


def test_firstfit_lets_narrow_jobs_starve_a_wide_one() -> None:
    """N2."""
    jobs = [a_job(0, 10, cpus=3), a_job(1, 10, cpus=4), *(a_job(2 + i, 10, cpus=1) for i in range(0, 20, 9))]
    assert starts(a_cluster(1, cpus=4), jobs, "fcfs", "firstfit") == [0, 30, 2, 11, 20]


def test_easy_starts_what_ends_by_the_shadow_time_or_fits_beside_the_head() -> None:
    """E1, E3: the head needs 3 of 4 CPUs at 10; one CPU is extra, the other free one only until then."""
    first, head = a_job(0, 10, cpus=2), a_job(1, 10, cpus=3)
    too_long, short, narrow = a_job(2, 9, cpus=2), a_job(2, 8, cpus=1), a_job(2, 50, cpus=1)
    found = starts(a_cluster(1, cpus=4), [first, head, too_long, short, narrow], "fcfs", "easy")
    assert found == [0, 10, 20, 2, 2]


def test_bookings_are_void_when_a_node_goes_down_and_made_anew_when_it_returns() -> None:
    """C4: the wide job is booked for 10; its second node is away until 30."""
    jobs = [a_job(0, 10, cpus=2), a_job(1, 10, cpus=4)]
    events = [Event(5, 1, False), Event(30, 1, True)]
    assert starts(a_cluster(2, cpus=2), jobs, "fcfs", "conservative", events=events) == [0, 30]


def test_a_cycle_of_slurm_looks_at_the_first_five_hundred_jobs() -> None:
    """S3: job 502 of the queue would fit, and is not looked at until one before it has started."""
    running, wide = a_job(0, 100, cpus=3), [a_job(1, 10, cpus=4) for _ in range(500)]
    narrow = a_job(2, 10, cpus=1)
    assert starts(a_cluster(1, cpus=4), [running, *wide[:-1], narrow], "fcfs", "slurm")[-1] == 30
    assert starts(a_cluster(1, cpus=4), [running, *wide, narrow], "fcfs", "slurm")[-1] > 100


@pytest.mark.parametrize(
    ("placement", "nodes"), [("first-fit", ((0, 2), (1, 1))), ("best-fit", ((2, 3),)), ("spread", ((1, 3),))]
)
def test_where_a_job_of_three_cpus_goes(placement: str, nodes: tuple[tuple[int, int], ...]) -> None:
    """P1, P2: two, four and three CPUs are free."""
    cluster = a_cluster(NodeClass(1, cpus=2), NodeClass(1, cpus=4), NodeClass(1, cpus=3))
    job = a_job(0, 10, cpus=3)
    assert replay(cluster, [job], "fcfs", "easy", placement)[job.id].nodes == nodes


def test_round_robin_goes_on_behind_the_last_start() -> None:
    """P3."""
    jobs = [a_job(i, 100) for i in range(4)]
    found = replay(a_cluster(3, cpus=2), jobs, "fcfs", "easy", "round-robin")
    assert [found[j.id].nodes for j in jobs] == [((0, 1),), ((1, 1),), ((2, 1),), ((0, 1),)]


@pytest.mark.parametrize("placement", ["greedy", "mip"])
def test_by_type_a_job_goes_where_it_is_fastest_and_never_on_two_types(placement: str) -> None:
    """P5, P6: the slow node has more free, the fast one is used first; together they are never."""
    cluster = a_cluster(NodeClass(1, "A", 4, cpus=16, speed=1.0), NodeClass(1, "B", 2, cpus=16, speed=2.0))
    jobs = [a_job(0, 100, gpus=2), a_job(1, 100, gpus=3), a_job(2, 100, gpus=2)]
    found = replay(cluster, jobs, "fcfs", "easy", placement)
    assert [found[j.id].nodes for j in jobs] == [((1, 2),), ((0, 3),), ((1, 2),)]
    assert [found[j.id].start for j in jobs] == [0, 1, 50]
