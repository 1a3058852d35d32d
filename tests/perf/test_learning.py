"""Speed of the learned policy: scoring a queue, replaying with it, and playing for training."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from perf.measure import Report, Row, best_of
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.policy.checkpoint import find_model, load_model
from slurm_rl.policy.order import call_score_queue
from slurm_rl.policy.registry import learned, parse_policy
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace, make_trace
from slurm_rl.train.rollout import play, reference_of
from slurm_rl.train.scenes import TrainingScene
from slurm_rl_sim.replay import find_cluster, prepare
from slurm_rl_sim.simulation import ReplayState

pytestmark = pytest.mark.perf

SAMPLE = Path(__file__).resolve().parents[2] / "traces" / "hetero.csv.gz"


@kernel
def _score(world: Array, now: float, queue: Array, count: int, times: int) -> None:
    for _ in range(times):
        call_score_queue(world[0], now, queue, count)


def a_queue(jobs: int) -> ReplayState:
    """A cluster with so many jobs waiting, of 40 users and 12 sizes, beside 200 that run."""
    rng = np.random.default_rng(1)
    count = jobs + 200
    trace = make_trace(
        "queue",
        np.arange(count) // 50,
        run_time=rng.integers(1000, 90_000, count),
        time_limit=rng.choice([3600, 7200, 86_400], count) + 90_000,
        num_gpus=np.where(np.arange(count) < 200, 1.0, rng.integers(1, 13, count)),
        user=[f"u{k}" for k in rng.integers(0, 40, count)],
    )
    prepared = prepare(trace, Cluster("200 GPUs", (NodeClass(25, "V100", 8),)))
    simulation = ReplayState(prepared.workload, trace.run_time, learned(load_model(find_model("default"))))
    simulation.run(int(trace.submit_time[-1]))
    return simulation


@pytest.mark.parametrize(("jobs", "target"), [(256, 0.15), (10_000, 5.0)])
def test_scoring(report: Report, jobs: int, target: float) -> None:
    simulation = a_queue(jobs)
    world, pool = simulation.world, simulation.world["pools"][0]
    queue = world["queue"][int(pool["queue_first"]) : int(pool["queue_last"])].copy()[:jobs]
    times = max(20_000 // jobs, 3)
    _score(world.record, float(simulation.now), queue, len(queue), 1)
    cost = best_of(5, lambda: lambda: _score(world.record, float(simulation.now), queue, len(queue), times))
    report.add(
        Row(
            f"network: features and scores of {len(queue):,}",
            "ms",
            cost.cpu / times * 1e3,
            target,
            cost.wall / times * 1e3,
        )
    )


def test_venus_with_the_network(report: Report, traces: Path) -> None:
    path = traces / "helios_venus_sept2020.csv.gz"
    trace = read_trace(path)
    venus = prepare(trace, find_cluster(trace, path, None))
    policy = learned(load_model(find_model("default")))
    cost = best_of(
        2,
        lambda: ReplayState(venus.workload, venus.trace.run_time, policy, backfill="easy", placement="best-fit").run,
    )
    report.add(Row("Venus with the network, EASY", "s", cost.cpu, 30.0, cost.wall))


STEADY = Cluster("96 GPUs", (NodeClass(12, "V100", 8),))


def a_steady_queue() -> Trace:
    """Jobs for `STEADY`, of which about 128 wait at any time."""
    rng = np.random.default_rng(2)
    count = 4000
    return make_trace(
        "steady queue",
        np.concatenate([np.zeros(128, dtype=np.int64), np.sort(rng.integers(0, 200_000, count - 128))]),
        run_time=rng.integers(500, 4500, count),
        time_limit=rng.integers(4500, 9000, count),
        num_gpus=rng.choice([1.0, 1.0, 2.0, 4.0], count),
        user=[f"u{k}" for k in rng.integers(0, 30, count)],
    )


def test_playing_for_training(report: Report) -> None:
    """Turns a second on all cores, with queues of about 128 jobs."""
    scene = TrainingScene("steady", prepare(a_steady_queue(), STEADY), "easy")
    reference = reference_of(scene, parse_policy("fcfs"))
    net = load_model(find_model("default")).net
    with ThreadPoolExecutor(2) as threads:

        def both(seed: int) -> list[tuple[int, float]]:
            def one(k: int) -> tuple[int, float]:
                episode = play(scene, reference, net, temperature=0.5, seed=seed + k, rows=1_000_000)
                return len(episode.turns), float(episode.turns["count"].mean())

            return list(threads.map(one, range(4)))

        both(0)
        began = time.perf_counter()
        played = both(10)
        wall = time.perf_counter() - began
    turns, length = sum(n for n, _ in played), np.mean([q for _, q in played])
    report.add(Row(f"training turns, queue of {length:.0f}", "jobs/s", turns / wall, 20_000))


SHORT = 256  # jobs before a window that leave about 12 in hand, for which the promises are; the default leaves 40


@pytest.mark.parametrize(("warm_up", "target"), [(SHORT, 10_000), (None, None)])
def test_the_single_environment(report: Report, warm_up: int | None, target: float | None) -> None:
    """Steps a second of one environment as users make it, random picks; resets and rewards included."""
    given = {} if warm_up is None else {"warm_up": warm_up}
    env, dice = gymnasium.make("slurm_rl/Replay-v0", trace=SAMPLE, **given), np.random.default_rng(3)
    _, info = env.reset(seed=0)
    hands = []

    def play_some() -> None:
        nonlocal info
        for _ in range(4000):
            held = info["action_mask"].sum()
            hands.append(held)
            _, _, done, _, info = env.step(int(dice.random() * held))
            if done:
                _, info = env.reset()

    play_some()
    cost = best_of(3, lambda: play_some)
    name = f"single env, sample ({np.mean(hands):.0f} jobs), new"
    report.add(Row(name, "jobs/s", 4000 / cost.wall, target, 4000 / cost.cpu))


@pytest.mark.parametrize(
    ("trace", "windows", "target"),
    [
        ("sample", None, 30_000),
        ("sample", 128, 50_000),
        ("default", None, None),
        ("default", 128, None),
        ("steady", 128, None),
    ],
)
def test_the_vector_environment(report: Report, trace: str, windows: int | None, target: float | None) -> None:
    """Steps a second of 64 environments with a window of 128 jobs, random picks; resets and rewards included.

    By the clock, with two threads: new windows are made while others are played.
    """
    given: dict[str, object] = {"trace": SAMPLE} | ({"warm_up": SHORT} if trace == "sample" else {})
    if trace == "steady":  # the queue comes from the trace's beginning
        given = {"trace": a_steady_queue(), "cluster": STEADY, "jobs": 512, "warm_up": 4000}
    count, dice = 64, np.random.default_rng(3)
    env = gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=count, threads=2, windows=windows, window=128, **given)
    _, info = env.reset(seed=0)
    hands = []

    def play_some() -> None:
        nonlocal info
        for _ in range(400):
            held = info["action_mask"].sum(axis=1)
            hands.append(held.mean())
            _, _, _, _, info = env.step((dice.random(count) * held).astype(np.int64))

    play_some()
    cost = best_of(5, lambda: play_some)
    env.close()
    kept = "new" if windows is None else f"{windows} kept"
    name = f"vector env, {trace} ({np.mean(hands):.0f} jobs), {kept}"
    report.add(Row(name, "jobs/s", 400 * count / cost.wall, target, 400 * count / cost.cpu))
