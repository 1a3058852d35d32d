"""The network in torch: the one definition that training changes; policy/network.py is its compiled twin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from slurm_rl.errors import unknown_name
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.features import JOB_FEATURES, POOL_COUNT
from slurm_rl.policy.network import HIDDEN, KINDS, LAYOUT, SIZE_FEATURES, unbounded

# Parts that can be switched off, to see what each is worth: features, and tensors that stay 0.
PARTS: dict[str, tuple[str, ...]] = {
    "estimate": (
        "estimate", "spread", "inverse", "age_ratio", "seen", "latest_size", "latest_like", "user_level",
        "elapsed_size", "elapsed_like",
    ),
    "spread": ("spread", "inverse"),
    "history": (
        "seen", "latest_size", "latest_like", "user_level", "running_size", "elapsed_size", "running_like",
        "elapsed_like", "waiting_size", "waiting_like",
    ),
    "limit": ("limit",),
    "context": ("inform",),
    "attention": ("attend",),
    "hidden": ("out",),
}  # fmt: skip
_SCALES = ("job_shift", "job_scale", "pool_shift", "pool_scale")
BUFFERS = (*_SCALES, "size_low", "size_high")
_SIZES = slice(JOB_FEATURES.index(SIZE_FEATURES[0]), JOB_FEATURES.index(SIZE_FEATURES[-1]) + 1)
_ON_GPU = JOB_FEATURES.index("on_gpu")


class QueueNet(nn.Module):
    """Scores the jobs of padded queues; `value` is a head for training alone."""

    job_shift: Tensor
    job_scale: Tensor
    pool_shift: Tensor
    pool_scale: Tensor
    size_low: Tensor
    size_high: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(seed)

        def weights(name: str) -> nn.Parameter:
            shape = LAYOUT[name]
            bound = 1.0 / math.sqrt(shape[0])
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=dice))

        def zeros(name: str) -> nn.Parameter:
            return nn.Parameter(torch.zeros(LAYOUT[name]))

        for name in _SCALES:
            self.register_buffer(name, torch.ones(LAYOUT[name]) if "scale" in name else torch.zeros(LAYOUT[name]))
        for name, bounds in unbounded().items():
            self.register_buffer(name, torch.from_numpy(bounds))
        self.encode, self.encode_bias = weights("encode"), zeros("encode_bias")
        self.attend = weights("attend")
        self.gather, self.gather_bias = weights("gather"), zeros("gather_bias")
        self.mix, self.inform, self.mix_bias = weights("mix"), weights("inform"), zeros("mix_bias")
        self.out, self.skip = weights("out"), zeros("skip")
        self.value_hidden = nn.Linear(HIDDEN + POOL_COUNT, 32)
        self.value_out = nn.Linear(32, 1)
        with torch.no_grad():
            for layer in (self.value_hidden, self.value_out):
                layer.weight.uniform_(-0.1, 0.1, generator=dice)
                layer.bias.zero_()

    def forward(self, jobs: Tensor, pool: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [batch, queue] of jobs [batch, queue, features] where the mask holds, and values [batch]."""
        x = (jobs - self.job_shift) * self.job_scale
        c = (pool - self.pool_shift) * self.pool_scale
        h = torch.relu(self._bounded(jobs, x) @ self.encode + self.encode_bias)
        interest = (h @ self.attend).masked_fill(~mask, -math.inf)
        pooled = (torch.softmax(interest, dim=1).unsqueeze(-1) * h).sum(dim=1)
        seen = torch.cat([pooled, c], dim=1)
        context = torch.relu(seen @ self.gather + self.gather_bias)
        z = torch.relu(h @ self.mix + (context @ self.inform + self.mix_bias).unsqueeze(1))
        scores = z @ self.out + x @ self.skip
        value = self.value_out(torch.tanh(self.value_hidden(seen))).squeeze(-1)
        return scores, value

    def _bounded(self, jobs: Tensor, x: Tensor) -> Tensor:
        """Standardised features, of sizes no further than those of training."""
        kind = (jobs[..., _ON_GPU] > 0.5).long()
        sizes = torch.clamp(jobs[..., _SIZES], self.size_low[kind], self.size_high[kind])
        sizes = (sizes - self.job_shift[_SIZES]) * self.job_scale[_SIZES]
        return torch.cat([x[..., : _SIZES.start], sizes, x[..., _SIZES.stop :]], dim=-1)

    def normalise(self, jobs: Array, pools: Array) -> None:
        """Sets shifts, scales and bounds from rows of features; a feature that never varies counts for nothing."""
        for rows, shift, scale in ((jobs, self.job_shift, self.job_scale), (pools, self.pool_shift, self.pool_scale)):
            mean, deviation = rows.mean(axis=0), rows.std(axis=0)
            scales = np.where(deviation > 1e-3, 1.0 / np.maximum(deviation, 1e-3), 0.0)
            shift.copy_(torch.from_numpy(mean.astype(np.float32)))
            scale.copy_(torch.from_numpy(scales.astype(np.float32)))
        kinds = (jobs[:, _ON_GPU] > 0.5).astype(int)
        for kind in range(KINDS):
            sizes = jobs[kinds == kind, _SIZES].astype(np.float32)
            if len(sizes):
                self.size_low[kind] = torch.from_numpy(sizes.min(axis=0))
                self.size_high[kind] = torch.from_numpy(sizes.max(axis=0))

    def switch_off(self, parts: Sequence[str]) -> None:
        """Blinds the network to some features, or keeps a tensor at 0: all that PARTS lists of these names."""
        for part in parts:
            if part not in PARTS:
                raise unknown_name("part of the network", part, PARTS)
            for name in PARTS[part]:
                with torch.no_grad():
                    if name in JOB_FEATURES:
                        self.job_scale[JOB_FEATURES.index(name)] = 0.0
                    else:
                        tensor = self.get_parameter(name)
                        tensor.zero_()
                        tensor.requires_grad_(False)

    def tensors(self) -> dict[str, Array]:
        """The weights that the compiled twin reads."""
        state = self.state_dict()
        return {name: state[name].numpy().copy() for name in LAYOUT}

    def take(self, tensors: Mapping[str, Array]) -> None:
        """Sets the weights that the compiled twin reads."""
        self.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in tensors.items()}, strict=False)
