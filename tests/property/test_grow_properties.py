"""Growing keeps the function: over random networks, in train and eval mode, with the optimiser's state."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from grow_models import random_model
from torch import nn
from torch.nn import functional as F

from slurm_rl.grow import deepen, places, widen
from slurm_rl.grow.analysis import analyse
from slurm_rl.grow.widen import wider

CHUNKS, EACH = 10, 100


def output(model: nn.Module, x: torch.Tensor, train: bool) -> torch.Tensor:
    """Of a copy: batch norms would remember the batch."""
    model = copy.deepcopy(model).train(train)
    with torch.no_grad():
        return model(x)


def grown_once(model: nn.Module, r: random.Random, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
    action, name = r.choice(places(model))
    if action == "deepen":
        return deepen(model, after=name, seed=r.randint(0, 99), optimizer=optimizer)
    to = wider(analyse(model), name, r.choice((1.3, 2.0, 3.0)))
    return widen(model, name, to=to, noise=r.choice((0.0, 0.1, 1.0)), seed=r.randint(0, 99), optimizer=optimizer)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_one_to_three_steps_keep_the_function_in_both_modes(chunk: int) -> None:
    for seed in range(chunk * EACH, (chunk + 1) * EACH):
        model, x = random_model(seed)
        before = copy.deepcopy(model)
        r = random.Random(seed)
        grown = model
        for _ in range(r.randint(1, 3)):
            grown = grown_once(grown, r)
        assert sum(p.numel() for p in grown.parameters()) > sum(p.numel() for p in model.parameters())
        for train in (True, False):
            old, new = output(model, x, train), output(grown, x, train)
            torch.testing.assert_close(new, old, rtol=1e-5, atol=1e-5, msg=lambda m, s=seed: f"seed {s}: {m}")
        for (name, a), b in zip(before.state_dict().items(), model.state_dict().values(), strict=True):
            assert torch.equal(a, b), f"seed {seed}: the old model's {name} has changed"


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_the_state_is_what_the_grown_network_would_have_gathered(kind: str) -> None:
    """Gather momentum, then grow; or grow, then gather it on the same batches: the same, if weights stand still."""
    for seed in range(150):
        model, x = random_model(seed)
        model, x = model.double(), x.double() if x.is_floating_point() else x
        r = random.Random(seed)
        targets = torch.randint(0, 2, (len(x),))
        twin = copy.deepcopy(model)
        late, early = an_optimizer(kind, model), an_optimizer(kind, twin)
        spaces = analyse(model).widenable()
        if not spaces:
            continue
        name = r.choice(spaces)
        to = wider(analyse(model), name, 2.0)
        gather(model, x, targets, late)
        grown = widen(model, name, to=to, noise=0.0, optimizer=late)
        other = widen(twin, name, to=to, noise=0.0, optimizer=early)
        gather(other, x, targets, early)
        for (key, p), q in zip(grown.named_parameters(), other.parameters(), strict=True):
            for field, value in late.state[p].items():
                if isinstance(value, torch.Tensor) and value.dim():
                    torch.testing.assert_close(
                        value,
                        early.state[q][field],
                        rtol=1e-6,
                        atol=1e-10,
                        msg=lambda m, w=(seed, key, field): f"{w}: {m}",
                    )


def an_optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.0, amsgrad=True)


def gather(model: nn.Module, x: torch.Tensor, targets: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    for part in (slice(0, 6), slice(6, 12)):
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), targets[part]).backward()
        optimizer.step()


def test_grown_networks_go_on_training() -> None:
    for seed in range(100):
        model, x = random_model(seed, batch=32)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        r = random.Random(seed)
        targets = torch.randint(0, 2, (len(x),))
        losses = []
        for step in range(40):
            if step == 10:
                model = grown_once(model, r, optimizer)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        held = {p for group in optimizer.param_groups for p in group["params"]}
        assert held == set(model.parameters()), f"seed {seed}"
        assert losses[-1] < losses[10] < losses[0], f"seed {seed}: {losses[0]} {losses[10]} {losses[-1]}"
