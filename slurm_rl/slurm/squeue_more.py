"""squeue for what its usual fields leave out: rare parts of requests, exclusive jobs, licences, keys for estimates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from slurm_rl.domain.keys import Key
from slurm_rl.domain.keys import key_values as job_keys
from slurm_rl.slurm.command import Answer, records, split_records
from slurm_rl.slurm.gres import gpus_by_unit
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.quantities import expand_hosts, first_number, named, present, seconds
from slurm_rl.slurm.release import Traits

STATES = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,SPECIAL_EXIT"
_EXCLUSIVE_FIELDS = ("JobID", "Exclusive")
_DETAIL_FIELDS = ("JobID", "tres-per-socket", "cpus-per-tres", "ReqSwitch", "Wait4Switch")
_LICENSE_FIELDS = ("JobID", "Licenses")
_EXCLUDED_FIELDS = ("%A", "%x")


def squeue_exclusive(mark: str) -> tuple[str, ...]:
    """squeue for what the JSON of some releases leaves out."""
    return ("squeue", "-h", "-a", "-t", STATES, "-O", ",".join(f"{field}:{mark}" for field in _EXCLUSIVE_FIELDS))


def exclusive_jobs(output: str, mark: str) -> frozenset[int]:
    """Ids of the jobs that take whole nodes for themselves, from `squeue_exclusive`."""
    return frozenset(int(r["JobID"]) for r in records(output, _EXCLUSIVE_FIELDS, mark) if r["Exclusive"] == "NODE")


class RequestDetails(NamedTuple):
    """What `squeue` leaves out of a waiting job's request."""

    per_socket: str = ""
    cpus_per_gpu: int = 0
    excluded: tuple[str, ...] = ()
    switches: int = 0
    switch_wait: int = 0
    segment: int = 0


NO_DETAILS = RequestDetails()
Details = Mapping[int, RequestDetails]  # by job id


def _detail_fields(traits: Traits) -> tuple[str, ...]:
    return (*_DETAIL_FIELDS, "SegmentSize") if traits.segment_field else _DETAIL_FIELDS


def squeue_details(mark: str, traits: Traits) -> tuple[str, ...]:
    """squeue for rare parts of waiting jobs' requests; their lines are those of `squeue_arrays`."""
    wanted = ",".join(f"{field}:{mark}" for field in _detail_fields(traits))
    return ("squeue", "-h", "-a", "-t", "PENDING", "-O", wanted)


def squeue_excluded(mark: str) -> tuple[str, ...]:
    """squeue for `--exclude`, which only its old format knows."""
    return ("squeue", "-h", "-a", "-t", "PENDING", "-o", "".join(field + mark for field in _EXCLUDED_FIELDS))


def details(said: str | Answer, excluded: str | Answer, mark: str, traits: Traits) -> dict[int, RequestDetails]:
    """By job id what `squeue_details` and `squeue_excluded` say; jobs of which they say nothing are left out."""
    found = {}
    for raw in split_records(said, _detail_fields(traits), mark):
        job_id, _, rest = raw.partition("\0")
        if (one := _rare(rest)) != NO_DETAILS and job_id.isdecimal():
            found[int(job_id)] = one
    for raw in split_records(excluded, _EXCLUDED_FIELDS, mark):
        job_id, _, names = raw.partition("\0")
        if names and (hosts := expand_hosts(names.strip())) and job_id.isdecimal():
            found[int(job_id)] = found.get(int(job_id), NO_DETAILS)._replace(excluded=hosts)
    return found


@lru_cache(maxsize=4096)
def _rare(fields: str) -> RequestDetails:
    per_socket, cpus, asked, wait, *segment = fields.split("\0")
    switches = first_number(asked, 0)
    insists = (seconds(wait) or 0) if switches else 0
    nodes = first_number(segment[0], 0) if segment else 0
    return RequestDetails(present(per_socket), gpus_by_unit(cpus), (), switches, insists, nodes)


def squeue_keys(keys: Sequence[Key], mark: str) -> tuple[str, ...]:
    """squeue for what estimates want to know besides; tasks of an array are of one kind, and share a line."""
    fields = ("ArrayJobID", "JobID", *(key.squeue for key in keys))
    return ("squeue", "-h", "-a", "-t", STATES, "-O", ",".join(f"{field}:{mark}" for field in fields))


def with_keys(jobs: Iterable[SlurmJob], output: str, keys: Sequence[Key], mark: str) -> list[SlurmJob]:
    """The jobs with what `squeue_keys` says of them, or of the array that they are tasks of."""
    found: dict[str, dict[str, str]] = {}
    for r in records(output, ("ArrayJobID", "JobID", *(key.squeue for key in keys)), mark):
        values = job_keys({name: present(value) for name, value in r.items()}, keys, live=True)
        found[r["JobID"]] = values
        found.setdefault(r["ArrayJobID"], values)
    nothing: dict[str, str] = {}
    said = ((job, found.get(str(job.job_id), found.get(str(job.array_job_id), nothing))) for job in jobs)
    return [msgspec.structs.replace(job, keys=values) if values else job for job, values in said]


def squeue_licenses(mark: str) -> tuple[str, ...]:
    """squeue for the licences that jobs hold or ask for."""
    return ("squeue", "-h", "-a", "-t", STATES, "-O", ",".join(f"{field}:{mark}" for field in _LICENSE_FIELDS))


def job_licenses(output: str, mark: str) -> dict[int, dict[str, int]]:
    """By job id the licences that `squeue_licenses` names: `matlab:2,ansys`; jobs without any are left out."""
    found: dict[int, dict[str, int]] = {}
    for r in records(output, _LICENSE_FIELDS, mark):
        for item in filter(None, re.split("[,;|]", named(r["Licenses"]))) if r["JobID"].isdecimal() else ():
            name, _, count = item.strip().partition(":")
            held = found.setdefault(int(r["JobID"]), {})
            held[name] = held.get(name, 0) + (int(count) if count.isdecimal() else 1)
    return found
