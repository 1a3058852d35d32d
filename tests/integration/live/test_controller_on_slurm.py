"""The controller against a real slurmctld: order, dead band, shadow, deaths, and the way back."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.errors import SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal, JournalError
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate, UpdateResult

from ..conftest import LabFactory, empty_queue
from .on_lab import by_limit, by_slurm, fill, kendall, submit_mixed, until, waiting

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def twenty_nodes(session_labs: LabFactory) -> Lab:
    return session_labs("a100:8*8,v100:8*6,t4:4*6")


@pytest.fixture
def lab(twenty_nodes: Lab) -> Lab:
    empty_queue(twenty_nodes)
    fill(twenty_nodes)
    return twenty_nodes


def a_controller(lab: Lab, journal: Path, **settings: Any) -> Controller:
    defaults: dict[str, Any] = {
        "mode": "enforce",
        "policy": "sjf@limit",
        "updates_per_tick": 1000,
        "updates_per_second": 1e4,
    }
    return Controller(Config(**(defaults | settings)), CliClient(lab.slurm_conf), Journal(journal))


def updates_seen(lab: Lab) -> int:
    """Job updates that slurmctld has served, by its own count."""
    found = re.search(r"REQUEST_UPDATE_JOB\s*\(\s*\d+\)\s*count:(\d+)", lab.run("sdiag"))
    return int(found[1]) if found else 0


@pytest.mark.releases
def test_five_hundred_jobs_end_up_in_the_policys_order(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 500)
    c = a_controller(lab, tmp_path / "j")
    ticks = [c.tick() for _ in range(2)]
    jobs = waiting(lab)
    assert len(jobs) == 500
    tau = kendall(by_slurm(jobs), by_limit(jobs))
    print(f"Kendall tau {tau:.4f}, updates per tick {[t.applied for t in ticks]}")
    assert tau >= 0.99
    assert len({j.priority for j in jobs}) == 500, "no two tie: their own priorities are known to the last point"
    assert all(j.site_factor == j.factors.site for j in jobs if j.factors)
    assert max(abs(j.site_factor or 0) for j in jobs) <= 750  # half of 1500, the weights in effect
    assert min(j.priority for j in jobs) > 0, "0 would mean held"
    assert {j.reason for j in jobs} <= {"", "Resources", "Priority"}

    # The same plan again: not one update reaches slurmctld.
    before = updates_seen(lab)
    assert c.tick().applied == 0
    assert updates_seen(lab) == before

    # And back, all of it.
    done = undo(CliClient(lab.slurm_conf), c.journal)
    assert (done.left, done.returned) == ((), done.touched)
    assert not any(j.site_factor for j in waiting(lab))


def test_shadow_sends_no_update(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 20)
    before = updates_seen(lab)
    c = a_controller(lab, tmp_path / "j", mode="shadow")
    assert c.tick().wanted > 0
    c.tick()
    assert updates_seen(lab) == before
    assert not any(j.site_factor for j in waiting(lab))


_DIE = """
import os, signal, sys
from pathlib import Path
from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.journal import Journal, JournalError
from slurm_rl.slurm.cli import CliClient

conf, journal, point = sys.argv[1:]
die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
client = CliClient(Path(conf))
config = Config(mode="enforce", policy="sjf@limit", updates_per_tick=1000, updates_per_second=1e4)
c = Controller(config, client, Journal(Path(journal)))
update = client.update
if point == "decided":
    c.journal.tick = die
elif point == "journaled":
    client.update = die
elif point == "half sent":
    client.update = lambda updates: (update(updates[: len(updates) // 2]), die())
elif point == "sent":
    c.journal.settle = die
c.tick()
"""


@pytest.mark.parametrize("point", ["decided", "journaled", "half sent", "sent"])
def test_a_controller_killed_anywhere_is_replaced_and_can_be_undone(lab: Lab, tmp_path: Path, point: str) -> None:
    submit_mixed(lab, 12)
    journal = tmp_path / "j"
    command = [sys.executable, "-c", _DIE, str(lab.slurm_conf), str(journal), point]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    after_death = {j.job_id: j.site_factor for j in waiting(lab)}
    assert any(after_death.values()) == (point in ("half sent", "sent"))

    c = a_controller(lab, journal)
    for _ in range(2):
        c.tick()
    jobs = waiting(lab)
    assert by_slurm(jobs) == by_limit(jobs)
    touched = {job_id: value for (job_id, _), value in c.journal.touched().items()}
    assert touched == {j.job_id: j.site_factor for j in jobs if j.site_factor}, "the journal says what sprio says"
    assert undo(CliClient(lab.slurm_conf), c.journal).left == ()
    assert not any(j.site_factor for j in waiting(lab))


def test_undo_right_after_a_kill(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 8)
    journal = tmp_path / "j"
    subprocess.run([sys.executable, "-c", _DIE, str(lab.slurm_conf), str(journal), "half sent"], check=False)
    assert any(j.site_factor for j in waiting(lab))
    assert undo(CliClient(lab.slurm_conf), Journal(journal)).left == ()
    assert not any(j.site_factor for j in waiting(lab))


def kill(lab: Lab, name: str = "slurmctld") -> None:
    process = lab.process(name)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not process.alive(), f"{name} is dead")


@pytest.mark.parametrize("point", ["before it observes", "journaled", "half sent", "sent"])
def test_slurmctld_killed_at_any_point_of_a_cycle(lab: Lab, tmp_path: Path, point: str) -> None:
    submit_mixed(lab, 12)
    submitted = time.time()

    def saved() -> bool:
        with suppress(FileNotFoundError):  # slurmctld links the new file where it has just unlinked the old one
            return (lab.directory / "state" / "job_state").stat().st_mtime > submitted
        return False

    until(saved, "slurmctld has saved the jobs")
    c = a_controller(lab, tmp_path / "j", slurm_timeout=5.0)
    assert isinstance(c.client, CliClient)
    update = c.client.update

    def dying(updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        sent = update(updates[: {"journaled": 0, "half sent": len(updates) // 2}.get(point, len(updates))])
        kill(lab)
        return sent + (update(updates[len(sent) :]) if len(sent) < len(updates) else [])

    if point == "before it observes":
        kill(lab)
    else:
        c.client.update = dying  # type: ignore[method-assign]
    with suppress(SlurmError):  # a cycle that finds slurmctld dead says so, and leaves everything as it is
        c.tick()
    c.client.update = update  # type: ignore[method-assign]
    lab.restart("slurmctld")
    for _ in range(2):
        c.tick()
    jobs = waiting(lab)
    assert len(jobs) == 12
    assert by_slurm(jobs) == by_limit(jobs)
    every = CliClient(lab.slurm_conf).snapshot().jobs
    assert not any(j.held for j in every)
    touched = {job_id: value for (job_id, _), value in c.journal.touched().items()}
    assert touched == {j.job_id: j.site_factor for j in jobs if j.site_factor}, "the journal says what sprio says"
    assert all(j.factors and j.factors.age + j.factors.partition + j.factors.job_size for j in jobs), "none is frozen"


def test_a_journal_on_a_full_disk_stops_all_writing_and_undo_still_works(lab: Lab, tmp_path: Path) -> None:
    """A disk that is really full; sbatch does not notice."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        submit_mixed(lab, 8)
        c = a_controller(lab, small / "j")
        assert c.tick().applied > 0
        fill_disk(small)
        submit_mixed(lab, 60)
        before = updates_seen(lab)
        for _ in range(2):
            with pytest.raises(JournalError):
                c.tick()
        assert updates_seen(lab) == before, "nothing is written that is not in the journal"
        assert len(waiting(lab)) == 68
        assert undo(CliClient(lab.slurm_conf), c.journal).left == ()
        assert not any(j.site_factor for j in waiting(lab))
        (small / "filler").unlink()
        c.journal.command(time.time(), "enforce", "test")
        c.tick()
        assert by_slurm(waiting(lab)) == by_limit(waiting(lab)), "with room again it goes on by itself"
    finally:
        c.journal.close()
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def fill_disk(directory: Path) -> None:
    with (directory / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 1024)


def test_age_still_acts(start_lab: LabFactory, tmp_path: Path) -> None:
    """With the same SiteFactor a job's priority goes on growing with its age."""
    lab = start_lab("t4:1*1", accounting=True, extra_conf=("PriorityMaxAge=0-00:01:00",))
    for minutes in (30, 10):
        lab.run("sbatch", "--exclusive", "--output=/dev/null", f"--time={minutes}", "--wrap=exec sleep 600")
    lab.run("sbatch", "--exclusive", "--output=/dev/null", "--time=5", "--wrap=exec sleep 600")
    c = a_controller(lab, tmp_path / "j")
    until(lambda: len(waiting(lab)) == 2, "one job runs and two wait")
    c.tick()
    first = {j.job_id: j for j in waiting(lab)}
    time.sleep(4)
    for j in first.values():  # Slurm recalculates every minute, or when a job is updated
        lab.run("scontrol", "update", f"JobId={j.job_id}", f"SiteFactor={j.site_factor}")
    grown = 0
    for j in waiting(lab):
        before = first[j.job_id]
        assert j.factors is not None
        assert before.factors is not None
        assert j.site_factor == before.site_factor
        grown += j.factors.age > before.factors.age and j.priority > before.priority
    assert grown == 2


@pytest.mark.soak
def test_fairshare_still_acts(start_lab: LabFactory, tmp_path: Path) -> None:
    """Of two users' jobs in turn, those of the one who has used nothing yet move ahead of the policy."""
    lab = start_lab("t4:1*1", accounting=True, extra_conf=("PriorityDecayHalfLife=7-0",))
    for user in ("daemon", "nobody"):
        lab.run("sacctmgr", "-i", "add", "account", f"of-{user}", "Description=x", "Organization=x")
        lab.run("sacctmgr", "-i", "add", "user", user, f"Account=of-{user}")

    def sbatch(user: str, *options: str) -> None:
        given = (f"--uid={user}", "--chdir=/tmp", "--output=/dev/null", "--exclusive", *options)
        lab.run("sbatch", *given, "--wrap=exec sleep 900")

    sbatch("daemon", "--time=600", "--job-name=used")

    def shares() -> dict[str, int]:
        return {j.user: j.factors.fairshare for j in waiting(lab) if j.factors}

    for i in range(8):
        sbatch("daemon", f"--time={100 + 2 * i}")
        sbatch("nobody", f"--time={101 + 2 * i}")
    # Slurm looks at usage once a minute.
    until(lambda: shares().get("nobody", 0) > shares().get("daemon", 0) + 300, "fairshare tells them apart", 180)
    jobs = waiting(lab)
    assert {j.user for j in jobs} == {"daemon", "nobody"}
    c = a_controller(lab, tmp_path / "j")
    c.tick()
    jobs = waiting(lab)
    owner = {j.job_id: j.user for j in jobs}
    assert any(j.site_factor for j in jobs)
    order = by_slurm(jobs)
    print([f"{owner[i][0]}{next(j.time_limit for j in jobs if j.job_id == i) // 60}" for i in order])  # type: ignore[operator]

    def mean_place(order: Sequence[int], user: str) -> float:
        places = [place for place, job in enumerate(order) if owner[job] == user]
        return sum(places) / len(places)

    assert mean_place(by_limit(jobs), "nobody") == mean_place(by_limit(jobs), "daemon") + 1
    assert mean_place(order, "nobody") < mean_place(order, "daemon")
    for user in owner.values():  # within a user's jobs, whose fairshare is the same, the policy rules
        own = [j for j in jobs if j.user == user]
        assert by_slurm(own) == by_limit(own)


def test_the_journal_tells_who_what_and_why(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 5)
    c = a_controller(lab, tmp_path / "j")
    applied = c.tick().applied
    rows = sqlite3.connect(tmp_path / "j").execute(
        "SELECT job_id, submit_time, old, new, reason, status, policy FROM change JOIN tick ON tick.id = tick"
    )
    rows = list(rows)
    assert len(rows) == applied
    shown = {j.job_id: j for j in waiting(lab)}
    for job_id, submitted, old, new, reason, status, policy in rows:
        assert (shown[job_id].submit_time, shown[job_id].site_factor) == (submitted, new)
        assert (old, status, policy) == (0, "applied", "sjf@limit")
        assert "of 5" in reason


@pytest.mark.soak
def test_five_thousand_factors_are_taken_back_within_a_minute(lab: Lab, tmp_path: Path) -> None:
    master = int(lab.run("sbatch", "--parsable", "--array=0-5799", "--mem=1G", "--wrap=exec sleep 60").strip())
    separate = "".join(f"update JobId={master}_{i} Nice={i % 10}\n" for i in range(5800))
    lab.run("scontrol", stdin=separate, timeout=300)
    c = a_controller(lab, tmp_path / "j", top_jobs=6000, updates_per_tick=6000, policy="lcfs", influence=1.0)
    c.tick()
    assert sum(bool(j.site_factor) for j in waiting(lab)) >= 5000
    began = time.monotonic()
    done = undo(CliClient(lab.slurm_conf), c.journal)
    seconds = time.monotonic() - began
    print(f"{done.returned} factors back in {seconds:.1f} s")
    assert done.left == ()
    assert seconds < 60


def test_the_default_policy_comes_to_rest_on_a_queue_in_which_nothing_happens(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 470)
    c = a_controller(lab, tmp_path / "j", policy="rl:default", updates_per_tick=200, state_dir=str(tmp_path))
    wanted, taus = [], []
    for _ in range(9):
        wanted.append(c.tick().wanted)
        jobs = waiting(lab)
        assert c.observed is not None
        view, plan = c.observed
        decided = [view.jobs[j].job_id for j in plan.order]
        assert {j.job_id for j in jobs} == set(decided)
        taus.append(kendall(by_slurm(jobs), decided))
        time.sleep(2)
    print(f"wanted {wanted}, Kendall tau {[round(t, 4) for t in taus]}")
    assert max(wanted[5:]) < 0.05 * 470
    assert min(taus[5:]) >= 0.99
    assert undo(CliClient(lab.slurm_conf), c.journal).complete
