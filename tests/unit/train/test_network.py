"""The network: its compiled twin equals torch, its scores follow the jobs, and it never sees a true run time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.build import build
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.tables import World
from slurm_rl.policy.catalogue import BY_USER, LEARNED
from slurm_rl.policy.checkpoint import find_model, flatten, load_model, unflatten
from slurm_rl.policy.contract import contract
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT
from slurm_rl.policy.network import HIDDEN, score_network
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.traces.read import read_trace
from slurm_rl.train.module import QueueNet
from slurm_rl_sim.replay import find_cluster, parse_contenders, prepare, replay
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of
from tests.unit.test_decide import CLUSTER, a_workload

ROOT = Path(__file__).resolve().parents[3]


@kernel
def _score(world: Array, count: int) -> None:
    score_network(world[0], count)


def twin_scores(net: Array, jobs: Array, pool: Array) -> Array:
    count = len(jobs)
    world = World(
        net=net,
        features=np.ascontiguousarray(jobs, dtype=np.float32),
        context=np.ascontiguousarray(pool, dtype=np.float32),
        hidden=np.zeros((count, HIDDEN), dtype=np.float32),
        scores=np.zeros(count),
    )
    _score(world.record, count)
    scores: Array = world["scores"].copy()
    return scores


def a_network(seed: int) -> QueueNet:
    net = QueueNet(seed)
    rng = np.random.default_rng(seed)
    net.normalise(rng.normal(3, 2, (50, JOB_COUNT)), rng.normal(1, 1, (50, POOL_COUNT)))
    return net


@pytest.mark.parametrize("count", [1, 2, 7, 64, 500])
def test_the_compiled_twin_equals_torch(count: int) -> None:
    rng = np.random.default_rng(count)
    net = a_network(count)
    jobs, pool = rng.normal(3, 2, (count, JOB_COUNT)), rng.normal(1, 1, POOL_COUNT)
    with torch.no_grad():
        scores, _ = net(
            torch.tensor(jobs[None], dtype=torch.float32),
            torch.tensor(pool[None], dtype=torch.float32),
            torch.ones((1, count), dtype=torch.bool),
        )
    assert twin_scores(flatten(net.tensors()), jobs, pool) == pytest.approx(scores[0].numpy(), abs=1e-5)


def test_beyond_the_sizes_of_training_only_the_linear_path_sees_the_size() -> None:
    rng = np.random.default_rng(4)
    net = a_network(4)
    size, units, on_gpu = (JOB_FEATURES.index(name) for name in ("size", "units", "on_gpu"))
    seen = rng.uniform(0, 1, (50, JOB_COUNT))
    seen[:, on_gpu] = np.arange(50) % 2
    seen[:, units] = np.where(seen[:, on_gpu] > 0, seen[:, units], 0.0)  # without GPUs, jobs were of one unit
    net.normalise(seen, rng.normal(size=(50, POOL_COUNT)))
    with torch.no_grad():
        net.skip.copy_(torch.from_numpy(rng.normal(size=JOB_COUNT)))
    jobs, pool = rng.uniform(0.2, 0.8, (4, JOB_COUNT)), np.zeros(POOL_COUNT)
    jobs[:, on_gpu] = 0.0
    jobs[:, [size, units]] = 50.0, 6.0
    at_the_bound = jobs.copy()
    at_the_bound[:, size] = seen[seen[:, on_gpu] == 0, size].max()
    at_the_bound[:, units] = 0.0
    flat = flatten(net.tensors())
    beyond = ((jobs - at_the_bound) * net.job_scale.numpy()) @ net.skip.detach().numpy()
    assert twin_scores(flat, jobs, pool) == pytest.approx(twin_scores(flat, at_the_bound, pool) + beyond, rel=1e-4)
    with torch.no_grad():
        scores, _ = net(*(torch.tensor(x[None], dtype=torch.float32) for x in (jobs, pool)), torch.ones(1, 4) > 0)
    assert twin_scores(flat, jobs, pool) == pytest.approx(scores[0].numpy(), rel=1e-4)


def test_permuting_the_jobs_permutes_the_scores() -> None:
    rng = np.random.default_rng(1)
    net, jobs, pool = flatten(a_network(1).tensors()), rng.normal(3, 2, (40, JOB_COUNT)), rng.normal(size=POOL_COUNT)
    order = rng.permutation(40)
    assert twin_scores(net, jobs[order], pool) == pytest.approx(twin_scores(net, jobs, pool)[order], abs=1e-5)


def test_what_the_mask_hides_changes_no_score() -> None:
    rng = np.random.default_rng(2)
    net = a_network(2)
    jobs, pool = torch.tensor(rng.normal(size=(1, 9, JOB_COUNT)), dtype=torch.float32), torch.zeros((1, POOL_COUNT))
    mask = torch.arange(9)[None] < 5
    other = jobs.clone()
    other[:, 5:] = 1e3
    with torch.no_grad():
        assert torch.equal(net(jobs, pool, mask)[0][:, :5], net(other, pool, mask)[0][:, :5])
        assert torch.allclose(net(jobs, pool, mask)[0][:, :5], net(jobs[:, :5], pool, mask[:, :5])[0], atol=1e-5)


def test_weights_survive_flattening() -> None:
    net = flatten(a_network(3).tensors())
    assert np.array_equal(flatten(unflatten(net)), net)


def observed(run_time: Array, until: int) -> tuple[Array, ReplayState]:
    """All features that a network has seen up to a moment of a replay."""
    trace = a_workload(3, jobs=120)
    net = np.zeros(len(flatten(a_network(0).tensors())), dtype=np.float32)
    policy = PolicySpec("learned", LEARNED, BY_USER, net=net)
    simulation = ReplayState(build(requests_of(trace), CLUSTER), run_time, policy, backfill="easy")
    simulation.tape(20_000, 2000)
    simulation.run(until)
    return simulation.world["tape"][: int(simulation.world["taped"])], simulation


def test_true_run_times_of_unfinished_jobs_change_no_feature() -> None:
    trace = a_workload(3, jobs=120)
    until = 400
    seen, simulation = observed(trace.run_time, until)
    live = simulation.world["live"]
    unfinished = (live["end"] > until) | (live["start"] < 0)
    assert unfinished.sum() > 20, "the replay must be in full swing"
    # The same until then, and any other length of what is not over: longer for what runs, anything for what waits.
    other = np.where(unfinished, trace.run_time + 777 + np.arange(120), trace.run_time)
    again, _ = observed(other, until)
    assert len(seen) > 300
    assert np.array_equal(seen, again)
    # The test can fail: another past does change what is seen.
    past = np.where(~unfinished & (trace.run_time > 5), trace.run_time // 2, trace.run_time)
    assert not np.array_equal(seen, observed(past, until)[0])


def test_features_are_finite_and_vary() -> None:
    seen, _ = observed(a_workload(3, jobs=120).run_time, 10_000)
    jobs = seen[:, :JOB_COUNT]
    assert np.isfinite(seen).all()
    constant = {name for k, name in enumerate(JOB_FEATURES) if np.ptp(jobs[:, k]) == 0}
    # Nobody is preempted, no partition or QOS has a factor, and no two jobs of a user have the same limit.
    assert constant <= {"done", "standing", "latest_like", "running_like", "elapsed_like", "waiting_like"}


def test_the_shipped_model_is_of_this_release_and_beats_slurms_order_on_the_sample() -> None:
    model = load_model(find_model("default"))  # refuses other features than these
    assert model.manifest["features"] == contract()
    path = ROOT / "traces" / "hetero.csv.gz"
    trace = read_trace(path)
    prepared = prepare(trace, find_cluster(trace, path, None))
    ours, slurms, fcfs = replay(prepared, parse_contenders("rl:default,multifactor,fcfs", "easy"))
    for metric, most in (("mean_bsld", 0.6), ("mean_wait", 0.9)):
        assert ours.metrics[metric] < most * min(slurms.metrics[metric], fcfs.metrics[metric])
