"""Losses equal TorchRL's on the same batch; what is remembered is what was played; NaN stops every algorithm."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slurm_rl.policy.regime import REGIME_COUNT
from slurm_rl.policy.registry import parse_policy
from slurm_rl.train.algorithms.catalogue import ALGORITHMS, algorithm_names
from slurm_rl.train.algorithms.d3qn import double_q_loss, dueling
from slurm_rl.train.algorithms.metadqn import dqn_loss, paired_loss
from slurm_rl.train.algorithms.ppo import ppo_loss
from slurm_rl.train.algorithms.reinforce import reinforce_loss
from slurm_rl.train.algorithms.sac import critic_loss, soft_value, temperature_loss
from slurm_rl.train.experience import Experience, MemorySettings
from slurm_rl.train.meta_trainer import MetaTrainer
from slurm_rl.train.module import QueueNet
from slurm_rl.train.recipe import train_model
from slurm_rl.train.settings import SearchSettings, Settings, TrainingStopped
from slurm_rl.train.trainer import Trainer
from slurm_rl_sim.replay import parse_contenders, replay

TINY = Settings(iterations=1, scenes=3, jobs=200, validation=2, lessons=3, search=SearchSettings(generations=0), seed=3)
BATCH, SEEN, ACTIONS, GAMMA = 7, 5, 4, 0.9


@pytest.fixture(scope="module")
def torchrl() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, on import
        return pytest.importorskip("torchrl.objectives")


class Heads(nn.Module):
    """Scores and a value of what is seen, as the network has them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.scores, self.value = nn.Linear(SEEN, ACTIONS), nn.Linear(SEEN, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores(seen), self.value(seen).squeeze(-1)


class Dueling(Heads):
    def forward(self, seen: Tensor) -> Tensor:  # type: ignore[override]
        scores, value = super().forward(seen)
        everybody = torch.ones_like(scores, dtype=torch.bool)
        return dueling(scores, value, everybody, torch.tensor(0.7))


class Plain(Heads):
    def forward(self, seen: Tensor) -> Tensor:  # type: ignore[override]
        scores, value = super().forward(seen)
        return value.unsqueeze(-1) + scores


class Chosen(Heads):
    def forward(self, seen: Tensor) -> Tensor:  # type: ignore[override]
        return self.scores(seen)  # type: ignore[no-any-return]


class Worth(Heads):
    def forward(self, seen: Tensor) -> Tensor:  # type: ignore[override]
        return self.value(seen)  # type: ignore[no-any-return]


def a_batch() -> dict[str, Tensor]:
    torch.manual_seed(11)
    return {
        "seen": torch.randn(BATCH, SEEN),
        "then": torch.randn(BATCH, SEEN),
        "action": torch.randint(ACTIONS, (BATCH,)),
        "reward": torch.randn(BATCH),
        "ended": torch.tensor([False] * (BATCH - 1) + [True]),
    }


def as_tensordict(batch: dict[str, Tensor]) -> object:
    from tensordict import TensorDict

    then = {
        "seen": batch["then"],
        "reward": batch["reward"].unsqueeze(-1),
        "done": batch["ended"].unsqueeze(-1),
        "terminated": batch["ended"].unsqueeze(-1),
    }
    return TensorDict({"seen": batch["seen"], "action": batch["action"], "next": then}, [BATCH])


@pytest.mark.filterwarnings("ignore")
def test_d3qn_is_torchrls_double_dqn(torchrl: object) -> None:
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    actor = QValueActor(Dueling(0), in_keys=["seen"], action_space="categorical")
    theirs = DQNLoss(actor, loss_function="smooth_l1", double_dqn=True, delay_value=True, action_space="categorical")
    theirs.make_value_estimator(gamma=GAMMA)
    target = Dueling(5)  # a target network that lags behind
    with torch.no_grad():
        values = dict(target.named_parameters())
        for name, old in theirs.target_value_network_params.flatten_keys(".").items():
            old.copy_(values[name.removeprefix("module.").removeprefix("0.module.")])
    batch = a_batch()
    expected = theirs(as_tensordict(batch))["loss"]
    net = Dueling(0)
    discount = torch.where(batch["ended"], 0.0, GAMMA)
    loss, error = double_q_loss(
        net(batch["seen"]), net(batch["then"]), target(batch["then"]), batch["action"], batch["reward"], discount,
        torch.ones(BATCH),
    )  # fmt: skip
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert error.shape == (BATCH,)


@pytest.mark.filterwarnings("ignore")
def test_metadqn_is_torchrls_double_dqn(torchrl: object) -> None:
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    actor = QValueActor(Plain(0), in_keys=["seen"], action_space="categorical")
    theirs = DQNLoss(actor, loss_function="smooth_l1", double_dqn=True, delay_value=True, action_space="categorical")
    theirs.make_value_estimator(gamma=GAMMA)
    target = Plain(5)
    with torch.no_grad():
        values = dict(target.named_parameters())
        for name, old in theirs.target_value_network_params.flatten_keys(".").items():
            old.copy_(values[name.removeprefix("module.").removeprefix("0.module.")])
    batch = a_batch()
    expected = theirs(as_tensordict(batch))["loss"]
    net, discount = Plain(0), torch.where(batch["ended"], 0.0, GAMMA)
    ahead, online = target(batch["then"]), net(batch["then"])
    loss = dqn_loss(net(batch["seen"]), batch["action"], batch["reward"], discount, ahead, online)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_paired_trials_teach_differences_alone() -> None:
    worth = torch.tensor([[1.0, 3.0, 2.0]])
    assert paired_loss(worth + 100.0, worth).item() == pytest.approx(0.0, abs=1e-6)
    assert paired_loss(worth.flip(1), worth).item() > 0.1


@pytest.mark.filterwarnings("ignore")
def test_sac_is_torchrls_discrete_sac(torchrl: object) -> None:
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import DiscreteSACLoss

    policy = TensorDictModule(Chosen(0), in_keys=["seen"], out_keys=["logits"])
    actor = ProbabilisticActor(policy, in_keys=["logits"], distribution_class=torch.distributions.Categorical)
    critic = TensorDictModule(Plain(1), in_keys=["seen"], out_keys=["action_value"])
    theirs = DiscreteSACLoss(
        actor, critic, action_space="categorical", num_actions=ACTIONS, alpha_init=0.2, target_entropy=0.8
    )
    theirs.make_value_estimator(gamma=GAMMA)
    batch = a_batch()
    expected = theirs(as_tensordict(batch))
    critics = [Plain(1), Plain(1)]
    for k, one in enumerate(critics):
        one.load_state_dict({
            name.removeprefix("module."): value[k]
            for name, value in theirs.qvalue_network_params.flatten_keys(".").items()
        })  # fmt: skip
    net, alpha = Chosen(0), torch.tensor(0.2)
    before, after = (torch.log_softmax(net(batch[name]), dim=1) for name in ("seen", "then"))
    with torch.no_grad():
        worth = soft_value(after, torch.stack([c(batch["then"]) for c in critics]), alpha)
        target = batch["reward"] + torch.where(batch["ended"], 0.0, GAMMA) * worth
    q = torch.stack([c(batch["seen"]) for c in critics])
    assert critic_loss(q, batch["action"], target).item() == pytest.approx(expected["loss_qvalue"].item(), abs=1e-6)
    actor_loss = -soft_value(before, q.detach(), alpha).mean()
    assert actor_loss.item() == pytest.approx(expected["loss_actor"].item(), abs=1e-6)
    heat = temperature_loss(before, alpha.log(), torch.full((BATCH,), 0.8))
    assert heat.item() == pytest.approx(expected["loss_alpha"].item(), abs=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_policy_gradients_are_torchrls(torchrl: object) -> None:
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import ClipPPOLoss, ReinforceLoss

    def actor(net: nn.Module) -> ProbabilisticActor:
        policy = TensorDictModule(net, in_keys=["seen"], out_keys=["logits"])
        kind = torch.distributions.Categorical
        return ProbabilisticActor(policy, in_keys=["logits"], distribution_class=kind, return_log_prob=True)

    value = TensorDictModule(Worth(2), in_keys=["seen"], out_keys=["state_value"])
    batch, td = a_batch(), as_tensordict(a_batch())
    torch.manual_seed(1)
    advantage, target, old = torch.randn(BATCH), torch.randn(BATCH), torch.randn(BATCH) * 0.1 - 1.4
    td["advantage"], td["value_target"], td["action_log_prob"] = advantage[:, None], target[:, None], old  # type: ignore[index]
    chances = torch.log_softmax(Chosen(0)(batch["seen"]), dim=1)
    picked = chances.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    worth = Worth(2)(batch["seen"]).squeeze(-1)

    plain = ReinforceLoss(actor(Chosen(0)), value, loss_critic_type="l2")(td.clone())  # type: ignore[attr-defined]
    mine = reinforce_loss(picked, advantage, worth, target)
    assert [x.item() for x in mine] == pytest.approx([plain["loss_actor"].item(), plain["loss_value"].item()], abs=1e-6)

    clipped = ClipPPOLoss(
        actor(Chosen(0)), value, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5, loss_critic_type="l2"
    )(td.clone())  # type: ignore[attr-defined]
    entropy = -(chances.exp() * chances).sum(dim=1)
    loss = ppo_loss((picked - old).exp(), advantage, worth, target, entropy, clip=0.2, weights=(0.5, 0.01))
    expected = clipped["loss_objective"] + clipped["loss_critic"] + clipped["loss_entropy"]
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_job_that_cannot_be_picked_has_no_q_value() -> None:
    left = torch.tensor([[True, True, False]])
    q = dueling(torch.tensor([[1.0, 3.0, 50.0]]), torch.tensor([10.0]), left, torch.tensor(2.0))
    assert q.tolist() == [[8.0, 12.0, -np.inf]]  # 10 ± 2 × 1: the mean is of those left


def test_what_is_remembered_is_what_was_played(tmp_path: Path) -> None:
    trainer = Trainer(TINY, [], tmp_path)
    memory = Experience(trainer, MemorySettings(memory=2, turns=10**6, longest=10**6, horizon=3600.0), exponent=0.0)
    episodes = memory.play(0)
    assert sum(len(p.which) for p in memory.memory) == sum(int(e.picks.sum()) for e in episodes)
    drawn, found = memory.draw(np.random.default_rng(0), 300, 0.0)
    picks = [(e, t, k) for e, one in enumerate(episodes) for t in range(len(one.turns)) for k in range(one.picks[t])]
    order = {pair: n for n, pair in enumerate(map(tuple, memory.memory[0].which.tolist()))}
    first = np.cumsum([0, *(len(e.turns) for e in episodes)])
    numbered = {order[int(first[e]) + t, k]: (e, t, k) for e, t, k in picks}
    for row, number in enumerate(drawn.tolist()):
        e, t, k = numbered[number]
        episode = episodes[e]
        turn = episode.turns[t]
        count, last = int(turn["count"]), k + 1 == episode.picks[t]
        gone = set(turn["lead"][:k].tolist())
        assert found.action[row] == turn["lead"][k]
        assert found.before.left[row, :count].tolist() == [i not in gone for i in range(count)]
        tape = episode.tape[turn["first"] : turn["first"] + count]
        assert np.array_equal(found.before.jobs[row, :count].numpy(), tape[:, : found.before.jobs.shape[2]])
        then = episode.turns[episode.after[t]] if last and episode.after[t] >= 0 else turn
        assert int(found.after.mask[row].sum()) == then["count"]
        assert int(found.after.left[row].sum()) == (then["count"] if last else count - k - 1)
        paid = episode.reward[t] / memory.scale if last else 0.0
        assert found.reward[row].item() == pytest.approx(paid, rel=1e-5)
        keep = 1.0 if not last else np.exp(-episode.elapsed[t] / 3600.0) if episode.after[t] >= 0 else 0.0
        assert found.discount[row].item() == pytest.approx(keep, rel=1e-5)


def test_surprises_are_drawn_more_often(tmp_path: Path) -> None:
    memory = Experience(
        Trainer(TINY, [], tmp_path), MemorySettings(memory=1, turns=100, longest=100, horizon=3600.0), exponent=1.0
    )
    memory.play(0)
    everything = np.arange(len(memory.memory[0].which))
    memory.surprise(everything, torch.where(torch.arange(len(everything)) == 5, 1e6, 0.0))
    drawn, batch = memory.draw(np.random.default_rng(0), 50, 1.0)
    assert (drawn == 5).mean() > 0.9
    assert batch.weight[torch.from_numpy(drawn == 5)].max() <= batch.weight.max() == 1.0


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_nan_stops_every_algorithm(tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(TINY, algorithm=algorithm)
    trainer = MetaTrainer(settings, [], tmp_path) if algorithm == "metadqn" else Trainer(settings, [], tmp_path)
    trainer.stage = len(trainer.plan) - 1
    if isinstance(trainer, MetaTrainer):
        whole = trainer.play_choices
        nothing = np.full(REGIME_COUNT, np.nan, dtype=np.float32)
        found = [(r, replace(c, seen=c.seen + nothing), None) for r, c, _ in whole(0, 1.0)]
        monkeypatch.setattr(trainer, "play_choices", lambda number, explore: found)
    played = trainer.play

    def broken(*arguments: object) -> object:
        episodes = played(*arguments)  # type: ignore[arg-type]
        for episode in episodes:
            episode.tape[:, 0] = np.nan
        return episodes

    monkeypatch.setattr(trainer, "play", broken)
    with pytest.raises(TrainingStopped, match="not finite"):
        ALGORITHMS[algorithm].start(trainer).step(0)


@pytest.mark.parametrize("algorithm", ["d3qn", "sac", "reinforce"])
def test_it_learns_and_its_model_replays_compiled(tmp_path: Path, algorithm: str) -> None:
    few = {"updates": 4.0, "batch": 32.0}
    options = {"d3qn": few | {"alone": 0.0}, "sac": few | {"alone": 0.0}, "reinforce": {}}[algorithm]
    settings = replace(TINY, algorithm=algorithm, options=options, lessons=0)
    model = train_model(settings, [], tmp_path)
    learned = torch.load(tmp_path / "training.pt", weights_only=True)["net"]["out"]
    assert (learned != QueueNet(settings.seed).out).any()
    scene = Trainer(TINY, [], tmp_path).scenes(range(3))[0][0]
    (run,) = replay(scene.prepared, parse_contenders([f"rl:{tmp_path / 'model'}"], "easy"))
    assert run.result.ran.all()
    assert parse_policy(f"rl:{tmp_path / 'model'}").digest == model.digest
