"""Policies by name: `sjf@user`, `multifactor`, … become what kernels take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_rl.errors import InputError, unknown_name
from slurm_rl.policy.heuristics import (
    BY_LIMIT,
    BY_USER,
    CODES,
    DEFAULT_WEIGHTS,
    FIXED_ORDER,
    MULTIFACTOR,
    SMITH,
    SOURCES,
    STATIC_EQUAL,
    USES_ESTIMATE,
)

DAY = 86400.0


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy chosen by name."""

    name: str
    code: int
    source: int
    starve_age: float = math.inf
    starve_factor: float = 0.0

    @property
    def fixed_order(self) -> bool:
        """Whether the order of two waiting jobs can never change."""
        return self.code in FIXED_ORDER and self.source != BY_USER and self.starve_age == math.inf

    @property
    def needs_usage(self) -> bool:
        return self.code in (MULTIFACTOR, STATIC_EQUAL)

    @property
    def reachable(self) -> bool:
        """False for a policy that knows true run times: a limit, not a contender."""
        return self.source != SOURCES["oracle"]


def parse_policy(text: str) -> PolicySpec:
    """A policy from its name, `NAME` or `NAME@SOURCE`."""
    name, _, source = text.strip().partition("@")
    if name not in CODES:
        raise unknown_name("policy", name, CODES)
    code = CODES[name]
    if not source:
        return PolicySpec(name, code, BY_USER if code == SMITH else BY_LIMIT)
    if code not in USES_ESTIMATE:
        raise InputError(f"policy {name!r} uses no estimate", remedy=f"write {name!r} without @{source}")
    if source not in SOURCES:
        raise unknown_name("estimate source", source, SOURCES)
    return PolicySpec(f"{name}@{source}", code, SOURCES[source])


def settings_for(
    policy: PolicySpec, *, backfill: int, placer: int, influence: float, preempt: bool, weights: dict[str, float] | None
) -> dict[str, float]:
    """The settings of a World for a policy and what goes with it; periods are Slurm's own defaults."""
    settings = {
        "code": policy.code,
        "source": policy.source,
        "placer": placer,
        "backfill": backfill,
        "fixed_order": policy.fixed_order and influence >= 1.0,
        "preempt": preempt,
        "track_usage": policy.needs_usage or influence < 1.0,
        "influence": influence,
        "starve_age": policy.starve_age,
        "starve_factor": policy.starve_factor,
        "max_age": 7 * DAY,
        "half_life": 7 * DAY,
        "calc_period": 300.0,
        "calculated": -math.inf,
    }
    return settings | {f"weight_{k}": v for k, v in (DEFAULT_WEIGHTS | (weights or {})).items()}
