"""Layers that growing puts into a network where PyTorch has none that fits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Branch(nn.Module):
    """x + down(act(up(x))); `down` starts at zero, so it starts as the identity, in train and eval mode."""

    def __init__(self, up: nn.Module, act: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.up, self.act, self.down = up, act, down
        for parameter in down.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.act(self.up(x)))
        return out


class Attention(nn.Module):
    """Multi-head attention whose heads may be wider together than the stream they read.

    Parameters are named and laid out as those of `nn.MultiheadAttention`, and it is called in the same way.
    """

    # nn.TransformerEncoderLayer asks for these before it takes its fused path, which knows only its own attention.
    in_proj_bias: nn.Parameter | None
    _qkv_same_embed_dim = False

    def __init__(self, like: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = like.embed_dim, like.num_heads, like.head_dim
        self.dropout, self.batch_first = like.dropout, like.batch_first
        self.in_proj_weight = like.in_proj_weight
        self.in_proj_bias = like.in_proj_bias
        self.out_proj = like.out_proj
        self.train(like.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        single = query.dim() == 2
        if single:
            query, key, value = (t.unsqueeze(0 if self.batch_first else 1) for t in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        inner = self.num_heads * self.head_dim
        weights = torch.split(self.in_proj_weight, inner)
        biases = torch.split(self.in_proj_bias, inner) if self.in_proj_bias is not None else (None, None, None)
        q, k, v = (
            F.linear(t, w, b).reshape(*t.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for t, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        if attn_mask is None and is_causal:
            raise ValueError("is_causal is a hint about attn_mask: give attn_mask as well")
        mask = self._mask(q, attn_mask, key_padding_mask)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        shares = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        dropped = F.dropout(shares, self.dropout, self.training)
        out: Tensor = self.out_proj((dropped @ v).transpose(1, 2).flatten(2))
        seen = (shares.mean(1) if average_attn_weights else shares) if need_weights else None
        if not self.batch_first:
            out = out.transpose(0, 1)
        if single:
            out = out.squeeze(0 if self.batch_first else 1)
            seen = None if seen is None else seen.squeeze(0)
        return out, seen

    def _mask(self, q: Tensor, attn: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """What is added to the scores, for all heads or for those the mask was made for."""
        total: Tensor | None = None
        if padding is not None:
            total = _additive(padding, q)[:, None, None, :]
        if attn is not None:
            mask = _additive(attn, q)
            if mask.dim() == 3:  # one mask a head; heads were copied next to each other
                per = mask.shape[0] // q.shape[0]
                mask = mask.reshape(q.shape[0], per, *mask.shape[1:]).repeat_interleave(self.num_heads // per, dim=1)
            total = mask if total is None else total + mask
        return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
    return mask.to(like.dtype)


def conv_of(dimensions: int) -> type[Any]:
    """The convolution class for a number of spatial dimensions."""
    return {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
