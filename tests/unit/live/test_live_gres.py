"""Mixed nodes, slices, shards, features, node lists, several partitions: planned as Slurm tells them, or left alone."""

from __future__ import annotations

import msgspec
import pytest

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe
from slurm_rl.decide import decide
from slurm_rl.kernel.arrays import NOW as VIEW_NOW
from slurm_rl.slurm.gres import SHARED as IN_PART
from slurm_rl.slurm.model import SlurmJob, SlurmNode, SlurmPartition

from .fake_slurm import FakeSlurm, a_job, a_running_job

POLICY = load_policy("fcfs")


def a_node(name: str, gres: dict[str, int], used: dict[str, int] | None = None, **more: object) -> SlurmNode:
    used = used or {}

    def gpus(counts: dict[str, int]) -> dict[str, int]:
        return {key.partition(":")[2]: n for key, n in counts.items() if key.startswith("gpu")}

    fields: dict[str, object] = {
        "name": name,
        "state": "IDLE",
        "cpus": 64,
        "mem_mb": 512_000,
        "gpus": gpus(gres),
        "gpus_allocated": gpus(used),
        "gres": gres,
        "gres_allocated": used,
        "partitions": ("batch",),
    }
    return SlurmNode(**(fields | more))  # type: ignore[arg-type]


MIXED = {"gpu:a100": 2, "gpu:a100_3g.20gb": 4, "fpga": 1}
SHARED = {"gpu:v100": 2, "shard:v100": 8}


def seen(jobs: list[SlurmJob], *nodes: SlurmNode, partitions: tuple[SlurmPartition, ...] = ()) -> LiveQueue:
    slurm = FakeSlurm(*jobs)
    slurm.nodes = nodes
    slurm.partitions = partitions or slurm.partitions
    return observe(slurm.snapshot(), RunTimes(), POLICY.spec)


def planned(view: LiveQueue, placement: str = "best-fit") -> dict[int, list[str]]:
    """Jobs that start now by their ids, and the names of their nodes."""
    plan = decide(view.snapshot, POLICY.spec, placement=placement, backfill="firstfit")
    names = [n.name for n in view.state.nodes]
    # Classes come as the nodes do here, so that the numbers are those of the nodes.
    return {view.jobs[s.job].job_id: sorted({names[n] for n, _ in s.nodes}) for s in plan.starts}


def test_slices_are_not_whole_gpus() -> None:
    jobs = [a_job(i, gpus=0, gres="gpu:a100:1,fpga:1", waited=200 - i) for i in (1, 2)]
    typed = [msgspec.structs.replace(a_job(i, waited=100 - i), gpus={"a100": 2}) for i in (3, 4)]
    view = seen([*jobs, *typed], a_node("n1", MIXED))
    assert planned(view) == {1: ["n1"]}  # one FPGA; then only one A100 is left, besides four slices
    slices = [msgspec.structs.replace(a_job(5), gpus={"a100_3g.20gb": 4})]
    assert planned(seen([*jobs, *slices], a_node("n1", MIXED))) == {1: ["n1"], 5: ["n1"]}


def test_what_runs_holds_the_gpus_that_slurm_says() -> None:
    running = msgspec.structs.replace(a_running_job(9, gpus=3), cpus=4)  # untyped: two A100s and a slice
    node = a_node("n1", MIXED, {"gpu:a100": 2, "gpu:a100_3g.20gb": 1}, cpus_allocated=4)
    waiting = [msgspec.structs.replace(a_job(i), gpus={kind: 1}) for i, kind in ((1, "a100"), (2, "a100_3g.20gb"))]
    view = seen([running, *waiting], node)
    assert view.snapshot.world["used"][VIEW_NOW, 0, :6].tolist() == [1000, 1000, 1000, 0, 0, 0]
    assert planned(view) == {2: ["n1"]}
    held = view.snapshot.world["live"]["held"][[j.job_id for j in view.jobs].index(9)]
    assert view.snapshot.world["entries"]["gpus"][held] == 0b111


@pytest.mark.parametrize("known", [True, False], ids=["24.11", "22.05"])
def test_shards_in_use_leave_no_whole_gpu(known: bool) -> None:
    running = msgspec.structs.replace(a_running_job(9, gpus=0), gpus={}, gres="shard:3", cpus=1)
    used = {"shard:v100": 3 if known else 1}
    node = a_node("n1", SHARED, used, shared={"shard": (3, 0) if known else (IN_PART,)}, shared_known=known)
    jobs = [
        a_job(1, gpus=0, gres="shard:2", waited=90),
        a_job(2, gpus=0, gres="shard:1", waited=80),
        a_job(3, gpus=1, waited=70),
    ]
    # One shard is left on the first GPU; the second is cut up for the first job, so that none is left whole.
    assert planned(seen([running, *jobs], node)) == {1: ["n1"], 2: ["n1"]}
    assert planned(seen([running, jobs[2]], node)) == {3: ["n1"]}


@pytest.mark.parametrize("shared", [(50, 0), (IN_PART,), (0, IN_PART)], ids=["24.11", "22.05", "22.05, the second"])
def test_of_two_gpus_one_serves_mps(shared: tuple[int, ...]) -> None:
    running = msgspec.structs.replace(a_running_job(9, gpus=0), gpus={}, gres="mps:50", cpus=1)
    has = {"gpu:p100": 2, "mps:p100": 200}
    node = a_node("n1", has, {"mps:p100": 1}, shared={"mps": shared}, shared_known=shared[0] > 0)
    jobs = [a_job(i, gpus=0, gres=f"mps:{n}", waited=100 - i) for i, n in ((1, 60), (2, 30), (3, 30))]
    assert planned(seen([running, *jobs, a_job(4, gpus=1)], node)) == {2: ["n1"], 4: ["n1"]}


def test_a_gpu_given_out_whole_serves_no_mps() -> None:
    running = msgspec.structs.replace(a_running_job(9, gpus=1), cpus=1)
    node = a_node("n1", {"gpu:p100": 2, "mps:p100": 200}, {"gpu:p100": 1}, shared={"mps": ()}, shared_known=False)
    jobs = [a_job(i, gpus=0, gres="mps:60", waited=100 - i) for i in (1, 2)]
    assert planned(seen([running, *jobs], node)) == {1: ["n1"]}


def test_constraints_exclusions_and_lists() -> None:
    nodes = [a_node("n1", {"gpu:a100": 8}, features=("ib",)), a_node("n2", {"gpu:a100": 8}, features=("ib", "big"))]
    jobs = [
        a_job(1, features="ib&big"),
        a_job(2, excluded_nodes=("n2",)),
        a_job(3, required_nodes=("n2",)),
        a_job(4, features="ib", excluded_nodes=("n1", "n2")),
        a_job(5, prefer="big"),
        a_job(6, nodes=2, gpus=2, features="[ib|big]"),
    ]
    found = planned(seen(jobs, *nodes))
    assert found == {1: ["n2"], 2: ["n1"], 3: ["n2"], 5: ["n2"], 6: ["n1", "n2"]}


def test_what_is_not_understood_is_left_alone_and_says_why() -> None:
    jobs = [
        a_job(1, features="[ib*2&big*1]"),
        a_job(2, not_understood="requests GRES by socket (--gpus-per-socket), which is not understood"),
        a_job(3, required_nodes=("n1",), nodes=2),
        a_job(4, features="nosuch"),
        a_job(5),
    ]
    view = seen(jobs, a_node("n1", {"gpu:a100": 8}, features=("ib",)))
    assert [j.job_id for j in view.jobs] == [5]
    assert "counts of features" in view.left_alone[1]
    assert "by socket" in view.left_alone[2]
    assert "fewer nodes" in view.left_alone[3]
    assert "'nosuch', which no node has" in view.left_alone[4]


def test_whole_nodes_and_nodes_that_take_no_jobs() -> None:
    nodes = [
        a_node("n1", {"gpu:a100": 8}, {"gpu:a100": 1}),
        a_node("n2", {"gpu:a100": 8}),
        a_node("n3", {"gpu:a100": 8}, flags=("DRAIN",)),
    ]
    assert planned(seen([a_job(1, exclusive=True), a_job(2, exclusive=True)], *nodes)) == {1: ["n2"]}
    assert planned(seen([a_job(1, gpus=8), a_job(2, gpus=8)], *nodes)) == {1: ["n2"]}


def test_a_job_in_two_partitions_goes_to_the_higher_tier_first_and_is_planned_once() -> None:
    partitions = (
        SlurmPartition(name="slow", state="UP", priority_tier=1),
        SlurmPartition(name="fast", state="UP", priority_tier=5),
    )
    nodes = [a_node("n1", {"gpu:a100": 8}, partitions=("slow",)), a_node("n2", {"gpu:a100": 8}, partitions=("fast",))]
    jobs = [msgspec.structs.replace(a_job(i, gpus=8, waited=100 - i), partitions=("slow", "fast")) for i in (1, 2, 3)]
    view = seen(jobs, *nodes, partitions=partitions)
    assert planned(view) == {1: ["n2"], 2: ["n1"]}
    assert len(set(view.line.tolist())) == 1
