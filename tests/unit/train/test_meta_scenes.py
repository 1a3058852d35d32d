"""Scenes of a choice of policies: what choices cost, and what other members would have cost on the same future."""

from __future__ import annotations

import numpy as np

from slurm_rl.policy.meta import parse_members, untrained
from slurm_rl.policy.registry import PolicySpec, parse_policy
from slurm_rl.train.algorithms.metadqn import MetaNet
from slurm_rl.train.meta_scenes import (
    HELD_OUT,
    META_COSTS,
    TRAINED,
    meta_reference,
    meta_scene,
    paid,
    play_choices,
    try_members,
)
from slurm_rl.train.rollout import simulation_of

SET = ("fcfs", "sjf@user", "ljf")
REFERENCE = parse_policy("sjf-age@user")
SCENE = meta_scene([], 12, jobs=300, sites=0.0)


def a_policy(**settings: float) -> PolicySpec:
    return untrained(parse_members(SET), MetaNet(len(SET), 0).tensors(), **settings)


def test_no_regime_is_trained_on_and_validated_on() -> None:
    assert len(TRAINED) + len(HELD_OUT) == 56
    assert not set(TRAINED) & set(HELD_OUT)
    assert sum("x1.5" in name for name in HELD_OUT) == 8


def test_the_reference_pays_one_share_of_each_cost() -> None:
    reference = meta_reference(SCENE, REFERENCE)
    simulation = simulation_of(SCENE, REFERENCE)
    simulation.run()
    live = simulation.world["live"]
    end = float(live["end"][SCENE.prepared.measured].max())
    cost = paid(SCENE, reference, live["start"], np.array([end]), 0)[0]
    whole = dict(zip(META_COSTS, cost, strict=True))
    for name in ("bsld", "wait", "tail"):
        assert abs(whole[name] - 1.0) < 1e-6, name
    assert 0.0 <= whole["late"] <= 1.0
    assert 0.0 < whole["idle"] <= 1.0


def test_choices_pay_what_their_schedule_costs() -> None:
    reference = meta_reference(SCENE, REFERENCE)
    choices = play_choices(SCENE, reference, a_policy(explore=0.5, interval=60.0, switches=12))
    assert len(set(choices.member.tolist())) > 1
    assert (choices.cost >= -1e-9).all()
    assert (choices.elapsed[choices.after >= 0] >= 60.0).all()


def test_members_are_tried_on_the_same_future() -> None:
    reference = meta_reference(SCENE, REFERENCE)
    tried = try_members(SCENE, reference, a_policy(), np.random.default_rng(1), moments=4, ahead=7200.0)
    assert tried.cost.shape == (len(tried.seen), len(SET), len(META_COSTS))
    assert len(tried.seen) >= 2
    spread = np.ptp(tried.cost, axis=1).max(axis=1)
    assert (spread > 0).all(), "each member went its own way"
    slowdown = list(META_COSTS).index("bsld")
    assert tried.cost[:, 1, slowdown].mean() < tried.cost[:, 2, slowdown].mean(), "short jobs first beat long ones"
