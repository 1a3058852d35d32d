"""Reads finished and running jobs from the accounting database through sacct."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from slurm_rl.domain.keys import Key, key_values
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.slurm.command import records
from slurm_rl.slurm.model import HistoryJob
from slurm_rl.slurm.quantities import expand_hosts, gpus_in_tres, timestamp, tres

TIMEOUT = 600.0  # a year of a busy site's jobs takes slurmdbd minutes

_FIELDS = (
    "JobIDRaw",
    "JobID",
    "JobName",
    "User",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "ElapsedRaw",
    "TimelimitRaw",
    "ReqTRES",
    "AllocTRES",
    "NNodes",
    "ReqCPUS",
    "NodeList",
    "Priority",
    "ExitCode",
)
_NUMBER = re.compile(r"\d+")


def _fields(keys: Sequence[Key]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_FIELDS, *(key.sacct for key in keys))))


def command(start: float, end: float, mark: str, keys: Sequence[Key] = ()) -> list[str]:
    """sacct for all users' jobs between two times; times are given in UTC, as sacct is told to use it."""
    if start >= end:
        raise InputError(f"the history would begin at {start:g}, not before its end {end:g}")
    return [
        "sacct",
        "-a",
        "-D",  # every run of a requeued job: the last one alone says that it was submitted when it was requeued
        "-X",
        "-n",
        "-p",
        f"--delimiter={mark}",
        "-S",
        _moment(start),
        "-E",
        _moment(end),
        "-o",
        ",".join(_fields(keys)),
    ]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def parse(output: str, mark: str, keys: Sequence[Key] = ()) -> list[HistoryJob]:
    """Jobs from sacct's answer, in its order."""
    return [_job(r, keys) for r in records(output, _fields(keys), mark)]


def _job(r: Mapping[str, str], keys: Sequence[Key]) -> HistoryJob:
    try:
        requested, allocated = tres(r["ReqTRES"]), tres(r["AllocTRES"])
        return HistoryJob(
            job_id=int(r["JobIDRaw"].partition("+")[0]),
            display_id=r["JobID"],
            name=r["JobName"],
            user=r["User"],
            account=r["Account"],
            partition=r["Partition"],
            qos=r["QOS"],
            state=r["State"].partition(" ")[0],  # CANCELLED by 1000
            submit_time=timestamp(r["Submit"]),
            eligible_time=timestamp(r["Eligible"]),
            start_time=timestamp(r["Start"]),
            end_time=timestamp(r["End"]),
            elapsed=_number(r["ElapsedRaw"]),
            time_limit=_number(r["TimelimitRaw"]) * 60 if r["TimelimitRaw"].isdecimal() else None,
            nodes=_number(r["NNodes"]),
            cpus=_number(r["ReqCPUS"]),
            mem_mb=(allocated or requested).get("mem", 0),
            gpus_requested=gpus_in_tres(requested),
            gpus_allocated=gpus_in_tres(allocated),
            node_list=expand_hosts(r["NodeList"]),
            priority=_number(r["Priority"]),
            exit_code=_number(r["ExitCode"]),
            keys=key_values(r, keys, live=False),
        )
    except ValueError as error:
        raise SlurmError(f"sacct: job {r['JobIDRaw']!r} is unreadable: {error}") from None


def _number(text: str) -> int:
    match = _NUMBER.match(text)
    return int(match[0]) if match else 0
