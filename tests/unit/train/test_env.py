"""The gymnasium environment: it keeps gymnasium's contract, and picking by a rule gives that rule's replay."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from slurm_rl.errors import InputError
from slurm_rl.policy.features import JOB_FEATURES
from tests.unit.test_decide import CLUSTER, a_workload


def an_env(**options: object) -> gymnasium.Env[dict[str, np.ndarray], int]:
    options = {"jobs": 80, "warm_up": 20, "window": 32, "train_share": 1.0, **options}
    return gymnasium.make("slurm_rl/Replay-v0", trace=a_workload(3, jobs=160), cluster=CLUSTER, **options)


def test_gymnasium_accepts_it() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Box.*(infinity|inf)")
        check_env(an_env().unwrapped, skip_render_check=True)


def play(
    env: gymnasium.Env[dict[str, np.ndarray], int], rule: str, begin: int
) -> tuple[float, dict[str, float], dict[str, float], int]:
    """An episode in which the agent always picks the job with the least of a feature."""
    feature = JOB_FEATURES.index(rule.lstrip("-"))
    sign = -1.0 if rule.startswith("-") else 1.0
    seen, info = env.reset(seed=0, options={"begin": begin})
    steps = 0
    while True:
        value = np.where(seen["mask"] == 1, sign * seen["jobs"][:, feature], np.inf)
        assert (seen["mask"] == info["action_mask"]).all()
        seen, reward, done, _, info = env.step(int(np.argmin(value)))
        steps += 1
        if done:
            return float(reward), info["metrics"], info["baseline"], steps


def test_picking_the_oldest_is_first_come_first_served() -> None:
    reward, metrics, _, steps = play(an_env(baseline="fcfs"), "position", begin=30)
    assert steps > 10
    assert metrics["jobs"] == 80
    assert reward == pytest.approx(0.0)


def test_picking_the_shortest_is_shortest_job_first() -> None:
    # sjf@user orders by the estimate: the same feature; without backfill, only the order matters.
    reward, _, _, _ = play(an_env(baseline="sjf@user", backfill="none", window=128), "estimate", begin=0)
    assert reward == pytest.approx(0.0, abs=1e-6)


def test_the_reward_is_the_gain_over_the_baseline() -> None:
    env = an_env(baseline="fcfs", rewards={"wait": 2.0, "utilization": 1.0})
    reward, mine, theirs, _ = play(env, "-estimate", begin=30)
    waits = 2.0 * (theirs["mean_wait"] - mine["mean_wait"]) / theirs["mean_wait"]
    use = (mine["utilization"] - theirs["utilization"]) / theirs["utilization"]
    assert mine["mean_wait"] != theirs["mean_wait"]
    assert reward == pytest.approx(waits + use)


def test_unknown_rewards_and_short_traces_are_refused() -> None:
    with pytest.raises(InputError, match="unknown reward 'speed'"):
        an_env(rewards={"speed": 1.0})
    with pytest.raises(InputError, match="an episode needs 5000"):
        an_env(jobs=5000)


def test_a_trace_without_queueing_says_so() -> None:
    from dataclasses import replace

    calm = a_workload(3, jobs=160)
    calm = replace(calm, submit_time=np.arange(160) * 10_000)
    env = gymnasium.make(
        "slurm_rl/Replay-v0", trace=calm, cluster=CLUSTER, jobs=50, warm_up=10, window=16, train_share=1.0
    )
    with pytest.raises(InputError, match="there is nothing to learn"):
        env.reset(seed=1)


def test_not_now_is_an_action_that_gymnasium_accepts() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Box.*(infinity|inf)")
        check_env(an_env(defer=2, defer_seconds=600.0).unwrapped, skip_render_check=True)


def test_an_agent_may_say_not_now_so_often_and_for_so_long_only() -> None:
    env = an_env(defer=2, defer_seconds=600.0)
    inner = env.unwrapped
    _, info = env.reset(seed=0, options={"begin": 30})
    said: dict[int, list[int]] = {}
    done = False
    while not done:
        mask = info["action_mask"]
        later = np.flatnonzero(mask[32:])
        action = int(later[0]) + 32 if len(later) else 0
        if action:
            job = int(inner._hand[action - 32])  # type: ignore[attr-defined]
            said.setdefault(job, []).append(info["now"])
        _, _, done, _, info = env.step(action)
    live, submit = inner._simulation.world["live"], inner._simulation.world["jobs"]["submit"]  # type: ignore[attr-defined]
    assert len(said) > 10
    for job, times in said.items():
        assert len(times) <= 2
        assert all(submit[job] <= now < submit[job] + 600 for now in times)
        # Out of the way for half of the time allowed, or until the bound: backfill does not start it either.
        assert live["start"][job] >= min(times[-1] + 300, submit[job] + 600)
    assert info["metrics"]["completed"] + info["metrics"]["killed"] == 80, "whoever was deferred runs in the end"


def test_not_now_needs_rules_that_can_leave_a_job() -> None:
    for options in ({"backfill": "slurm"}, {"placement": "mip"}):
        with pytest.raises(InputError, match="needs backfill none, firstfit or easy"):
            an_env(defer=1, **options)
