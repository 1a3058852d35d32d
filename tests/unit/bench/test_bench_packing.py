"""`bench packing`: FGD counts what the paper counts, the engine and the agent's state agree, and an agent may skip."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slurm_rl.bench import packing, pods
from slurm_rl.bench.packing_agent import CANDIDATES, Net, PodView, Recipe, _update, fill, train
from slurm_rl.bench.suite import Unit
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import InputError

SMALL = {"seeds": 1, "steps": 2048, "traces": None}


def a_filling(*asked: tuple[float, float, float], nodes: int = 1, cpus: int = 16) -> pods.Filling:
    kinds = np.array(asked)
    cluster = Cluster("c", (NodeClass(nodes, "A100", 8, cpus, 1024.0, "gpu"),))
    return pods.Filling("f", cluster, kinds[:, 0], kinds[:, 1], kinds[:, 2])


def test_waste_by_hand() -> None:
    """Half of all pods ask for 2 CPUs and a GPU, half for 8 CPUs and half a GPU; a node with 4 CPUs left."""
    filling = a_filling((2, 1, 1), (8, 1, 0.5))
    nodes = pods.PodNodes(filling.cluster, filling.mix())
    nodes.cpus[0] = 4
    nodes.gpus[0] = [1000, 1000, 300, 0, 0, 0, 0, 0]
    nodes.put(0, np.array([0, 0, 0, 0]))  # nothing: counts anew
    # The first kind fits and cannot use the 0.3; the second does not fit for want of CPUs, and can use none of 2.3.
    assert nodes.waste[0] == pytest.approx(0.5 * 0.3 + 0.5 * 2.3)


def test_candidates_waste_least_first_and_are_unlike_each_other() -> None:
    filling = a_filling((2, 1, 1), (2, 1, 0.5), nodes=4)
    nodes = pods.PodNodes(filling.cluster, filling.mix())
    nodes.gpus[2] = [500, 0, 0, 0, 0, 0, 0, 0]
    nodes.put(2, np.array([0, 0, 0, 0]))
    choice, grown = np.zeros(8, dtype=np.int64), np.zeros(8)
    count = nodes.best(np.array([2, 1024, 0, 500]), choice, grown)
    assert choice[:count].tolist() == [2, 0], "the half GPU that only halves can use; then one of three equal nodes"
    assert grown[0] < 0 < grown[1]


def test_the_engine_places_as_the_state_says() -> None:
    """P0: `fgd` in the engine, on a mix that is given, and the first candidate of the agent's state are one rule."""
    filling = pods.generated(3, 4)
    placed = packing._by_placement(filling, "fgd")
    nodes = pods.PodNodes(filling.cluster, filling.mix())
    choice, grown = np.zeros(1, dtype=np.int64), np.zeros(1)
    mine = np.zeros(len(filling), dtype=bool)
    for i, ask in pods.walk(filling):
        if nodes.best(ask, choice, grown):
            nodes.put(int(choice[0]), ask)
            mine[i] = True
    assert placed.tolist() == mine.tolist()


@pytest.mark.parametrize("by", ["round-robin", "binpack", "dot-product", "fgd (last 64 pods)", packing.SKIP_RULE])
def test_nothing_is_given_out_twice(by: str) -> None:
    filling = pods.generated(1, 4)
    (row,) = packing.run(Unit("u", {"where": "generated", "by": by, "seed": 1}), SMALL)
    assert 0.5 < row["gpu_allocation"] <= 1.0
    assert row["cpu_utilization"] <= 1.0
    assert 0.0 < row["success_rate"] < 1.0
    assert filling.cluster.gpus == 32


def test_an_agent_begins_as_fgd_that_skips_what_strands_gpus() -> None:
    """A node of 16 CPUs and 8 GPUs; a pod of 16 CPUs and one GPU comes before eight of 2 CPUs and one GPU."""
    torch.manual_seed(0)
    placed, nodes = fill(Net(), a_filling((16, 1, 1), *[(2, 1, 1)] * 8))
    assert placed.tolist() == [False] + [True] * 8
    assert nodes.free[2] == 0.0


def test_an_update_makes_what_paid_more_likely() -> None:
    recipe, dice = Recipe(epochs=2, batch=64), np.random.default_rng(0)
    torch.manual_seed(0)
    net = Net()
    node = dice.random((8, 8, CANDIDATES, 8)).astype(np.float32)
    pod, count = dice.random((8, 8, 11)).astype(np.float32), np.full((8, 8), 3)
    action = np.tile(np.array([0, CANDIDATES]), 32).reshape(8, 8)
    gain = np.where(action == CANDIDATES, 1.0, -1.0).astype(np.float32)

    def chances() -> torch.Tensor:
        scores, _ = net(*(torch.from_numpy(v.reshape(64, *v.shape[2:])) for v in (node, pod, count)))
        assert bool((scores[:, 3:CANDIDATES] < -1e8).all()), "candidates that are not there"
        return torch.log_softmax(scores, dim=1).detach()

    before = chances()
    told = before.gather(1, torch.from_numpy(action.reshape(64, 1))).numpy().reshape(8, 8)
    _update(net, torch.optim.Adam(net.parameters(), lr=1e-3), recipe, [node, pod, count, action, told, gain, gain], 0)
    assert float(chances()[:, CANDIDATES].mean()) > float(before[:, CANDIDATES].mean())


@pytest.mark.soak
def test_a_trained_agent_gives_out_more_than_fgd() -> None:
    net, curve = train(lambda seed: pods.generated(seed, 4), Recipe(steps=8192), 0)
    filling = pods.generated(5, 8)
    mine, theirs = (filling.gpus[p].sum() for p in (fill(net, filling)[0], packing._by_placement(filling, "fgd")))
    assert mine > 1.05 * theirs
    assert len(curve) == 2


def test_a_curve_begins_when_a_cluster_is_full() -> None:
    _, curve = train(lambda seed: pods.generated(seed, 64), Recipe(steps=1, together=1, length=8), 0)
    assert not curve


def test_what_has_no_room_is_never_an_action() -> None:
    view = PodView(a_filling((17, 1, 1), (2, 1, 1)))
    node, pod = np.zeros((CANDIDATES, 8), dtype=np.float32), np.zeros(11, dtype=np.float32)
    assert view.look(node, pod) == 0
    assert view.act(CANDIDATES) == 0.0
    assert view.look(node, pod) == 1
    assert view.act(0) == 1.0
    assert view.over


def test_a_folder_without_the_trace_is_told(tmp_path: object) -> None:
    with pytest.raises(InputError, match=r"has no alibaba_openb_v2023\.csv\.gz"):
        packing.plan(SMALL | {"traces": str(tmp_path)})
