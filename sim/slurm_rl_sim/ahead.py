"""Compiles the kernels of a replay in two processes where they are not on disk yet: the table comes in half the time.

Kernels that are called by address are compiled each alone. Two processes take them from both ends of one list; a lock
on a file tells which are in work, and what the other has compiled is found on disk as if an earlier run had left it.

    python -m slurm_rl_sim.ahead [SLOT=MODULE:FUNCTION …]

compiles these, or those of a plain replay: `make demo` does so while pip installs the rest.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.kernel import jit
from slurm_rl.kernel.catalogue import Row, find_kernel
from slurm_rl.kernel.linking import RARE
from slurm_rl.kernel.links import compiled_at
from slurm_rl.kernel.tables import WORLD
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.policy.catalogue import POLICIES
from slurm_rl_sim.engine import advance  # brings every slot

if TYPE_CHECKING:
    from slurm_rl_sim.replay import Contender

_LOOP = "loop=slurm_rl_sim.engine:advance"  # called from Python, not by address
_USUAL = ("learned", "multifactor")  # policies of a plain replay; the kernels of others take no time
_typeof: Any = numba.typeof  # published without types
_FEW = 3  # kernels that one process compiles as fast


def compile_ahead(contenders: Sequence[Contender], placement: str, influence: float = 1.0) -> bool:
    """Compiles what these replays call, if it is not on disk and there are two processors; whether it did.

    If the other process fails, its kernels are compiled here.
    """
    if len(os.sched_getaffinity(0)) < 2 or not PLACEMENTS.is_own(placement) or jit.cache_directory() is None:
        return False
    sorting = [c.policy.row for c in contenders if influence < 1.0 or not c.policy.fixed_order]
    names = [n for n in _named(sorting, placement, contenders[0].backfill) if not jit.on_disk(n.partition("=")[2])]
    if len(names) < _FEW:
        return False
    if _in_work(names):  # somebody compiles them at this moment: two are enough
        _share(names)
        return True
    command = [sys.executable, "-m", __name__, *names]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as other:
        _share(names)
        other.wait()
    return True


def _named(policies: Iterable[Row], placement: str, backfill: str) -> list[str]:
    """The kernels of a replay as `slot=package.module:function`, each once; those that take longest at both ends."""
    rows = [*policies, PLACEMENTS[placement], RULES[backfill]]
    named = [f"{slot}={where}" for row in rows for slot, where in row.kernels.items() if slot not in RARE]
    return list(dict.fromkeys([_LOOP, *named]))


def _usual() -> list[str]:
    return _named([POLICIES[name] for name in _USUAL], "best-fit", "easy")


def _share(names: Iterable[str]) -> None:
    """Compiles kernels that nobody else does, then waits for the others' and takes them from disk."""
    later = []
    for name in names:
        with _lock(name) as mine:
            if mine:
                _compile(name)
            else:
                later.append(name)
    for name in later:
        with _lock(name, wait=True):
            _compile(name)


def _compile(name: str) -> None:
    slot, _, where = name.partition("=")
    if name == _LOOP:
        advance.compile((_typeof(np.zeros(1, dtype=WORLD)), numba.int64, numba.boolean))
    else:
        compiled_at(slot, find_kernel(where))


def _in_work(names: Iterable[str]) -> bool:
    for name in names:
        with _lock(name) as mine:
            if not mine:
                return True
    return False


@contextmanager
def _lock(name: str, *, wait: bool = False) -> Iterator[bool]:
    """Whether nobody else compiles this kernel; then nobody else does until the end. A process that dies lets go."""
    directory = jit.cache_directory() or Path()
    with (directory / f"{name.rpartition(':')[2]}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


if __name__ == "__main__":
    if jit.cache_directory() is not None:
        _share(reversed(sys.argv[1:] or _usual()))
