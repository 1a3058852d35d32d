"""A lab's clock: its daemons, commands and jobs see time run K times as fast, through libfaketime.

A holder process keeps the shared memory by which all of them agree on the time. munged, MariaDB and whoever drives the
lab stay in real time.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import EnvironmentMissing, InputError, SlurmError
from slurm_rl.lab.processes import PROC, Process, start

HOLDER = "clock"  # its name among the lab's processes
MOST = 1000.0
_LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
_SHM = Path("/dev/shm")  # noqa: S108 (where POSIX shared memory lies)
_SHARED = re.compile(r"/faketime_sem_(\d+) /faketime_shm_\1")
_PATIENCE = 10.0  # real seconds


@dataclass(frozen=True)
class LabClock:
    """A running clock: its speed, the real moment at which it began, and the shared memory that tells it."""

    speed: float
    began: float
    shared: str
    inode: int  # of the shared memory: a name may come again with its process id
    library: str

    def now(self) -> float:
        """The lab's time."""
        return self.at(time.time())

    def at(self, real: float) -> float:
        """The lab's time at a real moment."""
        return self.began + (real - self.began) * self.speed

    def variables(self) -> dict[str, str]:
        """The environment that puts a program into the lab's time."""
        return {
            "LD_PRELOAD": self.library,
            "FAKETIME": _setting(self.speed),
            "FAKETIME_SHARED": self.shared,
        }

    def prefix(self) -> str:
        """The same for the front of a shell command."""
        return "env " + " ".join(f"{name}={shlex.quote(value)}" for name, value in self.variables().items())

    def as_value(self) -> dict[str, Any]:
        return asdict(self)


def check(speed: float) -> None:
    """Refuses a speed that cannot be, or a machine without libfaketime."""
    if not (math.isfinite(speed) and 1.0 <= speed <= MOST):
        raise InputError(f"must be between 1 and {MOST:g}, got {speed:g}", field="--clock")
    if speed != 1.0:
        find_library()


def find_library() -> Path:
    """libfaketime for programs with threads."""
    found = [path for pattern in _LIBRARIES for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    if not found or shutil.which("faketime") is None:
        raise EnvironmentMissing("lab up --clock needs libfaketime: as root, apt-get install faketime")
    return found[0]


def launch(directory: Path, speed: float) -> tuple[Process, LabClock]:
    """Starts the holder, and reads from its child what the others need."""
    library = directory / "lib" / "libfaketimeMT.so.1"
    library.parent.mkdir(exist_ok=True)
    # A copy: daemons of another release do not see the machine's /usr.
    shutil.copyfile(find_library(), library)
    (directory / "log").mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FAKETIME", "LD_PRELOAD"))} | {"LC_ALL": "C"}
    command = [shutil.which("faketime") or "faketime", "-m", "-f", _setting(speed), "sleep", "infinity"]
    holder = start(HOLDER, command, directory / "log" / f"{HOLDER}.out", env)
    shared = _shared_by(holder)
    memory = _SHM / shared.rpartition("/")[2]
    inode = memory.stat().st_ino
    for path in (memory, _SHM / f"sem.{shared.split()[0].removeprefix('/')}"):
        path.chmod(0o666)  # jobs of any user go by this clock
    clock = LabClock(speed, 0.0, shared, inode, str(library))
    return holder, LabClock(speed, _beginning(clock), shared, inode, str(library))


def _setting(speed: float) -> str:
    return f"+0 x{speed:g}"


def _shared_by(holder: Process) -> str:
    """FAKETIME_SHARED of the holder's child, which the holder makes before it runs it."""
    deadline = time.monotonic() + _PATIENCE
    while holder.alive() and time.monotonic() < deadline:
        children = (PROC / str(holder.pid) / "task" / str(holder.pid) / "children").read_text().split()
        for pid in children:
            try:
                variables = (PROC / pid / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for variable in variables:
                if variable.startswith(b"FAKETIME_SHARED="):
                    return variable.partition(b"=")[2].decode()
        time.sleep(0.01)
    raise SlurmError("faketime did not start the lab's clock")


def _beginning(clock: LabClock) -> float:
    """The real moment at which the lab's time and the real one were equal, by the closest of some readings."""
    best, began = math.inf, 0.0
    for _ in range(5):
        before = time.time()
        said = subprocess.run(
            ["date", "+%s.%N"],
            env={"PATH": os.environ.get("PATH", os.defpath)} | clock.variables(),
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        ).stdout
        after = time.time()
        if after - before < best:
            best, middle = after - before, (before + after) / 2
            began = (clock.speed * middle - float(said)) / (clock.speed - 1.0)
    return began


def forget(clock: LabClock | None, ended: Iterable[Process] = ()) -> None:
    """Removes the shared memory of a clock whose holder has ended: of the one recorded, and of one that was not yet."""
    for holder in ended:
        if holder.name == HOLDER:
            _unlink(f"/faketime_sem_{holder.pid} /faketime_shm_{holder.pid}")
    if clock is not None and _SHARED.fullmatch(clock.shared):
        try:
            same = (_SHM / clock.shared.rpartition("/")[2]).stat().st_ino == clock.inode
        except FileNotFoundError:
            return
        if same:
            _unlink(clock.shared)


def _unlink(shared: str) -> None:
    semaphore, memory = (name.removeprefix("/") for name in shared.split())
    (_SHM / f"sem.{semaphore}").unlink(missing_ok=True)
    (_SHM / memory).unlink(missing_ok=True)
