"""The promotion judge: whether a candidate does no harm in a replay of recent history, and whether it is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.controller.auto import OWN
from slurm_rl.controller.site_past import SitePast
from slurm_rl.errors import InputError
from slurm_rl.policy.registry import PolicySpec
from slurm_rl_sim.replay import Contender, Prepared, prepare, replay

P95, LONGEST = 1.05, 1.2  # times the incumbent's wait that a candidate may have
COMPLETED = 0.995  # of the jobs that complete under the incumbent; the others end at their limit on slower GPUs
LEAST_JOBS = 100
RULES = (
    f"history: at least {LEAST_JOBS} jobs",
    f"p95: the 95% wait is at most {P95:g} times that of the policy in charge (and a second)",
    f"longest: the longest wait is at most {LONGEST:g} times that of the policy in charge (and a second)",
    f"completed: at least {COMPLETED:g} of the jobs that complete under the policy in charge complete",
)
REMEDY = (
    "judge by more history (--days) or another trace (--trace), or watch it in shadow mode with policy = "
    '"rl:NAME", which asks no gate'
)
_SECOND = 1.0  # waits that differ by less are the same: of nothing, 1.05 times is nothing


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the replay gate found, in seconds of waiting."""

    jobs: int
    incumbent: str
    candidate: str
    p95: tuple[float, float]  # of the incumbent, of the candidate
    longest: tuple[float, float]
    completed: tuple[float, float] = (0.0, 0.0)  # jobs

    @property
    def objections(self) -> list[str]:
        """Why the candidate must not be promoted; none: it may."""
        found = []
        waits = (("p95", "95% wait", P95, self.p95), ("longest", "longest wait", LONGEST, self.longest))
        for rule, what, share, (old, new) in waits:
            if not new <= share * old + _SECOND:
                found.append(
                    f"rule {rule}: {what} {new:.0f} s, more than {share:g} times the {old:.0f} s of {self.incumbent}"
                )
        before, after = self.completed
        if not after >= COMPLETED * before:
            found.append(
                f"rule completed: {after:.0f} jobs complete, fewer than {COMPLETED:g} of the {before:.0f} of "
                f"{self.incumbent}"
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"objections": self.objections}


def judge(
    prepared: Prepared,
    incumbent: PolicySpec,
    candidate: PolicySpec,
    *,
    influence: float,
    weights: dict[str, float] | None = None,
    slurm: SlurmSettings | None = None,
) -> Verdict:
    """Replays history under both, as they act on a live Slurm: through its backfill, with a bounded influence."""
    jobs = len(prepared.trace)
    if jobs < LEAST_JOBS:
        raise InputError(
            f"a history of {jobs} jobs tells nothing: the gate wants {LEAST_JOBS}",
            remedy="look further back with --days, or judge by a trace with --trace",
        )
    contenders = [Contender(incumbent, "slurm"), Contender(candidate, "slurm")]
    old, new = (r.metrics for r in replay(prepared, contenders, influence=influence, weights=weights, slurm=slurm))

    def pair(name: str) -> tuple[float, float]:
        return float(old[name] or 0.0), float(new[name] or 0.0)

    return Verdict(jobs, incumbent.name, candidate.name, pair("p95_wait"), pair("max_wait"), pair("completed"))


def pass_gate(
    chosen: Mapping[str, str],
    before: Mapping[str, str],
    policies: Mapping[str, PolicySpec],
    past: SitePast,
    influence: float,
) -> tuple[dict[str, str], list[str]]:
    """The choice with only those changes that pass the promotion gate on the past, and why others do not."""
    taken, refused = dict(chosen), []
    own = policies[OWN]
    rules: dict[str, Any] = {"influence": influence, "weights": past.weights, "slurm": past.slurm}
    judged: dict[tuple[str, str], list[str]] = {}
    for partition, name in chosen.items():
        old = before.get(partition, OWN)
        if name == old or policies.get(name, own).name == OWN:
            continue  # Slurm's own order needs no leave
        if (old, name) not in judged:
            both = (policies.get(old, own), policies[name])
            verdict = judge(prepare(past.trace, past.cluster, limits=past.limits), *both, **rules)
            judged[old, name] = verdict.objections
        if judged[old, name]:
            taken[partition] = old
            refused.append(f"{partition}: {name} in place of {old}: {'; '.join(judged[old, name])}")
    return taken, refused


def better_than(mine: dict[str, float], others: dict[str, dict[str, float]]) -> dict[str, bool]:
    """Whether a candidate is better than others: mean slowdown times mean wait, as ratios to the same base."""
    return {
        name: mine["mean_bsld"] * mine["mean_wait"] < theirs["mean_bsld"] * theirs["mean_wait"]
        for name, theirs in others.items()
    }
