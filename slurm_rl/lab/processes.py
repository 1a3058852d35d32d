"""Starts the lab's daemons and ends exactly them: a process is ours by its pid *and* its start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A daemon we started; `started` is its start time in clock ticks since boot, so a reused pid is not mistaken."""

    name: str
    pid: int
    started: int

    def alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state != "Z"


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    started: int


def start(name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> Process:
    """Starts a daemon in the foreground mode of its own, in its own session, so its pid is known at once."""
    with log.open("ab") as output:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env),
            start_new_session=True,
            close_fds=True,
        )
    stat = _stat(popen.pid)
    # The Popen object is dropped on purpose: the daemon outlives us, and `end` reaps it if it is still our child.
    popen.returncode = 0
    return Process(name, popen.pid, stat.started if stat else -1)


def wait(process: Process, seconds: float) -> int:
    """Waits for a program we started to end, and returns its exit code; 124 if it does not end in time."""
    deadline = time.monotonic() + seconds
    while process.alive():
        if time.monotonic() > deadline:
            return 124
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def end(processes: Iterable[Process], sockets_below: Path) -> list[Process]:
    """Ends the given processes with their descendants, then job steps that listen on sockets below the directory.

    SIGKILL at once: a lab's state is thrown away with it, and a stopped process (SIGSTOP) hears nothing else.
    Returns those that were alive.
    """
    alive = [p for p in processes if p.alive()]
    for pid in _with_descendants(p.pid for p in alive):
        _kill(pid)
    _wait_gone(alive)
    # slurmd starts its steps detached from itself, so they are found by their sockets, after slurmd can start no more.
    for _ in range(20):
        listeners = _listeners_below(sockets_below)
        if not listeners:
            break
        for pid in _with_descendants(listeners):
            _kill(pid)
        time.sleep(0.05)
    return alive


def _wait_gone(processes: Sequence[Process], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while any(p.alive() for p in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in processes:
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            continue  # started by another run of ours: not our child to reap


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold spaces and parentheses
    return _Stat(state=fields[0], parent=int(fields[1]), started=int(fields[19]))


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def _with_descendants(pids: Iterable[int]) -> set[int]:
    parents = {pid: stat.parent for pid in _all_pids() if (stat := _stat(pid)) is not None}
    family = set(pids)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in family} - family
        family |= children
        grown = bool(children)
    return family


def _listeners_below(directory: Path) -> set[int]:
    """Processes holding a unix socket bound to a path below the directory."""
    prefix = str(directory) + "/"
    inodes = set()
    for line in (PROC / "net" / "unix").read_text().splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[7].startswith(prefix):
            inodes.add(f"socket:[{fields[6]}]")
    if not inodes:
        return set()
    return {pid for pid in _all_pids() if inodes & set(_open_files(pid))}


def _open_files(pid: int) -> Iterator[str]:
    directory = PROC / str(pid) / "fd"
    try:
        numbers = os.listdir(directory)
    except OSError:
        return  # it ended meanwhile
    for number in numbers:
        with contextlib.suppress(OSError):
            yield os.readlink(directory / number)
