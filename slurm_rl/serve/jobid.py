"""Reads a job's id as squeue and sacct write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_rl.errors import InputError

_SHAPE = re.compile(r"(\d{1,10})(?:_(\d{1,10})|_\[[0-9,:%.-]*\]|\+(\d{1,10}))?(?:\.\w{1,64})?", re.ASCII)
_HIGHEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class JobId:
    """A job, a task of its array, or a component of a heterogeneous job."""

    job: int
    task: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        if self.task is not None:
            return f"{self.job}_{self.task}"
        return f"{self.job}+{self.offset}" if self.offset is not None else str(self.job)


def parse(text: str) -> JobId:
    """`7`, `7_3`, `7_[1-5%2]`, `7+1`, each with or without a step (`.0`, `.batch`)."""
    found = _SHAPE.fullmatch(text)
    numbers = [int(n) if n is not None else None for n in found.groups()] if found else []
    if not numbers or not numbers[0] or any(n is not None and n > _HIGHEST for n in numbers):
        raise InputError(
            f"{text[:80]!r} is not a job id: expected JOBID, JOBID_TASK, JOBID+OFFSET or JOBID.STEP, as in squeue"
        )
    return JobId(numbers[0], numbers[1], numbers[2])
