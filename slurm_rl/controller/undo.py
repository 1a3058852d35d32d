"""Takes back everything written to Slurm: one loop over the writers. It needs no compiler and no arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from slurm_rl.controller.ours import shown
from slurm_rl.controller.writers.catalogue import WRITERS
from slurm_rl.controller.writers.clear_factors import PAUSE
from slurm_rl.controller.writers.protocol import IN_FLIGHT, TakeBack
from slurm_rl.obs.journal import Journal, JournalError
from slurm_rl.obs.lease_holder import own_name
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import SlurmJob


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo found and did; touched = returned + gone + left + unverified."""

    touched: int = 0  # jobs of ours that had a factor, or of which Slurm does not show it
    returned: int = 0  # … seen at 0, or confirmed
    acknowledged: int = 0  # … of these: not shown, and slurmctld confirmed the write of each
    gone: int = 0  # … that ended meanwhile
    left: tuple[int, ...] = ()  # jobs that still have one
    unverified: tuple[int, ...] = ()  # jobs whose factor is not shown, and whose write was not confirmed
    stopped_leader: bool = False
    steered: int = 0  # jobs that had a feature expression of ours
    freed: int = 0  # … and have their user's own again
    deferred: int = 0  # jobs that had a start time of ours
    lifted: int = 0  # … and may start again
    ended: int = 0  # jobs that have ended: requeued while Slurm remembers them, they would have something of ours again

    @property
    def complete(self) -> bool:
        return not self.left and not self.unverified


def undo(
    client: SlurmClient,
    journal: Journal,
    *,
    everything: bool = False,
    token: int | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Undone:
    """Returns jobs to SiteFactor 0 and reads them back; with `everything`, also those that the journal does not know.

    Without a token of the caller's own the lease is seized, so that a running controller stops; it is also told to
    stay off.
    """
    stopped = False
    own = token is None
    if token is None:
        stopped = journal.leader(clock()) not in (None, own_name())
        # A full disk must not keep us from taking back: the journal's word matters before writing, not before undoing.
        with suppress(JournalError):
            if stopped:
                journal.command(clock(), "off", "undo")
            token = journal.acquire(own_name(), clock(), 300.0, force=True)
    unsettled = journal.in_flight(clock() - IN_FLIGHT)
    if unsettled:
        _await_quiet(client, sleep)
    order = TakeBack(client, journal, everything, token, unsettled, clock, sleep)
    # What was written last goes first: a job whose start time is lifted shows its factor again.
    done = {writer.name: writer.take_back(order) for writer in reversed(WRITERS)}
    with suppress(JournalError):
        if own and token is not None:
            journal.release(token)
    factors, types, starts = done["site_factor"], done["gpu_type"], done["start_time"]
    return Undone(
        touched=factors.found,
        returned=factors.returned,
        acknowledged=factors.acknowledged,
        gone=factors.gone,
        left=factors.left,
        unverified=factors.unverified,
        stopped_leader=stopped,
        steered=types.found,
        freed=types.returned,
        deferred=starts.found,
        lifted=starts.returned,
        ended=len(factors.ended | types.ended | starts.ended),
    )


def _await_quiet(client: SlurmClient, sleep: Callable[[float], None]) -> None:
    """A killed controller's scontrol may still be writing: wait until the queue stands still, but not for ever."""
    before = _ours(client.snapshot().jobs)
    for _ in range(20):
        sleep(PAUSE)
        now = _ours(client.snapshot().jobs)
        if now == before:
            return
        before = now


def _ours(jobs: Iterable[SlurmJob]) -> dict[int, tuple[object, ...]]:
    """What we may write of each job."""
    return {job.job_id: (shown(job), job.features, job.prefer, job.eligible_time) for job in jobs}
