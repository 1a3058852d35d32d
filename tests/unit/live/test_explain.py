"""Why a job stands where it stands, what would move it, and when it may start."""

from __future__ import annotations

import time

import numpy as np
import pytest

from slurm_rl.controller.explain.place_in_queue import Ordered, PlaceInQueue
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.tick import Controller
from slurm_rl.decide import Guardrails

from .conftest import MakeController
from .fake_slurm import FakeSlurm, a_job, a_running_job


def a_place(c: Controller, job_id: int) -> PlaceInQueue:
    assert c.observed is not None
    view, plan = c.observed
    rails = Guardrails(c.config.influence, c.config.starve_age, c.config.starve_factor)
    found = Ordered(view, plan, c.policy, rails).place_of(job_id)
    assert found is not None
    return found


def a_queue(*jobs: tuple[int, int]) -> FakeSlurm:
    """Jobs of (limit, seconds waited), numbered from 1, behind two that hold every GPU."""
    waiting = [a_job(i, limit=limit, waited=waited) for i, (limit, waited) in enumerate(jobs, 1)]
    return FakeSlurm(*waiting, a_running_job(901, "n1"), a_running_job(902, "n2"))


def test_features_are_told_by_what_they_do_to_the_place(controller: MakeController) -> None:
    c = controller(a_queue((600, 100), (1200, 100), (2400, 100), (4800, 100), (9600, 100)))
    c.tick()
    (only,) = a_place(c, 5).contributions()
    # Under sjf the run time is all: with the median of 2400 s it would stand third, beside job 3, not fifth.
    assert (only.feature, only.value, only.usual) == ("run time", 9600.0, 2400.0)
    assert (only.score, only.places) == (-7200.0, -2)
    assert a_place(c, 3).contributions() == [], "the usual job has nothing to explain"


def test_the_weightiest_feature_comes_first(controller: MakeController) -> None:
    """It waits forty times as long as the others and wants twice their time: the wait tells."""
    jobs = [(3600, 100 + i) for i in range(1, 9)] + [(7200, 4000)]
    c = controller(a_queue(*jobs), policy=load_policy("sjf-age@limit"))
    c.tick()
    first, second = a_place(c, 9).contributions()
    assert (first.feature, second.feature) == ("run time", "wait")
    # With the usual run time: log1p(4000/3600) - log 3600 is the best of all, eight places up.
    assert first.places == -8
    # With the usual wait it would be last as it is now: log1p(105/7200) - log 7200.
    assert (second.places, second.score > 0) == (0, True)


def test_a_shorter_limit_moves_a_job(controller: MakeController) -> None:
    c = controller(a_queue((600, 100), (1200, 100), (2400, 100), (4900, 100), (9600, 100)))
    c.tick()
    moves = {str(m["what"]): (m["from"], m["rank"]) for m in a_place(c, 5).moves()}
    # 4800 s would stand before 4900 s; so would 1.2 times what is expected of it, half of its limit: 5760 s would not.
    assert moves == {"a time limit of 80 min instead of 160": (5, 4)}


def test_fewer_gpus_are_offered_in_numbers_and_only_to_jobs_that_have_some_to_give(controller: MakeController) -> None:
    """By area, 4 GPUs for 10 min stand last; 2 would stand before 3. One GPU, or one CPU, has no half."""
    slurm = FakeSlurm(
        *(a_job(1, gpus=1, limit=2000), a_job(2, gpus=3, limit=600), a_job(3, gpus=4, limit=600)),
        *(a_running_job(901, "n1"), a_running_job(902, "n2")),
    )
    c = controller(slurm, policy=load_policy("saf@limit"))
    c.tick()
    of_size = {job: [str(m["what"]) for m in a_place(c, job).moves() if "GPU" in str(m["what"])] for job in (1, 3)}
    assert of_size == {1: [], 3: ["2 GPUs instead of 4"]}


def test_nothing_of_the_snapshot_is_changed_by_asking(controller: MakeController) -> None:
    c = controller(a_queue((600, 100), (1200, 50), (2400, 10)))
    c.tick()
    assert c.observed is not None
    world = c.observed[0].snapshot.world
    before = {name: world[name].tobytes() for name in ("jobs", "live", "requests", "users")}
    place = a_place(c, 2)
    own = {name: place.world[name].tobytes() for name in before}
    place.contributions()
    place.moves()
    assert {name: world[name].tobytes() for name in before} == before
    assert {name: place.world[name].tobytes() for name in before} == own, "each question is taken back"


def test_asking_about_a_job_of_a_long_queue_takes_a_fraction_of_a_requests_time(controller: MakeController) -> None:
    slurm = FakeSlurm(*(a_job(i, limit=60 + i % 5000) for i in range(1, 5001)), a_running_job(9001, "n1"))
    c = controller(slurm)
    c.tick()
    place = a_place(c, 2500)
    place.contributions()
    began = time.process_time()
    place.contributions()
    assert time.process_time() - began < 0.05
    assert place.moves()


@pytest.mark.parametrize("policy", ["fcfs", "smith", "wfp3", "unicef", "edf", "multifactor", "static-priority"])
def test_every_policy_can_be_asked(controller: MakeController, policy: str) -> None:
    c = controller(a_queue((600, 100), (1200, 50), (2400, 10)), policy=load_policy(policy))
    c.tick()
    for job_id in (1, 2, 3):
        assert all(np.isfinite(x.score) for x in a_place(c, job_id).contributions())
