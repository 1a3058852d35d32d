"""Random networks of every kind that grows: for tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh)
CALLS = (F.relu, F.gelu, F.silu, torch.relu, torch.tanh)


def norm1d(r: random.Random, size: int) -> nn.Module:
    kind = r.choice(("none", "batch", "layer", "rms", "plain"))
    made: dict[str, Callable[[], nn.Module]] = {
        "none": nn.Identity,
        "batch": lambda: nn.BatchNorm1d(size),
        "layer": lambda: nn.LayerNorm(size),
        "rms": lambda: nn.RMSNorm(size, eps=1e-5),
        "plain": lambda: nn.BatchNorm1d(size, affine=False, track_running_stats=r.random() < 0.5),
    }
    return made[kind]()


class ResidualMlp(nn.Module):
    """Blocks x + f(norm(x)) with functional activations."""

    def __init__(self, r: random.Random, size: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm1d(r, size), nn.Linear(size, r.randint(2, 6)), nn.Identity()
        self.down = nn.Linear(self.up.out_features, size, bias=r.random() < 0.5)
        self.call = r.choice(CALLS)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.call(self.up(self.norm(x))))


class ResidualConv(nn.Module):
    """A ResNet block, of one or two dimensions."""

    def __init__(self, r: random.Random, size: int, dims: int) -> None:
        super().__init__()
        conv: Any = (nn.Conv1d, nn.Conv2d)[dims - 1]
        norm: Any = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1]
        inner = r.randint(2, 5)
        self.conv1, self.norm1 = conv(size, inner, 3, padding=1, bias=False), norm(inner)
        self.conv2, self.norm2 = conv(inner, size, 3, padding=1, bias=False), norm(size)
        self.ends = r.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(x) if self.ends else x


class Block(nn.Module):
    """A pre-norm transformer block, with a plain or a gated MLP."""

    def __init__(self, r: random.Random, size: int, heads: int) -> None:
        super().__init__()
        self.norm1 = r.choice((nn.LayerNorm, nn.RMSNorm))(size)
        self.attn = nn.MultiheadAttention(size, heads, batch_first=True, bias=r.random() < 0.7)
        self.norm2 = r.choice((nn.LayerNorm, nn.RMSNorm))(size)
        inner = r.randint(3, 9)
        self.up, self.down = nn.Linear(size, inner), nn.Linear(inner, size)
        self.gate = nn.Linear(size, inner) if r.random() < 0.4 else None
        self.scale = nn.Parameter(torch.rand(size)) if r.random() < 0.4 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        y = self.norm2(x)
        y = F.silu(self.gate(y)) * self.up(y) if self.gate is not None else F.gelu(self.up(y))
        y = self.down(y)
        return x + (y if self.scale is None else y * self.scale)


class Transformer(nn.Module):
    """Embeddings, positions, perhaps a class token, blocks of ours or of PyTorch, a head."""

    def __init__(self, r: random.Random, words: int, length: int, classes: int) -> None:
        super().__init__()
        heads = r.randint(1, 3)
        size = heads * r.randint(2, 4)
        self.embed = nn.Embedding(words, size)
        self.token = nn.Parameter(torch.randn(1, 1, size)) if r.random() < 0.5 else None
        extra = self.token is not None
        self.positions = nn.Parameter(torch.randn(1, length + extra, size) * 0.1)
        blocks: list[nn.Module] = [Block(r, size, heads) for _ in range(r.randint(1, 2))]
        self.blocks = nn.ModuleList(blocks)
        self.encoder = None
        if r.random() < 0.5:
            layer = nn.TransformerEncoderLayer(
                size, heads, r.randint(3, 8), 0.0, r.choice(("relu", "gelu")), batch_first=True,
                norm_first=r.random() < 0.6,
            )  # fmt: skip
            self.encoder = nn.TransformerEncoder(layer, r.randint(1, 2), enable_nested_tensor=False)
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, classes)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        if self.token is not None:
            x = torch.cat((self.token.expand(words.shape[0], -1, -1), x), dim=1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        if self.encoder is not None:
            x = self.encoder(x)
        x = self.norm(x)
        return self.head(x[:, 0] if self.token is not None else x.mean(dim=1))


def mlp(r: random.Random, inputs: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    size = inputs
    for _ in range(r.randint(1, 3)):
        wide = r.randint(2, 8)
        layers += [nn.Linear(size, wide, bias=r.random() < 0.8), norm1d(r, wide), r.choice(ACTS)(), nn.Dropout(0.0)]
        size = wide
    layers += [ResidualMlp(r, size) for _ in range(r.randint(0, 2))]
    return nn.Sequential(*layers, nn.Linear(size, classes))


def cnn(r: random.Random, dims: int, length: int, classes: int) -> nn.Module:
    conv: Any = (nn.Conv1d, nn.Conv2d)[dims - 1]
    norm: Any = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1]
    pool: Any = (nn.MaxPool1d, nn.MaxPool2d)[dims - 1]
    mean: Any = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[dims - 1]
    layers: list[nn.Module] = []
    size, side = 2, length
    for _ in range(r.randint(1, 3)):
        wide, kernel = r.randint(2, 6), r.choice((1, 3))
        layers += [conv(size, wide, kernel, padding=kernel // 2, bias=r.random() < 0.5)]
        layers += [norm(wide)] if r.random() < 0.6 else [nn.GroupNorm(1, wide)] if r.random() < 0.3 else []
        layers += [r.choice(ACTS)()]
        if r.random() < 0.3:
            layers += [conv(wide, wide, 3, padding=1, groups=wide), nn.ReLU()]
        if side > 3 and r.random() < 0.5:
            layers, side = [*layers, pool(2)], side // 2
        size = wide
    layers += [ResidualConv(r, size, dims) for _ in range(r.randint(0, 2))]
    if r.random() < 0.5:
        return nn.Sequential(*layers, mean(1), nn.Flatten(), nn.Linear(size, classes))
    hidden = r.randint(3, 6)
    flat = size * side**dims
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(flat, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def random_model(seed: int, batch: int = 12) -> tuple[nn.Module, Tensor]:
    """A network with sane statistics, and a batch for it."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    kind = r.choice(("mlp", "cnn1", "cnn2", "transformer"))
    if kind == "mlp":
        inputs = r.randint(2, 6)
        model, x = mlp(r, inputs, r.randint(2, 4)), torch.randn(batch, inputs)
    elif kind == "transformer":
        model, x = Transformer(r, 9, 5, r.randint(2, 4)), torch.randint(0, 9, (batch, 5))
    else:
        dims = int(kind[-1])
        model, x = cnn(r, dims, 6, r.randint(2, 4)), torch.randn(batch, 2, *[6] * dims)
    for module in model.modules():  # norms as they are after some training, not as they begin
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if "Norm" in type(module).__name__ and tensor.is_floating_point():
                with torch.no_grad():
                    tensor.add_(torch.rand(tensor.shape) * (0.5 if name != "bias" else 0.2))
    return model, x
