"""The shim inside a real slurmctld: every job is accepted, as without it, however the service fails."""

from __future__ import annotations

import itertools
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.slurm import plugin
from slurm_rl.slurm.lua import find_lua

from .shim import PLUGIN, answers, http, install, serving
from .site import ADVICE, SERVICES, SHAPES, Site

pytestmark = [pytest.mark.slurm, pytest.mark.releases]


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="rl") as name:
        built = Site(Path(name) / "lab", slurm_release)
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


# How often each is asked about 200 jobs, of which 33 are held and nobody's concern: a hung one until the breaker opens.
ASKED = {"dead": 0, "refusing": 0, "stopped": 3, "dripping": 3, "garbage": 167, "bad values": 167}


@pytest.mark.parametrize("how", SERVICES)
def test_two_hundred_jobs_are_accepted_as_without_the_shim(site: Site, without: dict[str, str], how: str) -> None:
    run, hung = how.replace(" ", "-"), how in ("stopped", "dripping")
    settings = {"breaker_failures": 3 if hung else 1000, "breaker_seconds": 86400, "deadline_ms": 30 if hung else 1000}
    site.use(install(site.lab.directory / run, service=site.socket, **settings))
    jobs = two_hundred(run)
    with SERVICES[how](site.socket) as asked:
        held = site.submit(jobs)
        assert asked() == ASKED[how]
    site.socket.unlink(missing_ok=True)

    assert jobs.keys() <= held.keys()
    for name in jobs:
        assert held[name] == without[name.removeprefix(f"{run}-").rsplit("-", 1)[0]]
    factors = site.factors()
    assert {factors[name] for name in jobs if name in factors} == {0}
    costs = site.costs()
    assert len(costs) == 200, "each went through the shim"
    # By the work that was done and not by the clock: others may have the processors for as long as they like.
    assert max(cost.cpu for cost in costs) <= 20


def test_advice_reaches_the_job(site: Site, without: dict[str, str]) -> None:
    """Installed by the command's own code, with nothing of the test around it."""
    directory = site.lab.directory
    script = directory / plugin.ENTRY
    plugin._write(script, plugin.NOTHING.encode(), newer_than=plugin._mtime(script))  # instead of the stopwatch
    plugin.install(directory, find_lua([]), socket=site.socket, deadline_ms=1000)  # what is late is not the question
    with serving(site.socket, answers(ADVICE)) as requests:
        held = site.submit({f"advised-{shape}": options for shape, options in SHAPES.items()})
    assert len(requests) == len(SHAPES) - 1, "nobody is asked about a held job"
    factors = site.factors()
    assert {factors[f"advised-{shape}"] for shape in SHAPES if shape not in ("array", "held")} == {
        777
    }  # as sprio lists
    for shape in SHAPES:
        advised = held[f"advised-{shape}"]
        assert ("Prefer=a100" in advised) == (shape != "held")
        assert advised.replace(" Prefer=a100", "") == without[shape]
    with serving(site.socket, answers(http(b'{"site_factor": -1234}'))):
        site.submit({"lowered": ""})
    assert site.factors()["lowered"] == -1234
    # A line for the user comes out of sbatch, whether it is advised otherwise or not.
    with serving(site.socket, answers(http(b'{"message": "slurm-rl: 40 runs ended within 2 h in 95% of cases"}'))):
        said = site.lab.run("bash", "-c", "sbatch --job-name=told -o /dev/null --wrap true 2>&1")
    assert "slurm-rl: 40 runs ended within 2 h in 95% of cases" in said
    assert "Submitted batch job" in said
    # Slurm refuses a job that names a feature no node has; the shim knows the nodes' features from slurm.conf.
    with serving(site.socket, answers(http(b'{"prefer": "nosuch", "features": "a100&nosuch"}'))):
        assert site.submit({"unknown": ""})["unknown"] == without["plain"]
    plugin.uninstall(directory)
    assert plugin.is_ours(directory / plugin.ENTRY)  # slurm.conf still asks for a script


# Options of jobs that ticks leave alone, and what makes each an ordinary one.
LEFT_ALONE = {
    "held": ("--hold", "scontrol release {job}"),
    "deferred": ("--begin=now+1hour", "scontrol update jobid={job} starttime=now"),
    "dependent": ("--dependency=afterany:{first}", "scontrol update jobid={job} dependency="),
    "reserved": ("--reservation=apart", "scontrol update jobid={job} reservation="),
    "set by hand": ("--priority=5", "true"),
    "heterogeneous": ("--mem=100M : --mem=200M", "true"),
}


def test_jobs_that_ticks_leave_alone_get_no_factor_at_submission(site: Site, without: dict[str, str]) -> None:
    """sprio hides most of them: their factors are read after they have become ordinary jobs."""
    run = site.lab.run
    run("scontrol", "create", "reservation", "ReservationName=apart", *"StartTime=now Duration=60 Users=root".split(),
        *"Nodes=ALL Flags=IGNORE_JOBS,MAINT".split())  # fmt: skip
    site.use(install(site.lab.directory / "alone", service=site.socket, breaker_failures=1000, deadline_ms=1000))
    try:
        with serving(site.socket, answers(ADVICE)) as requests:
            site.submit({"first": ""})
            first = run("squeue", "-h", "-n", "first", "-o", "%A").strip()
            site.submit({f"alone-{kind}": options.format(first=first) for kind, (options, _) in LEFT_ALONE.items()})
            site.submit({"ordinary": ""})
        assert len(requests) == 2, "nobody is asked about the others"
        for kind, (_, release) in LEFT_ALONE.items():
            jobs = run("squeue", "-h", "-n", f"alone-{kind}", "-o", "%A").split()
            assert len(jobs) == (2 if kind == "heterogeneous" else 1)
            for job in jobs:
                run(*release.format(job=job).split())
        names = ["first", "ordinary", *(f"alone-{kind}" for kind in LEFT_ALONE)]
        everybody = set(run("squeue", "-h", "-n", ",".join(names), "-o", "%A").split())
        shown: dict[str, int] = {}
        deadline = time.monotonic() + 120
        while not everybody <= shown.keys():  # a released job is shown after the next pass of the scheduler
            assert time.monotonic() < deadline, f"sprio does not show {everybody - shown.keys()}"
            rows = (row.split() for row in run("sprio", "-h", "-o", "%i %S").splitlines())
            shown = {job: int(factor) for job, factor in rows}
            time.sleep(0.2)
        found = {}
        for name in names:
            found[name] = {shown[job] for job in run("squeue", "-h", "-n", name, "-o", "%A").split()}
        assert found.pop("first") == found.pop("ordinary") == {777}
        assert found == {f"alone-{kind}": {0} for kind in LEFT_ALONE}
    finally:
        run("scancel", "--user=root", "--quiet")
        run("scontrol", "delete", "reservation=apart")


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
        deadline_ms=1000,
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
