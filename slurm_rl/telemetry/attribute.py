"""Splits each GPU over the jobs that hold it or compute on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_rl.telemetry.reading import WHOLE, Reading
from slurm_rl.telemetry.use import NO_JOB, Use

Places = Sequence[tuple[int, int]]  # by GRES index: the GPU's number, and its MIG instance or WHOLE


def places_of(readings: Sequence[Reading]) -> list[tuple[int, int]]:
    """What Slurm numbers as GRES gpu: GPUs by device file, those in MIG mode replaced by their instances."""
    return [(r.index, gi) for r in readings for gi in r.places()]


def attribute(
    readings: Sequence[Reading],
    held: Mapping[tuple[int, int], Mapping[int, float]],
    job_of: Callable[[int], int],
    busy_of: Callable[[str], Mapping[int, int]] = lambda uuid: {},
) -> tuple[Use, ...]:
    """One use for each job on each place; the shares of a GPU's uses add up to 1.

    `held` tells the jobs (and their weights) that Slurm gave a place to. A job whose process runs on a place has part
    in it, whether it was given the place or not.
    """
    uses: list[Use] = []
    for reading in readings:
        jobs = {p.pid: job_of(p.pid) for p in reading.processes}
        places = reading.places() or (WHOLE,)
        there = {gi: {jobs[p.pid] for p in reading.processes if p.instance == gi} for gi in places}
        parts = _parts(reading, places, there)
        for gi in places:
            holders = held.get((reading.index, gi), {})
            sharers = sorted({*holders, *there[gi]} - {NO_JOB}) or [NO_JOB]
            busy: dict[int, int] = {}
            if len(sharers) > 1 and not reading.mig:
                for pid, percent in busy_of(reading.uuid).items():
                    if jobs.get(pid):
                        busy[jobs[pid]] = busy.get(jobs[pid], 0) + percent
            shares = _shares(sharers, there[gi], busy, holders)
            uses += [
                _use(reading, gi, job, parts[gi] * shares[job], jobs, busy, len(sharers) > 1, there[gi])
                for job in sharers
            ]
    return tuple(uses)


def _parts(reading: Reading, places: Sequence[int], there: Mapping[int, set[int]]) -> dict[int, float]:
    """A MIG GPU's energy goes to the instances that have processes, by their slices; to all if none has."""
    if not reading.instances:
        return {gi: 1.0 / len(places) for gi in places}
    weights = {i.gi: float(i.slices) for i in reading.instances if there[i.gi]}
    weights = weights or {i.gi: float(i.slices) for i in reading.instances}
    total = sum(weights.values())
    return {gi: weights.get(gi, 0.0) / total for gi in places}


def _shares(
    sharers: Sequence[int], there: set[int], busy: Mapping[int, int], holders: Mapping[int, float]
) -> dict[int, float]:
    """By the time their kernels ran, if that is told; else evenly over those with processes; else as they hold it."""
    weights = {job: float(busy.get(job, 0)) for job in sharers}
    if not sum(weights.values()):
        weights = {job: float(job in there) for job in sharers}
    if not sum(weights.values()):
        weights = {job: holders.get(job, 1.0) for job in sharers}
    total = sum(weights.values())
    return {job: weight / total for job, weight in weights.items()}


def _use(
    reading: Reading,
    gi: int,
    job: int,
    share: float,
    jobs: Mapping[int, int],
    busy: Mapping[int, int],
    shared: bool,
    there: set[int],
) -> Use:
    own = [p.memory_mb for p in reading.processes if p.instance == gi and jobs[p.pid] == job]
    memory: int | None = sum(m for m in own if m is not None)
    if None in own:  # the driver does not tell by process
        memory = None if shared else _memory(reading, gi)
    if job == NO_JOB:
        memory = _memory(reading, gi)
    return Use(
        gpu=reading.index,
        instance=gi,
        job=job,
        share=share,
        util=min(busy.get(job, 0), 100) if busy else reading.util,
        memory_util=reading.memory_util,
        memory_mb=None if reading.lost else memory,
        milliwatts=reading.milliwatts,
        millijoules=reading.millijoules,
        sm_mhz=reading.sm_mhz,
        memory_mhz=reading.memory_mhz,
        celsius=reading.celsius,
        throttle=reading.throttle,
        processes=job in there,
        lost=bool(reading.lost),
        shared=shared,
    )


def _memory(reading: Reading, gi: int) -> int | None:
    if gi == WHOLE:
        return reading.used_mb
    return next((i.memory_mb for i in reading.instances if i.gi == gi), None)
