"""The controller against a real slurmctld: order, dead band, shadow, deaths, and the way back."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.cycle import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmJob

from ..conftest import LabFactory, empty_queue

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def twenty_nodes(session_labs: LabFactory) -> Lab:
    return session_labs("a100:8*8,v100:8*6,t4:4*6")


@pytest.fixture
def lab(twenty_nodes: Lab) -> Lab:
    empty_queue(twenty_nodes)
    fill(twenty_nodes)
    return twenty_nodes


def fill(lab: Lab) -> None:
    """Occupies every node, so that what is submitted next waits."""
    lab.run("sbatch", "--output=/dev/null", "--job-name=fill", "--nodes=20", "--exclusive", "--wrap=exec sleep 900")
    deadline = time.monotonic() + 20
    while "RUNNING" not in lab.run("squeue", "-h", "-n", "fill", "-o", "%T"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def submit_mixed(lab: Lab, count: int) -> None:
    """Jobs of all sizes and limits, submitted as users do, several at a time."""
    rows = []
    for i in range(count):
        gpus, nodes = (1, 2, 4, 8)[i % 4], 1 + (i % 5 == 0)
        kind = ("", "a100:", "v100:")[i % 3]
        rows.append(
            f"sbatch --output=/dev/null --nodes={nodes} --gpus-per-node={kind}{gpus} --mem=1G "
            f"--time={1 + (i * 7919) % 3000} --job-name=j{i % 17} --wrap='exec sleep 300' >/dev/null"
        )
    script = lab.directory / "submit.txt"
    script.write_text("\n".join(rows) + "\n")
    lab.run("xargs", "-P", "4", "-d", "\n", "-I", "{}", "sh", "-c", "{}", stdin=script.read_text(), timeout=120)


def a_controller(lab: Lab, journal: Path, **settings: Any) -> Controller:
    defaults: dict[str, Any] = {
        "mode": "enforce",
        "policy": "sjf@limit",
        "updates_per_tick": 1000,
        "updates_per_second": 1e4,
    }
    return Controller(Config(**(defaults | settings)), CliClient(lab.slurm_conf), Journal(journal))


def waiting(lab: Lab) -> list[SlurmJob]:
    jobs = CliClient(lab.slurm_conf).snapshot().jobs
    return [j for j in jobs if j.pending and j.eligible(time.time()) and j.factors]


def kendall(first: Sequence[int], second: Sequence[int]) -> float:
    place = {job: i for i, job in enumerate(second)}
    ranks = [place[job] for job in first]
    pairs = list(itertools.combinations(ranks, 2))
    return 1 - 2 * sum(a > b for a, b in pairs) / len(pairs)


def by_slurm(jobs: Sequence[SlurmJob]) -> list[int]:
    return [j.job_id for j in sorted(jobs, key=lambda j: (-j.priority, j.job_id))]


def by_limit(jobs: Sequence[SlurmJob]) -> list[int]:
    return [j.job_id for j in sorted(jobs, key=lambda j: (j.time_limit or 0, j.submit_time or 0, j.job_id))]


def updates_seen(lab: Lab) -> int:
    """Job updates that slurmctld has served, by its own count."""
    found = re.search(r"REQUEST_UPDATE_JOB\s*\(\s*\d+\)\s*count:(\d+)", lab.run("sdiag"))
    return int(found[1]) if found else 0


def test_five_hundred_jobs_end_up_in_the_policys_order(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 500)
    c = a_controller(lab, tmp_path / "j")
    ticks = [c.cycle() for _ in range(2)]
    jobs = waiting(lab)
    assert len(jobs) == 500
    tau = kendall(by_slurm(jobs), by_limit(jobs))
    print(f"Kendall tau {tau:.4f}, updates per tick {[t.applied for t in ticks]}")
    assert tau >= 0.99
    assert all(j.site_factor == j.factors.site for j in jobs if j.factors)
    assert max(abs(j.site_factor or 0) for j in jobs) <= 750  # half of 1500, the weights in effect
    assert min(j.priority for j in jobs) > 0, "0 would mean held"
    assert {j.reason for j in jobs} <= {"", "Resources", "Priority"}

    # The same plan again: not one update reaches slurmctld.
    before = updates_seen(lab)
    assert c.cycle().applied == 0
    assert updates_seen(lab) == before

    # And back, all of it.
    done = undo(CliClient(lab.slurm_conf), c.journal)
    assert (done.left, done.returned) == ((), done.touched)
    assert not any(j.site_factor for j in waiting(lab))


def test_shadow_sends_no_update(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 20)
    before = updates_seen(lab)
    c = a_controller(lab, tmp_path / "j", mode="shadow")
    assert c.cycle().wanted > 0
    c.cycle()
    assert updates_seen(lab) == before
    assert not any(j.site_factor for j in waiting(lab))


_DIE = """
import os, signal, sys
from pathlib import Path
from slurm_rl.config import Config
from slurm_rl.controller.cycle import Controller
from slurm_rl.obs.journal import Journal
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
c.cycle()
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
        c.cycle()
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


def test_factors_survive_the_death_of_slurmctld_or_are_written_again(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 12)
    c = a_controller(lab, tmp_path / "j")
    c.cycle()
    process = lab.process("slurmctld")
    os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while process.alive():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lab.restart("slurmctld")
    for _ in range(2):
        c.cycle()
    jobs = waiting(lab)
    assert by_slurm(jobs) == by_limit(jobs)
    assert not any(j.held for j in CliClient(lab.slurm_conf).snapshot().jobs)


def test_age_still_acts(start_lab: LabFactory, tmp_path: Path) -> None:
    """With the same SiteFactor a job's priority goes on growing with its age."""
    lab = start_lab("t4:1*1", accounting=True, extra_conf=("PriorityMaxAge=0-00:01:00",))
    for minutes in (30, 10):
        lab.run("sbatch", "--exclusive", "--output=/dev/null", f"--time={minutes}", "--wrap=exec sleep 600")
    lab.run("sbatch", "--exclusive", "--output=/dev/null", "--time=5", "--wrap=exec sleep 600")
    c = a_controller(lab, tmp_path / "j")
    deadline = time.monotonic() + 20
    while len(waiting(lab)) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    c.cycle()
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


def test_the_journal_tells_who_what_and_why(lab: Lab, tmp_path: Path) -> None:
    submit_mixed(lab, 5)
    c = a_controller(lab, tmp_path / "j")
    applied = c.cycle().applied
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
    master = int(lab.run("sbatch", "--parsable", "--array=0-4999", "--mem=1G", "--wrap=exec sleep 60").strip())
    separate = "".join(f"update JobId={master}_{i} Nice={i % 10}\n" for i in range(5000))
    lab.run("scontrol", stdin=separate, timeout=300)
    c = a_controller(lab, tmp_path / "j", top_jobs=5000, updates_per_tick=5000, policy="lcfs", influence=1.0)
    c.cycle()
    assert sum(bool(j.site_factor) for j in waiting(lab)) > 1000
    began = time.monotonic()
    done = undo(CliClient(lab.slurm_conf), c.journal)
    seconds = time.monotonic() - began
    print(f"{done.returned} factors back in {seconds:.1f} s")
    assert done.left == ()
    assert seconds < 60
