"""The file from which a training resumes: how the network grew, its weights, and the optimiser's state."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slurm_rl.errors import InputError
from slurm_rl.grow.state import GrowthStep

_FORMAT = 1


@dataclass
class Record:
    """A training so far; `steps` lead from the network as its script makes it to the one of the weights."""

    base: str  # fingerprint of the network that the script makes
    steps: list[dict[str, Any]] = field(default_factory=list)
    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    metrics: list[float] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)
    elapsed: float = 0.0  # seconds of training, over all of its jobs


def fingerprint(model: nn.Module) -> str:
    """Of the names and shapes of a model's tensors."""
    text = ";".join(f"{k}:{tuple(v.shape)}" for k, v in model.state_dict().items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def step_of(choice: GrowthStep, noise: float, seed: int) -> dict[str, Any]:
    return {"action": choice.action, "name": choice.name, "to": choice.to, "noise": noise, "seed": seed}


def save(file: Path, record: Record, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Writes the file whole or not at all, and onto the disk."""
    value = {
        "format": _FORMAT,
        "record": vars(record),
        "model": model.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.name, suffix=".tmp", delete=False) as made:
        try:
            torch.save(value, made)
            made.flush()
            os.fsync(made.fileno())
        except BaseException:
            Path(made.name).unlink()
            raise
    os.replace(made.name, file)


def load(file: Path) -> tuple[Record, dict[str, Any]]:
    """What was saved; nothing in it is executed."""
    try:
        value = torch.load(file, map_location="cpu", weights_only=True)
        if value["format"] != _FORMAT:
            raise InputError(f"is of format {value['format']}, expected {_FORMAT}", file=str(file))
        return Record(**value["record"]), value
    except InputError:
        raise
    except Exception as error:  # torch raises whatever its unpickler met
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"is not a checkpoint of a growing training ({why})", file=str(file)) from None
