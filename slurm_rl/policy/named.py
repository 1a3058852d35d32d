"""Policies as the Python API takes them: by name, as a model, as a function, or as an agent of another library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_rl.errors import InputError
from slurm_rl.kernel.formula import digest_of
from slurm_rl.kernel.imports import MARK
from slurm_rl.policy import checkpoint
from slurm_rl.policy.checkpoint import Model
from slurm_rl.policy.outside import Outside
from slurm_rl.policy.registry import PolicySpec, learned, parse_policy, python_policy


def load_model(name: str | Path) -> Model:
    """A model by its name (`default`) or its directory; refused, with the reason, unless it is as it should be."""
    path = Path(name)
    return checkpoint.load_model(path if path.is_dir() else checkpoint.find_model(str(name)))


def policy_of(given: Any) -> PolicySpec:
    """A policy from a name, a Model, a decorated or plain function of a Queue, or an agent of stable-baselines3."""
    if isinstance(given, PolicySpec):
        return given
    if isinstance(given, str):
        return parse_policy(given)
    if isinstance(given, Model):
        return learned(given)
    if isinstance(getattr(given, MARK, None), str):
        return parse_policy(getattr(given, MARK))
    name = getattr(given, "__name__", type(given).__name__)
    if hasattr(given, "observation_space") and hasattr(given, "policy"):
        from slurm_rl.policy.agents import from_sb3

        return python_policy(Outside(name, from_sb3(given), digest=digest_of(given)))
    if callable(given):
        return python_policy(Outside(name, given, digest=digest_of(given)))
    raise InputError(f"a {type(given).__name__} is no policy", remedy="a name, a model, or a function of a Queue")
