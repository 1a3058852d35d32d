"""Policies by name: `sjf@user`, `multifactor`, … become the settings that kernels take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from slurm_rl.errors import InputError, unknown_name
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy import lane, outside
from slurm_rl.policy.catalogue import BY_USER, GIVEN, LEARNED, POLICIES, SOURCES, Policy, policy_names
from slurm_rl.policy.checkpoint import STARVE_DRAIN, Model, find_model, load_model
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT
from slurm_rl.policy.heuristics import DEFAULT_WEIGHTS
from slurm_rl.policy.network import AT, HIDDEN
from slurm_rl.policy.outside import Outside

if TYPE_CHECKING:
    from slurm_rl.policy.meta import Meta

DAY = 86400.0


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy chosen by name."""

    name: str
    code: int
    source: int
    starve_age: float = math.inf
    starve_factor: float = 0.0
    starve_drain: float = math.inf
    lane_share: float = 0.0  # of the work started that the lane may have (lane.py); 0: there is no lane
    lane_age: float = lane.AGE
    booking_size: float = 0.0  # added to a network's weight of `size` where wide jobs cost most: see `booked`
    styles: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False, compare=False)
    net: Array | None = field(default=None, repr=False, compare=False)  # a network's weights, in the order of LAYOUT
    digest: str = ""  # … and their sha256
    outside: Outside | None = field(default=None, repr=False, compare=False)  # a policy that is Python
    meta: Meta | None = field(default=None, repr=False, compare=False)  # a policy that chooses among others

    @property
    def row(self) -> Policy:
        """Its row in the catalogue; of one that chooses, with its members."""
        row = POLICIES.of_code(self.code)
        return row if self.meta is None else replace(row, members=self.meta.rows)

    @property
    def fixed_order(self) -> bool:
        """Whether the order of two waiting jobs can never change."""
        return self.row.fixed_order and self.source != BY_USER and self.starve_age == math.inf and not self.lane_share

    @property
    def ours(self) -> bool:
        """Whether it came with us, or is a model of our layout: not Python, a formula or a network from outside."""
        return self.outside is None and POLICIES.is_own(self.row.name)

    @property
    def reachable(self) -> bool:
        """False for a policy that knows true run times: a limit, not a contender."""
        return self.source != SOURCES["oracle"]


def parse_policy(text: str) -> PolicySpec:
    """A policy from its name: `NAME`, `NAME@SOURCE`, `rl:MODEL`, `meta:MODEL`, `bandit:KIND`, or one from outside."""
    kind, colon, model = text.strip().partition(":")
    if colon and kind == "rl":
        return learned(load_model(find_model(model)), text.strip())
    if colon and kind in ("meta", "bandit"):
        from slurm_rl.policy.meta import parse_bandit, parse_meta

        return parse_meta(model) if kind == "meta" else parse_bandit(model)
    name, _, source = text.strip().partition("@")
    if name not in POLICIES:
        found = outside.find(name)
        if isinstance(found, outside.Outside):
            return python_policy(found, source)
        name = found or name
    if name not in POLICIES or not POLICIES[name].by_name:
        raise unknown_name("policy", name, (*policy_names(), *outside.names()))
    row, code = POLICIES[name], POLICIES.code(name)
    if not source:
        return PolicySpec(name, code, row.source, digest=row.digest)
    if not row.uses_estimate:
        raise InputError(f"policy {name!r} uses no estimate", remedy=f"write {name!r} without @{source}")
    if source not in SOURCES:
        raise unknown_name("estimate source", source, SOURCES)
    return PolicySpec(f"{name}@{source}", code, SOURCES[source], digest=row.digest)


def python_policy(found: Outside, source: str = "") -> PolicySpec:
    """The policy of a Python function; `NAME@SOURCE` shows it other estimates."""
    if source and source not in SOURCES:
        raise unknown_name("estimate source", source, SOURCES)
    name = f"{found.name}@{source}" if source else found.name
    return PolicySpec(name, GIVEN, SOURCES.get(source, found.source), digest=found.digest, outside=found)


def learned(model: Model, name: str | None = None) -> PolicySpec:
    """The policy of a checked model."""
    return PolicySpec(
        name or f"rl:{model.name}",
        LEARNED,
        BY_USER,
        starve_drain=model.starve_drain,
        booking_size=model.booking_size,
        styles=model.styles,
        net=model.net,
        digest=model.digest,
    )


def booked(policy: PolicySpec) -> PolicySpec:
    """The policy as it is under a backfill rule that books nodes for many jobs, as Slurm's own does.

    A wide job that is booked early keeps nodes from all behind it for as long as its limit says; so its size counts for
    more there than where only the first job has a reservation. In pools without GPUs, whose jobs are the widest, it
    does under every rule (`score_queue`).
    """
    if policy.net is None or not policy.booking_size:
        return policy
    net = policy.net.copy()
    net[AT["skip"] + JOB_FEATURES.index("size")] += policy.booking_size
    return replace(policy, net=net, booking_size=0.0)


def in_style(policy: PolicySpec, name: str) -> PolicySpec:
    """The policy in one of its model's styles: other weights of some features, and another cap."""
    if policy.net is None:
        raise ValueError(f"{policy.name} is no network")
    style = policy.styles[name]
    net = policy.net.copy()
    for feature in style.keys() - {STARVE_DRAIN}:
        net[AT["skip"] + JOB_FEATURES.index(feature)] += style[feature]
    return replace(policy, net=net, starve_drain=style.get(STARVE_DRAIN, policy.starve_drain), styles={})


def with_lane(policy: PolicySpec, share: float = lane.SHARE, age: float = lane.AGE) -> PolicySpec:
    """The policy with a lane for its oldest jobs in place of its caps on waiting."""
    caps = {"starve_age": math.inf, "starve_factor": 0.0, "starve_drain": math.inf}
    return replace(policy, **caps, lane_share=share, lane_age=age)  # type: ignore[arg-type]  # each is a float


STARVATION = ("cap", "lane", "none")


def guarded(policy: PolicySpec, starvation: str, share: float = lane.SHARE) -> PolicySpec:
    """The policy with another rule for jobs that wait long: its own cap, the lane, or none."""
    if starvation not in STARVATION:
        raise unknown_name("starvation", starvation, STARVATION)
    if starvation == "lane":
        return with_lane(policy, share)
    return policy if starvation == "cap" else replace(policy, starve_age=math.inf, starve_drain=math.inf)


def settings_for(
    policy: PolicySpec, *, influence: float = 1.0, preempt: bool = False, weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The settings of a World for a policy; periods are Slurm's own defaults."""
    settings = {
        "code": policy.code,
        "source": policy.source,
        "by_remaining": policy.row.by_remaining,
        "fixed_order": policy.fixed_order and influence >= 1.0,
        "steady": policy.row.fixed_order and policy.source == BY_USER and influence >= 1.0,
        "preempt": preempt,
        "track_usage": policy.row.uses_usage or influence < 1.0 or policy.outside is not None,
        "influence": influence,
        "starve_age": policy.starve_age,
        "starve_factor": policy.starve_factor,
        "starve_drain": policy.starve_drain,
        "lane_share": policy.lane_share,
        "lane_age": policy.lane_age,
        "lane_half_life": lane.HALF_LIFE,
        "booking_size": policy.booking_size,
        "max_age": 7 * DAY,
        "half_life": 7 * DAY,
        "calc_period": 300.0,
        "calculated": -math.inf,
    }
    if policy.meta is not None:
        settings |= policy.meta.settings
    return settings | {f"weight_{k}": v for k, v in (DEFAULT_WEIGHTS | dict(weights or {})).items()}


def network_tables(policy: PolicySpec, jobs: int) -> dict[str, Array]:
    """The tables of a World that a network needs: its weights, and room for what it sees of a queue."""
    if policy.net is None and policy.outside is None:
        return {}
    seen = {
        "features": np.empty((jobs, JOB_COUNT), dtype=np.float32),
        "context": np.zeros(POOL_COUNT, dtype=np.float32),
    }
    if policy.net is None:
        return seen
    return seen | {
        "net": np.ascontiguousarray(policy.net, dtype=np.float32),
        "hidden": np.empty((jobs, HIDDEN), dtype=np.float32),
    }
