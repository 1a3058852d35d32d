"""A state machine over everything that happens to a queue and to the controllers that order it.

It drives a Slurm (the model, or a real one), two controllers on one journal that may die at any write, and undo. After
an undo nothing of ours is left, nobody was ever held by us, and the journal explains every factor.
"""

from __future__ import annotations

import itertools
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference.slurm_model import ModelSlurm
from slurm_rl.config import Config
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.ours import keys_of
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.controller.writers.gpu_type import FeatureWrite
from slurm_rl.controller.writers.start_time import SLACK, StartTimeWrite
from slurm_rl.errors import SlurmRlError
from slurm_rl.obs.journal import Deferred, Journal
from slurm_rl.slurm.model import SlurmJob

ADVISED = 77  # what the submit plugin writes on our advice
OPERATORS = 555  # what an operator writes to a job of somebody who opted out
TYPE = "a100"  # what a plan steers jobs to
DEFERRED = 5000  # seconds for which a plan defers a job
HOSTS = ("here/1/1", "there/1/1")


class Dies(BaseException):
    """The controller is gone, in the middle of what it did."""


class Site(Protocol):
    """A Slurm, with those who use it; jobs are told by id."""

    now: float

    @property
    def client(self) -> Any: ...
    def submit(self, kind: str, other: int, limit: int) -> list[int]: ...
    def act(self, what: str, job: int, other: int) -> None: ...
    def jobs(self) -> list[int]: ...
    def ended(self) -> list[int]: ...
    def held(self) -> set[int]: ...
    def factors(self) -> dict[int, int]: ...
    def pass_time(self, seconds: int) -> None: ...
    def close(self) -> None: ...


KINDS = ("plain", "advised", "held", "advised held", "later", "dependent", "array", "het", "opted out")
ACTS = (  # what brings jobs back is as likely as what takes them away
    "hold release release later now now depend alone priority start start finish requeue requeuehold special suspend "
    "restart restart"
).split()


class Machine(RuleBasedStateMachine):
    """Rules and invariants; `site_of` says which Slurm."""

    site_of: ClassVar[Any]
    jumps: ClassVar[bool] = True  # whether its clock can be set
    steps: ClassVar[int] = 0
    undone: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.directory = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.journal = Journal(Path(self.directory.name) / "journal.sqlite")
        self.site: Site = type(self).site_of()
        self.policy = load_policy("sjf@limit")
        self.config = Config(
            mode="enforce",
            policy="sjf@limit",
            updates_per_second=1e4,
            users_may_opt_out=True,
            interval=0.5,
            lease_seconds=2.0,
            placement_lever="features",
            placement_defer=7200,
            state_dir=self.directory.name,
        )
        self.controllers: list[Controller] = []
        self.opted_out: set[int] = set()
        self.start_times: set[tuple[int, int]] = set()  # (job, second) that we wrote

    @initialize()
    def begin(self) -> None:
        self.controllers = [self._controller(host) for host in HOSTS]

    def _controller(self, host: str) -> Controller:
        return Controller(
            self.config, self.site.client, self.journal, policy=self.policy, clock=lambda: self.site.now, holder=host
        )

    def _job(self, which: int) -> int:
        jobs = self.site.jobs()
        return jobs[which % len(jobs)] if jobs else 0

    @rule(kind=st.sampled_from(KINDS), other=st.integers(0, 50), limit=st.integers(1, 40))
    def submit(self, kind: str, other: int, limit: int) -> None:
        if len(self.site.jobs()) > 25:
            return
        if kind.startswith("advised"):
            self.journal.advise(self.site.now, 0, ADVISED)
        made = self.site.submit(kind, self._job(other), limit)
        if kind == "opted out":
            self.opted_out |= set(made)

    @rule(what=st.sampled_from(ACTS), which=st.integers(0, 50), other=st.integers(0, 50))
    def act(self, what: str, which: int, other: int) -> None:
        if job := self._job(which):
            self.site.act(what, job, self._job(other))

    @rule(which=st.integers(0, 50), how=st.sampled_from(["requeue", "requeuehold"]))
    def bring_back(self, which: int, how: str) -> None:
        """A job that has ended is requeued, as long as Slurm remembers it."""
        if ended := self.site.ended():
            self.site.act(how, ended[which % len(ended)], 0)

    @rule(
        which=st.integers(0, 50),
        how=st.sampled_from(["requeue", "requeuehold"]),
        defer=st.booleans(),
        everything=st.booleans(),
    )
    def bring_back_after_an_undo(self, which: int, how: str, defer: bool, everything: bool) -> None:
        """What an undo could not change, because the job had ended, is taken back by the next one."""
        if job := self._job(which):
            leader = 0 if self.controllers[0]._lead() is not None else 1
            self.controllers[leader].command("enforce", "machine")
            self._safely(leader)
            if defer:
                self.defer(leader, which, "whole")
            else:
                self.steer(leader, which, "whole")
            self.site.act("finish", job, 0)
            self._safely(leader)
            self.undo(everything)
            if job in self.site.ended():
                self.site.act(how, job, 0)
            self.undo(everything)

    @rule(which=st.integers(0, 1), job=st.integers(0, 50), how=st.sampled_from(["whole", "not sent", "not heard"]))
    def steer(self, which: int, job: int, how: str) -> None:
        """A plan wants a job on a GPU type; its controller may die before or after Slurm is told."""
        if (record := self._waiting(job)) is None or record.features not in ("", TYPE):
            return
        c = self.controllers[which]
        (key,) = keys_of([record], self.journal.steered())
        value = TYPE if not record.features else ""
        self._write(which, how, c.gpu_type, FeatureWrite(key, record, value, "", "a plan"))

    @rule(which=st.integers(0, 1), job=st.integers(0, 50), how=st.sampled_from(["whole", "not sent", "not heard"]))
    def defer(self, which: int, job: int, how: str) -> None:
        """A plan lets a job wait, or lets a job that waits so start."""
        if (record := self._waiting(job)) is None:
            return
        rows, now = self.journal.deferred(), int(self.site.now)
        (key,) = keys_of([record], rows)
        if key in rows and rows[key].lasts(now):
            row = Deferred(now, True, record.submit_time or 0, now, TYPE, 1)
        elif (record.eligible_time or 0) - (record.submit_time or 0) <= SLACK:
            row = Deferred(now + DEFERRED, False, record.submit_time or 0, now + DEFERRED, TYPE, 1)
            self.start_times.add((record.job_id, row.written))
        else:
            return
        self._write(which, how, self.controllers[which].start_time, StartTimeWrite(key, record, row, "a plan"))

    def _waiting(self, job: int) -> SlurmJob | None:
        jobs = {j.job_id: j for j in self.site.client.snapshot().jobs}
        record = jobs.get(self._job(job))
        one = record is not None and record.pending and not record.het_job_id and record.array_task_count == 1
        return record if one else None

    def _write(self, which: int, how: str, writer: Any, write: Any) -> None:
        """As a tick of the leader does it."""
        c = self.controllers[which]
        token = c._lead()
        if token is None or c.mode != "enforce":
            return
        client, update = self.site.client, self.site.client.update

        def dies(updates: Any) -> Any:
            if not updates:
                return []
            if how == "not heard":
                update(updates)
            raise Dies

        client.update = dies if how != "whole" else update
        log = SimpleNamespace(info=lambda *a, **k: None)
        try:
            writer.apply(client, [write], SimpleNamespace(token=token, clock=lambda: self.site.now, tick=1, log=log))
        except Dies:
            self.controllers[which] = self._controller(c.holder)
        finally:
            client.update = update

    @rule(which=st.integers(0, 1))
    def tick(self, which: int) -> None:
        self._safely(which)

    @rule(which=st.integers(0, 1))
    def tick_again(self, which: int) -> None:
        self._safely(which)

    def _safely(self, which: int) -> None:
        with suppress(SlurmRlError):  # it writes nothing then, and tries again
            self.controllers[which].tick()

    @rule(which=st.integers(0, 1), at=st.integers(0, 12), where=st.sampled_from(["journal", "write", "answer"]))
    def die(self, which: int, at: int, where: str) -> None:
        """A controller dies at a write: before the journal has it, before Slurm has it, or before it hears of it."""
        c, client = self.controllers[which], self.site.client
        update, intend = client.update, self.journal.intend

        def dying_update(updates: Any) -> Any:
            if where == "answer":
                update(updates)
            else:
                update(updates[:at])
            raise Dies

        def dying_intend(*arguments: Any) -> Any:
            raise Dies

        if where == "journal":
            self.journal.intend = dying_intend  # type: ignore[method-assign]
        else:
            client.update = dying_update
        try:
            self._safely(which)
        except Dies:
            self.controllers[which] = self._controller(c.holder)
        finally:
            client.update = update
            self.journal.intend = intend  # type: ignore[method-assign]

    @rule(which=st.integers(0, 1), mode=st.sampled_from(["off", "shadow", "enforce", "enforce"]))
    def change_mode(self, which: int, mode: str) -> None:
        self.controllers[which].command(mode, "machine")

    @rule(seconds=st.sampled_from([1, 30, 130, 400]))
    def wait(self, seconds: int) -> None:
        self.site.pass_time(seconds)

    @precondition(lambda self: self.jumps)
    @rule(seconds=st.sampled_from([-7200, -5, 5, 7200]))
    def jump(self, seconds: int) -> None:
        """Somebody sets the clock, of Slurm and of the controllers."""
        self.site.now += seconds

    @rule(everything=st.booleans())
    def undo(self, everything: bool) -> None:
        done = undo(
            self.site.client,
            self.journal,
            everything=everything,
            clock=lambda: self.site.now,
            sleep=lambda seconds: None,
        )
        assert done.complete
        assert done.touched == done.returned + done.gone
        if everything:
            self.opted_out.clear()
        self.nothing_left()

    def nothing_left(self) -> None:
        type(self).undone += 1
        jobs = self.site.client.snapshot().jobs
        steered = {j.job_id for j in jobs if j.features}
        assert not steered & {j.job_id for j in jobs if j.pending}, "they have their users' own again"
        assert steered <= {job for job, _ in self.journal.steered()}, "after a requeue they will"
        put_off = {(j.job_id, j.eligible_time) for j in jobs if j.pending and (j.eligible_time or 0) > self.site.now}
        assert not put_off & self.start_times
        ours = {job: site for job, site in self.site.factors().items() if site and job not in self.opted_out}
        assert ours == {}, ours

    @invariant()
    def counted(self) -> None:
        type(self).steps += 1

    @invariant()
    def the_journal_explains_every_factor(self) -> None:
        if not self.controllers:
            return
        values: dict[int, set[int]] = {}
        for (job, _), value in itertools.chain(
            self.journal.touched().items(), ((k, w.value) for k, w in self.journal.watched().items())
        ):
            values.setdefault(job, set()).add(value)
        for job in self.site.client.snapshot().jobs:
            if job.factors is None or not job.factors.site or job.job_id in self.opted_out:
                continue
            site = job.factors.site
            known = values.get(job.job_id, set()) | values.get(job.array_job_id, set())
            if site in known or site == ADVISED:
                continue
            query = "SELECT DISTINCT new FROM change WHERE job_id IN (?, ?) AND status != 'shadow'"
            written = {value for (value,) in self.journal._rows(query, job.job_id, job.array_job_id)}
            assert site in written, (job.job_id, site, known)

    @invariant()
    def nobody_is_held_by_us(self) -> None:
        if self.controllers:
            zero = {j.job_id for j in self.site.client.snapshot().jobs if j.pending and j.priority == 0}
            assert zero <= self.site.held()

    def teardown(self) -> None:
        try:
            if self.controllers:
                self.undo(everything=False)
        finally:
            self.site.close()
            self.journal.close()
            self.directory.cleanup()


class ModelSite:
    """The model as the machine drives it."""

    def __init__(self) -> None:
        self.client = ModelSlurm()

    @property
    def now(self) -> float:
        return self.client.now

    @now.setter
    def now(self, value: float) -> None:
        self.client.now = value

    def submit(self, kind: str, other: int, limit: int) -> list[int]:
        s, limit = self.client, 60 * limit
        if kind == "het":
            return [s.submit_het()]
        if kind == "opted out":
            return [s.submit(limit=limit, comment="slurm-rl:off", user="daemon", site=OPERATORS)]
        site = ADVISED if kind.startswith("advised") else 0
        return [
            s.submit(
                limit=limit,
                site=site,
                held="held" in kind,
                begin=3600 if kind == "later" else 0,
                after=other if kind == "dependent" else 0,
                tasks=4 if kind == "array" else 0,
            )
        ]

    def act(self, what: str, job: int, other: int) -> None:
        act(self.client, what, job, other)

    def jobs(self) -> list[int]:
        return [r.job_id for r in self.client.records.values()]

    def ended(self) -> list[int]:
        return [r.job_id for r in self.client.records.values() if r.ended]

    def held(self) -> set[int]:
        return {r.job_id for r in self.client.records.values() if r.held}

    def factors(self) -> dict[int, int]:
        return {r.job_id: r.site for r in self.client.alive()}

    def pass_time(self, seconds: int) -> None:
        self.client.now += seconds
        self.client.forget_ended()

    def close(self) -> None:
        """Nothing to close."""


def act(s: ModelSlurm, what: str, job: int, other: int) -> None:
    """One thing that happens to a job of the model; what a real Slurm would refuse does nothing."""
    r = s.records[job]
    waits, runs = r.state == "PENDING", r.state == "RUNNING"
    if what == "hold" and waits:
        s.hold(job)
    elif what == "release" and (r.held or r.state == "SPECIAL_EXIT"):
        s.release(job)
    elif what == "later" and waits:
        s.start_after(job, 3600)
    elif what == "now" and waits:
        s.start_after(job, 0)
    elif what == "depend" and waits:
        s.depend(job, other)
    elif what == "alone" and waits:
        s.depend(job, 0)
    elif what == "priority" and waits:
        s.priority(job, 4321)
    elif what == "start" and waits and not r.het:
        s.start(job)
    elif what == "finish" and not r.ended:
        s.finish(job)
    elif what in ("requeue", "requeuehold", "special") and (runs or r.ended) and not r.het and len(r.tasks) < 2:
        s.requeue(job, hold=what == "requeuehold", special=what == "special")
    elif what == "suspend":
        s.suspend(job)
    elif what == "restart" and waits and not r.het and (begun := s.start(job)):
        s.requeue(begun)
