"""Limits and licences in plain Python: every question is answered by counting the jobs that run, from scratch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from builders import Job

from reference.model import WHOLE, Ask
from slurm_rl.domain.limits import Bounds, Limits


class Bounded(Protocol):
    """What limits look at."""

    row: Job
    ask: Ask
    account: str
    limit: int


class HeldBack:
    """L1 to L4 of docs/backfill.md."""

    def __init__(self, limits: Limits, partitions: Sequence[str]) -> None:
        self.limits, self.partitions = limits, partitions

    def why(self, job: Bounded, running: Iterable[Bounded]) -> str:
        """What keeps a job from starting: the number of "jobs", "licences", "amounts"; "" if nothing does."""
        others = list(running)
        for kind in ("jobs", "licences", "amounts"):
            for what, most, mine in self._limits(job, kind):
                asked = self._asked(job, what)
                used = sum(self._asked(o, what) for o in others if mine(o))
                if asked and used + asked > most + 1e-9:
                    return kind
        return ""

    def refuses(self, job: Bounded, there: Iterable[Bounded]) -> bool:
        """Whether so many wait or run that no more may be submitted."""
        others = list(there)
        return any(sum(map(mine, others)) + 1 > most for _, most, mine in self._limits(job, "submit"))

    def never(self, job: Bounded) -> bool:
        """Whether a job could not start on a cluster on which nothing runs, or is longer than it may be."""
        if self.why(job, ()) or self.refuses(job, ()):
            return True
        part = self.limits.partition.get(self._partition(job))
        if part and part.max_nodes is not None and self._asked(job, "node") > part.max_nodes:
            return True
        if part and part.max_time is not None and job.limit > part.max_time:
            return True
        licences = self.limits.licenses
        if licences is not None and any(name not in licences for name in _licences(job)):
            return True
        chain = [*self._qos(job), *self._association(job)]
        walls = [b.max_wall for b in chain if b.max_wall is not None]
        if walls and job.limit > walls[0]:
            return True
        for tres in {t for b in chain for t in b.max_tres_job}:
            first = next(b.max_tres_job[tres] for b in chain if tres in b.max_tres_job)
            if self._asked(job, tres) > first:
                return True
        return False

    def _limits(self, job: Bounded, kind: str):  # type: ignore[no-untyped-def]  # (what, most, who counts), by hand
        row = job.row
        qos = self._qos(job)
        names = self._qos_names(job)

        def of_qos(name):  # type: ignore[no-untyped-def]
            return lambda o: name in self._qos_names(o)

        def of_user(name):  # type: ignore[no-untyped-def]
            return lambda o: name in self._qos_names(o) and o.row.user == row.user

        def of_account(name):  # type: ignore[no-untyped-def]
            return lambda o: name in self._qos_names(o) and o.account == job.account

        def same_association(o):  # type: ignore[no-untyped-def]
            return o.row.user == row.user and o.account == job.account

        own, *above = self._association(job)
        accounts = [(a, self.limits.account[a]) for a in self._above(job.account) if a in self.limits.account]
        if kind == "licences":
            for name in _licences(job):
                if self.limits.licenses is not None:
                    yield f"license/{name}", self.limits.licenses.get(name, 0), lambda o: True
            return
        if kind == "amounts":
            settled = set()
            for field, who in (("grp_tres", of_qos), ("max_tres_user", of_user), ("max_tres_account", of_account)):
                seen: set[str] = set()
                for name, bounds in zip(names, qos, strict=True):
                    for tres, most in getattr(bounds, field).items():
                        if tres not in seen:
                            yield tres, most, who(name)
                    seen |= set(getattr(bounds, field))
                if field == "grp_tres":
                    settled = seen
            for tres, most in own.grp_tres.items():
                if tres not in settled:
                    yield tres, most, same_association
            for account, bounds in accounts:
                for tres, most in bounds.grp_tres.items():
                    if tres not in settled:
                        yield tres, most, lambda o, a=account: a in self._above(o.account)
            return
        word = "jobs" if kind == "jobs" else "submit"
        said = set()
        for field, who in ((f"grp_{word}", of_qos), (f"max_{word}_user", of_user), (f"max_{word}_account", of_account)):
            for name, bounds in zip(names, qos, strict=True):
                if getattr(bounds, field) is not None:
                    yield "job", getattr(bounds, field), who(name)
                    said.add(field)
                    break
        if f"grp_{word}" not in said:
            if (most := getattr(own, f"grp_{word}")) is not None:
                yield "job", most, same_association
            for account, bounds in accounts:
                if (most := getattr(bounds, f"grp_{word}")) is not None:
                    yield "job", most, lambda o, a=account: a in self._above(o.account)
        if not said & {f"max_{word}_user", f"max_{word}_account"}:
            most = next((m for b in (own, *above) if (m := getattr(b, f"max_{word}_user")) is not None), None)
            if most is not None:
                yield "job", most, same_association

    def _partition(self, job: Bounded) -> str:
        return job.row.partition.split(",")[0] or self.partitions[0]

    def _qos_names(self, job: Bounded) -> list[str]:
        part = self.limits.partition.get(self._partition(job))
        names = [part.qos if part else "", job.row.qos or self.limits.default_qos]
        if names[1] in self.limits.qos and self.limits.qos[names[1]].over_partition:
            names.reverse()
        return [n for n in dict.fromkeys(names) if n in self.limits.qos]

    def _qos(self, job: Bounded) -> list[Bounds]:
        return [self.limits.qos[name] for name in self._qos_names(job)]

    def _above(self, account: str) -> list[str]:
        found: list[str] = []
        while account:
            found.append(account)
            account = self.limits.account[account].parent if account in self.limits.account else ""
        return found

    def _association(self, job: Bounded) -> list[Bounds]:
        """A user's own, then what it inherits from."""
        users = self.limits.user
        own = users.get(job.row.user) or users.get("*") or Bounds()
        return [own, *(self.limits.account[a] for a in self._above(job.account) if a in self.limits.account)]

    @staticmethod
    def _asked(job: Bounded, what: str) -> float:
        ask = job.ask
        if what.startswith("license/"):
            return _licences(job).get(what.removeprefix("license/"), 0)
        gpus = ask.units * (ask.gpu + ask.share / WHOLE)
        kind = job.row.gpu_type
        return {
            "job": 1,
            "cpu": ask.units * ask.cpu,
            "mem": ask.units * ask.mem,
            "node": job.row.nodes or -(-ask.units // ask.per_node),
            "gres/gpu": gpus,
            f"gres/gpu:{kind.lower()}": gpus if "|" not in kind else 0,
        }.get(what, 0)


def _licences(job: Bounded) -> dict[str, int]:
    pairs = (item.partition(":") for item in job.row.licenses.split(",") if item)
    return {name: int(count or 1) for name, _, count in pairs}
