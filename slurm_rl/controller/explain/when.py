"""Forecasts the start of a job that is not submitted yet, and the effect of other requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.config import Config
from slurm_rl.controller.estimates import KnownRunTimes
from slurm_rl.controller.explain.live_scene import LiveScene, RecentJobs
from slurm_rl.controller.explain.start_forecast import TOP, foretell
from slurm_rl.controller.limit_advice import LimitAdvice, duration
from slurm_rl.controller.live_policy import LivePolicy
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.snapshot import Plan
from slurm_rl.errors import InputError
from slurm_rl.slurm.model import SlurmJob, SlurmState
from slurm_rl.slurm.site_limits import SiteLimits
from slurm_rl_sim.forecast import Calibration, Forecast

SECONDS = 3.0  # for all futures of one question
_DRAWS = 16
_MOST = 6  # alternatives
_USUAL_QOS = "normal"  # what Slurm gives a job that names none, unless an association or the partition says otherwise
_ID = 2_000_000_000  # above every id that Slurm gives


@dataclass(frozen=True, slots=True)
class Wish:
    """A job that somebody thinks of submitting."""

    gpus: int = 0
    gpu_type: str = ""
    limit: int = 3600  # seconds
    partition: str = ""
    nodes: int = 1
    cpus: int = 0  # 0: one for each node, as sbatch without -n and -c
    mem_mb: int = 0
    user: str = ""
    account: str = ""
    qos: str = ""
    name: str = ""

    def job(self, number: int, now: float) -> SlurmJob:
        return SlurmJob(
            job_id=_ID + number,
            name=self.name,
            user=self.user,
            account=self.account,
            qos=self.qos,
            partitions=(self.partition,),
            state="ASKED",
            submit_time=int(now),
            time_limit=self.limit,
            nodes=self.nodes,
            cpus=self.cpus or self.nodes,
            mem_mb=self.mem_mb,
            gpus={self.gpu_type: self.gpus} if self.gpus else {},
        )


def _types(state: SlurmState, partition: str) -> dict[str, int]:
    """GPUs by type in a partition."""
    found: dict[str, int] = {}
    for node in state.nodes:
        if partition in node.partitions:
            for kind, count in node.gpus.items():
                found[kind] = found.get(kind, 0) + count
    return found


def alternatives(wish: Wish, state: SlurmState, advice: LimitAdvice | None) -> Iterator[tuple[str, Wish]]:
    """Other requests, in words: another type, fewer GPUs, a shorter limit, another partition."""
    types = _types(state, wish.partition)
    if wish.gpus:
        if wish.gpu_type and len([t for t in types if t]) > 1:
            yield "any GPU type", replace(wish, gpu_type="")
        for kind, count in sorted(types.items()):
            if kind and kind != wish.gpu_type and count >= wish.gpus:
                yield f"GPU type {kind}", replace(wish, gpu_type=kind)
        if wish.gpus > 1:
            half = wish.gpus // 2
            cpus = wish.cpus // 2 if wish.cpus else 0
            yield f"{half} GPU{'s' if half > 1 else ''} instead of {wish.gpus}", replace(wish, gpus=half, cpus=cpus)
    limits = [*([advice.limit] if advice is not None else []), wish.limit // 2]
    for limit in dict.fromkeys(limits):
        if 60 <= limit < wish.limit:
            said = f"a time limit of {duration(limit)} instead of {duration(wish.limit)}"
            yield said, replace(wish, limit=limit)
    for p in state.partitions:
        if p.name != wish.partition and p.state == "UP" and (p.max_time is None or wish.limit <= p.max_time):
            there = _types(state, p.name)
            enough = there.get(wish.gpu_type, 0) if wish.gpu_type else sum(there.values())
            if enough >= wish.gpus:
                yield f"partition {p.name}", replace(wish, partition=p.name)


def when(
    wish: Wish,
    observed: tuple[LiveQueue, Plan],
    recent: RecentJobs,
    run_times: KnownRunTimes,
    policy: LivePolicy,
    mode: str,
    config: Config,
    calibration: Calibration,
    advice: LimitAdvice | None = None,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """A forecast of the wish and of its alternatives; raises InputError for one that makes no sense."""
    queue, plan = observed
    state = queue.state
    wish = _owned(_placed(wish, state), state, queue.limits)
    others = [(what, w) for what, w in alternatives(wish, state, advice)][:_MOST]
    asked = [w.job(i, state.taken) for i, w in enumerate([wish, *(w for _, w in others)])]
    waiting = [queue.jobs[j] for j in plan.order[:TOP]]
    live = LiveScene(state, waiting, recent, run_times, policy, mode, config, asked, limits=queue.limits)
    deadline = clock() + seconds
    told: list[Forecast | None] = []
    for i, job in enumerate(asked):
        left = deadline - clock()
        share = left if i == len(asked) - 1 else left / (2 if i == 0 else len(asked) - i)
        told.append(_one(live, job, share, clock, calibration))
    row = live.row(asked[0])
    never = live.never(row) if row is not None else f"partition {wish.partition} has no nodes"
    found = []
    for (what, w), one in zip(others, told[1:], strict=True):
        if one is not None:
            changed = {k: v for k, v in asdict(w).items() if v != getattr(wish, k)}
            earlier = None if told[0] is None else told[0].median - one.median
            found.append({"what": what, "change": changed, "start": _start(one, state.taken), "earlier": earlier})
    return {
        "time": state.taken,
        "asked": asdict(wish),
        "start": _start(told[0], state.taken) if not never else None,
        "never": never,
        "pending": len(plan.order),
        "alternatives": found,
        "advice": asdict(advice) | {"text": str(advice)} if advice is not None else None,
        "calibrated_on": calibration.outcomes,
    }


def _one(
    live: LiveScene, job: SlurmJob, seconds: float, clock: Callable[[], float], calibration: Calibration
) -> Forecast | None:
    row = live.row(job)
    if row is None or live.never(row):
        return None
    # The same chances for each: what differs is the request.
    rng = np.random.default_rng(live.queue.now)
    raw = foretell(live.scene(row), np.array([row]), rng, most=_DRAWS, seconds=seconds, clock=clock)
    return None if raw is None else calibration.corrected(raw[0])


def _start(told: Forecast | None, now: float) -> dict[str, Any] | None:
    if told is None:
        return None
    return {"time": now + told.median, "range": [now + told.low, now + told.high], "wait": told.median}


def _placed(wish: Wish, state: SlurmState) -> Wish:
    """The wish with what Slurm would fill in, checked against the cluster."""
    names = [p.name for p in state.partitions]
    partition = wish.partition or next((p.name for p in state.partitions if p.default), names[0] if names else "")
    if partition not in names:
        raise InputError(f"no partition {partition!r}", field="partition", remedy=f"one of {', '.join(names)}")
    most = next(p.max_time for p in state.partitions if p.name == partition)
    if most is not None and wish.limit > most:
        raise InputError(
            f"a limit of {duration(wish.limit)} is above that of {partition}, {duration(most)}", field="time"
        )
    types = _types(state, partition)
    if wish.gpus and wish.gpu_type and wish.gpu_type not in types:
        known = ", ".join(sorted(t for t in types if t)) or "none named"
        raise InputError(f"{partition} has no GPU type {wish.gpu_type!r}", field="gpu_type", remedy=f"it has: {known}")
    return replace(wish, partition=partition)


def _owned(wish: Wish, state: SlurmState, limits: SiteLimits | None) -> Wish:
    """The wish with the account and QOS that limits go by: those of the user's last job there, or the usual ones."""
    if limits is None or not wish.user or (wish.account and wish.qos):
        return wish
    mine = [j for j in state.jobs if j.user == wish.user and wish.account in ("", j.account)]
    last = max(mine, key=lambda j: (wish.partition in j.partitions, j.submit_time or 0), default=None)
    accounts = [account for user, account in limits.limits.association if user == wish.user]
    account = wish.account or (last.account if last is not None else accounts[0] if len(accounts) == 1 else "")
    qos = wish.qos or (last.qos if last is not None else _USUAL_QOS)
    return replace(wish, account=account, qos=qos)
