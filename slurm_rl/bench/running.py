"""Runs the unfinished units of a suite, here or as parts elsewhere, and saves each as it ends."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from slurm_rl.bench.rows import PARTS, ROWS, append, finished
from slurm_rl.bench.suite import Row, Settings, Suite, Unit
from slurm_rl.errors import InputError, SlurmRlError

Told = Callable[[int, int], None]  # units that are done, of so many
_PR_SET_PDEATHSIG = 1


def processors() -> int:
    """How many processes may run side by side here."""
    return len(os.sched_getaffinity(0))


def part_of(text: str) -> tuple[int, int]:
    """`K/N`: the K-th of N parts, from 1."""
    first, slash, count = text.partition("/")
    if not slash or not first.isdecimal() or not count.isdecimal() or not 1 <= int(first) <= int(count):
        raise InputError(f"must be K/N with 1 ≤ K ≤ N, got {text!r}", field="--part", remedy="e.g. --part 2/8")
    return int(first), int(count)


def missing(suite: Suite, settings: Settings, out: Path) -> list[Unit]:
    """Units of the plan that no file holds yet."""
    done = finished(out)
    return [unit for unit in suite.module.plan(settings) if unit.name not in done]


def run_units(
    suite: Suite, settings: Settings, out: Path, *, workers: int, part: tuple[int, int] | None, told: Told
) -> None:
    """Runs what is missing of the plan, or of its K-th part; every unit is on the disk when it is told."""
    plan = suite.module.plan(settings)
    file = out / ROWS
    if part is not None:
        plan = plan[part[0] - 1 :: part[1]]
        file = out / PARTS / f"{part[0]}-of-{part[1]}.jsonl"
    done = finished(out)
    todo = [unit for unit in plan if unit.name not in done]
    count = len(plan) - len(todo)
    told(count, len(plan))
    for unit, rows, seconds in _each(suite, settings, todo, min(workers, len(todo))):
        append(file, unit.name, rows, seconds)
        count += 1
        told(count, len(plan))


def _each(
    suite: Suite, settings: Settings, todo: Sequence[Unit], workers: int
) -> Iterator[tuple[Unit, list[Row], float]]:
    if workers <= 1:
        for unit in todo:
            yield unit, *_run(suite, settings, unit)
        return
    context = get_context("spawn")  # the parent may hold threads and locks of compiled libraries
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),))
    try:
        waiting = iter(todo)
        running: dict[Future[tuple[list[Row], float]], Unit] = {}
        while True:
            for unit in itertools.islice(waiting, 2 * workers - len(running)):
                running[pool.submit(_run, suite, settings, unit)] = unit
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield running.pop(future), *future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent(parent: int) -> None:
    """A killed bench leaves no workers behind; an interrupt is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _run(suite: Suite, settings: Settings, unit: Unit) -> tuple[list[Row], float]:
    began = time.perf_counter()
    try:
        rows = suite.module.run(unit, settings)
    except SlurmRlError:
        raise
    except Exception as error:
        error.add_note(f"in {suite.name}, {unit.name}")
        raise
    return rows, time.perf_counter() - began
