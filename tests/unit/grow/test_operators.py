"""Widening and deepening: what is refused and how, what copies do, what lies around a model."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slurm_rl.grow import CannotGrow, deepen, distill, places, widen


def a_net(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_places_are_one_name_a_width_and_each_layer_but_the_last() -> None:
    assert places(a_net(4, 3, 3, 2)) == [("widen", "0"), ("widen", "2"), ("deepen", "0"), ("deepen", "2")]


def test_widening_by_hand() -> None:
    net = a_net(1, 2, 1)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [2.0]]))
        net[2].weight.copy_(torch.tensor([[4.0, 6.0]]))
    grown = widen(net, "0", to=4, noise=0.0)
    assert grown[0].weight.flatten().tolist() == [1.0, 1.0, 2.0, 2.0]
    assert grown[2].weight.flatten().tolist() == [2.0, 2.0, 3.0, 3.0]
    assert (grown[0].out_features, grown[2].in_features, net[0].out_features) == (4, 4, 2)


def test_deepening_by_hand() -> None:
    grown = deepen(a_net(1, 2, 1), after="0")
    new = grown[0][2]
    assert torch.equal(new.weight, torch.eye(2))
    assert isinstance(grown[0][1], nn.ReLU)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_noise_parts_the_copies_of_a_unit(kind: Any) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 3), torch.randn(64, 2)
    for noise, apart in ((0.0, False), (0.1, True)):
        net = widen(a_net(3, 4, 2), "0", to=8, noise=noise)
        optimizer = kind(net.parameters(), lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
        pairs = net[0].weight.reshape(4, 2, 3)
        assert bool((pairs[:, 0] - pairs[:, 1]).abs().max() > 1e-4) is apart


def test_a_list_grows_into_a_list() -> None:
    layers = list(a_net(4, 3, 2).children())
    grown = widen(layers, "0", to=5)
    assert isinstance(grown, list)
    x = torch.randn(6, 4)
    assert torch.allclose(nn.Sequential(*grown)(x), nn.Sequential(*layers)(x), atol=1e-6)
    assert places(layers) == places(nn.Sequential(*layers))


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 1.0
        return self.second(self.act(self.first(x)))


def test_a_model_that_cannot_be_traced_names_its_layers() -> None:
    model, x = Untraceable(), torch.randn(5, 3)
    with pytest.raises(CannotGrow, match=r"torch.fx cannot trace Untraceable.*layers="):
        places(model)
    order = ["first", "act", "second"]
    assert places(model, order) == [("widen", "first"), ("deepen", "first")]
    for grown in (widen(model, "first", to=7, layers=order), deepen(model, after="first", layers=order)):
        assert torch.allclose(grown(x), model(x), atol=1e-6)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


class Shaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).view(-1, 2, 3))


class SkipsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.inner(x))


NORMED = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("model", "call", "said"),
    [
        (a_net(4, 3, 2), lambda m: widen(m, "2", to=9), "'2' cannot be widened: it is the model's output"),
        (a_net(4, 3, 2), lambda m: widen(m, "1", to=9), "'1' (ReLU) has no parameters to grow"),
        (a_net(4, 3, 2), lambda m: widen(m, "fc", to=9), "unknown layer 'fc' (known: 0, 1, 2)"),
        (a_net(4, 3, 2), lambda m: widen(m, "0", to=3), "'0' is 3 wide and cannot be widened to 3"),
        (a_net(4, 3, 2), lambda m: deepen(m, after="2"), "nothing can be put behind '2': it is the model's output"),
        (a_net(4, 3, 2), lambda m: deepen(m, after="9"), "unknown layer '9'"),
        (NORMED, lambda m: widen(m, "0", to=6), "'1' spans it: it must grow by a whole factor, not to 6 (8)"),
        (Tied(), lambda m: widen(m, "embed", to=8), "embed.weight and head.weight are the same weights"),
        (Shaped(), lambda m: widen(m, "up", to=12), "'up' cannot be widened: view gives it a fixed shape"),
        (SkipsInput(), lambda m: widen(m, "inner", to=8), "combines it with the model's input"),
        (nn.Sequential(nn.ReLU()), places, "the model (Sequential) has no parameters to grow"),
        (
            nn.Sequential(nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 2, 1)),
            lambda m: widen(m, "0", to=8),
            "'0' cannot be widened: '1' is a grouped convolution",
        ),
        (
            nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1), nn.Linear(4, 2)),
            lambda m: widen(m, "0", to=8),
            "it goes through '1' (Softmax), which cannot be followed",
        ),
        (
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)),
            lambda m: widen(m, "0", to=8),
            "is not a layer that can be grown",
        ),
        ("no model", places, "a model must be a torch module or a list of them, got str"),
    ],
)
def test_what_cannot_grow_is_refused_by_name(model: Any, call: Any, said: str) -> None:
    before = copy.deepcopy(model)
    with pytest.raises(CannotGrow) as refused:
        call(model)
    assert said in str(refused.value)
    if isinstance(model, nn.Module):
        for a, b in zip(before.parameters(), model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_frozen_layers_and_eval_mode_stay_so() -> None:
    net = a_net(4, 3, 2).eval()
    net[0].requires_grad_(False)
    for grown in (widen(net, "0", to=6), deepen(net, after="0")):
        assert not any(p.requires_grad for p in grown[0].parameters())
        assert not any(m.training for m in grown.modules())


def test_groups_and_schedulers_of_an_optimizer_stay() -> None:
    net = a_net(4, 3, 3, 2)
    optimizer = torch.optim.AdamW(
        [
            {"params": net[0].parameters(), "lr": 0.1},
            {"params": [*net[2].parameters(), *net[4].parameters()], "lr": 0.2},
        ]
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    net(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    schedule.step()
    net = deepen(net, after="0", optimizer=optimizer)
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"]) == (0.05, 0.1)
    assert len(first["params"]) == 4
    assert {id(p) for p in first["params"]} == {id(p) for p in net[0].parameters()}
    assert sum(len(s) for s in optimizer.state.values()) == 3 * 6, "the new layer starts without state"
    net(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    schedule.step()
    assert first["lr"] == 0.025


def test_state_of_another_shape_begins_anew() -> None:
    net = a_net(4, 3, 2)
    optimizer = torch.optim.Adafactor(net.parameters())
    net(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    net = widen(net, "0", to=6, optimizer=optimizer)
    net(torch.randn(5, 4)).sum().backward()
    optimizer.step()


def test_attention_takes_masks_and_gives_weights_like_the_layer_it_replaced() -> None:
    torch.manual_seed(0)
    plain = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2, batch_first=True)})

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attn, self.head = nn.Embedding(5, 8), plain["attn"], nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.embed(x)
            return self.head(self.attn(y, y, y)[0])

    model = Reads().eval()
    wide = widen(model, "attn", to=24)
    assert wide.attn.num_heads == 6
    y = torch.randn(3, 4, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    padding = torch.tensor([[False, False, False, True]] * 3)
    for options in (
        {},
        {"attn_mask": causal},
        {"key_padding_mask": padding},
        {"attn_mask": causal < 0, "key_padding_mask": padding},
        {"attn_mask": torch.randn(6, 4, 4)},
    ):
        for a, b in zip(wide.attn(y, y, y, **options), model.attn(y, y, y, **options), strict=True):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(wide.attn(y[0], y[0], y[0])[0], model.attn(y[0], y[0], y[0])[0])


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own, when it loads inductor
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_compiled_model_grows_and_is_compiled_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "inductor":
        if shutil.which("g++") is None:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("inductor needs g++")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # in this process: no workers stay behind
    net = torch.compile(a_net(4, 3, 2), backend=backend)
    x = torch.randn(6, 4)
    before = net(x)
    optimizer = torch.optim.Adam(net.parameters())
    for grown in (widen(net, "0", to=6, optimizer=copy.deepcopy(optimizer)), deepen(net, after="0")):
        assert type(grown) is type(net)
        torch.testing.assert_close(grown(x), before)
    assert [n for _, n in places(net)] == ["0", "0"]


def test_what_is_exact_with_dropout() -> None:
    """As docs/grow.md says: all in eval mode; in train mode deeper ones for the same masks, wider ones on average."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    x = torch.randn(4, 6)
    deeper, wider = deepen(net, after="0"), widen(net, "0", to=16)
    for grown in (deeper, wider):
        torch.testing.assert_close(grown.eval()(x), net.eval()(x))
        grown.train()
    net.train()

    def drawn(model: nn.Module, times: int = 1) -> Tensor:
        torch.manual_seed(1)
        with torch.no_grad():
            return torch.stack([model(x) for _ in range(times)])

    torch.testing.assert_close(drawn(deeper), drawn(net))
    many, few = drawn(wider, 4000), drawn(net, 4000)
    assert (many.mean(0) - few.mean(0)).abs().max() < 0.05 * few.std(0).max()
    assert (many.std(0) < few.std(0)).all(), "masks of copies average out"


def test_distilling_into_a_smaller_and_a_larger_network() -> None:
    torch.manual_seed(0)
    teacher = a_net(6, 32, 4)
    data = torch.randn(512, 6)
    for student in (a_net(6, 8, 4), a_net(6, 48, 4)):
        batches = (data[torch.randint(0, 512, (64,))] for _ in range(400))
        ended = distill(teacher, student, batches)
        assert ended.steps == 400
        assert ended.last < ended.first / 3
        agree = (student(data).argmax(-1) == teacher(data).argmax(-1)).float().mean()
        assert agree > 0.8
    assert distill(teacher, a_net(6, 8, 4), iter(lambda: data, None), seconds=0.05).steps >= 1
    with pytest.raises(CannotGrow, match="the student answers"):
        distill(teacher, a_net(6, 8, 3), [data])
    with pytest.raises(CannotGrow, match="no batch"):
        distill(teacher, a_net(6, 8, 4), [])
