"""More than 50,000 pending records on a real slurmctld, arrays included: ticks, what they ask of Slurm, and undo.

Run it with `-s`: the figures are in docs/performance.md, "Large queues".
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal
from slurm_rl.slurm.cli import CliClient

from ..conftest import LabFactory
from .on_lab import until

pytestmark = [pytest.mark.soak, pytest.mark.slurm]

RECORDS = 50_000
SETTINGS = {
    "MaxJobCount": "2000000",
    "MaxArraySize": "1000001",
    "PriorityCalcPeriod": "5",  # as Slurm has it by itself; the lab's own serve small queues
    "SchedulerParameters": "bf_continue,bf_interval=30",
    "MessageTimeout": "60",
}
_RPC = re.compile(r"^\s*(\w+)\s*\(\s*\d+\)\s*count:(\d+)\s*ave_time:\d+\s*total_time:(\d+)", re.MULTILINE)


def served(lab: Lab) -> dict[str, tuple[int, int]]:
    """RPCs by type, by slurmctld's own count: how many, and microseconds."""
    return {
        name: (int(count), int(took)) for name, count, took in _RPC.findall(lab.run("sdiag").partition("by user")[0])
    }


def since(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    found = {n: (c - before.get(n, (0, 0))[0], t - before.get(n, (0, 0))[1]) for n, (c, t) in after.items()}
    return {name: one for name, one in found.items() if one[0]}


def sbatch(lab: Lab, *options: str) -> int:
    """Submits, and waits until Slurm has looked at the job and shows its priority."""
    said = lab.run("sbatch", "--parsable", "--output=/dev/null", "--mem=1G", *options, "--wrap=true", timeout=300)
    until(lambda: said.strip() in lab.run("sprio", "-h", "-o", "%i").split(), "sprio shows the job", 120)
    return int(said)


def fifty_thousand(lab: Lab) -> None:
    """Records of their own: tasks that differ by their time limits; and arrays beside them."""
    sizes = ("--gpus=a100:8", "--gpus=a100:1", "--gpus=1", "--gpus=t4:2", "--gpus=4")
    for number, size in enumerate(sizes):
        count = RECORDS // len(sizes)
        array = sbatch(lab, size, f"--array=0-{count - 1}", f"--job-name=n{number}")
        lines = [f"update JobId={array}_{i} TimeLimit={1 + (i * 7919) % 3000}\n" for i in range(count)]
        for at in range(0, count, 2000):
            lab.run("scontrol", stdin="".join(lines[at : at + 2000]), timeout=600)
    sbatch(lab, "--gpus=a100:8", "--array=0-9999%50")
    sbatch(lab, "--gpus=1", "--array=0-99998:3")


def ticked(c: Controller, lab: Lab) -> str:
    """A tick's figures in one line."""
    assert isinstance(c.client, CliClient)
    before = served(lab)
    c.client.load()
    clock, spent = time.monotonic(), time.process_time()
    outcome = c.tick()
    clock, spent = time.monotonic() - clock, time.process_time() - spent
    calls, characters = c.client.load()
    rpcs = since(before, served(lab))
    assert c.report is not None
    assert outcome.outcome == "done", outcome
    assert not c.report.queue.left_alone, set(c.report.queue.left_alone.values())
    of_slurm = sum(took for _, took in rpcs.values()) / 1e6
    counts = {name: count for name, (count, _) in rpcs.items()}
    return (
        f"{clock:.2f} s by the clock, {spent:.2f} s of our processor, {of_slurm:.2f} s in slurmctld's threads, "
        f"{calls} commands, {characters / 1e6:.1f} MB, {outcome.ordered} ordered, {outcome.applied} written; {counts}"
    )


def slowest(times: int, ask: Callable[[int], object]) -> float:
    """Milliseconds of the processor."""
    took = []
    for i in range(times):
        began = time.process_time()
        ask(i)
        took.append(time.process_time() - began)
    return 1e3 * max(took)


def test_fifty_thousand_records(start_lab: LabFactory, tmp_path: Path) -> None:
    lab = start_lab("a100:8*500,t4:4*500", run_nodes=False, settings=tuple(SETTINGS.items()))
    fifty_thousand(lab)
    client = CliClient(lab.slurm_conf, timeout=60)
    config = Config(mode="enforce", policy="sjf@limit", state_dir=str(tmp_path), updates_per_second=1000)
    c = Controller(config, client, Journal(config.journal))
    ticks = [ticked(c, lab)]
    assert c.report is not None
    assert len(c.report.plan.order) == RECORDS + 2
    state = c.report.queue.state
    assert sum(j.array_task_count for j in state.jobs) == RECORDS + 10_000 + 33_333
    for _ in range(4):
        time.sleep(5)
        ticks.append(ticked(c, lab))
    print("", *ticks, sep="\n")
    live = ControllerLive(c, Journal(config.journal, durable=False))
    ids = [c.report.queue.jobs[j].job_id for j in c.report.plan.order[:: RECORDS // 10]]

    def explain(i: int) -> None:
        assert live.place_in_queue(ids[i % len(ids)]) is not None
        live.around(ids[i % len(ids)])

    print(f"explain {slowest(10, explain):.0f} ms, overview {slowest(3, lambda _: live.overview()):.0f} ms")
    written = sum(1 for factor in client.site_factors().values() if factor)
    assert written > 100
    began = time.monotonic()
    done = undo(client, c.journal)
    print(f"{written} jobs had a factor; undo took {time.monotonic() - began:.1f} s")
    assert (done.left, done.unverified) == ((), ())
    assert not any(client.site_factors().values())


def test_an_array_of_a_million_tasks(start_lab: LabFactory, tmp_path: Path) -> None:
    """One record, however long: also when every second task has gone, and its list has 3 MB."""
    lab = start_lab("a100:8*10", run_nodes=False, settings=tuple(SETTINGS.items()))
    array = sbatch(lab, "--gpus=1", "--array=0-999999%7")
    client = CliClient(lab.slurm_conf, timeout=60)
    config = Config(mode="enforce", policy="sjf@limit", state_dir=str(tmp_path))
    c = Controller(config, client, Journal(config.journal))
    ticks = [ticked(c, lab), ticked(c, lab)]
    print("", *ticks, sep="\n")
    assert c.report is not None
    (job,) = (j for j in c.report.queue.state.jobs if j.job_id == array)
    assert (job.array_tasks, job.array_task_count, job.array_max_running) == ("0-999999", 1_000_000, 7)
    live = ControllerLive(c, Journal(config.journal, durable=False))
    print(f"explain {slowest(3, lambda _: live.place_in_queue(array)):.0f} ms")
    assert c.report.find(array, 999_999) is not None
    assert undo(client, c.journal).left == ()
