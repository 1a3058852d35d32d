"""Starts the lab's daemons and ends exactly them: a process is ours by its pid *and* its start time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_DAEMONS = ("slurmctld", "slurmdbd", "slurmd", "munged", "mariadbd")


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


def end(processes: Iterable[Process], directory: Path) -> list[Process]:
    """Ends the given processes with their descendants, daemons that somebody started anew in the lab's directory,
    and job steps that listen on sockets below it.

    SIGKILL at once: a lab's state is thrown away with it, and a stopped process (SIGSTOP) hears nothing else.
    Returns those that were alive.
    """
    alive = [p for p in processes if p.alive()]
    known = {p.pid for p in alive}
    alive += [p for p in daemons_below(directory) if p.pid not in known]
    killed = _kill_families(p.pid for p in alive)
    _wait_gone(alive)
    # slurmd detaches its steps, which are found by their sockets now that it starts no more, and a script that was
    # killed may have started something between our look and its end.
    for _ in range(20):
        left = _listeners_below(directory) | {p.pid for p in daemons_below(directory)}
        if not left:
            break
        killed += _kill_families(left)
        time.sleep(0.05)
    _wait_gone(killed)
    return alive


def _kill_families(pids: Iterable[int]) -> list[Process]:
    """Kills processes with their descendants."""
    family = [Process("", pid, stat.started) for pid in _with_descendants(pids) if (stat := _stat(pid)) is not None]
    for process in family:
        _kill(process.pid)
    return family


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


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    stat = _stat(pid)
    return stat is not None and stat.state != "Z"


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


def daemons_below(directory: Path) -> list[Process]:
    """The lab's daemons, whoever started them: by hand, or by a run of ours that was killed before it took note.

    They write to log/NAME.out, or have a daemon's name and a file open below the directory; a user's `tail -f` on a log
    is neither. Of a family the first counts, not what it forked.
    """
    logs, files = f"{directory}/log/", f"{directory}/"
    found = {}
    for pid in _all_pids():
        output = _link(PROC / str(pid) / "fd" / "1")
        program = _link(PROC / str(pid) / "exe").rpartition("/")[2]
        name = next((name for name in _DAEMONS if program.startswith(name)), "")  # Debian's is slurmctld-wlm
        if output.startswith(logs) and output.endswith(".out"):
            found[pid] = output.removeprefix(logs).removesuffix(".out")
        elif name and any(path.startswith(files) for path in _open_files(pid)):
            found[pid] = name
    stats = {pid: stat for pid in found if (stat := _stat(pid)) is not None}
    return [Process(found[pid], pid, s.started) for pid, s in stats.items() if s.parent not in stats and s.state != "Z"]


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
        yield _link(directory / number)


def _link(path: Path) -> str:
    """Where a link leads; "" if its process ended meanwhile."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
