"""Slurm's reason codes in plain words: the cause of a wait, and a remedy for the user.

Two hundred codes are two families. Limits of associations and QOS follow a grammar (who, which bound, of what, for
whom); the others have a row each. `tests/integration/lab/test_reasons.py` holds this to the list of each release.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_WAIT = "Nothing to do but wait."
_ADMIN = "Ask your administrators."
_SMALLER = "Request less, wait until your other jobs end, or use another QOS or account."


@dataclass(frozen=True, slots=True)
class Words:
    """A reason in one sentence, and a remedy."""

    meaning: str
    remedy: str


# Code: what it means, what to do.
_ROWS: dict[str, tuple[str, str]] = {
    "None": ("Slurm has not looked at it yet.", "It will within seconds."),
    "Priority": (
        "Jobs of higher priority wait for the same nodes.",
        "A smaller request or a shorter time limit may start earlier by backfill.",
    ),
    "Resources": (
        "It is next in line, and waits until enough resources are free.",
        "A smaller request or a shorter time limit may fit earlier.",
    ),
    "Dependency": ("It waits for another job.", "See scontrol show job, Dependency."),
    "DependencyNeverSatisfied": (
        "The job it depends on did not end as required, so it will never start.",
        "Cancel it (scancel), or change Dependency with scontrol update.",
    ),
    "PartitionNodeLimit": (
        "It requests more (or fewer) nodes than its partition allows.",
        "Change the number of nodes, or the partition.",
    ),
    "PartitionTimeLimit": (
        "Its time limit is above the partition's.",
        "Lower it: scontrol update JobId=… TimeLimit=…, or choose another partition.",
    ),
    "PartitionDown": ("Its partition is down.", _ADMIN),
    "PartitionInactive": ("Its partition takes no jobs now.", _ADMIN),
    "PartitionConfig": ("Its request does not fit the partition's configuration.", "Choose another partition."),
    "JobHeldAdmin": ("An administrator holds it.", _ADMIN),
    "JobHeldUser": ("It was held by its user.", "Release it: scontrol release JOBID."),
    "JobHoldMaxRequeue": ("It was requeued too often and is held.", "Find out why it fails, then scontrol release it."),
    "BeginTime": ("Its begin time has not come.", "Change it: scontrol update JobId=… StartTime=now."),
    "Licenses": ("It waits for a licence that others use.", _WAIT),
    "Reservation": ("It waits for its reservation to begin.", "See scontrol show reservation."),
    "ReservationDeleted": (
        "Its reservation was deleted.",
        "Take the reservation out: scontrol update JobId=… ReservationName=",
    ),
    "ReservationInvalid": ("Its reservation does not let it in.", "See scontrol show reservation; choose another."),
    "ReqNodeNotAvail": (
        "A node that it needs is down, drained or reserved.",
        "Take the node out of its request, or wait; maintenance may be near (scontrol show reservation).",
    ),
    "NodeDown": ("A node that it needs is down.", "Wait, or take the node out of the request."),
    "FrontEndDown": ("No front end is up.", _ADMIN),
    "BadConstraints": (
        "No node has the requested features, GPUs, CPUs and memory together.",
        "Compare its request with sinfo -o '%N %G %c %m %f'.",
    ),
    "Constraints": (
        "No node with its constraints is free now.",
        "Wait, or loosen --constraint.",
    ),
    "SchedDefer": ("It asked to start at once, and the scheduler runs later.", _WAIT),
    "Cleaning": ("It was requeued, and its last run is still being cleaned up.", _WAIT),
    "Prolog": ("Its nodes run their prolog.", _WAIT),
    "JobArrayTaskLimit": (
        "Its array runs as many tasks at once as it allows (the % in --array).",
        "Raise it: scontrol update JobId=… ArrayTaskThrottle=…",
    ),
    "InvalidAccount": ("Its account is not valid.", "Choose one of: sacctmgr show assoc user=$USER."),
    "InvalidQOS": ("Its QOS is not valid.", "Choose one of: sacctmgr show assoc user=$USER format=qos."),
    "AccountNotAllowed": ("Its account may not use this partition.", "Choose another partition or account."),
    "QOSNotAllowed": ("Its QOS may not be used in this partition.", "Choose another partition or QOS."),
    "QOSUsageThreshold": ("Its QOS requires a fairshare that you do not have now.", "Wait, or use another QOS."),
    "AssociationJobLimit": ("Its account has as many jobs as it may.", _SMALLER),
    "AssociationResourceLimit": ("Its account holds as much as it may.", _SMALLER),
    "AssociationTimeLimit": ("Its account has used the time it may.", _SMALLER),
    "QOSJobLimit": ("Its QOS has as many jobs as it may.", _SMALLER),
    "QOSResourceLimit": ("Its QOS holds as much as it may.", _SMALLER),
    "QOSTimeLimit": ("Its QOS has used the time it may.", _SMALLER),
    "AccountingPolicy": ("A limit of its account or QOS keeps it back.", _SMALLER),
    "DeadLine": ("It cannot end before its deadline.", "Give it a later --deadline or a shorter limit."),
    "MaxMemPerLimit": ("It requests more memory than the partition allows.", "Lower --mem."),
    "FedJobLock": ("Its federation decides where it runs.", _WAIT),
    "BurstBufferResources": ("It waits for room in the burst buffer.", _WAIT),
    "BurstBufferStageIn": ("Its data is being brought to the burst buffer.", _WAIT),
    "BurstBufferOperation": ("A burst buffer operation failed.", _ADMIN),
    "MpiPortsBusy": ("No ports for MPI are free on its nodes.", _WAIT),
    "NvidiaImexChannels": ("No IMEX channel is free on its nodes.", _WAIT),
    "MaxPoweredUpNodes": ("As many nodes are powered up as the site allows.", _WAIT),
    "PowerNotAvail": ("There is not enough power to start it.", _WAIT),
    "PowerReserved": ("Power is reserved for another job.", _WAIT),
    "BlockMaxError": ("Its block has too many errors.", _ADMIN),
    "BlockFreeAction": ("Its block is being freed.", _WAIT),
    # Codes of jobs that have ended, or are about to.
    "SystemFailure": ("Slurm, a file system or the network failed.", _ADMIN),
    "JobLaunchFailure": ("It could not be launched.", "See its output file, or ask your administrators."),
    "NonZeroExitCode": ("It ended with an exit code other than 0.", "See its output file."),
    "RaisedSignal": ("It was ended by a signal.", "See its output file."),
    "TimeLimit": ("It ran into its time limit.", "Submit it with a longer --time, or from a checkpoint."),
    "InactiveLimit": ("It was idle for too long.", "See InactiveLimit in scontrol show config."),
    "OutOfMemory": ("It ran out of memory.", "Submit it with more --mem."),
    "InvalidReason": ("Slurm gives no valid reason.", _ADMIN),
}
_ROWS["InvaildReason"] = _ROWS["InvalidReason"]  # as Slurm 24.11 spells it

_WHAT = {
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "Jobs": "running jobs",
    "SubmitJobs": "jobs in the queue",
    "SubmitJob": "jobs in the queue",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "GRES": "GPUs or other GRES",
    "Energy": "energy",
    "License": "licences",
    "BB": "burst buffer space",
    "Billing": "billing units",
    "Wall": "time",
    "WallDuration": "time",
    "Unknown": "a resource",
}
LIMIT = re.compile(
    r"(?P<who>Assoc|QOS|)(?P<bound>Grp|Max|Min)(?P<what>" + "|".join(sorted(_WHAT, key=len, reverse=True)) + r")"
    r"(?P<time>RunMinutes|RunMins|Minutes|)(?P<each>PerJob|PerNode|PerUser|PerAccount|)(?:Limit|NotSatisfied|)$"
)
_EACH = {"PerJob": "one job", "PerNode": "one node", "PerUser": "one user", "PerAccount": "one account", "": "one user"}
_WHO = {"Assoc": "account", "QOS": "QOS", "": "QOS"}


def in_words(reason: str) -> Words:
    """A reason as squeue shows it (text after the code is ignored), as a sentence with a remedy."""
    code = re.split(r"[\s,(]", reason.strip().strip("()"), maxsplit=1)[0] or "None"
    if code in _ROWS:
        return Words(*_ROWS[code])
    limit = LIMIT.match(code)
    if limit is None:
        return Words(f"Slurm says {reason}.", _ADMIN)
    return _limit(**limit.groupdict())


# Besides limits of associations and QOS: what keeps a job back however much is free.
_KEPT_BACK = frozenset(
    "Licenses JobArrayTaskLimit PartitionNodeLimit PartitionTimeLimit PartitionConfig "
    "InvalidAccount InvalidQOS AccountNotAllowed QOSNotAllowed QOSUsageThreshold AssociationJobLimit "
    "AssociationResourceLimit AssociationTimeLimit QOSJobLimit QOSResourceLimit QOSTimeLimit AccountingPolicy "
    "MaxMemPerLimit BurstBufferResources BurstBufferStageIn BurstBufferOperation MaxPoweredUpNodes "
    "PowerNotAvail PowerReserved".split()
)


@lru_cache(maxsize=1024)
def keeps_back(reason: str) -> bool:
    """Whether Slurm says that a limit or a licence keeps a job from starting, not a lack of free nodes."""
    code = re.split(r"[\s,(]", reason.strip().strip("()"), maxsplit=1)[0]
    return code in _KEPT_BACK or LIMIT.match(code) is not None


def known(code: str) -> bool:
    """Whether there are words for a code."""
    return code in _ROWS or LIMIT.match(code) is not None


def _limit(who: str, bound: str, what: str, time: str, each: str) -> Words:
    things = _WHAT[what]
    if time in ("RunMinutes", "RunMins"):
        things = f"{things} times the minutes that running jobs may still take"
    elif time:
        things = f"{things} times minutes"
    owner = _WHO[who]
    if bound == "Min":
        return Words(f"Its {owner} requires more {things} than the job requests.", "Request more, or use another QOS.")
    if bound == "Grp":
        return Words(f"All jobs of its {owner} together hold as much as they may: {things}.", _SMALLER)
    # No other job's end helps one that is too large by itself.
    remedy = "Request less, or use another QOS or account." if each in ("PerJob", "PerNode") else _SMALLER
    return Words(f"Its {owner} bounds what {_EACH[each]} may have: {things}.", remedy)
