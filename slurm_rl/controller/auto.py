"""policy = "auto" on a live cluster: which policy each partition has, read from the last choice of `slurm-rl auto`.

The choice is made outside the service, by replays of the site's past (evaluate/auto.py), and written to one small
file in the state directory with its table; the journal keeps every one. A partition of which nothing was chosen keeps
Slurm's own order. Plans of partitions with different policies are made apart, each on its own pools, and joined.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.controller.live_policy import AUTO, LivePolicy
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.decide import Guardrails
from slurm_rl.domain.snapshot import Plan, Snapshot
from slurm_rl.errors import InputError, SlurmRlError
from slurm_rl.kernel.arrays import Array
from slurm_rl.obs.journal import Journal
from slurm_rl.place.plan import Planner
from slurm_rl.policy.registry import booked, in_style, parse_policy, with_lane

OWN = "multifactor"
_FILE = "auto.json"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The last choice: by partition the policy's name, when it was made, and all that was found."""

    chosen: Mapping[str, str] = field(default_factory=dict)
    time: float = 0.0
    found: Mapping[str, Any] = field(default_factory=dict)


class AutoFile:
    """The file that says what was chosen."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / _FILE

    def stamp(self) -> int:
        """Changes with every choice; 0 before the first."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def read(self) -> Chosen:
        """The last choice; an empty one before the first. One that cannot be read is refused with the reason."""
        try:
            said = json.loads(self.path.read_text(encoding="utf-8"))
            chosen = {str(k): str(v) for k, v in said["chosen"].items()}
            return Chosen(chosen, float(said["time"]), said)
        except FileNotFoundError:
            return Chosen()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"cannot be read: {error}", file=str(self.path), remedy="slurm-rl auto") from None

    def write(self, found: Mapping[str, Any], journal: Path) -> None:
        """Journals a choice with its table, and puts it in charge."""
        with Journal(journal) as kept:
            names = ",".join(f"{p}={name}" for p, name in found["chosen"].items())
            kept.promotion(float(found["time"]), AUTO, names[:200], "", str(os.getuid()), json.dumps(found))
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(found) + "\n", encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(self.path)


def policy_named(name: str, model: str = "default") -> LivePolicy:
    """The live policy behind a candidate's name: `NAME`, `rl:MODEL`, `rl:MODEL, lane` or `rl:MODEL, STYLE`."""
    base, _, how = name.partition(", ")
    spec = parse_policy(base)
    if how and base != OWN:  # tuned weights are the admin's to set: what we do then is nothing
        spec = with_lane(replace(spec, styles={})) if how == "lane" else in_style(spec, how)
    return LivePolicy(name, booked(replace(spec, name=name)), spec.digest)


class AutoPolicies:
    """The policies that are in charge, by partition, renewed when another choice was written."""

    def __init__(self, state_dir: Path) -> None:
        self.file = AutoFile(state_dir)
        self.own = policy_named(OWN)
        self.chosen = Chosen()
        self._by_name: dict[str, LivePolicy] = {}
        self._stamp = -1
        self._running: subprocess.Popen[bytes] | None = None
        self._asked = 0.0
        self.trouble = ""

    def renew(self) -> bool:
        """Takes over a new choice; whether there was one. A wrong one leaves the last good one in charge."""
        stamp = self.file.stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            chosen = self.file.read()
            self._by_name = {name: policy_named(name) for name in set(chosen.chosen.values())}
        except (SlurmRlError, KeyError) as error:
            self.trouble = str(error)
            return False
        self.chosen, self.trouble = chosen, ""
        return True

    def of(self, partition: str) -> LivePolicy:
        """The policy of a partition's jobs; Slurm's own order if nothing was chosen for it."""
        return self._by_name.get(self.chosen.chosen.get(partition, OWN), self.own)

    @property
    def policy(self) -> LivePolicy:
        """The one policy of all partitions, if there is one; else the first that is not Slurm's own order."""
        others = [p for p in self._by_name.values() if p.spec.code != self.own.spec.code]
        return others[0] if others else self.own

    def policies(self) -> list[LivePolicy]:
        """Slurm's own order, and every policy that was chosen."""
        return [self.own, *(p for p in self._by_name.values() if p.name != self.own.name)]

    @property
    def mixed(self) -> bool:
        return len(self._by_name) > 1

    def plan(
        self, queue: LiveQueue, guardrails: Guardrails, placement: str = "best-fit", planner: Planner | None = None
    ) -> Plan:
        """One plan from those of each policy on the jobs of its partitions."""
        snapshot = queue.snapshot
        mine: dict[str, list[int]] = {}
        for j in snapshot.pending.tolist():
            mine.setdefault(self.of(queue.jobs[j].partitions[0]).name, []).append(j)
        weights = dict(queue.weights)
        plans = []
        for name, jobs in mine.items():
            part = Snapshot(snapshot.now, snapshot.world, np.array(jobs, dtype=np.int64))
            policy = self._by_name.get(name, self.own)
            plans.append(policy.plan(part, guardrails, weights, placement, planner))
        if not plans:
            return self.policy.plan(snapshot, guardrails, weights, placement, planner)  # nobody waits
        if len(plans) == 1:
            return plans[0]
        return joined(snapshot.now, plans)

    def left_to_slurm(self, queue: LiveQueue) -> Array:
        """The waiting jobs of partitions that keep Slurm's own order: they get no factor of ours."""
        pending = queue.snapshot.pending
        own = [self.of(queue.jobs[j].partitions[0]).spec.code == self.own.spec.code for j in pending.tolist()]
        found: Array = pending[np.array(own, dtype=bool)]
        return found

    def choose(self, arguments: list[str], now: float) -> bool:
        """Starts `slurm-rl auto` beside the service, at the lowest priority; False while one still runs."""
        if self._running is not None and self._running.poll() is None:
            return False
        self._asked = now
        nice = shutil.which("nice")
        command = [
            *([nice, "-n", "19"] if nice else []),
            sys.executable,
            "-m",
            "slurm_rl",
            "auto",
            "--json",
            *arguments,
        ]
        self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return True

    def due(self, now: float, days: float) -> bool:
        """Whether the last choice is older than `days`, and no other was requested within a day."""
        return days > 0 and now - self.chosen.time > days * 86_400 and now - self._asked > 86_400

    def stop(self) -> None:
        """Ends a choice that is being made."""
        if self._running is not None and self._running.poll() is None:
            self._running.terminate()
            self._running.wait(10)

    def shown(self) -> dict[str, Any]:
        """The choice for the API and the dashboard."""
        choosing = self._running is not None and self._running.poll() is None
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.chosen.time)) if self.chosen.time else ""
        found = dict(self.chosen.found) or {"chosen": {}, "choices": []}
        return found | {"made": when, "choosing": choosing, "trouble": self.trouble}


def joined(now: int, plans: list[Plan]) -> Plan:
    """Plans for jobs of different pools as one: the first of one stands before the first of the next."""
    reasons = [r for plan in plans for r in plan.reasons]
    return replace(
        plans[0],
        now=now,
        order=tuple(j for plan in plans for j in plan.order),
        site_factor=tuple(f for plan in plans for f in plan.site_factor),
        reasons=tuple(replace(r, rank=rank, of=len(reasons)) for rank, r in enumerate(reasons)),
        starts=tuple(s for plan in plans for s in plan.starts),
        deferrals=tuple(d for plan in plans for d in plan.deferrals),
    )
