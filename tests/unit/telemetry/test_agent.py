"""The agent on scripted GPUs: jobs come and go, agents are killed, Slurm and the driver fall silent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_nvml import LOST, NO_DRIVER
from fake_nvml.node import Node

MakeNode = Callable[..., Node]


def one(node: Node) -> dict:
    records = node.records()
    assert len(records) == 1
    return records[0]


def busy(node: Node, *gpus: int, util: int = 80, watts: int = 300) -> None:
    for g in gpus:
        node.world[g].util, node.world[g].milliwatts = util, watts * 1000


def run(node: Node, seconds: int, watts_by_gpu: dict[int, int] | None = None) -> None:
    """Seconds in which the GPUs draw what they say, or what is given."""
    for _ in range(seconds):
        for i, gpu in enumerate(node.world):
            gpu.millijoules += (watts_by_gpu or {}).get(i, gpu.milliwatts // 1000) * 1000
        node.step()


def test_a_job_leaves_a_record_when_it_ends(node: MakeNode) -> None:
    n = node(8)
    n.slurm.types = ["a100"] * 8
    run(n, 3)
    n.begin(5, 2, 3)
    busy(n, 2)
    run(n, 101)
    assert n.agent.running()[0]["gpus"] == 2
    assert n.records() == []
    n.end(5)
    run(n, 3)
    r = one(n)
    assert (r["job_id"], r["user"], r["node"], r["gpu_type"]) == (5, "ann", "n1", "a100")
    assert (r["gpus"], r["gpus_used"], r["complete"]) == (2, 1, True)
    assert r["util_mean"] == 40.0
    assert r["energy_j"] == pytest.approx(100 * (300 + 50), rel=0.01)
    assert n.agent.running() == []


def test_a_job_without_gpus_leaves_none(node: MakeNode) -> None:
    n = node(2)
    n.begin(5)
    run(n, 5)
    n.end(5)
    run(n, 5)
    assert n.records() == []
    assert n.agent.account.jobs == {}


def test_between_its_steps_a_job_still_holds_its_gpus(node: MakeNode) -> None:
    n = node(2)
    n.begin(5, 0)
    run(n, 10)
    socket = n.spool / "n1_5.4294967291"
    socket.unlink()  # the step has ended, the allocation has not
    run(n, 30)
    socket.touch()
    run(n, 10)
    n.end(5)
    run(n, 3)
    assert 45 <= one(n)["gpu_seconds"] <= 50


def test_a_requeued_job_is_two_runs(node: MakeNode) -> None:
    n = node(2)
    n.begin(5, 0, start=1000.0)
    run(n, 10)
    n.end(5)
    n.begin(5, 1, start=2000.0)
    run(n, 1)
    n.end(5)
    run(n, 1)
    n.begin(5, 1, start=2000.0)  # it was away for less time than it takes to ask
    run(n, 10)
    n.end(5)
    run(n, 3)
    assert [r["start"] for r in n.records()] == [1000.0, 2000.0]


def test_a_killed_agent_is_gone_on_with(node: MakeNode) -> None:
    n = node(4)
    n.begin(5, 0, 1)
    busy(n, 0, 1)
    run(n, 200)
    n.start()  # the old one is forgotten, as by kill -9
    run(n, 200)
    n.end(5)
    run(n, 3)
    r = one(n)
    assert r["gpu_seconds"] == pytest.approx(2 * 399, abs=4)
    assert r["energy_j"] == pytest.approx(2 * 399 * 300, rel=0.01)
    assert r["complete"]


def test_an_agent_that_was_away_counts_by_the_counter(node: MakeNode) -> None:
    n = node(1)
    n.begin(5, 0)
    busy(n, 0)
    run(n, 100)
    n.clock.now += 600
    n.world[0].millijoules += 600 * 300_000
    n.start()
    run(n, 100)
    n.end(5)
    run(n, 3)
    r = one(n)
    assert r["energy_j"] == pytest.approx(799 * 300, rel=0.01)
    assert r["unmeasured_seconds"] == 0.0


def test_a_job_that_ended_while_no_agent_ran_is_not_called_complete(node: MakeNode) -> None:
    n = node(1)
    n.begin(5, 0)
    run(n, 100)
    n.end(5)
    n.clock.now += 600
    n.start()
    run(n, 3)
    r = one(n)
    assert (r["job_id"], r["complete"]) == (5, False)
    assert r["gpu_seconds"] == pytest.approx(99, abs=2)


def test_a_boot_ends_every_job(node: MakeNode) -> None:
    n = node(1)
    n.begin(5, 0)
    run(n, 100)
    n.end(5)
    n.clock.boot_id, n.clock.now = "second", 5.0
    n.start()
    assert one(n)["job_id"] == 5
    n.begin(6, 0)
    run(n, 20)
    n.end(6)
    run(n, 3)
    n.start()
    assert [r["job_id"] for r in n.records()] == [5, 6]


def test_while_slurmctld_is_silent_the_jobs_environment_tells(node: MakeNode) -> None:
    n = node(4)
    n.slurm.down = True
    n.begin(5, 2)
    pid = n.process(70, 5)
    (n.proc / "70" / "environ").write_text("SLURM_JOB_ID=5\0SLURM_JOB_GPUS=2\0")
    cgroup = n.directory / "cgroup/system.slice/slurmstepd.scope/job_5/step_0"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text(f"{pid}\n")
    run(n, 30)
    assert n.agent.lookup.problem.endswith("is it running?")
    n.slurm.down = False
    run(n, 70)
    assert n.agent.lookup.problem == ""
    (cgroup / "cgroup.procs").unlink()
    cgroup.rmdir()
    cgroup.parent.rmdir()
    n.end(5)
    run(n, 3)
    r = one(n)
    assert list(r["places"]) == ["2"]
    assert r["user"] == "ann"
    assert r["gpu_seconds"] == pytest.approx(98, abs=3)


def test_an_environment_cannot_claim_what_slurm_gave_to_another(node: MakeNode) -> None:
    n = node(2)
    n.begin(5, 0)
    n.begin(6, 1)
    n.slurm.jobs.pop(6)  # slurmctld's record of it is not believed
    pid = n.process(70, 6)
    (n.proc / "70" / "environ").write_text("SLURM_JOB_ID=6\0SLURM_JOB_GPUS=0,1\0")
    cgroup = n.directory / "cgroup/system.slice/slurmstepd.scope/job_6/step_0"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text(f"{pid}\n")
    run(n, 10)
    by_job = {(u.gpu, u.job) for u in n.agent.view.uses}
    assert by_job == {(0, 5), (1, 6)}


def test_a_silent_slurmctld_does_not_keep_jobs_forever(node: MakeNode) -> None:
    n = node(1)
    n.begin(5, 0)
    run(n, 10)
    n.slurm.down = True
    n.end(5)
    run(n, 60)
    assert n.records() == []
    run(n, 150)
    assert one(n)["gpu_seconds"] == pytest.approx(9, abs=2)


def test_mig_instances_are_jobs_own(node: MakeNode) -> None:
    n = node(2)
    n.world[0].split(1, 2, 4)
    n.world[0].milliwatts = 70_000
    n.begin(5, 0)  # GRES 0, 1 and 2 are instances, 3 is the other GPU
    n.begin(6, 2)
    n.begin(7, 3)
    n.world[0].run(n.process(70, 5), gi=7)
    run(n, 101)
    for job in (5, 6, 7):
        n.end(job)
    run(n, 3)
    found = {r["job_id"]: r for r in n.records()}
    assert {j: list(r["places"]) for j, r in found.items()} == {5: ["0:7"], 6: ["0:9"], 7: ["1"]}
    assert found[5]["energy_j"] == pytest.approx(7000, rel=0.03)  # alone at work on the whole GPU
    assert found[6]["energy_j"] < 300
    assert (found[5]["util_mean"], found[5]["gpus_used"], found[6]["gpus_used"]) == (None, 1, 0)
    assert found[6]["idle_gpu_minutes"] == pytest.approx(99 / 60, abs=0.05)


def test_jobs_that_share_a_gpu_split_it(node: MakeNode) -> None:
    n = node(1)
    n.begin(5, 0, weight=2.0)
    n.begin(6, 0, weight=2.0)
    gpu = n.world[0]
    gpu.run(n.process(70, 5), n.process(71, 6))
    gpu.process[0].sm, gpu.process[1].sm = 60, 20
    busy(n, 0, util=80, watts=400)
    run(n, 101)
    n.end(5)
    n.end(6)
    run(n, 3)
    energy = {r["job_id"]: r["energy_j"] for r in n.records()}
    assert energy[5] == pytest.approx(30_000, rel=0.03)
    assert energy[6] == pytest.approx(10_000, rel=0.03)
    assert all(r["shared"] for r in n.records())


def test_a_driver_that_comes_late_is_no_reason_to_stop(node: MakeNode) -> None:
    n = node(2)
    n.world.state.init_error = NO_DRIVER
    n.start()
    n.begin(5, 0)
    run(n, 20)
    assert n.agent.nvml.problem == "Driver Not Loaded"
    n.world.state.init_error = 0
    run(n, 20)
    n.end(5)
    run(n, 3)
    assert 14 <= one(n)["gpu_seconds"] <= 20


def test_a_restart_beside_a_lost_gpu_keeps_positions(node: MakeNode) -> None:
    n = node(4)
    run(n, 2)
    n.world[1].hidden = 1
    n.world.restart_driver()
    n.start()  # it sees three GPUs, and knows of a fourth
    n.begin(5, 2)
    run(n, 20)
    assert [bool(r.lost) for r in n.agent.view.readings] == [False, True, False, False]
    assert {u.gpu for u in n.agent.view.uses if u.job == 5} == {2}


def test_a_fault_of_one_gpu_costs_the_others_nothing(node: MakeNode) -> None:
    n = node(2)
    n.begin(5, 0)
    n.begin(6, 1)
    run(n, 10)
    n.world[0].error = LOST
    run(n, 50)
    n.world[0].error = 0
    run(n, 40)
    n.end(5)
    n.end(6)
    run(n, 3)
    found = {r["job_id"]: r for r in n.records()}
    assert found[6]["unmeasured_seconds"] == 0.0
    assert found[6]["complete"]
    assert found[5]["gpu_seconds"] == found[6]["gpu_seconds"]
    # The counter went on while nobody could read it.
    assert found[5]["energy_j"] == pytest.approx(found[6]["energy_j"], rel=0.01)


def test_the_sums_of_a_driver_of_another_time_are_kept_apart(node: MakeNode) -> None:
    n = node(1)
    n.begin(5, 0)
    busy(n, 0, watts=200)
    run(n, 50)
    n.world.restart_driver()
    run(n, 50)
    n.end(5)
    run(n, 3)
    assert one(n)["energy_j"] == pytest.approx(200 * 99, rel=0.02)
