"""A policy that chooses, live: it goes on from tick to tick and after a restart, and says who rules and why."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from slurm_rl.cli.explain import _text
from slurm_rl.controller.choices import LiveChoices
from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.explain.place_in_queue import Ordered
from slurm_rl.controller.live_policy import guardrails_of, load_policy
from slurm_rl.controller.slurm_snapshot import observe
from slurm_rl.controller.tick import Controller
from slurm_rl.decide import Guardrails
from slurm_rl.domain.snapshot import Plan
from slurm_rl.obs.journal import Journal
from slurm_rl.serve.app import explanation

from .conftest import MakeController
from .fake_slurm import NOW, FakeSlurm, a_job, a_running_job

BANDIT = "bandit:egreedy/sjf@user/fcfs/ljf"


def a_queue() -> FakeSlurm:
    jobs = [a_job(i, limit=1000 * (7 - i)) for i in range(1, 7)]
    return FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"))


def ticks(controller: MakeController, slurm: FakeSlurm, count: int, holder: str | None = None) -> Controller:
    """A controller after some ticks, six minutes apart."""
    c = controller(slurm, policy=load_policy(BANDIT), holder=holder)
    for _ in range(count):
        slurm.now += 360
        c.tick()
    return c


def ruled(c: Controller) -> Plan:
    assert c.observed is not None
    return c.observed[1]


def test_the_first_choice_orders_the_queue(controller: MakeController) -> None:
    slurm = a_queue()
    controller(slurm, policy=load_policy(BANDIT)).tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1], "the first arm is sjf@user"


def test_choices_go_on_after_a_restart(controller: MakeController, tmp_path: Path) -> None:
    slurm = a_queue()
    first = ticks(controller, slurm, 4)
    (before,) = ruled(first).rulers
    assert before.decisions == 4
    assert before.pool == "batch"
    again = ticks(controller, slurm, 1, first.holder)
    (after,) = ruled(again).rulers
    assert after.decisions == 5
    memories = [ruled(c).memory or {} for c in (first, again)]
    arms = [memory["arms"][0][:, 0].sum() for memory in memories]
    assert arms == [3, 4], "each choice but the last has had its reward"


def test_a_kept_state_of_another_set_is_not_taken_up(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        policy, other = load_policy(BANDIT), load_policy("bandit:egreedy/sjf/fcfs")
        queue = observe(a_queue().snapshot(), RunTimes(), policy.spec)
        choices = LiveChoices(journal)
        memory = choices.tables(policy.spec, queue.snapshot)
        plan = policy.plan(queue.snapshot, Guardrails(), dict(queue.weights), memory=memory)
        choices.keep(queue.snapshot, plan, NOW)
        kept = LiveChoices(journal).tables(policy.spec, queue.snapshot)
        assert kept is not None
        assert plan.memory is not None
        for name, table in plan.memory.items():
            assert np.array_equal(kept[name], table), name
        fresh = LiveChoices(journal).tables(other.spec, queue.snapshot)
        assert fresh is not None
        assert fresh["choosers"]["decided"][0] == -math.inf


def test_explain_says_who_rules_and_why(controller: MakeController) -> None:
    slurm = a_queue()
    c = ticks(controller, slurm, 3)
    report = c.report
    assert report is not None
    job = report.job(3)
    assert job is not None
    said = explanation(report, job)
    ruler = said["ruled_by"]
    assert ruler["policy"] in ("sjf@user", "fcfs", "ljf")
    assert "choices so far" in ruler["why"]
    assert f"lets {ruler['policy']} rule" in said["why"]
    told = msgspec.json.decode(msgspec.json.encode(said | {"features": [], "what_would_move_it": []}))
    assert f"ruled by {ruler['policy']} since" in _text(told)


def test_other_policies_say_nothing_of_a_ruler(controller: MakeController) -> None:
    slurm = a_queue()
    c = controller(slurm)
    c.tick()
    assert c.report is not None
    job = c.report.job(3)
    assert job is not None
    assert explanation(c.report, job)["ruled_by"] == {}


def test_asking_about_a_job_changes_no_choice(controller: MakeController) -> None:
    slurm = a_queue()
    c = ticks(controller, slurm, 1)
    assert c.observed is not None
    queue, plan = c.observed
    ordered = Ordered(queue, plan, c.policy, guardrails_of(c.config))
    place = ordered.place_of(3)
    assert place is not None
    assert place.contributions()
    place.moves()
    assert int(ordered.world["choosers"]["decisions"][0]) == plan.rulers[0].decisions
