"""The model of Slurm that the state machine runs on does what a real slurmctld does, step by step."""

from __future__ import annotations

import random
import time

import pytest
from reference.undo_machine import ModelSite

from slurm_rl.controller.ours import shown
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.model import JobUpdate, SlurmJob

from ..conftest import LabFactory
from .real_site import RealSite

pytestmark = pytest.mark.slurm

KINDS = ("plain", "plain", "held", "later", "dependent", "array", "het")
ACTS = "hold release later now depend alone priority start finish requeue requeuehold special suspend restart".split()
WAITS = {"hold", "later", "now", "depend", "alone", "priority", "start", "restart"}


@pytest.fixture(scope="module")
def lab(session_labs: LabFactory) -> Lab:
    return session_labs("a100:8*2")


def seen(job: SlurmJob) -> tuple[str, int | None, bool, bool]:
    """State, shown factor, whether it was requeued, whether it is held."""
    state = job.state if not job.running or job.state == "SUSPENDED" else "RUNNING"
    return state, shown(job), job.restarts > 0, job.held


def may(job: SlurmJob, what: str) -> bool:
    """What both take: Slurm refuses some acts, and the model leaves out arrays and heterogeneous jobs in places."""
    if what in WAITS and not job.pending:
        return False
    if what in ("start", "restart"):
        return shown(job) is not None and not job.het_job_id and not job.array_job_id
    if what in ("requeue", "requeuehold", "special", "suspend"):
        return job.state in ("RUNNING", "SUSPENDED") if what == "suspend" else job.state == "RUNNING"
    if what == "release":
        return job.held or job.state == "SPECIAL_EXIT"
    return not job.het_job_id and not (what == "priority" and job.held)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_steps_lead_to_the_same_queue(lab: Lab, seed: int) -> None:
    dice, real, model = random.Random(seed), RealSite(lab), ModelSite()
    twin: dict[int, int] = {}  # the model's id -> Slurm's
    steps = []
    try:
        for _ in range(30):
            records = {j.job_id: j for j in model.client.snapshot().jobs}
            known = [i for i in twin if i in records]
            if len(known) < 6 or dice.random() < 0.2:
                kind = dice.choice(KINDS)
                other = dice.choice(known) if known else 0
                kind = "plain" if kind == "dependent" and not other else kind
                mine, theirs = model.submit(kind, other, 5), real.submit(kind, twin.get(other, 0), 5)
                twin |= dict(zip(mine, theirs, strict=True))
                job, what = mine[0], f"submit {kind}"
            else:
                job, what, other = dice.choice(known), dice.choice(ACTS), dice.choice(known)
                if not may(records[job], what) or other == job:
                    continue
                if dice.random() < 0.5:
                    value = dice.randrange(-300, 300)
                    for client, number in ((model.client, job), (real.client, twin[job])):
                        client.update([JobUpdate.of(_find(client, number), site_factor=value)])
                model.act(what, job, other)
                real.act(what, twin[job], twin[other])
            steps.append((what, job))
            model.client.now += 1
            _compare(real, model, twin, steps)
    finally:
        real.close()


def _find(client: object, job_id: int) -> SlurmJob:
    return next(j for j in client.snapshot().jobs if j.job_id == job_id)  # type: ignore[attr-defined]


def _compare(real: RealSite, model: ModelSite, twin: dict[int, int], steps: list[tuple[str, int]]) -> None:
    wanted = {twin[j.job_id]: seen(j) for j in model.client.snapshot().jobs if j.job_id in twin}
    deadline = time.monotonic() + 60
    while True:
        queue = [j for j in real.client.snapshot().jobs if j.job_id in twin.values() and j.state != "COMPLETING"]
        found = {j.job_id: seen(j) for j in queue}
        if found == wanted:
            return
        assert time.monotonic() < deadline, (steps, {k: (wanted.get(k), found.get(k)) for k in {*wanted, *found}})
        time.sleep(0.2)
