"""A queue in which nothing happens comes to rest, and the journal stays small."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.assign import tolerated
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.journal import Change, Journal

from .fake_slurm import FakeSlurm, a_job, a_running_job

PENDING = 470


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as made:
        yield made


def a_busy_site(seed: int) -> FakeSlurm:
    """Jobs of all sizes and limits, submitted in the last two minutes: their waits, and so their scores, grow fast."""
    dice = random.Random(seed)
    jobs = []
    for i in range(1, PENDING + 1):
        limit = 60 * dice.choice([5, 10, 30, 60, 120, 240, 600, 1440, 2880])
        who, gpus = f"u{dice.randrange(20)}", dice.choice([1, 1, 1, 2, 4, 8])
        waited = dice.randrange(1, 120)
        jobs.append(a_job(i, limit=limit, gpus=gpus, waited=waited, user=who, name=f"n{i % 17}", own=1000 + 4 * gpus))
    running = [a_running_job(9000 + k, f"n{k}", limit=86_400) for k in range(1, 21)]
    return FakeSlurm(*jobs, *running, nodes=20, weights=1500)


def tau(first: list[int], second: list[int]) -> float:
    place = {job: i for i, job in enumerate(second)}
    ranks = [place[job] for job in first]
    wrong = sum(a > b for i, a in enumerate(ranks) for b in ranks[i + 1 :])
    return 1 - 4 * wrong / (len(ranks) * (len(ranks) - 1))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_shipped_model_settles_within_five_ticks(journal: Journal, seed: int, tmp_path: Path) -> None:
    slurm = a_busy_site(seed)
    config = Config(mode="enforce", policy="rl:default", updates_per_second=1e5, state_dir=str(tmp_path))
    c = Controller(config, slurm, journal, clock=lambda: slurm.now)
    wanted, taus = [], []
    for _ in range(15):
        wanted.append(c.tick().wanted)
        assert c.observed is not None
        view, plan = c.observed
        taus.append(tau(slurm.order(), [view.jobs[j].job_id for j in plan.order]))
        slurm.now += 10
    print(f"wanted {wanted}, tau {min(taus[4:]):.4f} … {max(taus[4:]):.4f}")
    assert max(wanted[5:]) < 0.05 * PENDING
    assert min(taus[4:]) >= 0.99


def test_the_head_goes_as_decided_and_nobody_far_off_is_tolerated() -> None:
    dice = random.Random(3)
    for _ in range(50):
        count = dice.randrange(2, 600)
        stands = sorted(range(count), key=lambda i: i + dice.uniform(0, dice.choice([0, 3, 30, 600])))
        order = tolerated(stands, 40)
        assert sorted(order) == list(range(count))
        assert order[: min(40, count)] == list(range(min(40, count)))
        wrong = sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])
        assert count < 2 or 1 - 4 * wrong / (count * (count - 1)) >= 0.993
        if stands == list(range(count)):
            assert order == stands


def test_a_queue_that_stands_nearly_right_is_left_as_it_is() -> None:
    stands = [*range(100), 101, 100, *range(102, 200)]
    assert tolerated(stands, 0) == stands


def test_the_journal_is_bounded_and_keeps_what_undo_goes_by(journal: Journal) -> None:
    token = journal.acquire("me", 0.0, 1e9)
    assert token is not None
    for tick in range(60):
        rows = [Change(i, 5, 0, tick + 1, "a reason of the usual length, as the policy gives it") for i in range(200)]
        numbers = journal.intend(journal.tick(tick, "enforce", "p", "m", 200, 200), token, float(tick), rows)
        journal.settle([(n, "applied") for n in numbers])
    touched = journal.touched()
    journal.prune(-1.0)
    large = journal.path.stat().st_size
    journal.prune(-1.0, 300_000)
    small = journal.path.stat().st_size
    print(f"{large} bytes for 12,000 changes, then {small}")
    assert small <= 300_000 < large
    assert journal.touched() == touched
    assert journal.history(3, 5)[-1][2] == 60, "the newest stay"
    journal.prune(-1.0, 1)  # more than can be had: it ends all the same
    assert journal.touched() == touched
