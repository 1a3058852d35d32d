"""Advice at submission: a burst into an empty queue comes out in the policy's order, before any tick."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from slurm_rl.controller.advice import Submission
from slurm_rl.controller.assign import _inversions, assign
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.advice import AdviceLog
from slurm_rl.obs.journal import Journal, JournalError
from slurm_rl.slurm.model import PriorityWeights

from .conftest import MakeController
from .fake_slurm import NOW, FakeSlurm, a_job


def a_submission(limit: int) -> Submission:
    return Submission("ann", "train", "batch", 1, 4, limit)


def factors(c: Controller, limits: list[int]) -> list[int]:
    assert c.advisor is not None
    given = [c.advisor.advise(a_submission(limit), NOW + 1) for limit in limits]
    return [advice.site_factor for advice in given if advice is not None]


def inversions(limits: list[int], given: list[int]) -> float:
    """The share of pairs that Slurm, which takes the earlier of equals, would order unlike sjf."""
    pairs = [(i, k) for i in range(len(limits)) for k in range(i + 1, len(limits))]
    wrong = sum((limits[i] < limits[k]) != (given[i] >= given[k]) for i, k in pairs)
    return wrong / len(pairs)


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_into_an_empty_queue_is_nearly_in_order_before_the_first_tick(
    controller: MakeController, seed: int
) -> None:
    c = controller(FakeSlurm(weights=6000))  # Slurm itself gives these jobs nothing: all the room is above
    c.tick()
    limits = random.Random(seed).sample(range(60, 100_000), 300)
    given = factors(c, limits)
    assert len(given) == 300
    assert 0 <= min(given) <= max(given) <= 3000
    assert inversions(limits, given) < 0.01


def test_a_burst_into_an_empty_queue_takes_two_ticks_of_writes(controller: MakeController) -> None:
    """Slurm gives these jobs 734 for their size and nothing else: room for 750 above that, and for 733 below."""
    slurm = FakeSlurm(weights=1500)
    slurm.weights = PriorityWeights(partition=500, job_size=1000, favor_small=True)
    c = controller(slurm, policy=load_policy("sjf@limit"))
    c.tick()
    own = round(1000 * (1 - (1 / 2 + 4 / 128) / 2))
    limits = [60 + (i * 7919) % 3000 for i in range(500)]  # the shortest comes first
    given = factors(c, limits)
    assert min(given) >= 1 - own, "nobody is advised a priority below 1"
    order = sorted(range(500), key=limits.__getitem__)
    base, site = [own] * 500, [given[i] for i in order]
    for _ in range(2):
        site = assign(base, site, [1 - own] * 500, [750] * 500, 200)
    assert _inversions(base, site) < 0.002 * 500 * 499 / 2


def test_no_advice_sinks_a_job_below_what_slurm_gives_it(controller: MakeController) -> None:
    """What the waiting jobs have beside their sizes is what a new one can lose."""
    slurm = FakeSlurm(a_job(1, limit=1000, own=700), weights=3000)
    c = controller(slurm, policy=load_policy("sjf@limit"))
    c.tick()
    given = factors(c, list(range(2000, 2200)))
    assert -700 < min(given) < -500


def test_a_run_of_ever_shorter_jobs_finds_room(controller: MakeController) -> None:
    c = controller(FakeSlurm(weights=15_000))
    c.tick()
    given = factors(c, list(range(100, 0, -1)))
    assert given == sorted(given)
    assert len(set(given)) == 100


def test_what_slurm_adds_for_a_jobs_size_is_taken_off_its_factor(controller: MakeController) -> None:
    """Two jobs of the same score, one of them on both nodes: Slurm's own 500 × (1 + 8/128) / 2 lift it enough."""
    slurm = FakeSlurm(weights=3000)
    slurm.weights = PriorityWeights(partition=2500, job_size=500)
    c = controller(slurm, policy=load_policy("sjf@limit"))
    c.tick()
    assert c.advisor is not None
    wide = c.advisor.advise(Submission("ann", "", "batch", 16, 8, 900, nodes=2), NOW + 1)
    narrow = c.advisor.advise(Submission("ann", "", "batch", 1, 4, 600), NOW + 1)
    assert wide is not None
    assert narrow is not None
    of_wide, of_narrow = round(500 * (2 / 2 + 8 / 128) / 2), round(500 * (1 / 2 + 4 / 128) / 2)
    assert (of_wide, of_narrow) == (266, 133)
    assert wide.site_factor + of_wide < narrow.site_factor + of_narrow


def test_a_size_relative_to_the_limit_is_taken_off_as_slurm_adds_it(controller: MakeController) -> None:
    """SMALL_RELATIVE_TO_TIME (M1): half of the machine for a minute counts 100 times as much as for 100 minutes."""
    slurm = FakeSlurm(weights=3000)
    slurm.weights = PriorityWeights(partition=100, job_size=2900, flags=("SMALL_RELATIVE_TO_TIME",))
    c = controller(slurm, policy=load_policy("ljf@limit"))
    c.tick()
    assert c.advisor is not None
    long = c.advisor.advise(Submission("ann", "", "batch", 1, 4, 6000), NOW + 1)
    short = c.advisor.advise(Submission("ann", "", "batch", 1, 4, 60), NOW + 1)
    assert long is not None
    assert short is not None
    of_long, of_short = round(2900 / 2 / 100), round(2900 / 2)
    assert long.site_factor + of_long > short.site_factor + of_short, "the longest goes first"


def test_jobs_advised_during_a_tick_stay_in_line(controller: MakeController) -> None:
    """They are not in the tick's snapshot yet, but their factors are taken."""
    slurm = FakeSlurm(a_job(1, limit=1000))
    c = controller(slurm)
    c.tick()
    (first,) = factors(c, [500])
    slurm.now = NOW + 0.5  # the next snapshot was taken before that job came
    c.tick()
    (second,) = factors(c, [400])
    assert second > first


def test_a_policy_that_needs_slurms_own_figures_gives_no_advice(controller: MakeController) -> None:
    c = controller(FakeSlurm(a_job(1)), policy=load_policy("multifactor"))
    c.tick()
    assert factors(c, [500]) == []


def test_the_log_outlives_its_writer_and_forgets_what_is_old(tmp_path: Path) -> None:
    log = AdviceLog(tmp_path / "advice")
    for i in range(5):
        log.append(100.0 + i, i, -i)
    assert AdviceLog(log.path).read(103.0) == [(103.0, 3, -3), (104.0, 4, -4)]
    AdviceLog(log.path).prune(102.0)  # another process; the writer's file is replaced under it
    log.append(105.0, 5, -5)
    assert [row[1] for row in AdviceLog(log.path).read(0.0)] == [2, 3, 4, 5]


def test_recent_advice_is_found_at_the_end_of_a_long_file(tmp_path: Path) -> None:
    log = AdviceLog(tmp_path / "advice")
    log.path.write_text("".join(f"{i}.000 {i % 7} {i}\n" for i in range(1, 50_001)))
    assert [row[2] for row in log.read(49_998.0)] == [49_998, 49_999, 50_000]
    assert len(log.read(10_001.0)) == 40_000, "also where it takes several looks"
    assert len(log.read(0.0)) == 50_000


def test_a_line_that_was_cut_off_is_no_advice(tmp_path: Path) -> None:
    log = AdviceLog(tmp_path / "advice")
    log.append(100.0, 1, 10)
    with log.path.open("ab") as file:
        file.write(b"101.0 2")
    assert log.read(0.0) == [(100.0, 1, 10)]


def test_a_full_disk_is_an_error_and_leaves_the_rest_readable(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    journal = Journal(tmp_path / "journal.sqlite")
    os.symlink("/dev/full", tmp_path / "journal.advice")
    with pytest.raises(JournalError, match="No space left"):
        journal.advise(NOW, 0, 5)
