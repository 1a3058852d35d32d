"""What is kept from look to look never shows: a queue observed with a memory is the queue observed without."""

from __future__ import annotations

import random

import msgspec
import numpy as np

from slurm_rl.controller.estimates import Finished, RunTimes
from slurm_rl.controller.job_rows import JobRows, Names
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe
from slurm_rl.domain.optout import LeaveAlone
from slurm_rl.policy.registry import parse_policy
from slurm_rl.slurm.model import SlurmPartition

from .fake_slurm import NOW, FakeSlurm, a_job, a_running_job

POLICY = parse_policy("sjf-age@user")
TABLES = ("jobs", "requests", "nodes", "pools", "users", "accounts", "live", "free", "total", "entries", "running")


def a_site(rng: random.Random) -> FakeSlurm:
    waiting = [
        a_job(
            i, gpus=rng.choice((0, 1, 4)), waited=rng.randrange(1, 5000), user=rng.choice("abc"), own=rng.randrange(900)
        )
        for i in range(1, 40)
    ]
    slurm = FakeSlurm(*waiting, a_running_job(900, "n1"), a_running_job(901, "n2", gpus=3), nodes=4)
    slurm.partitions += (SlurmPartition(name="long", state="UP", priority_tier=3, max_time=9000),)
    both = ("batch", "long")
    slurm.nodes = tuple(
        msgspec.structs.replace(n, features=("f", f"g{i}"), partitions=both) for i, n in enumerate(slurm.nodes)
    )
    return slurm


def change(slurm: FakeSlurm, rng: random.Random, number: int) -> None:
    """Some jobs become other ones, some go, one comes; now and then the machine changes."""
    for job_id in rng.sample(sorted(slurm.jobs), 6):
        job = slurm.jobs[job_id]
        if not job.pending:
            continue
        one = rng.choice(
            (
                {"name": f"other{number}"},
                {"partitions": ("long", "batch")},
                {"features": rng.choice(("f", "g1|g2", "nobody has it", "f&"))},
                {"prefer": "g3"},
                {"excluded_nodes": (f"n{rng.randrange(1, 5)}",)},
                {"required_nodes": ("n2",)},
                {"eligible_time": int(slurm.now) + rng.randrange(-50, 50)},
                {"reason": "QOSMaxJobsPerUserLimit"},
                {"reservation": "maint"},
                {"factors": None},
                {"time_limit": None},
                {"exclusive": True},
                {"array_job_id": job_id, "array_tasks": "0-6", "array_task_count": 7},
                {"user": "d", "account": "other"},
            )
        )
        slurm.jobs[job_id] = msgspec.structs.replace(job, **one)
    gone = rng.choice([i for i, j in slurm.jobs.items() if j.pending])
    del slurm.jobs[gone]
    slurm.jobs[1000 + number] = a_job(1000 + number, waited=-int(slurm.now - NOW), gpus=rng.choice((1, 2)))
    if number % 5 == 4:
        slurm.nodes = (
            slurm.nodes[:-1]
            if len(slurm.nodes) > 3
            else (*slurm.nodes, msgspec.structs.replace(slurm.nodes[0], name="n9"))
        )
    if number % 7 == 6:
        slurm.partitions = tuple(
            msgspec.structs.replace(p, priority_tier=p.priority_tier + 1) for p in slurm.partitions
        )
    i = rng.randrange(len(slurm.nodes))
    one = rng.choice(({"cpus_allocated": number}, {"state": "DOWN"}, {"state": "IDLE"}, {"features": ("f", "g3")}))
    changed = msgspec.structs.replace(slurm.nodes[i], **one)
    slurm.nodes = (*slurm.nodes[:i], changed, *slurm.nodes[i + 1 :])
    # Squeue prints by priority, which changes; and priorities do.
    order = rng.sample(sorted(slurm.jobs), len(slurm.jobs))
    slurm.jobs = {i: slurm.jobs[i] for i in order}
    for job in [slurm.jobs[i] for i in order[:8]]:
        if job.factors is not None:
            more = msgspec.structs.replace(job.factors, age=number, job_size=rng.randrange(50))
            slurm.jobs[job.job_id] = msgspec.structs.replace(job, factors=more, priority=job.priority + 1)
    slurm.now += rng.choice((0, 10, 40))


# Tables that a new World does not fill: whoever reads them has written them before.
UNFILLED = {"running", "heap", "queue", "scores", "order", "scratch", "started", "log", "log_gpus"}


def running(queue: LiveQueue) -> list[list[int]]:
    world = queue.snapshot.world
    return [
        world["running"][first : first + count].tolist()
        for first, count in zip(world["pools"]["first_job"], world["pools"]["running"], strict=True)
    ]


def same(a: LiveQueue, b: LiveQueue) -> None:
    for table in set(TABLES) - UNFILLED:
        left, right = a.snapshot.world[table], b.snapshot.world[table]
        assert left.tobytes() == right.tobytes(), table
    assert running(a) == running(b)
    for name in ("base", "site", "line", "estimate", "spread", "size", "gpus"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert a.jobs == b.jobs
    assert a.alone == b.alone
    assert [a.partitions[i] for i in a.first] == [b.partitions[i] for i in b.first]
    assert (a.left_alone, a.never, a.gpu_types) == (b.left_alone, b.never, b.gpu_types)
    assert a.snapshot.kept_back == b.snapshot.kept_back
    assert np.array_equal(a.snapshot.pending, b.snapshot.pending)
    assert a.workload is not None
    assert b.workload is not None
    assert a.workload.rejected == b.workload.rejected


def test_a_memory_never_shows() -> None:
    rng = random.Random(3)
    slurm, memory, alone = a_site(rng), JobRows(), LeaveAlone()
    kept, anew = RunTimes(), RunTimes()
    for number in range(30):
        if number == 10:
            for learns in (kept, anew):
                learns.learn([Finished("a", "job3", 1.0, True, 3600, 50.0)] * 5)
        if number == 20:
            alone = LeaveAlone(users=("b",))
        switches = rng.choice(({}, {"n1": "s1"}, {"n1": "s2", "n2": "s2"}))
        state = msgspec.structs.replace(slurm.snapshot(), topology=switches)
        with_memory = observe(state, kept, POLICY, None, alone, memory=memory)
        same(with_memory, observe(state, anew, POLICY, None, alone))
        assert len(with_memory.snapshot.pending) > 5
        change(slurm, rng, number)


def test_only_jobs_that_changed_are_read(monkeypatch: object) -> None:
    slurm, memory, read, run_times = a_site(random.Random(4)), JobRows(), [], RunTimes()
    row = JobRows._row

    def counted(self: JobRows, job: object, around: object) -> object:
        read.append(job)
        return row(self, job, around)  # type: ignore[arg-type]

    monkeypatch.setattr(JobRows, "_row", counted)  # type: ignore[attr-defined]
    observe(slurm.snapshot(), run_times, POLICY, memory=memory)
    assert len(read) == len(slurm.jobs)
    read.clear()
    slurm.jobs[5] = msgspec.structs.replace(slurm.jobs[5], name="other")
    observe(slurm.snapshot(), run_times, POLICY, memory=memory)
    assert read == [slurm.jobs[5]]


def test_names_are_numbered_as_they_come() -> None:
    names = Names()
    numbers = np.array([names(text) for text in ("x", "y", "", "z", "y")])
    assert numbers.tolist() == [0, 1, -1, 2, 1]
    (found,), texts = names.used(numbers[3:])
    assert (found.tolist(), texts) == ([0, 1], ("z", "y"))
    (left, right), texts = names.used(np.array([1, -1]), np.array([0, 1]))
    assert (left.tolist(), right.tolist(), texts) == ([0, -1], [1, 0], ("y", "x"))
    (none,), texts = names.used(np.array([], dtype=np.int64))
    assert (none.tolist(), texts) == ([], ())
