"""Advice on limits is tried on a user's earlier jobs before it is given."""

from __future__ import annotations

from slurm_rl.controller.limit_advice import RunsAlike, limit_for

DAY = 86_400


def learned(*runs: tuple[int, int]) -> RunsAlike:
    """Jobs that start when they are submitted, as (submitted, run time)."""
    alike = RunsAlike()
    for ended, submitted, run in sorted((submitted + run, submitted, run) for submitted, run in runs):
        alike.learn(submitted, ended, float(run))
    return alike


def test_a_limit_that_held_before_is_advised() -> None:
    advice = learned(*((5000 * i, 600) for i in range(15))).advise(DAY, "'a'")
    assert advice is not None
    assert (advice.runs, advice.within, advice.limit) == (15, 600, 900)


def test_a_hundred_jobs_of_one_hour_are_one_trial() -> None:
    first = [(5000 * i, 600) for i in range(10)]
    assert learned(*first, *((100_000 + i, 600) for i in range(100))).advise(DAY, "'a'") is None


def test_no_advice_where_one_trial_of_ten_failed_at_every_level() -> None:
    times = [600] * 10 + [18_000] + [600] * 9
    assert learned(*((DAY * i, run) for i, run in enumerate(times))).advise(100 * DAY, "'a'") is None


def test_a_higher_limit_is_advised_where_the_usual_one_did_not_hold() -> None:
    """Each job takes half as long again as the last one: a margin of a quarter is too little, twice that holds."""
    runs = [(DAY * i, int(60 * 1.5**i)) for i in range(18)]
    advice = learned(*runs).advise(100 * DAY, "'a'")
    assert advice is not None
    assert advice.limit == limit_for(2 * runs[-1][1])
