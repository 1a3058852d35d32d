"""Adds samples up to each job's use: pure, so a restarted agent reaches the same sums from the ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from slurm_rl.telemetry.reading import WHOLE
from slurm_rl.telemetry.use import NO_JOB, Tick, Use

LONGEST_STEP = 10.0  # seconds; between samples farther apart nobody knows what a GPU did
MOST_WATTS = 3000.0  # a counter that says more was reset or is wrong
# Clocks held down by heat, by the power brake or by the hardware; not by idleness or by the power limit.
SLOWED = 0x08 | 0x20 | 0x40 | 0x80


@dataclass(slots=True)
class PlaceSums:
    """What a job had of one GPU or MIG instance, in seconds and joules."""

    held: float = 0.0
    measured: float = 0.0
    told: float = 0.0  # of it with a known utilization
    busy: float = 0.0  # percent × seconds
    idle: float = 0.0
    joules: float = 0.0
    slowed: float = 0.0
    clocked: float = 0.0  # percent × seconds with a known SM clock
    cycles: float = 0.0  # the same, × MHz
    memory_mb: int = 0
    used: bool = False
    shared: bool = False


@dataclass(slots=True)
class JobSums:
    """A job that is on this node."""

    job: int
    user: str = ""
    start: float = 0.0  # by Slurm; 0: not known
    first: float = 0.0  # wall clock of its first and last sample
    last: float = 0.0
    places: dict[str, PlaceSums] = field(default_factory=dict)  # "GPU" or "GPU:INSTANCE"
    percents: dict[int, float] = field(default_factory=dict)  # utilization -> seconds

    def record(self, node: str, types: Mapping[int, str], watched: bool) -> dict[str, Any]:
        """What is kept of a job when it has ended; `watched`: the end was seen."""
        places = self.places.values()
        told, measured, held = (sum(getattr(p, n) for p in places) for n in ("told", "measured", "held"))
        clocked = sum(p.clocked for p in places)
        kinds = {types.get(int(name.partition(":")[0]), "") for name in self.places}
        return {
            "node": node,
            "job_id": self.job,
            "user": self.user,
            "start": round(self.start or self.first, 3),
            "end": round(self.last, 3),
            "gpu_type": "|".join(sorted(kinds)),
            "gpus": len(self.places),
            "gpus_used": sum(p.used for p in places),
            "energy_j": round(sum(p.joules for p in places), 3),
            "util_mean": round(sum(p.busy for p in places) / told, 2) if told else None,
            "util_p95": percentile(self.percents, 0.95),
            "memory_peak_mb": max((p.memory_mb for p in places), default=0),
            "idle_gpu_minutes": round(sum(p.idle for p in places) / 60, 3),
            "gpu_seconds": round(held, 3),
            "unmeasured_seconds": round(max(held - measured, 0.0), 3),
            "slowed_seconds": round(sum(p.slowed for p in places), 3),
            "sm_mhz": round(sum(p.cycles for p in places) / clocked) if clocked else None,
            "shared": any(p.shared for p in places),
            "complete": watched and held - measured <= max(0.01 * held, LONGEST_STEP),
            "percents": [[percent, round(seconds, 1)] for percent, seconds in sorted(self.percents.items())],
            "places": {
                name: {
                    "util": round(p.busy / p.told, 2) if p.told else None,
                    "energy_j": round(p.joules, 3),
                    "memory_peak_mb": p.memory_mb,
                    "used": p.used,
                }
                for name, p in sorted(self.places.items(), key=lambda item: _place_order(item[0]))
            },
        }


@dataclass(slots=True)
class Watts:
    """Seconds and joules of a GPU type, while a job holds a GPU of it and while none does."""

    held_seconds: float = 0.0
    held_joules: float = 0.0
    free_seconds: float = 0.0
    free_joules: float = 0.0


@dataclass(slots=True)
class _Last:
    """The last sample in which a GPU could be read; energy is counted from it."""

    mono: int
    milliwatts: int | None
    millijoules: int | None
    holders: tuple[tuple[int, int], ...]  # (instance, job)


class Account:
    """The sums of every job on a node, and of every GPU type."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobSums] = {}
        self.watts: dict[str, Watts] = {}
        self.types: dict[int, str] = {}  # GPU -> its type, as Slurm calls it
        self.tick = 0
        self.boot = 0
        self._last: dict[int, _Last] = {}
        self._seen: dict[int, int] = {}  # GPU -> monotonic time of its last sample, lost or not

    def open(self, job: int, user: str = "", start: float = 0.0) -> None:
        """A job is here; what is known of it may come later."""
        sums = self.jobs.setdefault(job, JobSums(job))
        sums.user, sums.start = user or sums.user, start or sums.start

    def close(self, job: int, node: str, watched: bool = True) -> dict[str, Any] | None:
        """The record of a job that is gone; None if it never held a GPU."""
        sums = self.jobs.pop(job, None)
        return sums.record(node, self.types, watched) if sums is not None and sums.places else None

    def feed(self, tick: Tick) -> None:
        """Adds one sample. It stands for the time since the one before."""
        if tick.boot != self.boot:
            self._last, self._seen, self.boot = {}, {}, tick.boot
        self.tick = tick.number
        for gpu, group in groupby(tick.uses, key=lambda u: u.gpu):
            self._feed_gpu(tick, gpu, list(group))

    def _feed_gpu(self, tick: Tick, gpu: int, uses: list[Use]) -> None:
        before, one = self._last.get(gpu), uses[0]
        holders = tuple((u.instance, u.job) for u in uses)
        step = (tick.mono - self._seen.get(gpu, tick.mono)) / 1e9
        self._seen[gpu] = tick.mono
        seconds = (tick.mono - before.mono) / 1e9 if before is not None else 0.0
        near = 0.0 < seconds <= LONGEST_STEP
        joules = None if one.lost or before is None else _joules(before, one, seconds, holders)
        for use in uses:
            if use.job == NO_JOB:
                continue
            sums = self.jobs.setdefault(use.job, JobSums(use.job))
            sums.first, sums.last = sums.first or tick.wall, tick.wall
            name = str(gpu) if use.instance == WHOLE else f"{gpu}:{use.instance}"
            place = sums.places.setdefault(name, PlaceSums())
            stayed = before is not None and (use.instance, use.job) in before.holders
            place.held += step if step <= LONGEST_STEP or stayed else 0.0
            _add(place, sums, use, seconds if near else 0.0)
            if joules is not None:
                place.joules += joules * use.share
                place.measured += seconds if not near and stayed else 0.0
        if one.lost:
            if before is not None and before.holders != holders:
                del self._last[gpu]  # whose the energy of the time in between was cannot be told any more
            return
        if near and joules is not None:
            watts = self.watts.setdefault(self.types.get(gpu, ""), Watts())
            if any(u.job for u in uses):
                watts.held_seconds += seconds
                watts.held_joules += joules
            else:
                watts.free_seconds += seconds
                watts.free_joules += joules
        self._last[gpu] = _Last(tick.mono, one.milliwatts, one.millijoules, holders)

    def dump(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {
            "tick": self.tick,
            "boot": self.boot,
            "types": {str(k): v for k, v in self.types.items()},
            "jobs": [asdict(j) | {"percents": sorted(j.percents.items())} for j in self.jobs.values()],
            "watts": {k: asdict(w) for k, w in self.watts.items()},
            "last": {str(k): asdict(v) for k, v in self._last.items()},
            "seen": {str(k): v for k, v in self._seen.items()},
        }

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> Account:
        account = cls()
        account.tick, account.boot = value["tick"], value["boot"]
        account.types = {int(k): v for k, v in value["types"].items()}
        for j in value["jobs"]:
            places = {name: PlaceSums(**p) for name, p in j["places"].items()}
            percents = {int(k): s for k, s in j["percents"]}
            account.jobs[j["job"]] = JobSums(**(j | {"places": places, "percents": percents}))
        account.watts = {k: Watts(**w) for k, w in value["watts"].items()}
        account._seen = {int(k): v for k, v in value["seen"].items()}
        for gpu, last in value["last"].items():
            holders = tuple((int(i), int(job)) for i, job in last["holders"])
            account._last[int(gpu)] = _Last(**(last | {"holders": holders}))
        return account


def _add(place: PlaceSums, sums: JobSums, use: Use, seconds: float) -> None:
    place.shared |= use.shared
    place.used |= use.processes or bool(use.util)
    place.memory_mb = max(place.memory_mb, use.memory_mb or 0)
    if use.lost or not seconds:
        return
    place.measured += seconds
    if use.util is not None:
        place.told += seconds
        place.busy += use.util * seconds
        sums.percents[use.util] = sums.percents.get(use.util, 0.0) + seconds
        if use.sm_mhz is not None:
            place.clocked += use.util * seconds
            place.cycles += use.util * seconds * use.sm_mhz
    # Where a driver tells no utilization (MIG), a place without processes is idle.
    place.idle += seconds if use.util == 0 or (use.util is None and not use.processes) else 0.0
    place.slowed += seconds if (use.throttle or 0) & SLOWED else 0.0


def _joules(before: _Last, now: Use, seconds: float, holders: tuple[tuple[int, int], ...]) -> float | None:
    """The GPU's energy since the sample before: by its counter, else by its power; None if nobody can tell."""
    if seconds <= 0.0 or (seconds > LONGEST_STEP and holders != before.holders):
        return None
    if now.millijoules is not None and before.millijoules is not None:
        counted = (now.millijoules - before.millijoules) / 1000
        if 0.0 <= counted <= MOST_WATTS * seconds:
            return counted
    if seconds > LONGEST_STEP or now.milliwatts is None:
        return None
    earlier = before.milliwatts if before.milliwatts is not None else now.milliwatts
    return (earlier + now.milliwatts) / 2000 * seconds


def percentile(percents: Mapping[int, float], part: float) -> int | None:
    """The utilization that GPUs stayed at or below for this part of the time."""
    left = part * sum(percents.values())
    for percent, seconds in sorted(percents.items()):
        left -= seconds
        if left <= 1e-9:
            return percent
    return None


def _place_order(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(":")))
