"""The pyslurm client: what it sends which way, what it makes of Slurm's errors, and a worker that hangs or dies.

In pyslurm's place stands a package with the parts the worker uses; `pytest -m pyslurm` tries the real one.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.controller.writers.site_factor import ReadsSiteFactors
from slurm_rl.errors import EnvironmentMissing, InputError, SlurmError
from slurm_rl.slurm import jsonform, pyslurm
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.connect import connect
from slurm_rl.slurm.model import JobUpdate, SlurmJob, UpdateStatus
from slurm_rl.slurm.pyslurm import PyslurmClient
from slurm_rl.slurm.quantities import expand_hosts
from slurm_rl.slurm.release import Release

Fake = Callable[[str, str], Path]
Make = Callable[..., PyslurmClient]
FIXTURES = Path(__file__).parent / "fixtures"
APPLIED, REFUSED, UNKNOWN, NOT_SENT = UpdateStatus

# errors.json says what becomes of each job: [errno, message], "hang" (as pyslurm does: in C, with the lock held),
# or "exit" (as pyslurm does without a configuration). done.txt gets a line for each job before that.
STAND_IN = """
import ctypes, json, os, pathlib, sys

here = pathlib.Path(__file__).parent

class PyslurmError(Exception):
    pass

class RPCError(PyslurmError):
    def __init__(self, errno, msg):
        self.errno, self.msg = errno, msg
        super().__init__(msg)

class JobSubmitDescription:
    def __init__(self, site_factor):
        self.site_factor = site_factor

class Job:
    def __init__(self, job_id):
        self.id = job_id

    def modify(self, changes):
        with open(here / "done.txt", "a") as done:
            done.write(f"{os.getpid()} {self.id} {changes.site_factor}\\n")
        befalls(json.loads((here / "errors.json").read_text()).get(str(self.id)))

def befalls(what):
    if what == "hang":
        ctypes.PyDLL(None).sleep(600)
    if what == "exit":
        sys.stderr.write("python: fatal: Could not establish a configuration source\\n")
        os._exit(1)
    if what:
        raise RPCError(*what)

befalls(json.loads((here / "errors.json").read_text()).get("import"))
"""


class Site:
    """Where the stand-in lives, what it did, and what scontrol was sent."""

    def __init__(self, directory: Path) -> None:
        self.package, self.sent = directory / "pyslurm", directory / "sent"

    def errors(self, **what: object) -> None:
        """`errors(j404=[2017, "Invalid job id specified"])`; a job's key has a letter before its number."""
        (self.package / "errors.json").write_text(json.dumps({key.removeprefix("j"): v for key, v in what.items()}))

    @property
    def written(self) -> list[tuple[int, int]]:
        """(job, factor) in the order in which pyslurm was asked."""
        lines = self._done()
        return [(int(job), int(factor)) for _, job, factor in lines]

    @property
    def workers(self) -> list[int]:
        return list(dict.fromkeys(int(pid) for pid, _, _ in self._done()))

    def _done(self) -> list[list[str]]:
        path = self.package / "done.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def site(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A Slurm 25.11 by its commands, and a pyslurm for it."""
    packages = tmp_path / "packages"
    made = Site(packages)
    made.package.mkdir(parents=True)
    (made.package / "__init__.py").write_text(STAND_IN)
    described = packages / "pyslurm-25.11.2.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 25.11.2\n")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    made.errors()
    commands(fake, made)
    fake("sprio", "true")
    fake("sshare", "true")
    return made


def commands(fake: Fake, site: Site, ping: str = "UP") -> None:
    config = f'sed "s/22.05.8/25.11.7/" {FIXTURES}/22.05/config.txt'
    fake(
        "scontrol",
        f'case "$*" in -V) echo slurm 25.11.7 ;; ping) echo "Slurmctld(primary) at head is {ping}" ;;'
        f' "show config") {config} ;; *) tee {site.sent} ;; esac',
    )


@pytest.fixture
def make(site: Site) -> Iterator[Make]:
    """Makes clients and ends their workers with the test."""
    made: list[PyslurmClient] = []

    def one(timeout: float = 30.0) -> PyslurmClient:
        made.append(PyslurmClient(timeout=timeout))
        return made[-1]

    yield one
    for client in made:
        client.close()


def factors(*jobs: int) -> list[JobUpdate]:
    return [JobUpdate(job_id=job, site_factor=10 * job) for job in jobs]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that is dead and not yet waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(met: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


# Which way


@pytest.mark.parametrize(
    ("update", "can"),
    [
        (JobUpdate(job_id=1, site_factor=5), True),
        (JobUpdate(job_id=1, site_factor=-5), True),
        (JobUpdate(job_id=1, site_factor=0), False),  # pyslurm silently drops a 0
        (JobUpdate(job_id=1, site_factor=5, prefer="a100"), False),
        (JobUpdate(job_id=1, features="a100"), False),
        (JobUpdate(job_id=1, site_factor=5, start_at=60), False),
        (JobUpdate(job_id=1, site_factor=5, array_tasks="1-5"), False),
    ],
)
def test_what_pyslurm_can_send(update: JobUpdate, can: bool) -> None:
    assert pyslurm.expressible(update) is can


def test_resets_and_hints_go_through_scontrol_and_the_rest_through_pyslurm(site: Site, make: Make) -> None:
    site.errors(j404=[2017, "Invalid job id specified"])
    results = make().update(
        [
            JobUpdate(job_id=1, site_factor=5),
            JobUpdate(job_id=2, site_factor=0),
            JobUpdate(job_id=404, site_factor=6),
            JobUpdate(job_id=3, prefer="a100"),
            JobUpdate(job_id=4, site_factor=-7),
        ]
    )
    assert [(r.job_id, r.status) for r in results] == [
        (1, APPLIED),
        (2, APPLIED),
        (404, REFUSED),
        (3, APPLIED),
        (4, APPLIED),
    ]
    assert results[2].message == "Invalid job id specified"
    assert site.written == [(1, 5), (404, 6), (4, -7)]
    assert site.sent.read_text().splitlines() == ["update JobId=2 SiteFactor=0", "update JobId=3 Prefer=a100"]


def test_it_reads_as_the_command_line_client_does(make: Make) -> None:
    client = make()
    assert PyslurmClient.snapshot is CliClient.snapshot
    assert isinstance(client, ReadsSiteFactors)
    assert client.site_factors() == {}


def test_one_worker_serves_many_batches(site: Site, make: Make) -> None:
    client = make()
    assert all(r.applied for r in client.update(factors(1, 2)) + client.update(factors(3)))
    assert len(site.workers) == 1


def test_nothing_is_started_for_a_batch_that_scontrol_sends(site: Site, make: Make) -> None:
    site.errors(**{"import": "exit"})
    assert make().update([JobUpdate(job_id=2, site_factor=0)])[0].applied


def test_two_updates_for_one_job_are_refused_and_nothing_is_sent(site: Site, make: Make) -> None:
    with pytest.raises(InputError, match="two updates for job 1"):
        make().update([*factors(1, 2), JobUpdate(job_id=1, site_factor=7), JobUpdate(job_id=3, site_factor=0)])
    assert site.written == []
    assert not site.sent.exists()


@pytest.mark.parametrize("factor", [2**31, -(2**31)])
def test_a_factor_out_of_range_is_refused_by_itself(site: Site, make: Make, factor: int) -> None:
    results = make().update([*factors(1), JobUpdate(job_id=2, site_factor=factor), *factors(3)])
    assert [r.status for r in results] == [APPLIED, REFUSED, APPLIED]
    assert "out of Slurm's range" in results[1].message
    assert site.written == [(1, 10), (3, 30)]


def test_a_batch_of_refusals_asks_nobody(site: Site, make: Make) -> None:
    assert make().update([JobUpdate(job_id=2, site_factor=2**31)])[0].status is REFUSED
    assert site.written == []


# What Slurm's errors mean


@pytest.mark.parametrize(
    ("errno", "status"),
    [
        (2017, REFUSED),  # ESLURM_INVALID_JOB_ID
        (2021, REFUSED),  # ESLURM_ALREADY_DONE
        (2073, REFUSED),  # ESLURM_JOB_NOT_PENDING
        (2096, REFUSED),  # ESLURM_CANNOT_MODIFY_CRON_JOB
        (1001, NOT_SENT),  # SLURM_COMMUNICATIONS_CONNECTION_ERROR
        (1800, NOT_SENT),  # SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR
        (1805, NOT_SENT),  # SLURMCTLD_COMMUNICATIONS_HARD_DROP
        (1000, UNKNOWN),  # SLURM_UNEXPECTED_MSG_ERROR
        (1007, UNKNOWN),  # SLURM_PROTOCOL_AUTHENTICATION_ERROR
        (1801, UNKNOWN),  # SLURMCTLD_COMMUNICATIONS_SEND_ERROR
        (1802, UNKNOWN),  # SLURMCTLD_COMMUNICATIONS_RECEIVE_ERROR
        (5004, UNKNOWN),  # SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT
        (5005, UNKNOWN),  # SLURM_PROTOCOL_SOCKET_ZERO_BYTES_SENT
        (6000, UNKNOWN),  # ESLURM_AUTH_CRED_INVALID
        (104, UNKNOWN),  # ECONNRESET
        (-1, UNKNOWN),
    ],
)
def test_only_slurmctlds_own_word_is_a_refusal(errno: int, status: UpdateStatus) -> None:
    assert pyslurm.status_of(errno) is status


def test_a_stopped_slurmctld_leaves_one_unknown_and_the_rest_unsent(site: Site, make: Make) -> None:
    site.errors(j2=[5004, "Socket timed out on send/recv operation"])
    results = make().update([*factors(1, 2, 3, 4)])
    assert [r.status for r in results] == [APPLIED, UNKNOWN, NOT_SENT, NOT_SENT]
    assert results[3].message == "Socket timed out on send/recv operation"
    assert site.written == [(1, 10), (2, 20)]


def test_what_is_unknown_is_read_back(site: Site, make: Make, fake: Fake) -> None:
    site.errors(j2=[1802, "Unable to contact slurm controller (receive failure)"])
    row = "".join(f"{value}${{mark}}" for value in ("2", "20"))
    fake("sprio", f"""mark=$(printf %s "$3" | grep -oP '\\x1f[0-9a-f]{{8}}x' | head -1); printf '%s\\n' "{row}" """)
    assert [r.status for r in make().update(factors(1, 2, 3))] == [APPLIED, APPLIED, NOT_SENT]


def test_a_slurmctld_that_takes_no_connection_is_an_error(site: Site, make: Make) -> None:
    site.errors(j1=[1800, "Unable to contact slurm controller (connect failure)"])
    with pytest.raises(SlurmError, match="pyslurm: Unable to contact slurm controller"):
        make().update(factors(1, 2))
    assert site.written == [(1, 10)]


@pytest.mark.parametrize("error", [[2010, "Invalid user id"], [2002, "Access/permission denied"]])
def test_a_user_without_rights_gets_an_error(site: Site, make: Make, error: list[object]) -> None:
    site.errors(j1=error, j2=error)
    with pytest.raises(SlurmError, match=r"refused all 2 updates.*run as SlurmUser or root"):
        make().update(factors(1, 2))


def test_one_forbidden_job_is_a_refusal(site: Site, make: Make) -> None:
    site.errors(j1=[2010, "Invalid user id"])
    assert [r.status for r in make().update(factors(1, 2))] == [REFUSED, APPLIED]


# A worker that hangs or dies


def test_a_call_that_hangs_stops_the_worker_and_nobody_else(site: Site, make: Make) -> None:
    site.errors(j2="hang")
    client = make()
    client.update(factors(4))
    client.commands.timeout = 2
    beats: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            beats.append(time.monotonic())

    other = threading.Thread(target=beat)
    other.start()
    try:
        results = client.update(factors(1, 2, 3))
    finally:
        over.set()
        other.join()
    assert [r.status for r in results] == [APPLIED, UNKNOWN, NOT_SENT]
    assert "no answer within" in results[1].message
    assert len(beats) >= 10  # with the lock held in this process it would be one or two
    assert gone(site.workers[0])
    client.commands.timeout = 30
    site.errors()
    assert all(r.applied for r in client.update(factors(2, 3)))
    assert len(site.workers) == 2


def test_a_hang_ends_when_slurmctld_is_known_to_be_down(site: Site, make: Make, fake: Fake) -> None:
    site.errors(j1="hang")
    commands(fake, site, ping="DOWN")
    results = make(timeout=300).update(factors(1, 2))
    assert [(r.status, r.message) for r in results] == [
        (UNKNOWN, "Slurmctld(primary) at head is DOWN"),
        (NOT_SENT, "Slurmctld(primary) at head is DOWN"),
    ]


def test_nothing_is_sent_when_the_batch_has_had_its_time(
    site: Site, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyslurm, "batch_time", lambda *_: 0.0)
    with pytest.raises(SlurmError, match="the time for this batch is over"):
        make().update(factors(1, 2))
    assert site.written == []


def test_a_worker_that_ends_in_a_call_is_replaced(site: Site, make: Make) -> None:
    site.errors(j1="exit")
    client = make()
    results = client.update(factors(1, 2))
    assert [r.status for r in results] == [UNKNOWN, NOT_SENT]
    assert "the worker process ended: python: fatal: Could not establish" in results[0].message
    assert client.update(factors(2))[0].applied


def test_a_worker_killed_between_two_batches_is_replaced(site: Site, make: Make) -> None:
    client = make()
    client.update(factors(1))
    os.kill(site.workers[0], signal.SIGKILL)
    wait_until(lambda: gone(site.workers[0]))
    assert client.update(factors(2))[0].applied
    assert len(site.workers) == 2


def test_an_import_that_ends_the_process_is_an_error_of_ours(site: Site, make: Make) -> None:
    site.errors(**{"import": "exit"})
    with pytest.raises(SlurmError, match="pyslurm: the worker process ended: python: fatal: Could not establish"):
        make().update([*factors(1), JobUpdate(job_id=2, site_factor=0)])
    assert not site.sent.exists()  # scontrol's part waits for the worker


def test_an_unreadable_configuration_is_named_before_pyslurm_is_loaded(
    site: Site, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make()
    client.release()
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    with pytest.raises(SlurmError, match=r"SLURM_CONF=/nowhere/slurm\.conf cannot be read"):
        client.update(factors(1))


@pytest.mark.parametrize("hangs", [False, True])
def test_no_worker_outlives_a_killed_parent(site: Site, hangs: bool) -> None:
    site.errors(**({"j2": "hang"} if hangs else {}))
    program = (
        "import time\n"
        "from slurm_rl.slurm.model import JobUpdate\n"
        "from slurm_rl.slurm.pyslurm import PyslurmClient\n"
        "client = PyslurmClient()\n"
        "client.update([JobUpdate(job_id=1, site_factor=5)])\n"
        "client.commands.timeout = 2\n"
        "client.update([JobUpdate(job_id=2, site_factor=5)])\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        try:
            wait_until(lambda: len(site.written) == 2)
        finally:
            parent.kill()
    (worker,) = site.workers
    wait_until(lambda: gone(worker))


# Which client


def test_auto_means_the_command_line_even_where_pyslurm_fits(site: Site) -> None:
    assert type(connect()) is CliClient
    assert type(connect(kind="pyslurm")) is PyslurmClient


def test_pyslurm_must_fit_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "25.11.2")
    pyslurm.check_installed(Release(25, 11, 7))
    with pytest.raises(EnvironmentMissing, match=r"pyslurm is for Slurm 25\.11, this is Slurm 22\.05\.8"):
        pyslurm.check_installed(Release(22, 5, 8))


def test_pyslurm_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert pyslurm.installed_major() is None
    with pytest.raises(EnvironmentMissing, match="pip install"):
        pyslurm.check_installed(Release(22, 5, 8))


# What pyslurm 25.11.2 says of a queue, as recorded: one more witness for our readers, and why it is not one of them


@pytest.fixture(scope="module")
def said() -> dict[int, dict[str, Any]]:
    """pyslurm's jobs by id, each as its attributes."""
    return {j["id"]: j for j in json.loads((FIXTURES / "25.11" / "pyslurm-jobs.json").read_bytes())}


@pytest.fixture(scope="module")
def read(said: dict[int, dict[str, Any]]) -> dict[int, SlurmJob]:
    """The same jobs as our reader of squeue's JSON has them; test_slurm_releases.py holds that of text to it."""
    recorded = (FIXTURES / "25.11" / "squeue.json").read_bytes()
    return {j.job_id: j for j in jsonform.jobs(recorded, {}) if j.job_id in said}


WITNESSED: dict[str, Callable[[dict[str, Any]], object]] = {
    "name": lambda j: j["name"],
    "user": lambda j: j["user_name"],
    "account": lambda j: j["account"] or "",
    "qos": lambda j: j["qos"],
    "partitions": lambda j: tuple(j["partition"].split(",")),
    "state": lambda j: j["state"],
    "reason": lambda j: "" if j["state_reason"] == "None" else j["state_reason"],
    "reservation": lambda j: j["reservation"] or "",
    "cron": lambda j: j["is_cronjob"],
    "array_job_id": lambda j: j["array_id"] or 0,
    "het_job_id": lambda j: j["heterogeneous_id"] or 0,
    "het_offset": lambda j: j["heterogeneous_offset"] or 0,
    "submit_time": lambda j: j["submit_time"],
    "eligible_time": lambda j: j["eligible_time"],
    "start_time": lambda j: j["start_time"],
    "deadline": lambda j: j["deadline"],
    "end_time": lambda j: j["end_time"],
    "time_limit": lambda j: None if j["time_limit"] is None else j["time_limit"] * 60,
    "nodes": lambda j: j["num_nodes"],
    "cpus": lambda j: j["cpus"],
    "tasks": lambda j: j["ntasks"],
    "features": lambda j: ",".join(j["constraints"]),
    "prefer": lambda j: ",".join(j["preferred_features"]),
    "required_nodes": lambda j: expand_hosts(j["required_nodes"] or ""),
    "exclusive": lambda j: j["resource_sharing"] in ("NO", "EXCLUSIVE"),
    "node_list": lambda j: expand_hosts(j["allocated_nodes"] or ""),
    "priority": lambda j: j["priority"],
    "nice": lambda j: j["nice"],
}


@pytest.mark.parametrize("field", WITNESSED)
def test_our_reader_says_what_pyslurm_says(
    said: dict[int, dict[str, Any]], read: dict[int, SlurmJob], field: str
) -> None:
    assert {i: getattr(job, field) for i, job in read.items()} == {i: WITNESSED[field](j) for i, j in said.items()}


def test_what_pyslurm_loses_we_have(said: dict[int, dict[str, Any]], read: dict[int, SlurmJob]) -> None:
    by_name = {job.name: i for i, job in read.items()}
    # A request for GPUs per job: the attribute is never filled.
    assert {said[i]["tres_per_job"] for i in said} == {None}
    assert said[by_name["plain"]]["gres_per_node"] == {}
    assert read[by_name["plain"]].gpus == {"a100": 2}
    # Task 0 of an array, and a singleton.
    (first,) = [i for i, job in read.items() if job.array_task_id == 0 and job.running]
    assert said[first]["array_task_id"] is None
    (single,) = [i for i, job in read.items() if "singleton" in job.dependency]
    assert not any(said[single]["dependencies"][kind] for kind in ("singleton", "after", "afterok", "afterany"))
