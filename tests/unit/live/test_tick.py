"""The controller's tick on a Slurm in memory: order, bounds, dead band, budgets, modes and who may lead."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from slurm_rl.controller.assign import _inversions
from slurm_rl.controller.budget import ReadBudget
from slurm_rl.controller.job_rows import own_priority
from slurm_rl.controller.lane import LaneBook
from slurm_rl.controller.live_policy import LivePolicy, load_policy
from slurm_rl.controller.undo import undo
from slurm_rl.domain.snapshot import Snapshot
from slurm_rl.errors import SlurmError
from slurm_rl.kernel.arrays import Array
from slurm_rl.obs.journal import Journal, JournalError, LostLease
from slurm_rl.obs.metrics import Metrics
from slurm_rl.policy.registry import parse_policy
from slurm_rl.slurm.model import Health, JobUpdate, PriorityFactors, SlurmPartition

from .conftest import MakeController
from .fake_slurm import NOW, FakeSlurm, a_job, a_running_job


def a_queue(count: int = 6) -> FakeSlurm:
    """Jobs 1 … count behind two that hold every GPU, the later the shorter."""
    jobs = [a_job(i, limit=1000 * (count + 1 - i)) for i in range(1, count + 1)]
    return FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"))


def test_a_tick_that_read_too_much_spaces_ticks_out() -> None:
    class Wordy:
        def load(self) -> tuple[int, int]:
            return 9, 500_000_000

    metrics = Metrics()
    reading = ReadBudget(metrics)
    reading.count(Wordy(), 250.0)
    assert reading.stretch == 2.0
    assert b"slurmrl_tick_slurm_calls 9.0" in metrics.text()
    reading.count(Wordy(), 1000.0)
    assert reading.stretch == 1.0
    reading.count(object(), 0.001)  # a client that does not count
    assert reading.stretch == 1.0


def test_a_tick_brings_the_queue_into_the_policys_order(controller: MakeController) -> None:
    slurm = a_queue()
    assert slurm.order() == [1, 2, 3, 4, 5, 6]
    tick = controller(slurm).tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]
    assert (tick.outcome, tick.ordered, tick.drifted) == ("done", 6, 0)
    assert tick.applied == tick.wanted == len(slurm.written)


def test_the_same_plan_twice_writes_nothing(controller: MakeController) -> None:
    slurm = a_queue()
    first = controller(slurm)
    first.tick()
    slurm.written.clear()
    assert first.tick().applied == 0
    assert controller(slurm, holder=first.holder).tick().applied == 0, "nor does a controller that was started anew"
    assert slurm.written == []


def test_one_new_job_costs_one_write(controller: MakeController) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    slurm.written.clear()
    slurm.jobs[7] = a_job(7, limit=3500, waited=1)
    c.tick()
    assert slurm.order() == [6, 5, 4, 7, 3, 2, 1]
    assert [u.job_id for u in slurm.written] == [7]


def test_factors_stay_within_the_bound_and_no_job_falls_to_the_floor(controller: MakeController) -> None:
    slurm = a_queue(40)
    controller(slurm, influence=0.5).tick()
    factors = slurm.site_factors()
    assert slurm.order() == list(range(40, 0, -1))
    assert max(abs(f) for f in factors.values()) <= 1500  # half of the weights' sum
    assert min(j.priority for j in slurm.jobs.values() if j.pending) >= 1


def test_no_job_is_pushed_below_what_backfill_reserves_for(controller: MakeController) -> None:
    slurm = a_queue(20)
    slurm.config["SchedulerParameters"] = "bf_continue,bf_min_prio_reserve=450"
    slurm.jobs[1] = a_job(1, limit=90_000, own=300)  # below the floor without our doing: it is not pushed further
    controller(slurm).tick()
    priorities = {j.job_id: j.priority for j in slurm.jobs.values() if j.pending}
    assert priorities.pop(1) >= 300
    assert min(priorities.values()) >= 450


def test_slurms_own_factors_still_act(controller: MakeController) -> None:
    """A job whose fairshare lifts it by more than the bound stays first, whatever the policy thinks of it."""
    slurm = a_queue()
    slurm.jobs[1] = a_job(1, limit=90_000, own=500 + 3001)  # more than twice 1500, the bound
    controller(slurm).tick()
    assert slurm.order() == [1, 6, 5, 4, 3, 2]


def test_without_influence_nothing_is_written(controller: MakeController) -> None:
    slurm = a_queue()
    controller(slurm, influence=0.0).tick()
    assert slurm.written == []


def test_only_the_head_of_the_queue_is_written_and_stays_above_the_rest(controller: MakeController) -> None:
    slurm = a_queue(12)
    controller(slurm, top_jobs=4).tick()
    assert slurm.order()[:4] == [12, 11, 10, 9]
    assert {u.job_id for u in slurm.written} <= {12, 11, 10, 9}


def test_a_budget_bounds_a_tick_and_the_head_goes_first(controller: MakeController) -> None:
    slurm = a_queue(30)
    c = controller(slurm, updates_per_tick=10)
    for right in (10, 20):
        assert c.tick().applied == 10
        assert slurm.order()[:right] == list(range(30, 30 - right, -1)), "each tick adds to a head that is in order"
    c.tick()
    assert slurm.order() == list(range(30, 0, -1))


def test_a_budget_shared_by_several_queues_leaves_none_in_worse_order(controller: MakeController) -> None:
    """Two tiers of one partition's nodes, in the order of twenty seeds: what is cut off is cut off both."""
    for seed in range(20):
        dice = random.Random(seed)
        names = ("batch", "urgent")
        slurm = FakeSlurm(
            *(
                a_job(i, limit=60 * dice.randrange(1, 999), site=dice.randrange(-200, 200), partition=names[i % 2])
                for i in range(1, 61)
            ),
            a_running_job(901, "n1"),
            a_running_job(902, "n2"),
        )
        slurm.partitions = tuple(
            SlurmPartition(name=name, state="UP", default=tier == 1, default_time=3600, priority_tier=tier)
            for tier, name in enumerate(names, 1)
        )
        slurm.nodes = tuple(msgspec.structs.replace(n, partitions=names) for n in slurm.nodes)
        c = controller(slurm, updates_per_tick=15, influence=1.0)
        seen: dict[int, int] = {}
        for _ in range(12):
            c.tick()
            assert c.observed is not None
            view, plan = c.observed
            for line in set(view.line[list(plan.order)].tolist()):
                mine = [j for j in plan.order if view.line[j] == line]
                factors = [slurm.site_factors()[view.jobs[j].job_id] for j in mine]
                wrong = _inversions(view.base[mine].tolist(), factors)
                assert wrong <= seen.get(line, wrong), (seed, line)
                seen[line] = wrong
        assert list(seen.values()) == [0, 0]


def test_budgets_halve_while_slurmctld_is_busy_and_recover(controller: MakeController) -> None:
    slurm = a_queue(30)
    c = controller(slurm, updates_per_tick=8)
    slurm.health_now = Health(up=True, controller="fake", answer_seconds=0.0, server_threads=200)
    assert [c.tick().applied for _ in range(3)] == [4, 2, 1]
    slurm.health_now = Health(up=True, controller="fake", answer_seconds=0.0)
    assert [c.tick().applied for _ in range(3)] == [2, 4, 8]


def test_shadow_records_each_change_once_and_writes_nothing(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue()
    c = controller(slurm, mode="shadow")
    first, second = c.tick(), c.tick()
    assert slurm.written == []
    assert (first.wanted > 0, second.wanted) == (True, 0)
    period = journal.shadow_period()
    assert period is not None
    assert period[2:] == (2, first.wanted)


def test_off_does_not_even_look(controller: MakeController) -> None:
    slurm = a_queue()
    assert controller(slurm, mode="off").tick().outcome == "off"
    assert slurm.snapshots == 0


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("held", {"priority": 0, "reason": "JobHeldUser"}),
        ("cron", {"cron": True}),
        ("reservation", {"reservation": "maintenance"}),
        ("dependent", {"dependency": "afterok:1(unfulfilled)"}),
        ("deferred", {"eligible_time": int(NOW) + 60}),
        ("heterogeneous", {"het_job_id": 3}),
    ],
)
def test_some_jobs_are_left_alone(controller: MakeController, why: str, change: dict[str, object]) -> None:
    slurm = a_queue()
    slurm.jobs[6] = msgspec.structs.replace(slurm.jobs[6], **change)
    c = controller(slurm)
    c.tick()
    assert 6 not in {u.job_id for u in slurm.written}
    assert c.report is not None
    row = c.report.job(6)
    assert row is not None
    assert row.rank == -1


def test_an_array_is_updated_by_its_master_record(controller: MakeController) -> None:
    slurm = a_queue(3)
    slurm.jobs[9] = a_job(9, limit=10, array_job_id=9, array_tasks="4-7", array_task_count=4)
    controller(slurm).tick()
    assert JobUpdate(job_id=9, array_tasks="4-7", site_factor=slurm.site_factors()[9]) in slurm.written


def test_a_longer_limit_moves_a_job_back(controller: MakeController) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    slurm.jobs[6] = msgspec.structs.replace(slurm.jobs[6], time_limit=80_000)
    c.tick()
    assert slurm.order() == [5, 4, 3, 2, 1, 6]


def test_drift_is_counted_and_corrected(controller: MakeController) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    slurm.set_site(6, -400)
    tick = c.tick()
    assert tick.drifted == 1
    assert slurm.order() == [6, 5, 4, 3, 2, 1]


def test_a_job_that_starved_goes_first(controller: MakeController) -> None:
    slurm = a_queue()
    slurm.jobs[1] = a_job(1, limit=9000, waited=200_000)
    c = controller(slurm)
    c.tick()
    assert slurm.order() == [1, 6, 5, 4, 3, 2]
    assert c.report is not None
    row = c.report.job(1)
    assert row is not None
    assert row.promoted


def test_the_lane_lets_the_oldest_go_first_and_counts_what_it_started(
    controller: MakeController, tmp_path: Path
) -> None:
    slurm = a_queue()
    slurm.jobs[1] = a_job(1, limit=9000, waited=200_000)
    c = controller(slurm, starvation="lane", lane_share=0.3, state_dir=str(tmp_path))
    c.tick()
    assert slurm.order() == [1, 6, 5, 4, 3, 2]
    assert c.report is not None
    row = c.report.job(1)
    assert row is not None
    assert row.why == "1 of 6: goes first within the lane: 0% of 30% used"
    # Once it runs, all that was started was started by the lane: the next one waits for its share.
    slurm.jobs[1] = a_running_job(1, "n1")
    slurm.jobs[2] = a_job(2, limit=9000, waited=199_000)
    c.tick()
    assert [share.lane / share.started for share in c.lane.shares.values()] == [1.0]
    row = c.report.job(2)
    assert row is not None
    assert not row.promoted
    assert LaneBook(Path(c.config.state_dir)).shares == c.lane.shares, "a restart does not open it anew"


def given(scores: Sequence[float]) -> LivePolicy:
    def score(snapshot: Snapshot) -> Array:
        return np.resize(np.array(scores, dtype=np.float64), len(snapshot.pending))

    return LivePolicy("rl:test", parse_policy("fcfs"), "abc", score)


def test_a_learned_policys_scores_rule(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue()
    controller(slurm, policy=given([3, 1, 4, 1.5, 9, 2])).tick()
    assert slurm.order() == [5, 3, 1, 6, 4, 2]
    with closing(sqlite3.connect(journal.path)) as db:
        assert db.execute("SELECT policy, model FROM tick").fetchone() == ("rl:test", "abc")


@pytest.mark.parametrize("bad", [math.nan, math.inf, 7.0])
def test_unusable_scores_are_dropped_then_slurm_gets_its_order_back(controller: MakeController, bad: float) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    slurm.written.clear()
    c.policy = given([bad])
    assert [c.tick().note for _ in range(2)] == ["fallback"] * 2
    assert slurm.written == []
    c.tick()
    assert set(slurm.site_factors().values()) == {0}


@pytest.mark.parametrize("count", [0, 5, 7])
def test_scores_of_other_jobs_than_those_that_wait_are_dropped(controller: MakeController, count: int) -> None:
    slurm = a_queue()
    c = controller(slurm, policy=LivePolicy("rl:test", parse_policy("fcfs"), "abc", lambda snapshot: np.arange(count)))
    tick = c.tick()
    assert (tick.note, tick.applied) == ("fallback", 0)
    assert b"slurmrl_fallbacks_total 1.0" in c.metrics.text(), "which is what the alert looks at"


def test_a_larger_request_is_scored_anew(controller: MakeController) -> None:
    """A user changes the GRES of a waiting job."""
    slurm = a_queue()
    c = controller(slurm, policy=load_policy("saf@limit"))
    c.tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]
    slurm.jobs[6] = msgspec.structs.replace(slurm.jobs[6], gpus={"": 8})  # 8 × 1000 s, more than any other
    c.tick()
    assert slurm.order() == [5, 4, 3, 2, 1, 6]


def test_a_job_that_took_over_an_id_is_another_job(controller: MakeController, journal: Journal) -> None:
    """Slurm counts up and begins again: what was written to the first one says nothing about the second."""
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    slurm.jobs[6] = a_job(6, limit=90_000, waited=1)
    tick = c.tick()
    assert tick.drifted == 0, "nobody changed a factor: the job is new"
    assert slurm.order()[-1] == 6
    assert (6, int(NOW) - 1) in journal.touched() or slurm.site_factors()[6] == 0


def test_every_write_is_in_the_journal_before_it_is_sent(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue()
    seen: list[dict[tuple[int, int], int]] = []
    slurm.on_update = lambda updates: seen.append(journal.touched())
    controller(slurm, updates_per_second=2, updates_per_tick=2).tick()
    expected = {(u.job_id, int(NOW) - 100): u.site_factor for u in slurm.written if u.site_factor}
    assert seen[0] == expected


def test_undo_returns_every_touched_job_and_no_other(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue()
    slurm.jobs[50] = a_job(50, site=77, reservation="mine")  # an operator's: not ours
    controller(slurm).tick()
    done = undo(slurm, journal, clock=lambda: NOW)
    assert (done.left, done.returned) == ((), done.touched)
    factors = slurm.site_factors()
    assert factors.pop(50) == 77
    assert set(factors.values()) == {0}
    assert journal.touched() == {}


def test_undo_after_death_between_journal_and_answer(controller: MakeController, journal: Journal) -> None:
    """slurmctld took the updates, and we died before we heard of it."""
    slurm = a_queue()

    def die(updates: Sequence[JobUpdate]) -> None:
        for u in updates:
            slurm.set_site(u.job_id, u.site_factor or 0)
        raise SystemExit

    slurm.on_update = die
    with pytest.raises(SystemExit):
        controller(slurm).tick()
    assert any(slurm.site_factors().values())
    slurm.on_update = lambda updates: None
    undo(slurm, Journal(journal.path), clock=lambda: NOW)
    assert set(slurm.site_factors().values()) == {0}


def test_undo_knows_a_job_by_id_and_submit_time(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue()
    controller(slurm).tick()
    slurm.jobs[6] = a_job(6, site=55, waited=1)  # ids are reused: this is another job
    undo(slurm, journal, clock=lambda: NOW)
    assert slurm.site_factors()[6] == 55


def test_undo_finds_array_tasks_that_were_split_off(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue(3)
    slurm.jobs[9] = a_job(9, limit=10, array_job_id=9, array_tasks="1-2", array_task_count=2)
    controller(slurm).tick()
    factor = slurm.site_factors()[9]
    assert factor
    slurm.jobs[10] = a_job(10, site=factor, array_job_id=9, array_task_id=1)
    undo(slurm, journal, clock=lambda: NOW)
    assert slurm.site_factors()[10] == 0


def test_undo_takes_back_what_the_submit_plugin_wrote(journal: Journal) -> None:
    slurm = FakeSlurm(a_job(1, site=321, user="root", waited=2), a_job(2, site=321, user="root", waited=900))
    journal.advise(NOW - 2.4, 0, 321)
    undo(slurm, journal, clock=lambda: NOW)
    assert slurm.site_factors() == {1: 0, 2: 321}


def test_undo_stops_a_running_controller_for_good(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue()
    running = controller(slurm, holder="elsewhere/1/1")
    running.tick()
    assert undo(slurm, journal, clock=lambda: NOW).stopped_leader
    slurm.written.clear()
    assert running.tick().outcome == "off"
    assert slurm.written == []


def test_leaving_enforce_takes_everything_back(controller: MakeController) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    c.command("shadow", "an admin")
    c.tick()
    assert set(slurm.site_factors().values()) == {0}
    assert c.mode == "shadow"


def test_one_leads_and_the_other_stands_by_until_the_lease_expires(controller: MakeController) -> None:
    slurm = a_queue()
    first, second = controller(slurm, holder="a/1/1"), controller(slurm, holder="b/2/2")
    first.tick()
    assert second.tick().outcome == "standby"
    slurm.now += 61
    assert second.tick().outcome == "done"
    assert first.tick().outcome == "standby"


def test_a_leader_that_died_on_this_machine_is_replaced_at_once(controller: MakeController, journal: Journal) -> None:
    import socket

    slurm = a_queue()
    dead = f"{socket.gethostname()}/{2**22 + 1}/1"
    assert journal.acquire(dead, NOW, 60.0) == 1
    assert controller(slurm).tick().outcome == "done"


def test_a_stale_leader_that_resumes_writes_nothing(controller: MakeController, journal: Journal) -> None:
    """It stood still in its tick for longer than its lease, and another one took over and wrote."""
    slurm = a_queue(12)
    stale = controller(slurm, holder="a/1/1", updates_per_second=4)
    other = controller(slurm, holder="b/2/2")
    portions = []

    def stall(updates: Sequence[JobUpdate]) -> None:
        portions.append(len(updates))
        if len(portions) == 1:
            slurm.now += 61
            slurm.on_update = lambda updates: None
            other.tick()
            slurm.on_update = stall

    slurm.on_update = stall
    with pytest.raises(LostLease):
        stale.tick()
    assert portions == [4], "the portion that was under way, and none after it"


def test_standing_still_between_journal_and_write_writes_nothing(
    controller: MakeController, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = a_queue()
    c = controller(slurm)
    intend = journal.intend

    def slow(*arguments: object) -> list[int]:
        numbers = intend(*arguments)  # type: ignore[arg-type]
        slurm.now += 30
        return numbers

    monkeypatch.setattr(journal, "intend", slow)
    with pytest.raises(LostLease, match="stood still"):
        c.tick()
    assert slurm.written == []


def test_a_full_disk_stops_writing_and_undo_still_works(
    controller: MakeController, journal: Journal, tmp_path: Path
) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    slurm.written.clear()
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    slurm.jobs |= {i: a_job(i, limit=i) for i in range(100, 700)}

    def until_full() -> None:
        for _ in range(50):
            c.tick()

    with pytest.raises(JournalError, match="full"):
        until_full()
    full = len(slurm.written)
    with pytest.raises(JournalError):
        c.tick()
    assert len(slurm.written) == full, "nothing is written that is not in the journal"
    undo(slurm, journal, clock=lambda: NOW)
    assert set(slurm.site_factors().values()) == {0}


def test_a_failing_slurm_fails_static(controller: MakeController) -> None:
    slurm = a_queue()
    c = controller(slurm)

    def refuse(updates: Sequence[JobUpdate]) -> None:
        raise SlurmError("slurmctld does not answer")

    slurm.on_update = refuse
    with pytest.raises(SlurmError):
        c.tick()
    slurm.on_update = lambda updates: None
    c.tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]


def test_an_empty_queue_is_no_trouble(controller: MakeController) -> None:
    assert controller(FakeSlurm()).tick().ordered == 0


@pytest.mark.parametrize(
    ("priority", "site", "own"),
    [
        (1262, 750, 512),  # 500 + 12.5 + 750, cut off; sprio shows 500, 13 and 750
        (212, -300, 512),
        (1, -700, 513),  # no priority is below 1: only the terms tell
    ],
)
def test_slurms_own_priority_is_known_to_the_last_point(priority: int, site: int, own: int) -> None:
    factors = PriorityFactors(priority, 0, 0, 0, 13, 500, 0, site, 0, 0, 0.0)
    assert own_priority(factors) == own


@pytest.mark.parametrize(
    ("change", "settings", "why"),
    [
        ({"het_job_id": 3}, {}, "heterogeneous"),
        ({"reservation": "maintenance"}, {}, "reservation"),
        ({"qos": "high"}, {"leave_alone_qos": ("high",)}, "QOS high"),
        ({"account": "phys"}, {"leave_alone_accounts": ("phys",)}, "account phys"),
        ({"user": "bob"}, {"leave_alone_users": ("bob",)}, "user bob"),
        ({"comment": "slurm-rl:off"}, {"users_may_opt_out": True}, "comment"),
    ],
)
def test_a_job_that_is_exempt_loses_the_factor_it_had_from_us(
    controller: MakeController, journal: Journal, change: dict[str, object], settings: dict[str, object], why: str
) -> None:
    slurm = a_queue()
    controller(slurm, holder="a").tick()
    assert slurm.site_factors()[6]
    slurm.jobs[6] = msgspec.structs.replace(slurm.jobs[6], **change)
    slurm.jobs[50] = a_job(50, site=77, **change)  # an operator's: not ours to take away
    c = controller(slurm, holder="a", **settings)
    c.tick()
    assert (slurm.site_factors()[6], slurm.site_factors()[50]) == (0, 77)
    assert c.report is not None
    row = c.report.job(6)
    assert row is not None
    assert why in row.why
    slurm.written.clear()
    c.tick()
    assert slurm.written == [], "and once is enough"


def test_a_users_word_counts_only_where_the_site_allows_it(controller: MakeController) -> None:
    slurm = a_queue()
    slurm.jobs[6] = msgspec.structs.replace(slurm.jobs[6], comment="slurm-rl:off")
    controller(slurm).tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]


def test_a_reserved_job_that_was_advised_at_submission_loses_its_factor(
    controller: MakeController, journal: Journal
) -> None:
    slurm = a_queue()
    slurm.jobs[7] = a_job(7, user="root", site=321, waited=2, reservation="mine")
    journal.advise(NOW - 2.2, 0, 321)
    controller(slurm).tick()
    assert slurm.site_factors()[7] == 0


def test_a_priority_set_by_hand_is_left_alone_and_told(controller: MakeController, journal: Journal) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    hand = PriorityFactors(9000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
    slurm.jobs[3] = msgspec.structs.replace(slurm.jobs[3], priority=9000, factors=hand)
    slurm.written.clear()
    for _ in range(3):
        tick = c.tick()
        assert (tick.drifted, slurm.written) == (0, [])
    assert c.report is not None
    row = c.report.job(3)
    assert row is not None
    assert (row.rank, row.why) == (-1, "its priority was set by hand (scontrol update Priority=…)")
    assert undo(slurm, journal, clock=lambda: NOW).acknowledged == 1, "it keeps our factor, unseen, until it is undone"
