"""The stored sample: one record for each job on each GPU or MIG instance, each second."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurm_rl.telemetry.reading import WHOLE

NO_JOB = 0
_BYTE, _SHORT, _WORD, _LONG = 0xFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF  # what is unknown
# tick, monotonic ns, wall ms, boot, job, share, mW, mJ, MB, SM MHz, memory MHz, throttle, nth, of,
# GPU, instance, flags, utilization, memory utilization, temperature
_RECORD = struct.Struct("<QQQIIfIQIHHHHHBBBBBB")
SIZE = _RECORD.size
_LOST, _PROCESSES, _SHARED = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Use:
    """What a job (0: nobody) had of a GPU in one sample; `share` is its part of the GPU's energy."""

    gpu: int
    instance: int = WHOLE
    job: int = NO_JOB
    share: float = 1.0
    util: int | None = None
    memory_util: int | None = None
    memory_mb: int | None = None
    milliwatts: int | None = None
    millijoules: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    celsius: int | None = None
    throttle: int | None = None
    processes: bool = False
    lost: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """One sample of a node. Times are compared by `mono` within one `boot`; `wall` may jump and only labels."""

    number: int
    mono: int  # nanoseconds
    wall: float
    boot: int
    uses: tuple[Use, ...]


def pack(tick: Tick) -> list[bytes]:
    """The records of a tick; a node without GPUs has none."""
    return [
        _RECORD.pack(
            tick.number,
            tick.mono,
            max(0, int(tick.wall * 1000)),
            tick.boot,
            u.job,
            u.share,
            _held(u.milliwatts, _WORD),
            _held(u.millijoules, _LONG),
            _held(u.memory_mb, _WORD),
            _held(u.sm_mhz, _SHORT),
            _held(u.memory_mhz, _SHORT),
            _held(u.throttle, _SHORT),
            nth,
            len(tick.uses),
            u.gpu,
            _BYTE if u.instance == WHOLE else u.instance,
            _LOST * u.lost | _PROCESSES * u.processes | _SHARED * u.shared,
            _held(u.util, _BYTE),
            _held(u.memory_util, _BYTE),
            _held(u.celsius, _BYTE),
        )
        for nth, u in enumerate(tick.uses)
    ]


def unpack(records: Iterable[bytes]) -> Iterator[Tick]:
    """Whole ticks; one whose records are not all there is left out."""
    gathered: list[Use] = []
    current = 0
    for record in records:
        if len(record) != SIZE:
            continue
        (number, mono, wall, boot, job, share, mw, mj, mb, sm, mem, throttle, nth, of, gpu, gi, flags, *rates) = (
            _RECORD.unpack(record)
        )
        if nth == 0:
            gathered, current = [], number
        elif nth != len(gathered) or number != current:
            continue
        util, memory_util, celsius = (_told(r, _BYTE) for r in rates)
        gathered.append(
            Use(
                gpu,
                WHOLE if gi == _BYTE else gi,
                job,
                share,
                util,
                memory_util,
                _told(mb, _WORD),
                _told(mw, _WORD),
                _told(mj, _LONG),
                _told(sm, _SHORT),
                _told(mem, _SHORT),
                celsius,
                _told(throttle, _SHORT),
                bool(flags & _PROCESSES),
                bool(flags & _LOST),
                bool(flags & _SHARED),
            )
        )
        if len(gathered) == of:
            yield Tick(number, mono, wall / 1000, boot, tuple(gathered))


def _held(value: int | None, unknown: int) -> int:
    return unknown if value is None else min(max(value, 0), unknown - 1)


def _told(value: int, unknown: int) -> int | None:
    return None if value == unknown else value
