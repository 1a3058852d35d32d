"""The limit that holds a job back, with its numbers, from `scontrol show assoc_mgr`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm_rl.domain.pairs import pairs_in
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.reasons import LIMIT

_PAIR = re.compile(r"(\S+?)=(\S*)")
_COUNT = re.compile(r"^(N|[\d.]+)\(([\d.]+)\)$")
# A reason's word for what is bounded: the TRES whose limits count.
_TRES = {
    "Cpu": "cpu",
    "CPU": "cpu",
    "Mem": "mem",
    "Memory": "mem",
    "Node": "node",
    "GRES": "gres/",
    "License": "license/",
    "Billing": "billing",
    "BB": "bb/",
    "Energy": "energy",
}
_UNITS = {"mem": "MB of memory", "cpu": "CPUs", "node": "nodes", "gres/gpu": "GPUs"}


@dataclass(frozen=True, slots=True)
class Binding:
    """A limit, whose it is, and how far it is used."""

    owner: str  # QOS normal, account lab, user ann in QOS normal
    what: str  # CPUs, GPUs, jobs …
    allowed: float
    used: float
    asked: float  # by this job
    shared: bool = False  # counts what others use, too

    def reached(self) -> str:
        """The text for users who may not see the use of others."""
        return f"{self.owner}: the limit on {self.what} is reached"

    def __str__(self) -> str:
        more = f"; this job asks for {self.asked:g}" if self.asked else ""
        return f"{self.owner}: {self.used:g} of {self.allowed:g} {self.what} in use{more}"


@dataclass(slots=True)
class _Record:
    kind: str  # assoc or qos
    fields: dict[str, str]
    users: dict[str, dict[str, str]]  # of a QOS: limits of each user in it …
    accounts: dict[str, dict[str, str]]  # … and of each account


def parse(text: str) -> list[_Record]:
    """The records of associations and QOS; what is not understood is passed over."""
    found: list[_Record] = []
    inner: dict[str, str] | None = None
    group: dict[str, dict[str, str]] | None = None
    for line in text.splitlines():
        word = line.strip()
        if word.startswith(("ClusterName=", "QOS=")):
            found.append(_Record("assoc" if word.startswith("ClusterName=") else "qos", {}, {}, {}))
            inner = group = None
        elif word.startswith("UserName=") or not found:
            continue
        elif word in ("User Limits", "Account Limits"):
            group = found[-1].users if word.startswith("User") else found[-1].accounts
            inner = None
            continue
        elif word.startswith("[") or (group is not None and re.fullmatch(r"[\w.@-]+(\(\d+\))?", word)):
            if group is not None:
                inner = group.setdefault(re.sub(r"\(\d+\)$", "", word.strip("[]")), {})
            continue
        into = inner if inner is not None else found[-1].fields
        for name, value in _PAIR.findall(word):
            into[name] = value
    return found


def is_limit(reason: str) -> bool:
    """Whether a reason is a limit of an association or a QOS."""
    return _named(reason) is not None


def _named(reason: str) -> re.Match[str] | None:
    return LIMIT.match(re.split(r"[\s,(]", reason.strip("()"), maxsplit=1)[0])


def binding_limits(job: SlurmJob, text: str) -> list[Binding]:
    """The limits of the kind that the job's reason names, with numbers, the fullest first; [] if none can be read."""
    named = _named(job.reason)
    if named is None or named["bound"] == "Min" or named["time"]:
        return []
    records = parse(text)
    rows = _of_qos(job, records) if named["who"] != "Assoc" else _of_association(job, records)
    found = []
    for owner, fields, scope, personal in rows:
        if (named["each"] in ("PerUser", "PerAccount")) != (scope == "each"):
            continue
        for what, allowed, used, asked in _limits(fields, named["bound"], named["what"], scope, job):
            if used + asked > allowed:
                found.append(Binding(owner, what, allowed, used, asked, not personal))
    return sorted(found, key=lambda b: b.allowed - b.used)


def _of_qos(job: SlurmJob, records: list[_Record]) -> Iterator[tuple[str, Mapping[str, str], str, bool]]:
    for record in records:
        name = re.sub(r"\(\d+\)$", "", record.fields.get("QOS", ""))
        if record.kind != "qos" or name != job.qos:
            continue
        yield f"QOS {name}", record.fields, "all", False
        for who, group in ((job.user, record.users), (job.account, record.accounts)):
            if who in group:
                yield f"{who} in QOS {name}", group[who], "each", group is record.users


def _of_association(job: SlurmJob, records: list[_Record]) -> Iterator[tuple[str, Mapping[str, str], str, bool]]:
    """The user's own association, its account's, and those above it; the last value: nobody else counts in it."""
    account, seen = job.account, set()
    mine = [r.fields for r in records if r.kind == "assoc"]
    for f in mine:
        if f.get("Account") == account and re.sub(r"\(\d+\)$", "", f.get("UserName", "")) == job.user:
            yield f"user {job.user} in account {account}", f, "all", True
    while account and account not in seen:
        seen.add(account)
        row = next((f for f in mine if f.get("Account") == account and not f.get("UserName")), None)
        if row is None:
            return
        yield f"account {account}", row, "all", False
        account = re.sub(r"\(\d+\)$", "", row.get("ParentAccount", ""))


def _limits(
    fields: Mapping[str, str], bound: str, what: str, scope: str, job: SlurmJob
) -> Iterator[tuple[str, float, float, float]]:
    """(what, allowed, used, asked for) of each limit of that kind that has a number."""
    if what.startswith(("Jobs", "SubmitJob")):
        word = "Jobs" if what == "Jobs" else "SubmitJobs"
        for name in (f"{bound}{word}", f"{bound}{word}PU", f"{bound}{word}PA"):
            pair = _count(fields.get(name, ""))
            if pair is not None:
                yield "running jobs" if word == "Jobs" else "jobs in the queue", *pair, 1.0
        return
    kind = _TRES.get(what)
    if kind is None:
        return
    for name in ("GrpTRES",) if bound == "Grp" else ("MaxTRESPU", "MaxTRESPA", "MaxTRES"):
        for tres, value in pairs_in(fields.get(name, "").split(",")):
            pair = _count(value)
            if pair is not None and (tres == kind or (kind.endswith("/") and tres.startswith(kind))):
                yield _UNITS.get(tres, tres), *pair, float(_asked(job, tres))


def _asked(job: SlurmJob, tres: str) -> float:
    if tres == "gres/gpu":
        return float(job.gpu_count)
    plain = {"cpu": job.cpus, "node": job.nodes, "mem": job.mem_mb}
    return float(plain.get(tres, job.tres.get(tres, 0)))


def _count(value: str) -> tuple[float, float] | None:
    """`40(36)`: 40 are allowed and 36 in use; None for N, no limit."""
    match = _COUNT.match(value)
    return None if match is None or match[1] == "N" else (float(match[1]), float(match[2]))
