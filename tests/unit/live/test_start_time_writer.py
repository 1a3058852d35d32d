"""A job that fits is deferred by a start time that ends by itself, and nobody else's is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_rl.config import Config, load
from slurm_rl.controller.job_rows import own_priority
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.controller.writers.protocol import key_of
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.obs.journal import Journal
from slurm_rl.slurm.model import JobUpdate, SlurmJob, UpdateResult, UpdateStatus

from .fake_slurm import NOW, FakeSlurm, a_job, a_running_job

HOUR = 3600


class BusyFast(FakeSlurm):
    """One node of A100 that is taken for another 10 minutes, and one of T4 that is free; jobs have start times."""

    def __init__(self, *jobs: SlurmJob) -> None:
        super().__init__(a_running_job(901, "n1", limit=1200, began=600), *jobs)
        self.nodes = tuple(
            msgspec.structs.replace(n, gpus={kind: 8}, gpus_allocated={kind: taken}, features=(kind,))
            for n, kind, taken in zip(self.nodes, ("a100", "t4"), (8, 0), strict=True)
        )

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        self.on_update(updates)
        for u in updates:
            if u.site_factor is not None:
                self.set_site(u.job_id, u.site_factor)
            if u.features is not None:
                self.change(u.job_id, features=u.features)
            if u.start_at is not None:
                self.change(u.job_id, eligible_time=max(u.start_at, int(self.now)))
        self.written += updates
        return [UpdateResult(u.job_id, UpdateStatus.APPLIED) for u in updates]

    def change(self, job_id: int, **fields: Any) -> None:
        self.jobs[job_id] = msgspec.structs.replace(self.jobs[job_id], **fields)

    def snapshot(self) -> Any:
        """As sprio does, without the factors of jobs whose start time is to come."""
        state = super().snapshot()
        hidden = [
            msgspec.structs.replace(j, factors=None) if (j.eligible_time or 0) > self.now else j for j in state.jobs
        ]
        return msgspec.structs.replace(state, jobs=tuple(hidden))

    def free_the_fast(self) -> None:
        del self.jobs[901]
        self.nodes = (msgspec.structs.replace(self.nodes[0], gpus_allocated={}), self.nodes[1])

    def start(self, job_id: int, node: str) -> None:
        self.change(job_id, state="RUNNING", node_list=(node,), start_time=int(self.now))

    def starts(self) -> list[tuple[int, int]]:
        """(job, start time) as written, 0 for a lift."""
        return [(u.job_id, u.start_at) for u in self.written if u.start_at is not None]


def a_wait(job_id: int, **more: Any) -> SlurmJob:
    """A job that wants a GPU of any type for ten hours, submitted a moment ago."""
    fields = {"limit": 10 * HOUR, "waited": 10, "gpus": 8, "eligible_time": int(NOW) - 10}
    return a_job(job_id, **(fields | more))


def a_controller(slurm: FakeSlurm, folder: Path, **settings: Any) -> Controller:
    defaults: dict[str, Any] = {"mode": "enforce", "policy": "fcfs", "placement": "mip", "placement_defer": 4 * HOUR}
    return Controller(Config(**(defaults | settings)), slurm, Journal(folder / "j"), clock=lambda: slurm.now)


def value(controller: Controller, name: str, **labels: str) -> float | None:
    return controller.metrics.registry.get_sample_value(name, labels)


def test_a_job_waits_for_the_faster_type_and_starts_when_it_is_free(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path, placement_lever="features")
    controller.tick()
    ((job, until),) = slurm.starts()
    assert (job, until > NOW + 300, until <= NOW + 4 * HOUR) == (1, True, True)
    assert controller.report is not None
    row = controller.report.job(1)
    assert row is not None
    assert row.deferred_until == until, "the queue shows it as ordered, and deferred"
    assert "deferred" in row.why
    assert controller.report.deferrals["jobs"] == 1

    slurm.now += 10
    controller.tick()
    assert len(slurm.starts()) == 1, "what lasts is not written again"

    slurm.now += 10
    slurm.free_the_fast()
    slurm.written.clear()
    controller.tick()
    own = [(u.features, u.start_at) for u in slurm.written if u.job_id == 1 and u.site_factor is None]
    assert own == [("a100", None), (None, 0)], "the type is told before the job may start"

    slurm.start(1, "n1")
    slurm.now += 10
    controller.tick()
    assert value(controller, "slurmrl_deferrals_total") == 1
    assert value(controller, "slurmrl_deferred_ended_total", outcome="awaited_type") == 1
    assert value(controller, "slurmrl_deferral_rate", kind="success") == 1.0
    assert controller.report.deferrals == {
        "jobs": 0,
        "made": 1,
        "allocation_rate": 1.0,
        "success_rate": 1.0,
    }
    assert controller.journal.deferred() == {}


def test_a_start_on_another_type_and_one_that_does_not_come_count_against_it(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1), a_wait(2))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    defer_jobs = dict(slurm.starts())
    assert set(defer_jobs) == {1}, "the second one may not hope for the same GPUs, and takes the T4s"
    slurm.start(1, "n2")
    slurm.now += 10
    controller.tick()
    assert value(controller, "slurmrl_deferred_ended_total", outcome="other_type") == 1
    assert controller.start_time.rates() == {"allocation": 1.0, "success": 0.0}


def test_a_job_that_starts_too_late_is_counted_once(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.now += 5 * HOUR  # all of its time is over, and it still waits
    controller.tick()
    controller.tick()
    assert controller.start_time.rates() == {"allocation": 0.0, "success": 0.0}
    slurm.start(1, "n1")
    controller.tick()
    assert value(controller, "slurmrl_deferred_ended_total", outcome="late") == 1
    assert value(controller, "slurmrl_deferred_ended_total", outcome="awaited_type") is None


@pytest.mark.parametrize(
    "own",
    [
        {"eligible_time": int(NOW) - 1, "waited": 100},  # a begin time of its user's that has passed, a dependency …
        {"eligible_time": None},
        {"deadline": int(NOW) + 12 * HOUR},
        {"features": "ssd"},
        {"required_nodes": ("n2",)},
        {"array_task_count": 5, "array_job_id": 1, "array_tasks": "1-5"},
    ],
)
def test_jobs_with_a_say_of_their_own_are_not_put_off(tmp_path: Path, own: dict[str, Any]) -> None:
    slurm = BusyFast(a_wait(1, **own))
    a_controller(slurm, tmp_path).tick()
    assert slurm.starts() == []


def test_it_is_off_by_default_and_in_shadow_mode(tmp_path: Path) -> None:
    for number, settings in enumerate(({"placement_defer": 0}, {"mode": "shadow"}, {"placement": "best-fit"})):
        slurm = BusyFast(a_wait(1))
        a_controller(slurm, tmp_path / str(number), **settings).tick()
        assert slurm.starts() == []


def test_shadow_mode_records_each_start_time_once_and_writes_none(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1), a_wait(2, gpus=1, limit=60))
    controller = a_controller(slurm, tmp_path, mode="shadow")
    for _ in range(3):
        controller.tick()
        slurm.now += 10
    assert slurm.starts() == []
    assert controller.journal.deferred() == {}
    assert controller.journal.shadow_deferred() == (1, 1), "the job of a minute gains nothing by waiting"
    ((tick, job, until, awaits),) = controller.journal._rows("SELECT tick, job_id, until, awaits FROM would_defer")
    assert (tick, job, awaits) == (1, 1, "a100")
    assert until > NOW + 300
    for _ in range(40):  # the running job is always about to end
        slurm.now += 600
        slurm.change(901, end_time=int(slurm.now) + 600, start_time=int(slurm.now) - 600)
        controller.tick()
    times, jobs = controller.journal.shadow_deferred()
    assert 1 <= times <= 8
    assert jobs == 1
    controller.journal.prune(slurm.now + 1)
    assert controller.journal.shadow_deferred() == (0, 0)


def test_a_journal_of_an_older_version_learns_of_deferrals_in_shadow_mode(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal._db.execute("DROP TABLE would_defer")
    journal.close()
    assert Journal(tmp_path / "j").shadow_deferred() == (0, 0)


def test_a_jobs_deferrals_are_bounded_in_number_and_time(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)
    for _ in range(40):  # the running job is always about to end: each time waiting looks right
        controller.tick()
        slurm.now += 600
        slurm.change(901, end_time=int(slurm.now) + 600, start_time=int(slurm.now) - 600)
    starts = [at for _, at in slurm.starts() if at]
    assert 1 <= len(starts) <= 8
    assert max(starts) <= NOW - 10 + 4 * HOUR, "four hours after its submission it is over"


@pytest.mark.parametrize("way", ["undo", "mode", "switched off"])
def test_it_is_taken_back(tmp_path: Path, way: str) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.written.clear()
    slurm.now += 20
    if way == "undo":
        done = undo(slurm, controller.journal, clock=lambda: slurm.now)
        assert (done.deferred, done.lifted) == (1, 1)
    elif way == "mode":
        controller.command("shadow", "test")
        controller.tick()
    else:
        controller.reconfigure(Config(mode="enforce", policy="fcfs"))
        controller.tick()
    assert slurm.starts() == [(1, 0)]
    assert slurm.jobs[1].eligible_time == int(slurm.now)
    if way != "switched off":
        assert controller.journal.deferred() == {}


@pytest.mark.parametrize("way", ["undo", "tick"])
def test_a_start_time_that_somebody_else_set_stays(tmp_path: Path, way: str) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.written.clear()
    theirs = int(slurm.now) + 99_999
    slurm.change(1, eligible_time=theirs)
    if way == "undo":
        done = undo(slurm, controller.journal, clock=lambda: slurm.now)
        assert (done.deferred, done.lifted) == (0, 0)
    else:
        slurm.now += 10
        controller.tick()
        assert value(controller, "slurmrl_deferred_ended_total", outcome="changed") == 1
    assert slurm.jobs[1].eligible_time == theirs
    assert slurm.starts() == []


def test_it_is_in_the_journal_before_it_is_sent(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)

    def die(updates: Sequence[JobUpdate]) -> None:
        if any(u.start_at is not None for u in updates):
            raise SlurmError("slurmctld fell silent")

    slurm.on_update = die
    with pytest.raises(SlurmError):
        controller.tick()
    (row,) = controller.journal.deferred().values()
    assert (row.awaits, row.times) == ("a100", 1)
    slurm.on_update = lambda updates: None
    slurm.now += 10
    controller.tick()  # it had not arrived: the job has its own start time, and is deferred anew
    controller.tick()
    assert len(slurm.starts()) == 1


def test_a_controller_that_is_started_anew_knows_what_it_put_off(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1, site=77))
    first = a_controller(slurm, tmp_path)
    first.tick()
    slurm.now += 10
    slurm.written.clear()
    second = Controller(first.config, slurm, first.journal, clock=lambda: slurm.now, holder=first.holder)
    second.tick()
    assert slurm.starts() == [], "it is still deferred, and nothing is to be written"
    slurm.free_the_fast()
    second.tick()
    assert slurm.starts() == [(1, 0)]


def test_slurms_own_priority_of_a_job_put_off_does_not_follow_our_factor(tmp_path: Path) -> None:
    controller = a_controller(BusyFast(a_wait(1)), tmp_path)
    job = a_wait(2, own=500, site=30)
    controller.start_time._factors[key_of(job)] = job.factors or pytest.fail("it has factors")
    remembered = [controller.start_time._remembered(key_of(job), job, site) for site in (None, 30, 32, -400)]
    assert [own_priority(factors) for factors in remembered] == [500] * 4


def test_it_needs_the_placement_that_can_do_it(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("placement_defer = 600\n")
    with pytest.raises(InputError, match='placement = "mip"'):
        load(tmp_path / "c.toml", {})


def test_a_cancelled_job_that_is_requeued_after_the_undo_may_start(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    ended = slurm.jobs.pop(1)
    controller.tick()
    assert controller.report is not None
    assert controller.report.deferrals["jobs"] == 0, "it does not wait"
    done = undo(slurm, controller.journal, clock=lambda: slurm.now, sleep=lambda seconds: None)
    assert (done.deferred, done.ended) == (0, 1)
    slurm.jobs[1] = msgspec.structs.replace(ended, submit_time=int(slurm.now), restarts=1)
    done = undo(slurm, controller.journal, clock=lambda: slurm.now, sleep=lambda seconds: None)
    assert (done.deferred, done.lifted, done.ended) == (1, 1, 0)
    assert slurm.jobs[1].eligible_time == int(slurm.now)


def test_a_start_time_that_is_past_is_forgotten(tmp_path: Path) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    del slurm.jobs[1]
    slurm.now += 5 * HOUR
    done = undo(slurm, controller.journal, clock=lambda: slurm.now)
    assert (done.ended, controller.journal.deferred()) == (0, {})


@pytest.mark.parametrize("heard", [False, True])
def test_a_kill_while_a_start_time_is_lifted_loses_nothing(tmp_path: Path, heard: bool) -> None:
    slurm = BusyFast(a_wait(1))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.now += 10
    slurm.free_the_fast()
    update = slurm.update

    def dies(updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        if updates[0].start_at is None:
            return update(updates)
        if heard:
            update(updates)
        raise KeyboardInterrupt

    slurm.update = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        controller.tick()
    slurm.update = update  # type: ignore[method-assign]
    undo(slurm, controller.journal, clock=lambda: slurm.now, sleep=lambda seconds: None)
    assert (slurm.jobs[1].eligible_time or 0) <= slurm.now
