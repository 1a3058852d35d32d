"""A real slurmctld that runs the shim, and services that fail in known ways."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from slurm_rl.lab import lab
from slurm_rl.lab.spec import LabSpec, parse_nodes
from slurm_rl.slurm import plugin

from .shim import FAILING, Service, answers, drips, http, serving

# sbatch options of jobs that differ in what the shim reads.
SHAPES = {
    "plain": "",
    "gpus": "--gres=gpu:a100:2 --nodes=2",
    "limits": "--time=90 --ntasks=4 --cpus-per-task=2 --nice=50",
    "features": "--constraint=a100 --mem-per-cpu=200",
    "array": "--array=0-3%2 --gpus=1",
    "held": "--hold --comment=mine",
}
ADVICE = http(b'{"site_factor": 777, "prefer": "a100", "reason": "a \\"test\\""}')
# What sbatch was called with, name and all: 26.05 tells it, in words.
_SUBMIT_LINE = r"\bSubmitLine=.*?(?= WorkDir=)"
# Differs from job to job, or says when it was looked at, not what was asked for.
_VOLATILE = (
    r"\b(JobId|SLUID|ArrayJobId|JobName|\w*Time|LastSchedEval|AllocNode:Sid|Priority|Reason|Scheduler|StdOut|StdErr)="
)


class Cost(NamedTuple):
    """Milliseconds that one submission spent in the shim."""

    wall: float
    cpu: float  # of its thread
    queued: float  # ready to run, but others had the processors: no deadline of ours bounds it

    @property
    def own(self) -> float:
        """What the shim worked and waited for."""
        return self.wall - self.queued


class Site:
    """A lab whose slurmctld runs the shim, with a stopwatch around it."""

    def __init__(self, directory: Path, slurm_release: str) -> None:
        spec = LabSpec(directory=directory, nodes=parse_nodes("a100:8*2"), run_nodes=False, slurm=slurm_release)
        self.lab = lab.up(spec)
        self.socket = directory / "service.sock"
        self.times = directory / "times"

    def enable_lua(self) -> None:
        """Restarts slurmctld with JobSubmitPlugins=lua; a script must be there."""
        conf = self.lab.slurm_conf
        conf.write_text("JobSubmitPlugins=lua\n" + conf.read_text())
        running = self.lab.process("slurmctld")
        os.kill(running.pid, signal.SIGTERM)
        while running.alive():
            time.sleep(0.02)
        self.lab.restart("slurmctld")

    def use(self, shim: Path) -> None:
        """Makes slurmctld load the shim anew, so its breaker is closed, and time each submission."""
        self.times.write_text("")
        script = self.lab.directory / plugin.ENTRY
        plugin._write(
            script,
            f"""
            dofile({str(shim / plugin.ENTRY)!r})
            local gettime, submit = require("socket.core").gettime, slurm_job_submit
            local function thread() -- nanoseconds on a processor, and waiting for one
              local file = assert(io.open("/proc/thread-self/schedstat"))
              local cpu, queued = file:read("*n", "*n")
              file:close()
              return cpu / 1e6, queued / 1e6
            end
            slurm_job_submit = function(...)
              local cpu, queued = thread()
              local start = gettime()
              local code = submit(...)
              local wall = (gettime() - start) * 1000
              local cpu_after, queued_after = thread()
              local file = io.open({str(self.times)!r}, "a")
              file:write(wall, " ", cpu_after - cpu, " ", queued_after - queued, "\\n")
              file:close()
              return code
            end
            return slurm.SUCCESS
            """.encode(),
            newer_than=plugin._mtime(script),
        )

    def costs(self) -> list[Cost]:
        return [Cost(*map(float, row.split())) for row in self.times.read_text().splitlines()]

    def submit(self, jobs: dict[str, str]) -> dict[str, str]:
        """Submits jobs by name with sbatch, and returns what Slurm holds of each, less what is volatile."""
        rows = [f"sbatch --job-name='{name}' -o /dev/null {options} {{}}" for name, options in jobs.items()]
        script = "\n".join(row.format("--wrap true >/dev/null || exit 1") for row in rows)
        self.lab.run("bash", "-c", script)
        return self.jobs()

    def jobs(self) -> dict[str, str]:
        found = {}
        for row in self.lab.run("scontrol", "show", "job", "-o").splitlines():
            name = re.search(r"JobName=(\S+)", row)
            if name:
                found[name[1]] = " ".join(re.sub(f"{_SUBMIT_LINE}|{_VOLATILE}\\S*", "", row).split())
        return found

    def factors(self) -> dict[str, int]:
        """SiteFactor of each pending job, by name, as sprio shows it."""
        names = dict(row.split() for row in self.lab.run("squeue", "-h", "-o", "%A %j").splitlines())
        rows = (row.split() for row in self.lab.run("sprio", "-h", "-o", "%i %S").splitlines())
        return {names[job]: int(factor) for job, factor in rows}


Asked = Callable[[], int]  # how often a service has been asked


@contextmanager
def dead(_path: Path) -> Iterator[Asked]:
    """No socket at all."""
    yield lambda: 0


@contextmanager
def refusing(path: Path) -> Iterator[Asked]:
    """A socket file whose service is gone."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        yield lambda: 0


@contextmanager
def stopped(path: Path) -> Iterator[Asked]:
    """A service under SIGSTOP: the kernel still accepts connections, nobody answers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        listener.setblocking(False)

        def asked() -> int:
            count = 0
            while True:
                try:
                    listener.accept()[0].close()
                except BlockingIOError:
                    return count
                count += 1

        yield asked


@contextmanager
def _answering(path: Path, service: Service) -> Iterator[Asked]:
    with serving(path, service) as requests:
        yield lambda: len(requests)


def garbling(path: Path) -> AbstractContextManager[Asked]:
    """A different kind of garbage each time; what only comes late is another matter."""
    kinds: Iterator[Service] = itertools.cycle(
        [service for how, service in FAILING.items() if how not in ("hangs", "drips")]
    )

    def answer(connection: socket.socket, request: bytes) -> None:
        next(kinds)(connection, request)

    return _answering(path, answer)


SERVICES: dict[str, Callable[[Path], AbstractContextManager[Asked]]] = {
    "dead": dead,
    "refusing": refusing,
    "stopped": stopped,
    "dripping": lambda path: _answering(path, drips),
    "garbage": garbling,
    "bad values": lambda path: _answering(
        path, answers(http(b'{"site_factor": 1e30, "prefer": "a\\u0000", "features": "no such;"}'))
    ),
}
