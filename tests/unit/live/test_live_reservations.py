"""A live plan beside Slurm's reservations: no job is planned into nodes that are reserved from it."""

from __future__ import annotations

import msgspec

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.live_reservations import nodes_to_come, reservations_in_the_way
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe
from slurm_rl.decide import decide
from slurm_rl.domain.reservations import Reservation
from slurm_rl.slurm.model import SlurmState

from .fake_slurm import NOW, FakeSlurm, a_job

SOON = Reservation("maint", int(NOW) + 1800, int(NOW) + 7200, ("n1",), flags=frozenset({"MAINT"}))


def seen(state: SlurmState, *reservations: Reservation) -> LiveQueue:
    return observe(msgspec.structs.replace(state, reservations=reservations), RunTimes(), load_policy("fcfs").spec)


def planned(queue: LiveQueue, backfill: str) -> dict[int, set[str]]:
    """Nodes by job of what a plan starts."""
    plan = decide(queue.snapshot, load_policy("fcfs").spec, backfill=backfill)
    assert queue.workload is not None
    names = [queue.state.nodes[number].name for number in queue.workload.node_number.tolist()]
    return {queue.jobs[s.job].job_id: {names[n] for n, _ in s.nodes} for s in plan.starts}


def test_a_plan_keeps_jobs_off_nodes_that_will_be_reserved() -> None:
    """An hour reaches into the reservation, a quarter of an hour does not."""
    state = FakeSlurm(
        a_job(1, gpus=8, limit=3600), a_job(2, gpus=8, limit=3600), a_job(3, gpus=8, limit=900)
    ).snapshot()
    for backfill in ("easy", "slurm"):
        assert planned(seen(state), backfill) == {1: {"n1"}, 2: {"n2"}}
        assert planned(seen(state, SOON), backfill) == {1: {"n2"}, 3: {"n1"}}


def test_a_job_of_a_reservation_is_left_to_slurm() -> None:
    queue = seen(FakeSlurm(a_job(1, reservation="maint")).snapshot(), SOON)
    assert queue.left_alone[1] == "in a reservation"


def test_nodes_that_are_reserved_now_come_back_at_the_end() -> None:
    """Not usable as Slurm shows them; the reservation says until when, and its jobs are not ours."""
    state = FakeSlurm(a_job(1, gpus=8)).snapshot()
    nodes = [msgspec.structs.replace(n, flags=("RESERVED",)) if n.name == "n1" else n for n in state.nodes]
    now = Reservation("now", int(NOW) - 10, int(NOW) + 100, ("n1",))
    state = msgspec.structs.replace(state, nodes=tuple(nodes), reservations=(now,))
    assert [n.usable for n in state.nodes] == [False, True]
    assert [n.usable for n in nodes_to_come(state)] == [True, True]
    assert planned(seen(state, now), "easy") == {1: {"n2"}}


def test_what_is_told_of_reservations() -> None:
    state = msgspec.structs.replace(FakeSlurm(a_job(1)).snapshot(), reservations=(SOON,))
    (told,) = reservations_in_the_way(state, a_job(1, limit=3600))
    assert told["reservation"] == "maint"
    assert "1 of its partition's 2 nodes" in told["text"]
    assert reservations_in_the_way(state, a_job(1, limit=900)) == []
    assert reservations_in_the_way(state, a_job(1, limit=3600, reservation="maint")) == []
    hidden = msgspec.structs.replace(state, config=dict(state.config) | {"PrivateData": "jobs,reservations"})
    assert reservations_in_the_way(hidden, a_job(1, limit=3600), to_user=True) == []
    assert reservations_in_the_way(hidden, a_job(1, limit=3600))
