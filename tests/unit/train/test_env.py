"""The gymnasium environment: it keeps gymnasium's contract, and picking by a rule gives that rule's replay."""

from __future__ import annotations

import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from slurm_rl.errors import InputError
from slurm_rl.policy.features import JOB_FEATURES, POOL_FEATURES
from slurm_rl_sim.rewards import Payment
from tests.unit.test_decide import CLUSTER, a_workload


def an_env(**options: object) -> gymnasium.Env[dict[str, np.ndarray], int]:
    options = {"jobs": 80, "warm_up": 20, "window": 32, "train_share": 1.0, "observation": "dict", **options}
    return gymnasium.make("slurm_rl/Replay-v0", trace=a_workload(3, jobs=160), cluster=CLUSTER, **options)


@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_gymnasium_accepts_it_without_a_warning(observation: str) -> None:
    """Warnings are errors here: no infinite Box, no missing render mode."""
    check_env(an_env(observation=observation, render_mode="rgb_array").unwrapped, skip_render_check=True)


def test_stable_baselines_accepts_the_flat_form_without_a_warning() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_checker import check_env as sb3_check

    sb3_check(an_env(observation="flat").unwrapped, warn=True)


def test_a_flat_observation_holds_the_same_in_the_order_that_is_documented() -> None:
    flat, apart = an_env(observation="flat"), an_env(observation="dict")
    one, _ = flat.reset(seed=4)
    other, _ = apart.reset(seed=4)
    assert flat.observation_space.contains(one)
    assert apart.observation_space.contains(other)
    parts = [other["jobs"].ravel(), other["pool"], other["action_mask"]]
    assert np.array_equal(one, np.concatenate(parts).astype(np.float32))
    assert len(one) == 32 * len(JOB_FEATURES) + len(POOL_FEATURES) + 32


def test_windows_are_drawn_where_jobs_queue() -> None:
    trace = a_workload(3, jobs=160)
    calm = replace(trace, submit_time=np.where(np.arange(160) < 60, np.arange(160) * 5000, trace.submit_time + 300_000))
    made = {"trace": calm, "cluster": CLUSTER, "jobs": 40, "warm_up": 10, "window": 16, "train_share": 1.0}
    begins = {}
    for share in (0.0, 1.0):
        env = gymnasium.make("slurm_rl/Replay-v0", contention=share, **made).unwrapped
        dice = np.random.default_rng(1)
        begins[share] = np.array([env.windows.any_begin(dice) for _ in range(60)])
    assert (begins[0.0] < 20).mean() > 0.1  # windows in which nobody waits
    assert (begins[1.0] >= 20).all()
    with pytest.raises(InputError, match="contention"):
        an_env(contention=1.5)


def test_held_out_windows_are_from_the_time_that_training_leaves_out() -> None:
    trace = a_workload(3, jobs=160)
    first, last = trace.span()
    split = first + 0.5 * (last - first)
    for part, later in (("train", False), ("test", True)):
        env = an_env(part=part, train_share=0.5, jobs=30).unwrapped
        for seed in range(4):
            _, info = env.reset(seed=seed)
            submitted = env._open_window().prepared.trace.submit_time
            assert ((submitted > split) == later).all()
            assert (info["now"] > split) == later or not later
    with pytest.raises(InputError, match="part"):
        an_env(part="tset")


@pytest.mark.parametrize("backfill", ["none", "firstfit", "easy", "conservative", "slurm"])
def test_what_fcfs_makes_of_a_window_is_what_a_replay_from_its_beginning_makes_of_it(backfill: str) -> None:
    windows = an_env(backfill=backfill).unwrapped.windows
    for begin in (20, 50, 80):
        window = windows.open(begin)
        assert window is not None
        at_once = dict(window.baseline)
        window.baseline.clear()
        windows.run_baseline(window)
        timing = ("decision_p50_us", "decision_p99_us")
        assert {k: v for k, v in at_once.items() if k not in timing} == {
            k: v for k, v in window.baseline.items() if k not in timing
        }


@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_a_window_that_has_ended_shows_nobody_in_hand(observation: str) -> None:
    env = an_env(observation=observation)
    many = gymnasium.make_vec(
        "slurm_rl/Replay-v0", num_envs=1, trace=a_workload(3, jobs=160), cluster=CLUSTER, jobs=80, warm_up=20,
        window=32, train_share=1.0, observation=observation,
    )  # fmt: skip
    seen, _ = env.reset(seed=5)
    rows, _ = many.reset(seed=5)
    ended = False
    while not ended:
        seen, _, ended, _, _ = env.step(0)
        rows, _, over, _, _ = many.step(np.zeros(1, dtype=np.int64))
    assert over.all()
    jobs = [seen["jobs"], rows["jobs"][0]] if observation == "dict" else [seen[: 32 * 32], rows[0, : 32 * 32]]
    assert not any(shown.any() for shown in jobs)
    many.close()


def test_a_reward_may_be_a_function_of_both_schedules() -> None:
    told: list[tuple[float, float]] = []

    def reward(mine: dict[str, float], theirs: dict[str, float]) -> float:
        told.append((mine["mean_wait"], theirs["mean_wait"]))
        return 0.25

    gained, mine, theirs, _ = play(an_env(rewards=reward), "-estimate", begin=30)
    assert gained == 0.25
    assert told == [(mine["mean_wait"], theirs["mean_wait"])]


def test_it_renders_as_text_and_as_a_picture() -> None:
    text = an_env(render_mode="ansi")
    text.reset(seed=2)
    shown = text.render()
    assert isinstance(shown, str)
    assert "jobs in hand" in shown
    assert "#" in shown
    picture = an_env(render_mode="rgb_array")
    picture.reset(seed=2)
    image = picture.render()
    assert isinstance(image, np.ndarray)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert len(np.unique(image.reshape(-1, 3), axis=0)) >= 3  # ground, nodes, queue
    assert an_env().unwrapped.render() is None


def test_masks_are_where_maskable_ppo_and_torchrl_look() -> None:
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
    from torchrl.envs import GymWrapper
    from torchrl.envs.transforms import ActionMask, TransformedEnv

    flat = an_env(observation="flat")
    _, info = flat.reset(seed=1)
    assert is_masking_supported(flat)
    assert np.array_equal(get_action_masks(flat), info["action_mask"])
    wrapped = TransformedEnv(GymWrapper(an_env(), categorical_action_encoding=True), ActionMask())
    wrapped.set_seed(1)
    played = wrapped.rollout(12, break_when_any_done=True)
    masks, actions = played["action_mask"], played["action"].flatten().long()
    assert not bool(masks.bool().all())
    assert bool(masks.bool()[range(len(actions)), actions].all())  # only slots that hold a job were drawn


def play(
    env: gymnasium.Env[dict[str, np.ndarray], int], rule: str, begin: int
) -> tuple[float, dict[str, float], dict[str, float], int]:
    """An episode in which the agent always picks the job with the least of a feature."""
    feature = JOB_FEATURES.index(rule.lstrip("-"))
    sign = -1.0 if rule.startswith("-") else 1.0
    seen, info = env.reset(seed=0, options={"begin": begin})
    steps = 0
    while True:
        value = np.where(seen["action_mask"] == 1, sign * seen["jobs"][:, feature], np.inf)
        assert (seen["action_mask"] == info["action_mask"]).all()
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


@pytest.mark.parametrize("scale", ["log", "share"])
def test_the_reward_is_the_gain_over_the_baseline(scale: str) -> None:
    env = an_env(baseline="fcfs", rewards={"wait": 2.0, "utilization": 1.0}, reward_scale=scale)
    reward, mine, theirs, _ = play(env, "-estimate", begin=30)
    waits, others, use, usual = mine["mean_wait"], theirs["mean_wait"], mine["utilization"], theirs["utilization"]
    assert waits != others
    if scale == "log":  # a second, and a thousandth, are added: a wait or a share may be 0
        expected = 2.0 * math.log((others + 1.0) / (waits + 1.0)) + math.log((use + 0.001) / (usual + 0.001))
    else:
        expected = 2.0 * (others - waits) / others + (use - usual) / usual
    assert reward == pytest.approx(expected)


def test_steps_may_be_paid_and_add_up_to_the_reward() -> None:
    """Two steps in three are paid something, and a window's payments are its reward at the end."""
    whole = an_env(rewards={"users": 1.0, "bsld": 0.5})
    parts = an_env(rewards={"users": 1.0, "bsld": 0.5}, stepwise=True)
    for seed in range(3):
        paid: dict[str, list[float]] = {"whole": [], "parts": []}
        for name, env in (("whole", whole), ("parts", parts)):
            _, info = env.reset(seed=seed)
            dice, done = np.random.default_rng(seed), False
            while not done:
                action = int(dice.random() * info["action_mask"].sum())
                _, reward, done, _, info = env.step(action)
                paid[name].append(float(reward))
        assert not any(paid["whole"][:-1])
        assert sum(map(bool, paid["parts"])) > len(paid["parts"]) / 4
        assert sum(paid["parts"]) == pytest.approx(paid["whole"][-1], abs=1e-9)
    with pytest.raises(InputError, match="stepwise"):
        an_env(stepwise=True, rewards={"tail": 1.0})
    with pytest.raises(InputError, match="stepwise"):
        an_env(stepwise=True, reward_scale="share")


def test_nobody_waiting_under_the_baseline_is_no_reason_for_an_infinite_reward() -> None:
    paid = Payment({"wait": 1.0}, "log").of({"mean_wait": 30.0}, {"mean_wait": 0.0})
    assert paid == pytest.approx(-math.log(31.0))
    assert Payment({"wait": 1.0}, "log").of({"mean_wait": 0.0}, {"mean_wait": 0.0}) == 0.0


def test_unknown_rewards_and_short_traces_are_refused() -> None:
    with pytest.raises(InputError, match="unknown reward 'speed'"):
        an_env(rewards={"speed": 1.0})
    with pytest.raises(InputError, match="unknown reward_scale 'root'"):
        an_env(reward_scale="root")
    with pytest.raises(InputError, match="an episode needs 5000"):
        an_env(jobs=5000)


def test_a_trace_without_queueing_says_so() -> None:
    calm = a_workload(3, jobs=160)
    calm = replace(calm, submit_time=np.arange(160) * 10_000)
    env = gymnasium.make(
        "slurm_rl/Replay-v0", trace=calm, cluster=CLUSTER, jobs=50, warm_up=10, window=16, train_share=1.0
    )
    with pytest.raises(InputError, match="there is nothing to learn"):
        env.reset(seed=1)


def test_not_now_is_an_action_that_gymnasium_accepts() -> None:
    check_env(an_env(defer=2, defer_seconds=600.0, render_mode="ansi").unwrapped, skip_render_check=True)


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
            job = int(inner._window.hand[action - 32])  # type: ignore[attr-defined]
            said.setdefault(job, []).append(info["now"])
        _, _, done, _, info = env.step(action)
    live, submit = inner._window.simulation.world["live"], inner._window.simulation.world["jobs"]["submit"]  # type: ignore[attr-defined]
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
