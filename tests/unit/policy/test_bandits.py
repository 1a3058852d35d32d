"""Bandits learn what river's do from the same pulls and rewards."""

from __future__ import annotations

import csv
from types import GenericAlias

import numpy as np
import pytest

from slurm_rl.policy.bandits import (
    CONTEXT_COUNT,
    MEAN,
    best_mean,
    exp3_chances,
    learn_exp3,
    learn_linucb,
    learn_mean,
    linucb_bounds,
    new_arms,
)

if not hasattr(csv.DictReader, "__class_getitem__"):  # river 0.26 counts on Python 3.12 here
    csv.DictReader.__class_getitem__ = classmethod(GenericAlias)  # type: ignore[attr-defined]
from river import bandit

ARMS, PULLS = 5, 300


def rewards(seed: int) -> np.ndarray:
    dice = np.random.default_rng(seed)
    return np.clip(0.2 + 0.12 * np.arange(ARMS) + 0.3 * dice.standard_normal((PULLS, ARMS)), 0.0, 1.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_epsilon_greedy_equals_river(seed: int) -> None:
    theirs, ours, given = bandit.EpsilonGreedy(epsilon=0.2, seed=seed), new_arms(1, ARMS)[0], rewards(seed)
    for k in range(ARMS):
        theirs.update(k, given[0, k])
        learn_mean(ours, k, given[0, k])
    for row in given:
        arm = theirs.pull(list(range(ARMS)))
        theirs.update(arm, row[arm])
        learn_mean(ours, arm, row[arm])
        means = [theirs._rewards[k].get() for k in range(ARMS)]
        np.testing.assert_allclose(ours[:, MEAN], means, atol=1e-12)
        assert best_mean(ours) == int(np.argmax(means))


@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_exp3_equals_river(gamma: float) -> None:
    theirs, ours, given = bandit.Exp3(gamma=gamma, seed=4), new_arms(1, ARMS)[0], rewards(3)
    chances = np.zeros(ARMS)
    for row in given:
        arm = theirs.pull(list(range(ARMS)))
        exp3_chances(ours, gamma, chances)
        np.testing.assert_allclose(chances, [theirs._probabilities[k] for k in range(ARMS)], rtol=1e-9)
        theirs.update(arm, row[arm])
        learn_exp3(ours, arm, row[arm], chances[arm], gamma)


def test_exp3_does_not_overflow() -> None:
    arms, chances = new_arms(1, ARMS)[0], np.zeros(ARMS)
    for _ in range(20_000):
        exp3_chances(arms, 0.1, chances)
        learn_exp3(arms, 2, 1.0, chances[2], 0.1)
    exp3_chances(arms, 0.1, chances)
    assert chances[2] == pytest.approx(0.92)


def test_linucb_equals_river() -> None:
    theirs, ours, given = bandit.LinUCBDisjoint(seed=1), new_arms(1, ARMS)[0], rewards(5)
    dice, bounds = np.random.default_rng(6), np.zeros(ARMS)
    for row in given:
        context = np.append(dice.random(CONTEXT_COUNT - 1), 1.0)
        named = {str(i): float(v) for i, v in enumerate(context)}
        arm = theirs.pull(list(range(ARMS)), context=named)
        linucb_bounds(ours, context, bounds)
        told = [theirs._bayes_lin_regs[k].predict_one(named, with_dist=True) for k in range(ARMS)]
        np.testing.assert_allclose(bounds, [d.mu + d.sigma for d in told], rtol=1e-8)
        reward = row[arm] * context[0]
        theirs.update(arm, named, reward)
        learn_linucb(ours, arm, context, reward)
    assert bounds[arm] == pytest.approx(bounds.max())
