"""What must hold of every replay, whatever the jobs: nothing overcommitted, nothing lost, no promise broken."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
from builders import Job, Ran, a_simulation, outcome, replay
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.cases import BACKFILLS, PLACEMENTS, POLICIES
from reference.model import View, ask_of, nodes_of
from reference.place import first_fit, with_gpus

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl_sim.simulation import ReplayState

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

CLUSTERS = {
    "one node": (NodeClass(1, cpus=4),),
    "equal nodes": (NodeClass(3, cpus=2),),
    "mixed nodes": (NodeClass(2, cpus=2, mem_gb=4), NodeClass(1, cpus=4, mem_gb=2)),
    "gpus": (NodeClass(2, "A", 2, cpus=4), NodeClass(1, "B", 3, cpus=2)),
    "shared gpus": (NodeClass(2, "A", 2, cpus=8),),
    "two pools": (NodeClass(1, cpus=3, partition="p"), NodeClass(2, cpus=2, partition="q")),
    "overlapping": (NodeClass(1, cpus=2, partition="p"), NodeClass(2, cpus=2, partition="p,q")),
}
SHARES = ("shared gpus",)


@st.composite
def workloads(
    draw: st.DrawFn, *, shares: bool = True, exact: bool = False, least: int = 0
) -> tuple[Cluster, list[Job]]:
    """A cluster and up to a dozen jobs; exact: every run time is the limit; least: the shortest run time."""
    name = draw(st.sampled_from([c for c in CLUSTERS if shares or c not in SHARES]))
    gpus: st.SearchStrategy[float] = st.just(0)
    if name == "gpus":
        gpus = st.sampled_from([0, 1, 1, 2, 3])
    if name == "shared gpus":
        gpus = st.sampled_from([0, 0.3, 0.5, 0.7, 1, 2])
    partitions = {"two pools": ["p", "q"], "overlapping": ["p", "q"]}.get(name, [""])
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        run = draw(st.integers(least, 12))
        jobs.append(
            Job(
                id=number + 1,
                submit=draw(st.integers(0, 15)),
                run=run,
                limit=max(run, 1) if exact else draw(st.integers(1, 15)),
                cpus=draw(st.integers(1, 4)),
                nodes=draw(st.integers(0, 2)),
                gpus=draw(gpus),
                gpu_type=draw(st.sampled_from(["", "A", "A|B"])) if name == "gpus" else "",
                mem_gb=draw(st.sampled_from([None, 1, 2])) if name == "mixed nodes" else None,
                user=draw(st.sampled_from(["u", "v"])),
                account=draw(st.sampled_from(["g", "h"])),
                partition=draw(st.sampled_from(partitions)),
                priority=draw(st.sampled_from([None, 1.0, 2.0])),
                deadline=draw(st.sampled_from([-1, 20])),
            )
        )
    return Cluster(name, CLUSTERS[name]), jobs


def holdings(simulation: ReplayState) -> list[tuple[int, int, int, int]]:
    """Job, node, units and GPUs (as bits) of all that is held."""
    live, entries = simulation.world["live"], simulation.world["entries"]
    held = []
    for j in np.flatnonzero(live["held"]).tolist():
        at = live["held"][j]
        while at > 0:
            held.append((j, int(entries["node"][at]), int(entries["units"][at]), int(entries["gpus"][at])))
            at = entries["next"][at]
    return held


@SETTINGS
@given(workloads(), st.sampled_from(POLICIES), st.sampled_from(BACKFILLS), st.sampled_from(PLACEMENTS), st.booleans())
def test_no_cpu_memory_or_gpu_is_ever_given_twice(
    workload: tuple[Cluster, list[Job]], policy: str, backfill: str, placement: str, preempt: bool
) -> None:
    preempt = preempt and policy.startswith(("srpt", "static-priority"))
    simulation, _ = a_simulation(*workload, policy, backfill, placement, preempt=preempt)
    jobs, requests, nodes = (simulation.world[t] for t in ("jobs", "requests", "nodes"))
    while simulation.to_next_pass():
        cpu, mem, gpu = (Counter[int]() for _ in range(3))
        each: Counter[tuple[int, int]] = Counter()
        for j, n, units, mask in holdings(simulation):
            request = requests[jobs["request"][j]]
            cpu[n] += units * int(request["cpu"])
            mem[n] += units * int(request["mem"])
            gpu[n] += units * int(request["gpu"])
            for g in range(int(nodes["gpu"][n])):
                each[n, g] += (mask >> g & 1) * (int(request["share"]) or 1000)
            if simulation.workload.slots:
                assert mask.bit_count() == units * (int(request["gpu"]) or int(request["share"] > 0))
        for n in range(len(nodes)):
            assert cpu[n] <= nodes["cpu"][n]
            assert mem[n] <= nodes["mem"][n]
            assert gpu[n] <= nodes["gpu"][n]
        assert all(amount <= 1000 for amount in each.values())


@SETTINGS
@given(workloads(), st.sampled_from(POLICIES), st.sampled_from(BACKFILLS), st.sampled_from(PLACEMENTS))
def test_every_job_runs_its_time_or_to_its_limit_after_its_submission_and_none_is_lost(
    workload: tuple[Cluster, list[Job]], policy: str, backfill: str, placement: str
) -> None:
    cluster, jobs = workload
    ran = replay(cluster, jobs, policy, backfill, placement)
    assert len(ran) == len(jobs)
    for job in jobs:
        end = ran[job.id]
        if ask_of(cluster, nodes_of(cluster), job) is None:
            assert end == Ran(-1, -1, "rejected", ())
            continue
        assert end.start >= job.submit
        assert end.end - end.start == min(job.run, job.limit)  # all types go at speed 1 here
        assert end.state == ("killed" if job.run > job.limit else "completed")
        assert end.nodes


@SETTINGS
@given(workloads(exact=True), st.sampled_from(["srpt", "static-priority"]), st.sampled_from(BACKFILLS))
def test_preempted_work_is_conserved(workload: tuple[Cluster, list[Job]], policy: str, backfill: str) -> None:
    simulation, ids = a_simulation(*workload, policy, backfill, preempt=True)
    simulation.run()
    run = {j.id: j.run for j in workload[1]}
    for job, row in zip(ids, simulation.world["live"], strict=True):
        if row["start"] >= 0:
            assert row["done"] + row["end"] - row["start"] == run[job]


@SETTINGS
@given(workloads(shares=False, least=1), st.sampled_from(PLACEMENTS))
def test_easy_never_delays_the_head(workload: tuple[Cluster, list[Job]], placement: str) -> None:
    """E6: the head of a pool starts no later than if all running jobs used up their limits and nobody else came.

    Jobs of no length are left out here: with them an instant has several passes, and a start time does not tell which.
    """
    cluster, jobs = workload
    ran = replay(cluster, jobs, "fcfs", "easy", placement)
    nodes = nodes_of(cluster)
    asks = {j.id: ask for j in jobs if (ask := ask_of(cluster, nodes, j))}
    queue = sorted((j for j in jobs if j.id in asks), key=lambda j: (j.submit, j.id))
    for place, head in enumerate(queue):
        before = [j for j in queue[:place] if asks[j.id].pool == asks[head.id].pool]
        since = max([head.submit, *(ran[j.id].start for j in before)])  # when it came to the head
        if ran[head.id].start == since:
            continue
        view = View.empty(nodes, told_apart=False)
        running = [
            j
            for j in queue
            if ran[j.id].start < since < ran[j.id].end
            or (j in before and ran[j.id].start == since and ran[j.id].end > since)
        ]
        held = {j.id: tuple((n, units, ()) for n, units in ran[j.id].nodes) for j in running}
        for j in running:
            view.take(asks[j.id], held[j.id])
        promised = since
        for j in sorted(running, key=lambda j: ran[j.id].start + j.limit):
            if with_gpus(view, asks[head.id], first_fit(view, asks[head.id])):
                break
            view.give(asks[j.id], held[j.id])
            promised = ran[j.id].start + j.limit
        assert ran[head.id].start <= promised, f"job {head.id} at the head since {since}"


@SETTINGS
@given(workloads(), st.sampled_from(POLICIES), st.sampled_from(PLACEMENTS))
def test_conservative_never_delays_a_booking(workload: tuple[Cluster, list[Job]], policy: str, placement: str) -> None:
    simulation, ids = a_simulation(*workload, policy, "conservative", placement)
    booked: dict[int, int] = {}
    while simulation.to_next_pass():
        live = simulation.world["live"]
        for j in np.flatnonzero(live["booked_start"] >= 0).tolist():
            start = int(live["booked_start"][j])
            assert simulation.now <= start <= booked.get(ids[j], start)
            booked[ids[j]] = start
    ran = outcome(simulation, ids)
    for job, start in booked.items():
        assert ran[job].start <= start


@SETTINGS
@given(workloads(), st.sampled_from(PLACEMENTS))
def test_strict_fcfs_keeps_the_order_of_each_pool(workload: tuple[Cluster, list[Job]], placement: str) -> None:
    cluster, jobs = workload
    ran = replay(cluster, jobs, "fcfs", "none", placement)
    last: dict[int, int] = {}
    for job in sorted(jobs, key=lambda j: (j.submit, j.id)):
        ask = ask_of(cluster, nodes_of(cluster), job)
        if ask is not None:
            assert ran[job.id].start >= last.get(ask.pool, 0)
            last[ask.pool] = ran[job.id].start


@SETTINGS
@given(
    workloads(),
    st.randoms(use_true_random=False),
    st.sampled_from(POLICIES),
    st.sampled_from(BACKFILLS),
    st.sampled_from(PLACEMENTS),
)
def test_the_order_of_rows_does_not_matter(
    workload: tuple[Cluster, list[Job]], rng: random.Random, policy: str, backfill: str, placement: str
) -> None:
    cluster, jobs = workload
    shuffled = list(jobs)
    rng.shuffle(shuffled)
    assert replay(cluster, shuffled, policy, backfill, placement) == replay(cluster, jobs, policy, backfill, placement)


@SETTINGS
@given(
    workloads(),
    st.sampled_from(["fcfs", "sjf"]),
    st.sampled_from(["none", "firstfit", "easy", "conservative"]),
    st.sampled_from(PLACEMENTS),
    st.integers(2, 1000),
)
def test_scaling_all_times_scales_all_starts(
    workload: tuple[Cluster, list[Job]], policy: str, backfill: str, placement: str, factor: int
) -> None:
    cluster, jobs = workload
    larger = [
        replace(j, submit=j.submit * factor, run=j.run * factor, limit=j.limit * factor, deadline=j.deadline)
        for j in jobs
    ]
    small, large = (replay(cluster, js, policy, backfill, placement) for js in (jobs, larger))
    for job in jobs:
        if small[job.id].start >= 0:
            assert large[job.id] == replace(
                small[job.id], start=small[job.id].start * factor, end=small[job.id].end * factor
            )
