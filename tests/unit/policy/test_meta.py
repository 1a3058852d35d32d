"""Policies that choose a policy: sets, models, choices in time, and the same choices in `decide` and the engine."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import Job, a_cluster, a_simulation

from slurm_rl.decide import decide
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.errors import InputError, ModelError
from slurm_rl.kernel.jit import kernel
from slurm_rl.policy.checkpoint import find_model, load_model, to_toml
from slurm_rl.policy.meta import DEFAULT_SET, Meta, MetaModel, evaluate, load_any, load_meta, parse_members, save_meta
from slurm_rl.policy.meta_network import META_LAYOUT, WIDTH, value_members
from slurm_rl.policy.regime import REGIME_COUNT, REGIME_FEATURES, look_at
from slurm_rl.policy.registry import PolicySpec, parse_policy
from slurm_rl.train.meta_scenes import HELD_OUT

SET = ("fcfs", "sjf@user", "ljf", "edf")


def weights(members: int, seed: int = 0, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Random ones, as a file has them."""
    dice = np.random.default_rng(seed)
    shapes = META_LAYOUT | {"last": (WIDTH, members), "last_bias": (members,)}
    made = {name: 0.2 * scale * dice.standard_normal(shape) for name, shape in shapes.items()}
    return {name: table.astype(np.float32) for name, table in (made | {"scale": np.ones(REGIME_COUNT)}).items()}


def fickle(members: int) -> dict[str, np.ndarray]:
    """Weights that want the first member while mostly small jobs wait, and the second otherwise."""
    made = {name: np.zeros_like(table) for name, table in weights(members).items()}
    size = REGIME_FEATURES.index("size")
    made["shift"][size], made["scale"][size] = np.log(3.0), 1.0
    for column, sign in ((0, -1.0), (1, 1.0)):
        made["first"][size, column] = sign
        made["second"][column, column] = made["last"][column, column] = 1.0
    return made


def a_fickle_model(path: Path, **settings: float) -> None:
    save_meta(path, fickle(len(SET)), {"algorithm": "metadqn"}, Meta(parse_members(SET), **settings))  # type: ignore[arg-type]


def a_model(path: Path, members: tuple[str, ...] = SET, seed: int = 0, **settings: float) -> PolicySpec:
    meta = Meta(parse_members(members), **settings)  # type: ignore[arg-type]
    return save_meta(path, weights(len(members), seed), {"algorithm": "metadqn"}, meta).policy()


def jobs(count: int = 60, seed: int = 3, span: int = 4000) -> list[Job]:
    dice = np.random.default_rng(seed)
    return [
        Job(
            i,
            int(dice.integers(0, span)),
            int(dice.integers(1, 400)),
            500,
            cpus=int(dice.integers(1, 7)),
            user=f"u{i % 3}",
            deadline=int(dice.integers(3000, 9000)) if i % 2 else -1,
        )
        for i in range(1, count)
    ]


CLUSTER = a_cluster(NodeClass(2, cpus=4), NodeClass(2, cpus=2))


@kernel
def _value(world: np.ndarray, pool: int) -> None:
    value_members(world[0], pool)


def test_the_compiled_network_equals_torch(tmp_path: Path) -> None:
    policy = a_model(tmp_path / "m")
    simulation, _ = a_simulation(CLUSTER, jobs(), f"meta:{tmp_path}/m")
    assert simulation.policy.meta is not None
    dice, found = np.random.default_rng(1), []
    rows = dice.standard_normal((20, REGIME_COUNT)).astype(np.float32)
    for row in rows:
        simulation.world["regime"][0] = row
        _value(simulation.world.record, 0)
        found.append(simulation.world["worth"][0].copy())
    tensors = {name: torch.from_numpy(table) for name, table in weights(len(SET)).items()}
    x = (torch.from_numpy(rows) - tensors["shift"]) * tensors["scale"]
    x = torch.relu(x @ tensors["first"] + tensors["first_bias"])
    x = torch.relu(x @ tensors["second"] + tensors["second_bias"])
    wanted = (x @ tensors["last"] + tensors["last_bias"]).numpy()
    np.testing.assert_allclose(np.array(found), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    assert policy.meta is not None
    assert policy.meta.net is not None
    np.testing.assert_allclose(evaluate(policy.meta.net, rows)[:, : len(SET)], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backfill", ["easy", "slurm"])
@pytest.mark.parametrize("policy", ["meta", "bandit:egreedy", "bandit:exp3/fcfs/sjf/edf", "bandit:linucb"])
def test_the_engine_starts_what_decide_plans(policy: str, backfill: str, tmp_path: Path) -> None:
    if policy == "meta":
        a_model(tmp_path / "m", DEFAULT_SET)
        policy = f"meta:{tmp_path}/m"
    simulation, _ = a_simulation(CLUSTER, jobs(), policy, backfill, "best-fit")
    ruled, passes = set(), 0
    while simulation.to_next_pass():
        before = simulation.world["live"]["held"] > 0
        plan = decide(simulation.snapshot(), parse_policy(policy), backfill=backfill)
        simulation.finish_pass()
        started = np.flatnonzero((simulation.world["live"]["held"] > 0) & ~before).tolist()
        assert sorted(s.job for s in plan.starts) == started
        ruled |= {reason.ruler for reason in plan.reasons}
        passes += 1
    assert passes > 60
    assert len(ruled) > 1


def test_choices_keep_their_interval_margin_and_bound(tmp_path: Path) -> None:
    def chosen(**settings: float) -> np.void:
        path = tmp_path / f"m{len(list(tmp_path.iterdir()))}"
        a_fickle_model(path, **settings)
        simulation, _ = a_simulation(CLUSTER, jobs(300, span=18_000), f"meta:{path}", "easy", "best-fit")
        simulation.run()
        state: np.void = simulation.world["choosers"][0]
        return state

    free = chosen(interval=1.0, switches=12)
    assert free["switches"] >= 5
    rare = chosen(interval=1000.0, switches=12)
    assert rare["decisions"] < free["decisions"] / 5
    few = chosen(interval=1.0, switches=1)
    assert few["switches"] < free["switches"]
    assert few["held_back"] > 0
    stubborn = chosen(interval=1.0, switches=12, margin=1e6)
    assert stubborn["switches"] == 0


def test_no_hour_has_more_switches_than_the_bound(tmp_path: Path) -> None:
    a_fickle_model(tmp_path / "m", interval=1.0, switches=3)
    simulation, _ = a_simulation(CLUSTER, jobs(300, span=18_000), f"meta:{tmp_path}/m", "easy", "best-fit")
    times, before = [], 0
    while simulation.to_next_pass():
        simulation.finish_pass()
        now = int(simulation.world["choosers"]["switches"][0])
        times += [simulation.now] * (now - before)
        before = now
    assert len(times) > 3
    assert all(later - earlier >= 3600 for earlier, later in zip(times, times[3:], strict=False))


def test_what_is_seen_tells_nothing_of_the_future() -> None:
    """Jobs that have not come yet, and true run times of unfinished ones, change no choice."""
    early = [job for job in jobs(80) if job.submit <= 2000]
    late = [replace(job, id=job.id + 1000, submit=job.submit + 3000) for job in jobs(80, seed=9)]
    seen = []
    for more in ([], late):
        simulation, _ = a_simulation(CLUSTER, [*early, *more], "bandit:linucb/fcfs/sjf@user", "easy", "best-fit")
        simulation.run(2000)
        seen.append(simulation.world["regime"][0].copy())
    assert np.array_equal(seen[0], seen[1])
    assert seen[0][REGIME_FEATURES.index("rate")] > 0


def test_figures_of_a_long_queue_are_those_of_all_of_it() -> None:
    """A queue of hundreds is sampled: each figure stays near that of the whole, whatever the length is."""
    one = a_cluster(NodeClass(1, cpus=4))
    for count in (129, 300, 901):
        queue = [Job(0, 0, 10_000, 10_000, cpus=4)]
        queue += [Job(i, 10 + i, 100, 60 * (1 + i % 5), cpus=1 + i % 3, user=f"u{i % 3}") for i in range(1, count + 1)]
        simulation, _ = a_simulation(one, queue, "bandit:linucb/fcfs/ljf", "none")
        simulation.run(2000)
        jobs_, pool = simulation.world["jobs"], simulation.world["pools"][0]
        waiting = simulation.world["queue"][int(pool["queue_first"]) : int(pool["queue_last"])]
        assert len(waiting) == count
        look_at(simulation.world.record, 2000.0, waiting)
        seen = dict(zip(REGIME_FEATURES, simulation.world["regime"][0].tolist(), strict=False))
        sizes = simulation.world["requests"]["volume"][jobs_["request"][waiting]]
        waits = 2000.0 - jobs_["submit"][waiting]
        assert seen["queue"] == pytest.approx(np.log1p(count))
        assert seen["demand"] == pytest.approx(np.log1p(sizes.sum() / 4), rel=0.02)
        assert seen["size"] == pytest.approx(np.log(sizes).mean(), abs=0.05)
        assert seen["age"] == pytest.approx(np.log1p(waits / 60).mean(), rel=0.02)
        assert seen["oldest"] == pytest.approx(np.log1p(waits.max() / 60))


def test_a_plan_says_who_rules_and_why(tmp_path: Path) -> None:
    a_model(tmp_path / "m")
    simulation, _ = a_simulation(CLUSTER, jobs(), f"meta:{tmp_path}/m", "easy", "best-fit")
    simulation.run(1500)
    simulation.to_next_pass()
    plan = decide(simulation.snapshot(), simulation.policy)
    (ruler,) = plan.rulers
    assert ruler.policy in SET
    assert "ahead of" in ruler.why or "not enough" in ruler.why
    assert f"lets {ruler.policy} rule" in str(plan.reasons[0])


def test_members_that_take_limits_at_their_word_see_limits() -> None:
    """A choice among one heuristic and itself orders as that heuristic does."""
    for name in ("wfp3", "wfp3@user", "srpt", "saf@user"):
        alone, _ = a_simulation(CLUSTER, jobs(), name, "easy", "best-fit")
        alone.run()
        chosen, _ = a_simulation(CLUSTER, jobs(), f"bandit:egreedy/{name}/fcfs", "easy", "best-fit")
        chosen.world["decide_every"] = 1e18  # the first choice is the first member, for good
        chosen.world["explore"] = 0.0
        chosen.run()
        assert np.array_equal(alone.world["live"]["start"], chosen.world["live"]["start"]), name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bandit:exp4", "did you mean 'exp3'"),
        ("bandit:", "unknown bandit ''"),
        ("bandit:exp3/", "an empty set"),
        ("bandit:exp3/fcfs", "alone leaves nothing to choose"),
        ("bandit:exp3/fcfs/fcfs", "stands twice"),
        ("bandit:exp3/fcfs/sjf@oracle", "needs true run times"),
        ("bandit:exp3/fcfs/bandit:exp3", "chooses itself"),
        ("bandit:exp3/fcfs/sjff", "did you mean 'sjf'"),
        ("bandit:exp3/" + "/".join(["fcfs", "lcfs", *(f"{n}@user" for n in ("sjf", "ljf", "saf", "f1"))] * 3), "many"),
    ],
)
def test_a_bad_set_is_refused(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_policy(name)


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ModelError, match=r"no model 'nobody' .*meta:\./DIR"):
        parse_policy("meta:nobody")


def test_models_that_choose_and_models_that_order_are_not_mixed_up(tmp_path: Path) -> None:
    a_model(tmp_path / "m")
    with pytest.raises(ModelError, match="write meta:m"):
        load_model(tmp_path / "m")
    with pytest.raises(ModelError, match="write rl:default"):
        parse_policy("meta:default")


def _changed(path: Path, **change: object) -> Path:
    manifest = tomllib.loads((path / "manifest.toml").read_text())
    manifest["meta"] |= change
    (path / "manifest.toml").write_text(to_toml(manifest))
    return path


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"candidates": ["fcfs", "sjf"]}, "of another set than the 2 policies"),
        ({"candidates": []}, "an empty set"),
        ({"candidates": ["fcfs", "sjff", "ljf", "edf"]}, "its set cannot be used"),
        ({"candidates": ["fcfs", "sjf", "ljf", "rl:default"]}, "made for another rl:default"),
        ({"switches": 99}, "has a bad one"),
        ({"interval": 0.0}, "has a bad one"),
    ],
)
def test_a_model_of_another_set_is_refused(change: dict[str, object], told: str, tmp_path: Path) -> None:
    a_model(tmp_path / "m")
    with pytest.raises(ModelError, match=told):
        load_meta(_changed(tmp_path / "m", **change))


def test_the_shipped_model_is_whole() -> None:
    model = load_any(find_model("meta"))
    assert isinstance(model, MetaModel)
    assert model.meta.names == DEFAULT_SET
    assert model.manifest["algorithm"] == "metadqn"
    assert set(model.manifest["training"]["held_out"]) == set(HELD_OUT)
    assert parse_policy("meta:meta").digest == model.digest
