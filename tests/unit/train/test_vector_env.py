"""The vector environment: what single environments say, window by window, for the same seeds and actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from slurm_rl.errors import InputError
from tests.unit.test_decide import CLUSTER, a_workload

SLOTS = 3


def options(**more: Any) -> dict[str, Any]:
    return {"trace": a_workload(3, jobs=160), "cluster": CLUSTER, "train_share": 1.0} | {
        "jobs": 60, "warm_up": 20, "window": 24, "observation": "dict", **more
    }  # fmt: skip


def a_vector(slots: int = SLOTS, *, threads: int = 2, windows: int | None = None, **more: Any) -> Any:
    return gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=slots, threads=threads, windows=windows, **options(**more))


@pytest.mark.parametrize(
    "more",
    [
        {"backfill": "easy"},
        {"backfill": "slurm"},
        {"backfill": "conservative"},
        {"placement": "mip"},
        {"defer": 3, "defer_seconds": 900.0},
        {"stepwise": True, "rewards": {"bsld": 1.0, "users": 0.5}},
        {"placement": "greedy", "backfill": "firstfit", "defer": 1},
    ],
    ids=lambda more: "-".join(str(v) for v in more.values()),
)
def test_it_plays_as_single_environments_do(more: dict[str, Any]) -> None:
    actions_each = 48 if "defer" in more else 24
    more = {"rewards": {"bsld": 1.0, "utilization": 0.5, "tail": 0.5}} | more
    single = [gymnasium.make("slurm_rl/Replay-v0", **options(**more)) for _ in range(SLOTS)]
    many = a_vector(**more)
    assert type(many.unwrapped).__name__ == "ReplayVectorEnv"
    seen, info = many.reset(seed=11)
    own = [env.reset(seed=11 + i) for i, env in enumerate(single)]
    dice, ended, episodes, rewards = np.random.default_rng(5), [False] * SLOTS, 0, []
    for _ in range(400):
        for i, (mine, told) in enumerate(own):
            for name, value in mine.items():
                assert (seen[name][i] == value).all(), name
            assert (info["action_mask"][i] == told["action_mask"]).all()
            assert info["now"][i] == told["now"]
        actions = dice.integers(0, actions_each, size=SLOTS)  # some name an empty slot
        seen, reward, done, cut, info = many.step(actions)
        assert not cut.any()
        for i, env in enumerate(single):
            if ended[i]:
                own[i], ended[i] = env.reset(), False
                assert (reward[i], done[i]) == (0.0, False)
                continue
            mine, paid, over, _, told = env.step(int(actions[i]))
            own[i], ended[i] = (mine, told), over
            assert (reward[i], done[i]) == (pytest.approx(paid, abs=1e-12), over)
            if over:
                rewards.append(paid)
                assert info["metrics"]["mean_bsld"][i] == told["metrics"]["mean_bsld"]
        episodes += int(done.sum())
    assert episodes >= 2 * SLOTS
    assert len(set(rewards)) > 1
    assert any(rewards)


def test_threads_change_nothing() -> None:
    trails = []
    for threads in (1, 3):
        env = a_vector(5, threads=threads)
        env.reset(seed=2)
        dice = np.random.default_rng(1)
        trail = [env.step(dice.integers(0, 24, size=5)) for _ in range(120)]
        trails.append([(s["jobs"].sum(), r.tolist(), d.tolist()) for s, r, d, _, _ in trail])
        env.close()
    assert trails[0] == trails[1]


def test_windows_that_are_kept_are_played_again_from_the_start() -> None:
    env = a_vector(2, windows=1)
    first, _ = env.reset(seed=4)
    assert (first["jobs"][0] == first["jobs"][1]).all(), "there is only one"
    done, plays = np.zeros(2, dtype=bool), 0
    while plays < 3:
        before = done
        seen, _, done, _, _ = env.step(np.array([0, 3]))
        for i in np.flatnonzero(before).tolist():
            assert (seen["jobs"][i] == first["jobs"][i]).all()
            assert (seen["action_mask"][i] == first["action_mask"][i]).all()
            plays += 1


def test_what_was_seen_stays_as_it_was() -> None:
    env = a_vector()
    seen, _ = env.reset(seed=3)
    kept = seen["jobs"].copy()
    env.step(np.zeros(SLOTS, dtype=int))
    assert (seen["jobs"] == kept).all()


def test_it_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match="another placement than mip"):
        a_vector(placement="mip", defer=2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        a_vector().step(np.zeros(SLOTS, dtype=int))
    calm = replace(a_workload(3, jobs=160), submit_time=np.arange(160) * 10_000)
    with pytest.raises(InputError, match="there is nothing to learn"):
        a_vector(trace=calm).reset(seed=0)
