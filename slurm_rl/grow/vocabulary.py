"""Names layers for a policy: one id for each kind and width, fixed within a version."""

from __future__ import annotations

import hashlib
import math

from torch import nn

from slurm_rl.grow.layers import Attention, Branch

VERSION = 1
_KINDS = (
    "linear", "conv1d", "conv2d", "conv3d", "embedding", "attention", "batchnorm", "layernorm", "groupnorm", "branch",
    "recurrent", "other",
)  # fmt: skip
_WIDTHS = 24  # powers of two; wider layers count as the widest
_TYPES: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("branch", (Branch,)),
    ("attention", (nn.MultiheadAttention, Attention)),
    ("linear", (nn.Linear,)),
    ("conv1d", (nn.Conv1d,)),
    ("conv2d", (nn.Conv2d,)),
    ("conv3d", (nn.Conv3d,)),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("batchnorm", (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)),
    ("layernorm", (nn.LayerNorm, nn.RMSNorm)),
    ("groupnorm", (nn.GroupNorm,)),
    ("recurrent", (nn.RNNBase,)),
)
WORDS: tuple[str, ...] = tuple(f"{kind}/{width}" for kind in _KINDS for width in range(_WIDTHS))
IDS: dict[str, int] = {word: i for i, word in enumerate(WORDS)}
SIZE = len(WORDS)
FINGERPRINT = hashlib.sha256(f"{VERSION}:{','.join(WORDS)}".encode()).hexdigest()[:16]
MOST_LAYERS = 64  # of a longer model, the last ones


def word_of(module: nn.Module) -> str:
    """What a layer is called: its kind and the power of two next to its width."""
    kind = next((name for name, types in _TYPES if isinstance(module, types)), "other")
    sizes = (
        "num_heads",
        "out_features",
        "out_channels",
        "embedding_dim",
        "num_features",
        "num_channels",
        "hidden_size",
    )
    size: int = next((int(getattr(module, s)) for s in sizes if isinstance(getattr(module, s, None), int)), 1)
    if kind == "attention":
        size *= int(module.head_dim)  # type: ignore[arg-type]
    if kind == "layernorm":
        size = math.prod(module.normalized_shape)  # type: ignore[arg-type]
    return f"{kind}/{min(round(math.log2(max(size, 1))), _WIDTHS - 1)}"


def encode(model: nn.Module) -> tuple[list[int], list[str]]:
    """The ids and the names of a model's layers in order: those with parameters of their own."""
    ids, names = [], []
    for name, module in model.named_modules():
        own = any(True for _ in module.parameters(recurse=False))
        if own and name:
            ids.append(IDS[word_of(module)])
            names.append(name)
    return ids[-MOST_LAYERS:], names[-MOST_LAYERS:]
