"""What undo takes for ours, what it believes, and what it tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from slurm_rl.controller.undo import undo
from slurm_rl.obs.journal import Change, Journal
from slurm_rl.slurm.model import JobUpdate, SlurmJob, UpdateResult, UpdateStatus

from .fake_slurm import NOW, FakeSlurm, a_job


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as made:
        yield made


def written(journal: Journal, *jobs: tuple[int, int, int]) -> None:
    """Enters (id, submit time, factor) as a tick does."""
    token = journal.acquire("tick", NOW - 100, 50)
    assert token is not None
    numbers = journal.intend(1, token, NOW - 90, [Change(i, s, 0, v, "a tick") for i, s, v in jobs])
    journal.settle([(n, "applied") for n in numbers])
    journal.release(token)


def unseen(job: SlurmJob, **more: object) -> SlurmJob:
    """As Slurm shows a job that is not eligible."""
    return msgspec.structs.replace(job, factors=None, **more)


class Hiding(FakeSlurm):
    """Keeps the factors of jobs that it does not show."""

    def __init__(self, *jobs: SlurmJob) -> None:
        super().__init__(*jobs)
        self.kept: dict[int, int] = {}
        self.says: dict[int, UpdateStatus] = {}

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        results = []
        for u in updates:
            status = self.says.get(u.job_id, UpdateStatus.APPLIED)
            if status is UpdateStatus.APPLIED:
                self.kept[u.job_id] = u.site_factor or 0
                if self.jobs[u.job_id].factors:
                    self.set_site(u.job_id, u.site_factor or 0)
            results.append(UpdateResult(u.job_id, status))
        self.written += updates
        return results


SUBMITTED = int(NOW) - 100


def test_unseen_jobs_of_the_journal_are_written_and_confirmed(journal: Journal) -> None:
    slurm = Hiding(unseen(a_job(1), priority=0), unseen(a_job(2), state="RUNNING"), unseen(a_job(3)))
    written(journal, (1, SUBMITTED, 40), (2, SUBMITTED, 50))
    done = undo(slurm, journal, clock=lambda: NOW)
    assert (done.touched, done.returned, done.acknowledged, done.complete) == (2, 2, 2, True)
    assert slurm.kept == {1: 0, 2: 0}, "and not the third, of which the journal knows nothing"
    assert undo(slurm, journal, clock=lambda: NOW).touched == 0, "nor twice"


def test_a_write_that_was_not_confirmed_is_told(journal: Journal) -> None:
    slurm = Hiding(unseen(a_job(1)), unseen(a_job(2)), a_job(3, site=30))
    written(journal, (1, SUBMITTED, 40), (2, SUBMITTED, 50), (3, SUBMITTED, 30))
    slurm.says = {1: UpdateStatus.UNKNOWN, 2: UpdateStatus.REFUSED, 3: UpdateStatus.REFUSED}
    done = undo(slurm, journal, clock=lambda: NOW)
    assert (done.unverified, done.left, done.returned) == ((1, 2), (3,), 0)
    assert not done.complete
    slurm.says = {}
    again = undo(slurm, journal, clock=lambda: NOW)
    assert (again.complete, again.returned) == (True, 3)


def test_the_count_is_of_jobs_and_adds_up_when_some_end_meanwhile(journal: Journal) -> None:
    """Seen once: "315 of 498 returned, none left": the others had ended between the look and the write."""
    slurm = Hiding(*(a_job(i, site=i) for i in range(1, 11)))
    written(journal, *((i, SUBMITTED, i) for i in range(1, 11)))
    update = slurm.update

    def some_end(updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        slurm.update = update  # type: ignore[method-assign]
        results = update([u for u in updates if u.job_id > 4])
        for i in range(1, 5):
            del slurm.jobs[i]
        return [UpdateResult(i, UpdateStatus.REFUSED, "Job has already finished") for i in range(1, 5)] + results

    slurm.update = some_end  # type: ignore[method-assign]
    done = undo(slurm, journal, clock=lambda: NOW)
    assert (done.touched, done.returned, done.gone, done.left, done.unverified) == (10, 6, 4, (), ())


def test_unseen_jobs_of_our_advice_are_known_by_user_and_moment(journal: Journal) -> None:
    """Whoever submitted at another moment, or is another user, is left alone; so is a shown factor of another value."""
    journal.advise(NOW - 2.4, 0, 321)
    slurm = Hiding(
        unseen(a_job(1, user="root", waited=2)),
        unseen(a_job(2, user="root", waited=60)),
        unseen(a_job(3, user="daemon", waited=2)),
        a_job(4, user="root", waited=2, site=7),
    )
    assert undo(slurm, journal, clock=lambda: NOW).acknowledged == 1
    assert slurm.kept == {1: 0}


def test_a_requeued_job_is_known_by_its_id_and_restarts(journal: Journal) -> None:
    written(journal, (1, SUBMITTED, 40), (2, SUBMITTED, 50))
    slurm = Hiding(a_job(1, site=40, waited=5, restarts=1), a_job(2, site=50, waited=5))
    undo(slurm, journal, clock=lambda: NOW)
    assert slurm.site_factors() == {1: 0, 2: 50}, "the second is another job of the same id"


def test_a_job_that_had_ended_and_is_requeued_after_the_undo_is_found_by_the_next(journal: Journal) -> None:
    written(journal, (1, SUBMITTED, 40))
    slurm = Hiding()
    assert undo(slurm, journal, clock=lambda: NOW).touched == 0
    slurm.jobs[1] = a_job(1, site=40, waited=0, restarts=1)
    assert undo(slurm, journal, clock=lambda: NOW + 60).returned == 1
    assert slurm.site_factors() == {1: 0}


def test_a_confirmed_job_that_shows_our_factor_after_all_is_written_again(journal: Journal) -> None:
    """slurmctld may crash before it has saved what it confirmed."""
    written(journal, (1, SUBMITTED, 40), (2, SUBMITTED, 50))
    slurm = Hiding(unseen(a_job(1)), unseen(a_job(2)))
    undo(slurm, journal, clock=lambda: NOW)
    slurm.jobs = {1: a_job(1, site=40), 2: a_job(2, site=99)}
    done = undo(slurm, journal, clock=lambda: NOW)
    assert (done.touched, done.returned) == (1, 1)
    assert slurm.site_factors() == {1: 0, 2: 99}, "the second is somebody else's by now"


def test_a_zero_that_was_journaled_and_never_sent_is_not_believed(journal: Journal) -> None:
    written(journal, (1, SUBMITTED, 40))
    written(journal, (1, SUBMITTED, 0))
    slurm = Hiding(a_job(1, site=40))
    assert undo(slurm, journal, clock=lambda: NOW).returned == 1
    assert slurm.site_factors() == {1: 0}
