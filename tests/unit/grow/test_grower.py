"""The Grower in a training loop: growing, time, checkpoints, wrong use."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from grow_parts import Clock, Planned
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from slurm_rl.grow import Budget, Grower
from slurm_rl.grow.learned import GrowthNet, load_policy, save_policy

X, Y = torch.randn(64, 5, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 3


def parts(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    for batch in (slice(0, 32), slice(32, 64)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X[batch]), Y[batch])
        loss.backward()
        optimizer.step()
    return loss.item()


def trained(grower: Grower, epochs: int) -> None:
    for _ in range(epochs):
        grower.step(epoch(grower.model, grower.optimizer), {"accuracy": 0.5, "other": 3.0})


def test_the_three_lines_grow_and_the_loss_goes_on_from_where_it_was() -> None:
    model, optimizer = parts()
    grower = Grower(model, optimizer, policy=Planned(at3=0, at5=2))
    losses = []
    for _ in range(8):
        losses.append(epoch(grower.model, optimizer))
        before = grower.model
        grower.step(losses[-1], {"accuracy": 0.5})
        with torch.no_grad():
            assert torch.allclose(before.eval()(X), grower.model.eval()(X), atol=1e-5)
    assert grower.problem == ""
    assert grower.record.grown == [3, 5]
    assert grower.model[0].out_features == 8
    assert losses[-1] < losses[0]
    assert {p for g in optimizer.param_groups for p in g["params"]} == set(grower.model.parameters())


def test_a_policy_sees_the_curve_the_time_and_the_steps() -> None:
    model, optimizer = parts()
    policy = Planned(at2=0)
    grower = Grower(model, optimizer, policy=policy, budget=Budget(1e6))
    trained(grower, 3)
    first, *_, last = policy.states
    assert (len(first.metrics), first.metrics, first.grown) == (1, (0.5,), ())
    assert (len(last.metrics), last.grown) == (3, (2,))
    assert last.layers != first.layers
    assert 0 < first.epoch_seconds < first.elapsed + 1
    assert first.left > 9e5


def test_nothing_is_planned_beyond_the_budget() -> None:
    clock = Clock()
    budget = Budget(100, clock=clock)
    model, optimizer = parts()
    grower = Grower(model, optimizer, budget=budget, policy=Planned(at1=0))
    grower._mark -= 40  # an epoch of 40 seconds
    clock.now = 40
    assert grower.step(1.0) is True, "60 are left: one more fits, but three of a grown network do not"
    assert grower.record.grown == []
    grower._mark -= 40
    clock.now = 80
    assert grower.step(1.0) is False
    assert not grower.more


def test_no_policy_grows_a_network_without_end() -> None:
    model, optimizer = parts()
    first = sum(p.numel() for p in model.parameters())
    grower = Grower(model, optimizer, policy="always-widen", most=5.0)
    trained(grower, 12)
    assert first < sum(p.numel() for p in grower.model.parameters()) <= 5 * first
    assert grower.problem == ""


def test_epochs_that_were_wanted_end_the_training() -> None:
    model, optimizer = parts()
    grower = Grower(model, optimizer, epochs=2)
    assert grower.step(1.0) is True
    assert grower.step(1.0) is False
    assert grower.done


def test_a_training_resumes_grown_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    file = tmp_path / "run" / "checkpoint.pt"
    model, optimizer = parts()
    whole = Grower(model, optimizer, policy=Planned(at2=1, at3=2))
    trained(whole, 6)

    model, optimizer = parts()
    first = Grower(model, optimizer, policy=Planned(at2=1, at3=2), checkpoint=file)
    trained(first, 4)
    first.save()
    model, optimizer = parts(seed=5)
    second = Grower(model, optimizer, checkpoint=file)
    assert second.record.epoch == 4
    assert [s["action"] for s in second.record.steps] == ["widen", "deepen"]
    trained(second, 2)
    for (name, a), b in zip(whole.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    assert second.record.metrics == whole.record.metrics


def test_a_warning_within_an_epoch_saves_after_the_next_optimizer_step(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    model, optimizer = parts()
    budget = Budget(1000)
    grower = Grower(model, optimizer, budget=budget, checkpoint=file)
    assert not file.exists()
    budget.warn(signal.SIGUSR1)
    epoch(grower.model, optimizer)
    assert file.exists()
    assert grower.step(1.0) is False


def test_a_loss_may_be_the_tensor_that_was_differentiated() -> None:
    model, optimizer = parts()
    grower = Grower(model, optimizer)
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    grower.step(loss, {"margin": loss * -2})
    assert grower.record.losses == [loss.item()]
    assert grower.record.metrics == [-2 * loss.item()]


@pytest.mark.parametrize(("number", "back"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_warned_job_is_put_back_and_a_cancelled_one_is_not(
    number: int, back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    model, optimizer = parts()
    budget = Budget(1000)
    grower = Grower(model, optimizer, budget=budget, checkpoint=tmp_path / "c.pt", epochs=9, requeue=True)
    budget.warn(number)
    epoch(grower.model, optimizer)
    assert grower.step(1.0) is False
    assert (tmp_path / "c.pt").exists()
    assert (tmp_path / "asked").exists() is back
    if back:
        assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_old_checkpoints_stay_when_a_save_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "checkpoint.pt"
    model, optimizer = parts()
    grower = Grower(model, optimizer, checkpoint=file)
    grower.save()
    before = file.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    grower.save()
    assert "cannot write" in grower.problem
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["checkpoint.pt"]


def other_vocabulary(path: Path) -> Path:
    tensors = {k: v.contiguous() for k, v in GrowthNet().state_dict().items()}
    save_file(tensors, path, {"vocabulary": "0123456789abcdef", "vocabulary_version": "9"})
    return path


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) if x.sum() > -1e9 else x)


class Sly(nn.Module):
    """Looks at its own width: widening changes what it computes, and no trace shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * self.first.out_features


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (nn.Sequential(nn.ReLU()), {}, "the model (Sequential) has no parameters to grow"),
        (None, {"budget": Budget(0)}, "the budget is already spent"),
        (None, {"policy": "sometimes"}, "unknown growth policy 'sometimes'"),
        (None, {"policy": "vocabulary"}, "made for another vocabulary of layers (version 9"),
        (None, {"checkpoint": "garbage"}, "is not a checkpoint of a growing training"),
        (None, {"checkpoint": "foreign"}, "was written by a training of another network"),
        (None, {"requeue": True}, "requeue needs a checkpoint and the number of epochs"),
        (None, {"policy": Planned(at1=99)}, "the policy failed: IndexError"),
        (Untraceable(), {"policy": Planned(at1=0)}, "torch.fx cannot trace Untraceable"),
        (Sly(), {"policy": Planned(at1=0)}, "would change the function"),
    ],
)
def test_wrong_use_is_one_clear_line_and_the_training_goes_on_ungrown(
    model: nn.Module | None, options: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if options.get("policy") == "vocabulary":
        options = {"policy": str(other_vocabulary(tmp_path / "p.safetensors"))}
    kept = None
    if options.get("checkpoint") == "garbage":
        kept = tmp_path / "c.pt"
        kept.write_bytes(b"not a checkpoint")
    if options.get("checkpoint") == "foreign":
        kept = tmp_path / "c.pt"
        Grower(nn.Linear(5, 3), None, checkpoint=kept).save()
    if kept is not None:
        options = {"checkpoint": kept}
        content = kept.read_bytes()
    model = model if model is not None else parts()[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01) if any(True for _ in model.parameters()) else None
    with caplog.at_level(logging.ERROR, "slurm_rl.grow"):
        grower = Grower(model, optimizer, **options)
        for _ in range(3):
            if optimizer is not None:
                epoch(grower.model, optimizer)
            grower.step(1.0, {"accuracy": 0.5})
    assert said in grower.problem
    assert len(caplog.records) == 1
    assert grower.model is model
    if kept is not None:
        assert kept.read_bytes() == content, "a file that is not ours stays"


def test_a_learned_policy_is_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    torch.manual_seed(3)
    net = GrowthNet()
    nn.init.normal_(net.score[2].weight)
    save_policy(file, net, {"tasks": ["digits"]})
    policy = load_policy(file)
    model, optimizer = parts()
    grower = Grower(model, optimizer, policy=str(file), budget=Budget(1e5))
    trained(grower, 2)
    assert grower.problem == ""
    for a, b in zip(policy.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        net.score[2].weight.fill_(float("nan"))
    save_policy(file, net, {})
    assert "not all finite" in Grower(*parts(), policy=str(file)).problem
