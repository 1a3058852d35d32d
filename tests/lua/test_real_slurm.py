"""The shim inside a real slurmctld: every job is accepted, as without it, however the service fails."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from slurm_rl.lab import lab, requirements
from slurm_rl.lab.spec import LabSpec, parse_nodes
from slurm_rl.slurm import plugin
from slurm_rl.slurm.lua import find_lua

from .shim import PLUGIN, Service, answers, drips, http, install, serving
from .test_failing_service import FAILING

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(requirements.missing(accounting=False)) or os.geteuid() != 0, reason="needs Slurm's packages and root"
    ),
]

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
# Differs from job to job, or says when it was looked at, not what was asked for.
_VOLATILE = r"\b(JobId|ArrayJobId|JobName|\w*Time|LastSchedEval|AllocNode:Sid|Priority|Reason|Scheduler|StdOut|StdErr)="


class Site:
    """A lab whose slurmctld runs the shim, with a stopwatch around it."""

    def __init__(self, directory: Path) -> None:
        self.lab = lab.up(LabSpec(directory=directory, nodes=parse_nodes("a100:8*2"), run_nodes=False))
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
            slurm_job_submit = function(...)
              local start = gettime()
              local code = submit(...)
              local file = io.open({str(self.times)!r}, "a")
              file:write((gettime() - start) * 1000, "\\n")
              file:close()
              return code
            end
            return slurm.SUCCESS
            """.encode(),
            newer_than=plugin._mtime(script),
        )

    def milliseconds(self) -> list[float]:
        return [float(row) for row in self.times.read_text().split()]

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
                found[name[1]] = " ".join(re.sub(_VOLATILE + r"\S*", "", row).split())
        return found

    def factors(self) -> dict[str, int]:
        """SiteFactor of each pending job, by name, as sprio shows it."""
        names = dict(row.split() for row in self.lab.run("squeue", "-h", "-o", "%A %j").splitlines())
        rows = (row.split() for row in self.lab.run("sprio", "-h", "-o", "%i %S").splitlines())
        return {names[job]: int(factor) for job, factor in rows}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="rl") as name:
        built = Site(Path(name) / "lab")
        try:
            yield built
        finally:
            built.lab.down()


@pytest.fixture(scope="module")
def without(site: Site) -> dict[str, str]:
    """Each shape of job as a Slurm without job_submit/lua holds it; afterwards the lab has it."""
    held = site.submit({f"without-{shape}": options for shape, options in SHAPES.items()})
    site.use(install(site.lab.directory / "first", service=site.socket))
    site.enable_lua()
    return {shape: held[f"without-{shape}"] for shape in SHAPES}


def two_hundred(run: str) -> dict[str, str]:
    """200 jobs of all shapes."""
    return {f"{run}-{shape}-{i}": SHAPES[shape] for i, shape in zip(range(200), itertools.cycle(SHAPES), strict=False)}


def stopped(path: Path) -> AbstractContextManager[object]:
    """A service under SIGSTOP: the kernel still accepts connections, nobody answers."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def refusing(path: Path) -> AbstractContextManager[object]:
    """A socket file whose service is gone."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


def garbling(path: Path) -> AbstractContextManager[object]:
    """A different kind of garbage each time."""
    kinds: Iterator[Service] = itertools.cycle([service for how, service in FAILING.items() if how != "hangs"])

    def answer(connection: socket.socket, request: bytes) -> None:
        next(kinds)(connection, request)

    return serving(path, answer)


def out_of_range(path: Path) -> AbstractContextManager[object]:
    return serving(path, answers(http(b'{"site_factor": 1e30, "prefer": "a\\u0000", "features": "no such;"}')))


SERVICES: dict[str, tuple[Callable[[Path], AbstractContextManager[object]], int]] = {
    "dead": (lambda _: nullcontext(), 1000),
    "refusing": (refusing, 1000),
    "stopped": (stopped, 3),
    "dripping": (lambda path: serving(path, drips), 3),
    "garbage": (garbling, 1000),
    "out of range": (out_of_range, 3),
}


@pytest.mark.parametrize("how", SERVICES)
def test_two_hundred_jobs_are_accepted_as_without_the_shim(
    site: Site, without: dict[str, str], how: str, record_property: pytest.RecordProperty
) -> None:
    service, breaker_failures = SERVICES[how]
    run = how.replace(" ", "-")
    shim = install(site.lab.directory / run, service=site.socket, breaker_failures=breaker_failures)
    site.use(shim)
    jobs = two_hundred(run)
    with service(site.socket):
        held = site.submit(jobs)
    site.socket.unlink(missing_ok=True)

    assert jobs.keys() <= held.keys()
    for name in jobs:
        assert held[name] == without[name.removeprefix(f"{run}-").rsplit("-", 1)[0]]
    factors = site.factors()
    assert {factors[name] for name in jobs if name in factors} == {0}

    took = site.milliseconds()
    assert len(took) == 200
    p99 = statistics.quantiles(took, n=100)[98]
    record_property("p99_ms", p99)
    if how in ("dead", "refusing"):
        assert p99 <= 5
    else:
        assert max(took) <= 50
    if how in ("stopped", "dripping"):
        assert max(took[:3]) > 25  # it did wait for the deadline
        assert statistics.quantiles(took[3:], n=100)[94] <= 1
    print(f"{how}: median {statistics.median(took):.3f} ms, p99 {p99:.3f} ms, max {max(took):.3f} ms")


def test_advice_reaches_the_job(site: Site, without: dict[str, str]) -> None:
    """Installed by the command's own code, with nothing of the test around it."""
    directory = site.lab.directory
    script = directory / plugin.ENTRY
    plugin._write(script, plugin.NOTHING.encode(), newer_than=plugin._mtime(script))  # instead of the stopwatch
    plugin.install(directory, find_lua([]), socket=site.socket)
    with serving(site.socket, answers(ADVICE)) as requests:
        held = site.submit({f"advised-{shape}": options for shape, options in SHAPES.items()})
    assert len(requests) == len(SHAPES)
    factors = site.factors()
    assert {factors[f"advised-{shape}"] for shape in SHAPES if shape not in ("array", "held")} == {
        777
    }  # as sprio lists
    for shape in SHAPES:
        assert held[f"advised-{shape}"].replace(" Prefer=a100", "") == without[shape]
    with serving(site.socket, answers(http(b'{"site_factor": -1234}'))):
        site.submit({"lowered": ""})
    assert site.factors()["lowered"] == -1234
    # Slurm refuses a job that names a feature no node has; the shim knows the nodes' features from slurm.conf.
    with serving(site.socket, answers(http(b'{"prefer": "nosuch", "features": "a100&nosuch"}'))):
        assert site.submit({"unknown": ""})["unknown"] == without["plain"]
    plugin.uninstall(directory)
    assert plugin.is_ours(directory / plugin.ENTRY)  # slurm.conf still asks for a script


# Sets the global the injected code looks at, from the job's name, before the shim works on the job.
_INJECTOR = """
function slurm_job_submit(job)
  INJECT_AT = job.name
  FIRED = function() local file = io.open("{log}", "a") file:write(INJECT_AT, "\\n") file:close() error("injected") end
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
"""


def test_an_error_in_any_function_is_as_no_shim_at_all(site: Site, without: dict[str, str]) -> None:
    shim = install(
        site.lab.directory / "injected",
        service=site.socket,
        breaker_failures=1000,
        site=_INJECTOR.format(log=site.lab.directory / "fired"),
    )
    places = []
    for module in plugin.MODULES:
        rows = (PLUGIN / module).read_text().splitlines()
        for number, row in enumerate(rows, start=1):
            place = f"{module.removesuffix('.lua')}-{number}"
            rows[number - 1], count = re.subn(
                r"function\s*[\w.]*\([^)]*\)",
                lambda found, at=place: f'{found[0]} if INJECT_AT == "{at}" then FIRED() end',
                row,
            )
            places += [place] * bool(count)
        (shim / module).write_text("\n".join(rows) + "\n")
    site.use(shim)
    with serving(site.socket, answers(ADVICE)):
        held = site.submit(dict.fromkeys([*places, "intact"], SHAPES["gpus"]))
    factors = site.factors()
    fired = (site.lab.directory / "fired").read_text().split()
    assert len(fired) > 25
    assert factors["intact"] == 777
    for place in places:
        assert factors[place] == (0 if place in fired else 777)
        if place in fired:
            assert held[place] == without["gpus"]
