"""The live policy: from a name to the arguments of `decide`; its scores pass the output gate first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.config import Config
from slurm_rl.controller.outside import scorer
from slurm_rl.controller.promote import CURRENT, Promotions
from slurm_rl.decide import Guardrails, decide, ready_to_order
from slurm_rl.domain.snapshot import Plan, Snapshot
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.tables import World
from slurm_rl.place.plan import Planner
from slurm_rl.policy.catalogue import LEARNED, MULTIFACTOR, STATIC_EQUAL
from slurm_rl.policy.gate import usable
from slurm_rl.policy.outside_calls import OutsideCalls
from slurm_rl.policy.registry import PolicySpec, booked, learned, parse_policy

AUTO = "auto"
Score = Callable[[Snapshot], Array]


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """A policy that may run live; `score` is set for policies that kernels do not know, `model` is a network's hash."""

    name: str
    spec: PolicySpec
    model: str = ""
    score: Score | None = None
    calls: OutsideCalls | None = None  # of a policy that is Python: what it failed at, and how fast it is

    @property
    def context_free(self) -> bool:
        """Whether a job's score depends on nothing but the job: not so for networks."""
        return self.score is None and self.spec.code != LEARNED and self.spec.meta is None

    @property
    def advisable(self) -> bool:
        """Whether a job can be scored while it is submitted: not by what Slurm has yet to find out about it."""
        return self.spec.code not in (MULTIFACTOR, STATIC_EQUAL) and self.spec.row.before_submission

    def plan(
        self,
        snapshot: Snapshot,
        guardrails: Guardrails,
        weights: dict[str, float],
        placement: str = "best-fit",
        planner: Planner | None = None,
        memory: Mapping[str, Array] | None = None,
    ) -> Plan:
        """Orders the queue; unusable scores leave Slurm's own order, and the plan says so.

        Unusable is what is not finite, does not fit the queue, or is the same for jobs that are not alike.
        """
        scores = self.score(snapshot) if self.score is not None else None
        options: dict[str, Any] = {"guardrails": guardrails, "weights": weights}
        options |= {"placement": placement, "planner": planner, "memory": memory}
        try:
            plan = decide(snapshot, self.spec, scores=scores, **options)
        except Exception:
            if self.spec.ours:
                raise
            return decide(snapshot, self.spec, scores=_nothing(snapshot), **options)  # a formula that raises
        network = self.spec.code == LEARNED or any(ruler.policy.startswith("rl:") for ruler in plan.rulers)
        gated = network or not self.spec.ours
        if gated and scores is None and not _said_something(plan, snapshot):
            plan = decide(snapshot, self.spec, scores=_nothing(snapshot), **options)
        return plan

    def ready_to_order(
        self, snapshot: Snapshot, guardrails: Guardrails, weights: dict[str, float], plan: Plan
    ) -> World:
        """A world that tells the plan's order again; scores that kernels do not know are the caller's to put in."""
        fallback = bool(plan.reasons) and plan.reasons[0].fallback
        given = self.score is not None
        options: dict[str, Any] = {"given": given, "fallback": fallback, "memory": plan.memory}
        return ready_to_order(snapshot, self.spec, guardrails, weights, **options)


def guardrails_of(config: Config) -> Guardrails:
    """The bounds that a configuration sets on any policy."""
    if config.starvation == "lane":
        return Guardrails(config.influence, lane_share=config.lane_share)
    if config.starvation == "none":
        return Guardrails(config.influence, starve_drain=math.inf)
    return Guardrails(config.influence, config.starve_age, config.starve_factor)


def _nothing(snapshot: Snapshot) -> Array:
    return np.full(len(snapshot.pending), np.nan)


def _said_something(plan: Plan, snapshot: Snapshot) -> bool:
    """Whether scores that a kernel has computed pass the gate; who goes first by a guardrail has none."""
    counted = ~plan.promoted
    return usable(plan.scores[counted], snapshot.world["jobs"][np.array(plan.order, dtype=np.int64)[counted]])


def load_policy(name: str, state_dir: Path | None = None) -> LivePolicy:
    """The policy of that name; refuses what cannot run on a live cluster, and models that are not as they should be."""
    if name == AUTO:
        from slurm_rl.controller.auto import AutoPolicies

        found = AutoPolicies(state_dir or Path())
        found.renew()
        return found.policy
    if name == CURRENT:
        model = Promotions(state_dir).current() if state_dir is not None else None
        if model is None:
            raise InputError(f"{name!r}: no model is in charge", field="policy", remedy="slurm-rl models promote NAME")
        spec = learned(model)
    else:
        spec = parse_policy(name)
    if not spec.reachable:
        raise InputError(f"{name!r} needs true run times, which are unknown", field="policy", remedy="e.g. sjf@user")
    if spec.outside is not None:
        calls = OutsideCalls(spec.outside, aside=True)
        return LivePolicy(spec.name, spec, spec.digest, scorer(calls, spec), calls)
    return LivePolicy(spec.name, booked(spec), spec.digest)  # Slurm's backfill books nodes for many
