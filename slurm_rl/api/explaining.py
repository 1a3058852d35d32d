"""`slurm_rl.explain`: why a job stands where it stands, in a simulation or on the live cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from slurm_rl.api.stepping import Simulation
from slurm_rl.controller.outside import scorer
from slurm_rl.decide import decide
from slurm_rl.errors import InputError
from slurm_rl.policy.outside_calls import OutsideCalls
from slurm_rl.policy.queue import Queue, renew
from slurm_rl.policy.vocabulary import WORDS


@dataclass(frozen=True)
class Explanation:
    """Where a waiting job stands at a moment of a simulation, and why."""

    job: Any
    now: int
    rank: int  # 1 = first
    of: int
    score: float
    why: str
    starts_now: bool
    figures: dict[str, float]  # what the policy could look at

    def __str__(self) -> str:
        then = "starts now" if self.starts_now else "waits on"
        return f"job {self.job} at {self.now}: {self.why}; {then}"


@overload
def explain(job: Any, within: Simulation) -> Explanation: ...
@overload
def explain(job: Any, within: str | Path | None = None) -> dict[str, Any]: ...


def explain(job: Any, within: Simulation | str | Path | None = None) -> Explanation | dict[str, Any]:
    """Says why a waiting job stands where it stands.

    `within` a Simulation: at its next scheduling pass. Otherwise the live service is asked, as `slurm-rl explain` does;
    `within` is then its configuration file, or None for the usual one.
    """
    if not isinstance(within, Simulation):
        return _live(str(job), None if within is None else Path(within))
    within.to_next_pass()
    engine = within.engine
    row = within.row(job)
    snapshot = engine.snapshot()
    if row not in snapshot.pending:
        raise InputError(f"job {job!r} does not wait at {engine.now}")
    scores = None
    if within.policy.outside is not None:
        scores = scorer(OutsideCalls(within.policy.outside), within.policy)(snapshot)
    elif within.policy.name == "by hand":
        scores = engine.world["live"]["score"][snapshot.pending]
    plan = decide(snapshot, within.policy, backfill=within.backfill, placement=within.placement, scores=scores)
    at = plan.order.index(row)
    jobs = np.array([row], dtype=np.int64)
    renew(engine.world.record, jobs)
    queue = Queue(engine.world, engine.now, jobs)
    figures = {name: float(getattr(queue, name)[0]) for name in WORDS if name != "now"}
    reason = plan.reasons[at]
    starts = row in {s.job for s in plan.starts}
    return Explanation(job, engine.now, reason.rank + 1, reason.of, reason.score, str(reason), starts, figures)


def _live(job: str, config: Path | None) -> dict[str, Any]:
    from urllib.parse import quote

    from slurm_rl.config import load
    from slurm_rl.serve.ask import ask, must
    from slurm_rl.serve.jobid import parse

    settings = load(config).config
    said: dict[str, Any] = must(ask(Path(settings.socket), "GET", quote(f"/v1/jobs/{parse(job)}/explain")))
    return said
