"""A large Slurm as its commands print it: squeue, sprio, scontrol and sshare of any size, and changes between looks.

`LargeSlurm` is the real command-line client; only the processes are replaced, by text that is made here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from slurm_rl.errors import SlurmError
from slurm_rl.slurm import squeue
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.command import Answer, Commands
from slurm_rl.slurm.model import JobUpdate, SlurmState, UpdateResult, UpdateStatus
from slurm_rl.slurm.release import parse_release

NOW = 1_794_950_000
RELEASE = "22.05.8"
LIMITS = {600: "10:00", 3600: "1:00:00", 14_400: "4:00:00", 86_400: "1-00:00:00"}
_ARRAY = 20  # every so many-th waiting record is what is left of an array
_UNIT = "\x1f"

_CONFIG = f"""Configuration data as of 2026-11-18T10:00:00
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = large
PriorityFavorSmall      = no
PriorityMaxAge          = 7-00:00:00
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
PriorityWeightAssoc     = 0
PriorityWeightFairShare = 10000
PriorityWeightJobSize   = 500
PriorityWeightPartition = 500
PriorityWeightQOS       = 3000
PriorityWeightTRES      = (null)
PrivateData             = none
SchedulerParameters     = bf_continue,bf_interval=30
SchedulerType           = sched/backfill
ScronParameters         = (null)
SLURM_VERSION           = {RELEASE}
"""
_SDIAG = """Server thread count:  3
Agent queue size:     0
DBD Agent queue size: 0
Jobs pending:   {pending}
Jobs running:   {running}
Main schedule statistics (microseconds):
\tLast cycle:   2000
\tMean cycle:   2000
Backfilling stats
\tLast cycle: 500000
\tMean cycle: 500000
\tLast depth cycle: 100
"""


class Site:
    """What the commands of one cluster print; `pass_time` changes a part of it."""

    def __init__(self, pending: int, nodes: int, seed: int = 1) -> None:
        self.pending, self.nodes = pending, nodes
        self.rng = random.Random(seed)
        self.now = NOW
        self._next = 1
        self.waiting: dict[int, dict[str, str]] = {}
        self.own: dict[int, list[int]] = {}  # by job: age, fair share, size, QOS, nice
        self.site: dict[int, int] = {}
        self._lines: dict[int, str] = {}  # by identity of the record: its fields as last printed, joined by "\0"
        self.users = {f"u{i}": (f"g{i % 40}", self.rng.random()) for i in range(400)}
        self.nodes_said = [self._node(i) for i in range(1, nodes + 1)]
        self.running = [self._running(i) for i in range(1, nodes + 1)]
        while len(self.waiting) < pending:
            self.submit()

    def submit(self) -> None:
        """One more record waits."""
        rng, job_id = self.rng, self._next
        self._next += 1
        user = rng.choice(list(self.users)) if job_id % 50 == 0 else f"u{min(int(rng.expovariate(0.02)), 399)}"
        gpus, limit = rng.choice((1, 1, 1, 2, 4, 8)), rng.choice(list(LIMITS))
        wide = rng.random() < 0.02
        count = rng.choice((2, 4, 16)) if wide else 1
        array = job_id % _ARRAY == 0
        submitted = self.now - rng.randrange(1, 600_000)
        r = dict.fromkeys(squeue.JOB_FIELDS, "N/A") | {
            "JobID": str(job_id), "ArrayJobID": str(job_id), "Name": f"train_{rng.randrange(3000)}", "UserName": user,
            "ArrayTaskID": f"{rng.randrange(10)}-{rng.randrange(100, 1000)}%{rng.randrange(1, 50)}" if array else "N/A",
            "Account": self.users[user][0], "QOS": "normal" if rng.random() < 0.8 else "high", "RestartCnt": "0",
            "Comment": "(null)", "Partition": "batch", "State": "PENDING", "Reason": "Priority",
            "Dependency": "(null)", "Reservation": "(null)", "SubmitTime": str(submitted),
            "EligibleTime": str(submitted), "TimeLimit": LIMITS[limit], "NumNodes": str(count),
            "NumCPUs": str(8 * gpus * count), "NumTasks": str(count), "Feature": "(null)", "Prefer": "(null)",
            "tres-alloc": f"cpu={8 * gpus * count},mem={32 * gpus * count}G,node={count},billing={8 * gpus * count},"
            f"gres/gpu={gpus * count}",
            "tres-per-node": f"gres:gpu:{gpus}", "ReqNodes": "", "OverSubscribe": "OK", "NodeList": "", "Nice": "0",
        }  # fmt: skip
        if rng.random() < 0.01:
            r |= {
                "Dependency": f"afterok:{max(job_id - 1, 1)}(unfulfilled)",
                "Reason": "Dependency",
                "EligibleTime": "N/A",
            }
        if rng.random() < 0.05:
            r["Feature"] = rng.choice(("a100", "h100", "a100|h100"))
        self.waiting[job_id] = r
        share = self.users[user][1]
        size = 500 * count // max(self.nodes, 1)
        self.own[job_id] = [1000 * min(self.now - submitted, 604_800) // 604_800, round(10_000 * share), size, 0, 0]
        self.site[job_id] = 0
        self._priority(job_id)

    def _priority(self, job_id: int) -> None:
        age, share, size, qos, nice = self.own[job_id]
        total = age + share + size + 500 + qos + self.site[job_id] - nice
        self._set(job_id, "PriorityLong", str(max(total, 1)))

    def _set(self, job_id: int, field: str, value: str) -> None:
        record = self.waiting[job_id]
        record[field] = value
        self._lines.pop(id(record), None)

    def _node(self, i: int) -> str:
        kind = "a100" if i % 3 else "h100"
        return (
            f"NodeName=n{i} Arch=x86_64 CoresPerSocket=32  CPUAlloc=64 CPUTot=64 CPULoad=10.29 "
            f"AvailableFeatures={kind} ActiveFeatures={kind} "
            f"Gres=gpu:{kind}:8 GresDrain=N/A GresUsed=gpu:{kind}:8(IDX:0-7) NodeAddr=n{i} "
            f"NodeHostName=n{i} Port=6818 Version={RELEASE} OS=Linux 5.14.0 #1 SMP  RealMemory=524288 AllocMem=262144 "
            f"FreeMem=187870 Sockets=2 Boards=1 State=ALLOCATED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
            f"MCS_label=N/A Partitions=batch  BootTime={NOW - 900_000} SlurmdStartTime={NOW - 800_000} "
            f"LastBusyTime={NOW - 700} CfgTRES=cpu=64,mem=512G,billing=64,gres/gpu=8 "
            f"AllocTRES=cpu=64,mem=256G,gres/gpu=8 CurrentWatts=0 AveWatts=0 "
        )

    def _running(self, i: int) -> dict[str, str]:
        job_id, began = 10_000_000 + i, self.now - self.rng.randrange(60, 80_000)
        kind = "a100" if i % 3 else "h100"
        return dict.fromkeys(squeue.JOB_FIELDS, "N/A") | {
            "JobID": str(job_id), "ArrayJobID": str(job_id), "Name": f"train_{i % 500}", "UserName": f"u{i % 100}",
            "Account": f"g{i % 40}", "QOS": "normal", "RestartCnt": "0", "Comment": "(null)", "Partition": "batch",
            "State": "RUNNING", "Reason": "None", "Dependency": "(null)", "Reservation": "(null)",
            "SubmitTime": str(began - 100), "EligibleTime": str(began - 100), "StartTime": str(began),
            "EndTime": str(began + 86_400), "TimeLimit": "1-00:00:00", "NumNodes": "1", "NumCPUs": "64",
            "NumTasks": "1",
            "tres-alloc": "cpu=64,mem=256G,node=1,billing=64,gres/gpu=8", "tres-per-node": f"gres:gpu:{kind}:8",
            "Feature": "(null)", "Prefer": "(null)", "ReqNodes": "", "OverSubscribe": "OK", "NodeList": f"n{i}",
            "PriorityLong": "1", "Nice": "0",
        }  # fmt: skip

    def pass_time(self, seconds: int = 10, share: float = 0.002) -> None:
        """Some jobs come, some go, some get another expected start; the rest prints as before."""
        self.now += seconds
        changed = self.rng.sample(list(self.waiting), max(round(share * len(self.waiting)), 1))
        for job_id in changed[: len(changed) // 4]:
            self._lines.pop(id(self.waiting[job_id]), None)
            del self.waiting[job_id], self.own[job_id], self.site[job_id]
            self.submit()
        for job_id in changed[len(changed) // 4 :]:
            self._set(job_id, "StartTime", str(self.now + self.rng.randrange(100_000)))

    def age(self) -> None:
        """Slurm calculates priorities anew (PriorityCalcPeriod): every waiting job has others."""
        for job_id, own in self.own.items():
            submitted = int(self.waiting[job_id]["SubmitTime"])
            own[0] = 1000 * min(self.now - submitted, 604_800) // 604_800
            own[1] += 1
            self._priority(job_id)

    def squeue(self, fields: Sequence[str], ends: Sequence[str], *, running: bool, only: Collection[int] = ()) -> str:
        """A line for each record, with what each field ends in."""
        named = [self.waiting[i] for i in only if i in self.waiting]
        rows = named if only else [*self.waiting.values(), *(self.running if running else ())]
        absent = {"tres-per-socket": "N/A", "cpus-per-tres": "N/A", "%x": ""}
        names = {"%A": "ArrayJobID"}
        asked = [(names.get(f, f), absent.get(f, "")) for f in fields]
        whole = tuple(fields) == squeue.JOB_FIELDS
        lines = []
        for r in rows:
            line = self._lines.get(id(r)) if whole else None
            if line is None:
                line = "\0".join(r.get(name, none) for name, none in asked)
                if whole:
                    self._lines[id(r)] = line
            lines.append(line)
        last = f"{ends[-1]}\n"
        return (last.join(lines) + last if lines else "").replace("\0", ends[0])

    def sprio(self, mark: str) -> str:
        lines = []
        for job_id, (age, share, size, qos, nice) in self.own.items():
            r = self.waiting[job_id]
            if "unfulfilled" in r["Dependency"]:
                continue
            normal = f"{self.users[r['UserName']][1]:.7f}"
            numbers = (job_id, r["PriorityLong"], age, 0, share, size, 500, qos, self.site[job_id], "", nice, normal)
            lines.append(f"{_UNIT.join(map(str, numbers))}{mark}\n")
        return "".join(lines)

    def sshare(self) -> str:
        return "".join(f"{account}|{user}|{share:.6f}\n" for user, (account, share) in self.users.items())


def said(site: Site, command: Sequence[str]) -> str:
    """What a command prints."""
    match tuple(command):
        case ("scontrol", "show", "config"):
            return _CONFIG
        case ("scontrol", "ping"):
            return "Slurmctld(primary) at large is UP\n"
        case ("scontrol", "show", "assoc_mgr"):
            return ""
        case ("sdiag",):
            return _SDIAG.format(pending=len(site.waiting), running=len(site.running))
        case ("scontrol", "-o", "show", "reservation"):
            return "No reservations in the system\n"
        case ("scontrol", "-o", "-a", "show", "partition"):
            more = f"Nodes=n[1-{site.nodes}] PriorityJobFactor=1 PriorityTier=1 State=UP"
            return f"PartitionName=batch Default=YES DefaultTime=01:00:00 MaxTime=7-00:00:00 {more}\n"
        case ("scontrol", "-o", "-d", "show", "node"):
            return "\n".join(site.nodes_said) + "\n"
        case ("squeue", *_, "-O", asked):
            pairs = [one.split(":", 1) for one in asked.split(",")]
            fields, ends = [f for f, _ in pairs], [end for _, end in pairs]
            return site.squeue(fields, ends, running="PENDING" not in command, only=_named(command))
        case ("squeue", *_, "-o", asked):
            mark = asked.removeprefix("%A").partition("%x")[0]
            return site.squeue(("%A", "%x"), (mark, mark), running=False, only=_named(command))
        case ("sprio", *_, asked) if "%Y" in asked:
            return site.sprio(asked.partition("%f")[2])
        case ("sprio", *_, asked):
            mark, only = asked.removeprefix("%i").partition("%S")[0], _named(command)
            rows = ((i, site.site.get(i)) for i in only) if only else site.site.items()
            return "".join(f"{i}{mark}{factor}{mark}\n" for i, factor in rows if factor is not None)
        case ("sshare", *_):
            return site.sshare()
        case ("sacct", *_):
            return ""
    raise SlurmError(f"not printed here: {command}")


def _named(command: Sequence[str]) -> list[int]:
    """The jobs that are asked about by name; none: all."""
    return [int(i) for i in command[command.index("-j") + 1].split(",")] if "-j" in command else []


class _Printed(Commands):
    """Answers as the processes would, and counts what is asked."""

    def __init__(self, site: Site) -> None:
        super().__init__(Path("/dev/null"))
        self.site = site
        self.spent = 0.0  # seconds of the processor that making the text took

    def run(self, *command: str, timeout: float | None = None) -> str:
        began = time.process_time()
        text = said(self.site, command)
        self.load.add(len(text))
        self.spent += time.process_time() - began
        return text

    def run_all(self, commands: Sequence[Sequence[str]]) -> list[Answer]:
        return [(self.run(*command),) for command in commands]  # one after the other: each is timed


class LargeSlurm(CliClient):
    """The command-line client over a `Site`; SiteFactors that are written show up in what it prints."""

    def __init__(self, site: Site) -> None:
        super().__init__(Path("/dev/null"))
        self.site = site
        self.commands = _Printed(site)
        assert parse_release(RELEASE).known

    def snapshot(self) -> SlurmState:
        return msgspec.structs.replace(super().snapshot(), taken=float(self.site.now))

    def _apply(self, updates: list[JobUpdate] | tuple[JobUpdate, ...]) -> list[UpdateResult]:  # type: ignore[override]
        for u in updates:
            if u.site_factor is not None and u.job_id in self.site.site:
                self.site.site[u.job_id] = u.site_factor
                self.site._priority(u.job_id)
        return [UpdateResult(u.job_id, UpdateStatus.APPLIED) for u in updates]
