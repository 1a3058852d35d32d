"""The state of a meta-policy between ticks: kept by pool, journaled, restored after a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from slurm_rl.domain.snapshot import Plan, Snapshot
from slurm_rl.kernel.arrays import CHOOSER, Array
from slurm_rl.obs.journal import Journal
from slurm_rl.policy.meta import STATE, digest_of_set, state_tables
from slurm_rl.policy.registry import PolicySpec

_NAME = "choices"  # in the journal


class LiveChoices:
    """What a meta-policy has learned and chosen so far; pools are known by their partitions, not by their numbers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._of = ""  # the set that the state belongs to
        self._pools: dict[str, dict[str, Array]] = {}
        self._decisions = 0

    def tables(self, policy: PolicySpec, snapshot: Snapshot) -> dict[str, Array] | None:
        """The state as `decide` takes it, for the pools of a snapshot; None if the policy does not choose."""
        if policy.meta is None:
            return None
        self._belong_to(digest_of_set(policy.meta))
        pools = len(snapshot.world["pools"])
        made = state_tables(pools, len(policy.meta.members), policy.meta.seed)
        for number, name in enumerate(snapshot.pools):
            for key, row in self._pools.get(name, {}).items():
                made[key][number] = row
        return made

    def keep(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Keeps the state after a plan, and journals it if something was chosen."""
        if plan.memory is None:
            return
        for number, name in enumerate(snapshot.pools):
            self._pools[name] = {key: plan.memory[key][number].copy() for key in STATE}
        decisions = sum(int(state["choosers"]["decisions"]) for state in self._pools.values())
        if decisions != self._decisions:
            self._decisions = decisions
            self._journal.remember(_NAME, now, json.dumps({"of": self._of, "pools": _plain(self._pools)}))

    def _belong_to(self, digest: str) -> None:
        """Starts anew for another set, with what the journal has of it."""
        if digest == self._of:
            return
        self._of, self._pools, self._decisions = digest, {}, 0
        text = self._journal.recall(_NAME)
        kept: Any = json.loads(text) if text else {}
        if kept.get("of") == digest:
            self._pools = {name: _arrays(state) for name, state in kept["pools"].items()}
            self._decisions = sum(int(state["choosers"]["decisions"]) for state in self._pools.values())


def _plain(pools: Mapping[str, Mapping[str, Array]]) -> dict[str, Any]:
    found = {}
    for name, state in pools.items():
        chooser = {field: state["choosers"][field].tolist() for field in CHOOSER.names or ()}
        chooser["decided"] = chooser["decided"] if math.isfinite(chooser["decided"]) else None
        found[name] = {key: state[key].tolist() for key in STATE if key != "choosers"} | {"choosers": chooser}
    return found


def _arrays(state: Mapping[str, Any]) -> dict[str, Array]:
    row = np.zeros((), dtype=CHOOSER)
    for field, value in state["choosers"].items():
        row[field] = -math.inf if value is None else value
    kinds = {"regime": np.float32, "worth": np.float64, "arms": np.float64}
    return {key: np.array(state[key], dtype=kind) for key, kind in kinds.items()} | {"choosers": row}
