"""PPO: its parts against independent calculations, and a run that can be stopped and taken up again."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import flatten, load_model, save_model, unflatten
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES
from slurm_rl.policy.registry import parse_policy
from slurm_rl.train import trainer as trainer_module
from slurm_rl.train.algorithms.imitate import be_heuristic, learn_run_times, lessons_of, set_scales
from slurm_rl.train.algorithms.ppo import Ppo, ppo_loss
from slurm_rl.train.algorithms.search import Search
from slurm_rl.train.batches import advantages, order_log_probability
from slurm_rl.train.module import PARTS, QueueNet
from slurm_rl.train.recipe import BOOKING_SIZE, CAP, STYLES, train_model
from slurm_rl.train.rollout import COSTS, log_ratios, play, reference_of
from slurm_rl.train.scenes import draw_scene
from slurm_rl.train.settings import SearchSettings, Settings, TrainingStopped
from slurm_rl.train.trainer import Trainer

TINY = Settings(
    iterations=2, scenes=3, jobs=300, validation=3, lessons=6, search=SearchSettings(generations=1, pairs=1)
)


def test_the_probability_of_an_order_is_that_of_plackett_and_luce() -> None:
    scores = torch.tensor([[0.3, -1.0, 2.0, 0.0], [1.0, 0.5, 9.0, 9.0]])
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    lead = torch.tensor([[2, 0, 1], [1, 0, -1]])
    found = order_log_probability(scores, mask, lead, torch.tensor([3, 2]))
    e = [math.exp(x) for x in (0.3, -1.0, 2.0, 0.0)]
    first = e[2] / sum(e) * e[0] / (e[0] + e[1] + e[3]) * e[1] / (e[1] + e[3])
    second = math.exp(0.5) / (math.exp(0.5) + math.exp(1.0))
    assert found.numpy() == pytest.approx([math.log(first), math.log(second)], abs=1e-6)


def test_the_probabilities_of_all_orders_sum_to_one() -> None:
    scores = torch.tensor([[0.3, -1.0, 2.0, 0.0]])
    mask = torch.ones((1, 4), dtype=torch.bool)
    total = sum(
        order_log_probability(scores, mask, torch.tensor([order]), torch.tensor([4])).exp().item()
        for order in itertools.permutations(range(4))
    )
    assert total == pytest.approx(1.0, abs=1e-5)


def test_the_loss_equals_a_plain_calculation() -> None:
    rng = np.random.default_rng(0)
    ratio, advantage = rng.uniform(0.5, 1.6, 50), rng.normal(size=50)
    value, target, entropy = rng.normal(size=50), rng.normal(size=50), rng.uniform(0, 2, 50)
    gains = []
    for r, a in zip(ratio, advantage, strict=True):
        clipped = 1.2 if r > 1.2 else 0.8 if r < 0.8 else r
        gains.append(min(r * a, clipped * a))
    plain = -np.mean(gains) + 0.5 * np.mean((value - target) ** 2) - 0.01 * np.mean(entropy)
    tensors = [torch.tensor(x) for x in (ratio, advantage, value, target, entropy)]
    assert ppo_loss(*tensors, clip=0.2, weights=(0.5, 0.01)).item() == pytest.approx(plain)


def test_advantages_follow_each_pool_on_its_own() -> None:
    # Turns 0 and 2 belong to one pool, 1 to another; nothing is discounted over 0 seconds.
    reward, value = np.array([1.0, 5.0, 2.0]), np.array([0.5, 1.0, 0.25])
    after, elapsed = np.array([2, -1, -1]), np.zeros(3)
    advantage, target = advantages(reward, value, after, elapsed, horizon=100.0, smoothing=1.0)
    assert target == pytest.approx([3.0, 5.0, 2.0])  # undiscounted sums of what follows
    assert advantage == pytest.approx([2.5, 4.0, 1.75])
    # With time between the turns, what comes later counts less.
    elapsed = np.array([100.0, 0.0, 0.0])
    _, target = advantages(reward, value, after, elapsed, horizon=100.0, smoothing=1.0)
    assert target[0] == pytest.approx(1.0 + 2.0 / math.e)


def test_rewards_add_up_to_what_was_paid() -> None:
    scene = draw_scene([], 4, jobs=300)
    reference = reference_of(scene, parse_policy("fcfs"))
    net = QueueNet(0)
    episode = play(scene, reference, flatten(net.tensors()), temperature=0.5, seed=1, costs={"wait": 1.0})
    # Paid per second of waiting, as a share of what first come first served pays; some waiting comes before a turn.
    keep = scene.prepared.measured
    paid = episode.metrics["wait"] * keep.sum() / reference.sums["wait"]
    assert 0.5 * paid < -episode.reward.sum() <= paid * (1 + 1e-6)
    assert (episode.picks >= 1).all()
    assert set(COSTS) == set(reference.sums)


def test_the_same_seed_gives_the_same_scene() -> None:
    one, two, other = (draw_scene([], seed, jobs=200).prepared.trace for seed in (5, 5, 6))
    assert np.array_equal(one.submit_time, two.submit_time)
    assert np.array_equal(one.time_limit, two.time_limit)
    assert not np.array_equal(one.run_time, other.run_time)


def test_the_start_is_the_heuristic_and_run_times_are_learned(tmp_path: Path) -> None:
    trainer = Trainer(TINY, [], tmp_path)
    scenes = trainer.scenes(range(6))
    set_scales(trainer.net, trainer.episodes(scenes, 0, 0.5))
    be_heuristic(trainer.net)
    with torch.no_grad():
        trainer.net.out.zero_()
    # The linear path alone is sjf-age, the reference: the ratio of every figure to it is 1.
    linear = flatten(trainer.net.tensors())
    assert [log_ratios(s, r, linear)["wait"] for s, r in scenes] == pytest.approx([0.0] * len(scenes), abs=0.05)
    trainer.net = QueueNet(1)
    set_scales(trainer.net, trainer.episodes(scenes, 0, 0.5))
    be_heuristic(trainer.net)
    lessons = lessons_of(trainer.episodes(scenes, 1, 0.5), [s for s, _ in scenes], seed=0)
    before, after = learn_run_times(trainer.net, lessons)
    assert after < 0.8 * before


def test_a_new_model_gets_the_usual_styles_and_one_that_is_trained_further_keeps_its_own(tmp_path: Path) -> None:
    first = train_model(TINY, [], tmp_path / "first")
    assert (first.booking_size, first.styles, first.starve_drain) == (BOOKING_SIZE, STYLES, CAP)
    manifest = dict(first.manifest) | {"styles": {"mine": {"age": 1.0}}}
    given = save_model(tmp_path / "given", unflatten(first.net), manifest, booking_size=-0.5, starve_drain=2.5)
    again = train_model(replace(TINY, iterations=0), [], tmp_path / "next", start=given)
    assert (again.booking_size, again.styles, again.starve_drain) == (-0.5, {"mine": {"age": 1.0}}, 2.5)
    other = train_model(replace(TINY, iterations=0), [], tmp_path / "other", start=given, starve_drain=4.0)
    assert other.starve_drain == 4.0


def test_scenes_know_less_than_traces_and_limits_hold_their_runs() -> None:
    drawn = [draw_scene([], seed, jobs=120).prepared.trace for seed in range(60)]
    nameless = [not len(t.job_name.names) or not (t.job_name.codes >= 0).any() for t in drawn]
    without_users = [not (t.user.codes >= 0).any() for t in drawn]
    assert 20 < sum(nameless) < 50
    assert 2 < sum(without_users) < 25
    assert all((t.time_limit >= t.run_time).all() for t in drawn)


def test_long_queues_are_learned_from_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(TINY, [], tmp_path)
    monkeypatch.setattr(trainer_module, "_LONGEST_QUEUE", math.inf)
    queues = sorted(r.queue for _, r in trainer.scenes(range(12)))
    monkeypatch.setattr(trainer_module, "_LONGEST_QUEUE", 0.0)
    assert [r.queue for _, r in trainer.scenes(range(12))] == queues[: -(-len(queues) // 4)]


def test_lessons_are_what_estimates_missed() -> None:
    scene = draw_scene([], 4, jobs=300)
    episode = play(
        scene, reference_of(scene, parse_policy("fcfs")), flatten(QueueNet(0).tensors()), temperature=0.5, seed=1
    )
    lessons = lessons_of([episode], [scene], seed=0)
    run = np.minimum(scene.prepared.trace.run_time, scene.prepared.trace.time_limit)
    known = np.log(np.maximum(run, 1.0))
    rows = 0
    for jobs, pool, mask, missed in lessons:
        assert len(pool) == len(jobs)
        found = (jobs[:, :, JOB_FEATURES.index("estimate")] + missed)[mask].numpy()
        assert np.abs(found[:, None] - known[None, :]).min(axis=1) == pytest.approx(np.zeros(len(found)), abs=1e-4)
        assert not jobs[~mask].any()
        rows += int(mask.sum())
    assert 0 < rows <= 4000


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_switched_off_stays_off(tmp_path: Path, part: str) -> None:
    settings = replace(TINY, iterations=1, lessons=3, without=(part,))
    net = train_model(settings, [], tmp_path / part).net
    tensors = unflatten(net)
    for name in PARTS[part]:
        if name in JOB_FEATURES:
            assert tensors["job_scale"][JOB_FEATURES.index(name)] == 0
        else:
            assert not tensors[name].any()
            assert any(t.any() for n, t in tensors.items() if n not in (name, "skip") and "shift" not in n)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(InputError, match="attention"):
        QueueNet(0).switch_off(["atention"])


def test_the_search_moves_the_linear_path_alone(tmp_path: Path) -> None:
    def found() -> tuple[Array, Array]:
        trainer = Trainer(replace(TINY, search=SearchSettings(generations=2, pairs=2)), [], tmp_path)
        start, search = flatten(trainer.net.tensors()), Search(trainer)
        for k in range(search.steps):
            search.step(k)
        return start, flatten(trainer.net.tensors())

    (start, moved), (_, again) = found(), found()
    assert np.array_equal(moved, again)
    assert (moved != start).any()
    assert np.array_equal(moved[:-JOB_COUNT], start[:-JOB_COUNT])


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = train_model(TINY, [], tmp_path / "whole")
    rows: list[dict[str, float]] = []

    class Killed(Exception):
        pass

    def stop(row: dict[str, float]) -> None:
        rows.append(row)
        if len(rows) == 2:
            raise Killed

    with pytest.raises(Killed):
        train_model(TINY, [], tmp_path / "parts", report=stop)
    resumed = train_model(TINY, [], tmp_path / "parts", resume=True)
    assert resumed.digest == whole.digest
    assert load_model(tmp_path / "parts" / "model").digest == whole.digest
    curve = (tmp_path / "parts" / "curve.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in curve] == ["iteration", "0", "1", "2"]
    with pytest.raises(TrainingStopped, match="other settings"):
        train_model(replace(TINY, scenes=4), [], tmp_path / "parts", resume=True)


def test_nan_stops_training_with_the_cause(tmp_path: Path) -> None:
    trainer = Trainer(TINY, [], tmp_path)
    scenes = trainer.scenes(range(6))
    set_scales(trainer.net, trainer.episodes(scenes, 0, 0.5))
    episodes = trainer.episodes(scenes, 0, 0.5)
    episodes[0].tape[0, 0] = np.nan
    with pytest.raises(TrainingStopped, match="not finite"):
        Ppo(trainer).update(episodes, 0.0)


def test_a_workload_without_queueing_has_nothing_to_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def calm(*_: object, **__: object) -> object:
        scene = draw_scene([], 4, jobs=300)
        prepared = scene.prepared
        prepared.workload.jobs["submit"][:] = np.arange(300) * 10_000_000
        prepared.trace.submit_time[:] = np.arange(300) * 10_000_000
        return scene

    monkeypatch.setattr("slurm_rl.train.trainer.draw_scene", calm)
    with pytest.raises(TrainingStopped, match="nothing to learn"):
        Trainer(TINY, [], tmp_path).scenes(range(2))
