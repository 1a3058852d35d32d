"""The reasons for a job's place, and its place under other requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from slurm_rl.controller.live_policy import LivePolicy
from slurm_rl.controller.scores import score_again
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.decide import Guardrails, in_order
from slurm_rl.domain.snapshot import Plan, Snapshot
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.tables import TABLES
from slurm_rl.policy.catalogue import BY_USER, EDF, MULTIFACTOR, STATIC_EQUAL, STATIC_PRIORITY

_PATIENCE = 0.06  # seconds for all questions about one job: a request has 0.2, also while others crowd in
_HOUR = 3600
UNITS = {"wait": "s", "run time": "s", "deadline": "s", "size": "GPUs", "priority": "points", "fairshare": "share"}
# What a question or the ordering of a queue changes is copied for each job that is asked about; the rest is shared.
_CHANGED = frozenset(
    "jobs live requests pools users groups scores order scratch features context hidden "
    "choosers regime worth arms".split()
)
_CONSTANT = TABLES.keys() - _CHANGED


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one thing about a job does to its place, against a job that is usual in this respect."""

    feature: str
    value: float
    usual: float  # the queue's median
    score: float  # what it adds to the policy's score
    places: int  # how many places it lifts the job; negative: it costs them


class Ordered:
    """A tick's order, made ready for questions about single jobs; many threads may ask, and change nothing of it."""

    def __init__(self, queue: LiveQueue, plan: Plan, policy: LivePolicy, guardrails: Guardrails) -> None:
        self.queue, self.policy = queue, policy
        self.world = policy.ready_to_order(queue.snapshot, guardrails, dict(queue.weights), plan)
        self.order = np.array(plan.order, dtype=np.int64)
        self.scores = plan.scores
        self.ids = queue.ids[self.order]
        pending = queue.snapshot.pending
        pools = self.world["requests"]["pool"][self.world["jobs"]["request"][pending]]
        self.pools = {p: np.ascontiguousarray(pending[pools == p]) for p in np.unique(pools).tolist()}

    def place_of(self, job_id: int) -> PlaceInQueue | None:
        """None for a job that is not in the order."""
        places = np.flatnonzero(self.ids == job_id)
        return PlaceInQueue(self, int(places[0])) if len(places) else None


class PlaceInQueue:
    """One job among those it competes with; asks the policy about variants of it, on a copy of its own."""

    def __init__(self, ordered: Ordered, place: int) -> None:
        self.queue, self.policy = ordered.queue, ordered.policy
        self.job = job = int(ordered.order[place])
        self.world = ordered.world.fork(_CONSTANT)
        # A place of its own in the tables, so that a change of its request or its user's share is its alone.
        for table, column in (("requests", "request"), ("users", "user")):
            rows, at = self.world[table], self.world["jobs"][column][job]
            self.world[table] = np.concatenate([rows, rows[at : at + 1]])
            self.world["jobs"][column][job] = len(rows)
        self._pool = ordered.pools[int(self.world["requests"]["pool"][self.world["jobs"]["request"][job]])]
        here = self.queue.line[ordered.order] == self.queue.line[job]
        self.mine = ordered.order[here]
        self.place = int(np.flatnonzero(self.mine == job)[0]) + 1
        self.own = float(ordered.scores[place])
        here[place] = False
        self._others = np.sort(ordered.scores[here])
        self._deadline = time.monotonic() + _PATIENCE

    def contributions(self) -> list[Contribution]:
        """What puts the job where it is, the weightiest first; each against the median of its queue.

        Places are by the policy's own order, before Slurm's factors and the bound on our influence.
        """
        queue, world, j = self.queue, self.world, self.job
        jobs, live, requests = world["jobs"], world["live"], world["requests"]
        rows = self.mine
        volume = requests["volume"][jobs["request"][rows]]
        waited = queue.now - jobs["submit"][rows].astype(float)
        changes = [
            ("wait", queue.now - float(jobs["submit"][j]), waited),
            ("run time", float(live["expected"][j]), live["expected"][rows]),
            ("size", float(requests["volume"][jobs["request"][j]]), volume),
        ]
        if self.policy.spec.code == STATIC_PRIORITY:
            changes = [("priority", float(jobs["priority"][j]), jobs["priority"][rows])]
        if self.policy.spec.code in (MULTIFACTOR, STATIC_EQUAL):
            share = world["users"]["fairshare"][jobs["user"][rows]]
            changes.append(("fairshare", float(world["users"]["fairshare"][jobs["user"][j]]), share))
        if self.policy.spec.code == EDF:
            changes = [("deadline", float(jobs["deadline"][j]), jobs["deadline"][rows].astype(float))]
        found = []
        for name, value, all_values in changes:
            usual = float(np.median(all_values))
            with self._put_back():
                self._set(name, usual)
                score = self._score()
            if score is None:
                break
            places = self._own_place(score) - self._own_place(self.own)
            if score != self.own:
                found.append(Contribution(name, value, usual, _finite(self.own - score), places))
        return sorted(found, key=lambda c: (-abs(c.places), -abs(c.score)))

    def moves(self) -> list[dict[str, object]]:
        """Where the job would stand with a shorter limit, a smaller request, or after another hour."""
        queue, j = self.queue, self.job
        limit = int(self.world["jobs"]["limit"][j])
        found: list[dict[str, object]] = []
        for shorter in dict.fromkeys((limit // 2, max(int(queue.estimate[j] * 1.2), 60))):
            if 60 <= shorter < limit:
                with self._put_back():
                    self._set("limit", shorter)
                    self._ask(found, f"a time limit of {max(shorter // 60, 1)} min instead of {limit // 60}")
        gpus, cpus = sum(queue.jobs[j].gpus.values()), queue.jobs[j].cpus
        whole, unit = (gpus, "GPU") if gpus else (cpus, "CPU")
        if whole > 1:
            half = whole // 2
            with self._put_back():
                row = self.world["jobs"]["request"][j]
                self._set("size", float(self.world["requests"]["volume"][row]) * half / whole)
                self._ask(found, f"{half} {unit}{'s' if half > 1 else ''} instead of {whole}")
        self._ask(found, "another hour of waiting, others likewise", later=_HOUR)
        return found

    def _set(self, name: str, value: float) -> None:
        jobs, live, j = self.world["jobs"], self.world["live"], self.job
        if name == "wait":
            jobs["submit"][j] = self.queue.now - round(value)
        elif name == "run time":
            live["inverse"][j] *= live["expected"][j] / max(value, 1.0)
            live["expected"][j] = value
        elif name == "limit":
            jobs["limit"][j] = value
            if self.policy.spec.source == BY_USER:
                live["version"][j] = -1  # to be estimated anew
            else:
                live["expected"][j] = value
                live["inverse"][j] = 1.0 / value
        elif name == "size":
            request, row = self.world["requests"], jobs["request"][j]
            request["units"][row] = max(round(request["units"][row] * value / request["volume"][row]), 1)
            request["volume"][row] = value
        elif name == "fairshare":
            self.world["users"]["fairshare"][jobs["user"][j]] = value
        else:
            jobs[name][j] = value

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Undoes what `_set` did."""
        j, world = self.job, self.world
        rows = [
            ("jobs", j),
            ("live", j),
            ("requests", world["jobs"]["request"][j]),
            ("users", world["jobs"]["user"][j]),
        ]
        kept = [(table, at, world[table][at].copy()) for table, at in rows]
        try:
            yield
        finally:
            for table, at, row in kept:
                world[table][at] = row

    def _score(self) -> float | None:
        """The policy's score of the job as it is now in our world; None when there is no time left to ask."""
        if self.policy.context_free:
            return float(score_again(self.world.record, float(self.queue.now), np.int64(self.job)))
        again = self._order_again(0)
        return None if again is None else again[1]

    def _order_again(self, later: int) -> tuple[Array, float] | None:
        """The pool's jobs in order as our world is now, and the policy's score of the job."""
        if time.monotonic() > self._deadline:
            return None
        world, now = self.world, self.queue.now + later
        scores = world["live"]["score"]
        before = scores.copy()
        if self.policy.score is not None:
            scores[self.queue.snapshot.pending] = self.policy.score(Snapshot(now, world, self.queue.snapshot.pending))
        order: Array = in_order(world.record, float(now), self._pool)
        if world["influence"] < 1.0:
            own = float(scores[self.job])
        else:
            own = float(world["scores"][np.searchsorted(self._pool, self.job)])
        scores[:] = before
        return order, own

    def _ask(self, found: list[dict[str, object]], what: str, later: int = 0) -> None:
        again = self._order_again(later)
        if again is None:
            return
        order = again[0]
        mine = order[self.queue.line[order] == self.queue.line[self.job]]
        place = int(np.flatnonzero(mine == self.job)[0]) + 1
        if place != self.place:
            found.append({"what": what, "rank": place, "from": self.place})

    def _own_place(self, score: float) -> int:
        """The job's place by the policy's own scores, from 1; of equals it is the first."""
        return len(self._others) - int(np.searchsorted(self._others, score, side="right")) + 1


def _finite(value: float) -> float:
    return value if abs(value) < 1e300 else 0.0
