"""A learned policy: a network that scores nothing and each step of the menu, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from slurm_rl.errors import ModelError
from slurm_rl.grow import vocabulary
from slurm_rl.grow.features import CHOICE, GLOBALS, globals_of, rows_of
from slurm_rl.grow.policies import affordable
from slurm_rl.grow.scores import Scorer
from slurm_rl.grow.state import GrowthStep, State

_WORD, _ARCH, _HIDDEN = 8, 16, 32


class GrowthNet(nn.Module):
    """Reads the layers in order with a recurrent cell; scores every choice beside nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary.SIZE + 1, _WORD)  # 0: no layer
        self.layers = nn.GRU(_WORD, _ARCH, batch_first=True)
        last = nn.Linear(_HIDDEN, 1)
        self.score = nn.Sequential(nn.Linear(_ARCH + GLOBALS + CHOICE + _WORD, _HIDDEN), nn.Tanh(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, layers: Tensor, lengths: Tensor, context: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """Scores [batch, choices] from layers [batch, most], their count, context, rows and words of choices."""
        out, _ = self.layers(self.words(layers))
        index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, _ARCH)
        arch = out.gather(1, index).squeeze(1)
        wide = torch.cat([arch, context], 1)[:, None].expand(-1, rows.shape[1], -1)
        return self.score(torch.cat([wide, rows, self.words(words)], 2)).squeeze(2)  # type: ignore[no-any-return]


def tensors_of(states: list[State]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What the network takes, for several states, and which choices there are (affordable ones, and nothing)."""
    longest = max([1, *(len(s.layers) for s in states)])
    most = max(len(s.choices) for s in states) + 1
    layers = torch.zeros(len(states), longest, dtype=torch.long)
    rows, words = torch.zeros(len(states), most, CHOICE), torch.zeros(len(states), most, dtype=torch.long)
    open_ = torch.zeros(len(states), most, dtype=torch.bool)
    for i, state in enumerate(states):
        layers[i, : len(state.layers)] = torch.tensor(state.layers, dtype=torch.long) + 1
        made, named = rows_of(state)
        rows[i, : len(made)], words[i, : len(made)] = torch.tensor(made), torch.tensor(named)
        fitting = affordable(state)
        open_[i, 0] = True
        for k, choice in enumerate(state.choices):
            open_[i, k + 1] = choice in fitting
    lengths = torch.tensor([len(s.layers) for s in states])
    context = torch.tensor([globals_of(s) for s in states])
    return layers, lengths, context, rows, words, open_


class LearnedGrowth:
    """The choice with the highest score; the weights are those the network has now."""

    def __init__(self, net: GrowthNet, name: str = "learned") -> None:
        self.net, self.name = net.eval(), name
        self.scores = Scorer({key: value.detach().cpu().numpy() for key, value in net.state_dict().items()})

    def choose(self, state: State) -> GrowthStep | None:
        fitting = affordable(state)
        if not fitting:
            return None
        scores = self.scores(state)
        best, chosen = scores[0], None
        for choice, score in zip(state.choices, scores[1:].tolist(), strict=True):
            if score > best and choice in fitting:
                best, chosen = score, choice
        return chosen


def save_policy(file: Path, net: GrowthNet, manifest: Mapping[str, Any]) -> None:
    """Writes a policy with the vocabulary that it knows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "vocabulary": vocabulary.FINGERPRINT,
        "vocabulary_version": str(vocabulary.VERSION),
        "manifest": json.dumps(dict(manifest)),
    }
    temporary = file.with_name(file.name + ".tmp")
    save_file({k: v.contiguous() for k, v in net.state_dict().items()}, temporary, about)
    temporary.replace(file)


def load_policy(file: Path) -> LearnedGrowth:
    """Reads a policy; raises ModelError for one of another vocabulary, shape, or with values that are not finite."""
    net = GrowthNet()
    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: not a growth policy ({error})") from None
    known = about.get("vocabulary")
    if known != vocabulary.FINGERPRINT:
        raise ModelError(
            f"{file}: made for another vocabulary of layers (version {about.get('vocabulary_version', '?')}, {known}); "
            f"this is version {vocabulary.VERSION}, {vocabulary.FINGERPRINT}: learn it again"
        )
    own = {k: v.shape for k, v in net.state_dict().items()}
    if own != {k: v.shape for k, v in tensors.items()}:
        raise ModelError(f"{file}: its weights have other names or shapes than this version's network")
    if not all(bool(torch.isfinite(v).all()) for v in tensors.values()):
        raise ModelError(f"{file}: its weights are not all finite")
    net.load_state_dict(tensors)
    return LearnedGrowth(net, str(file))
