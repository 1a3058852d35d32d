"""Every package of ours has its layer in the import contract, and no layer names what does not exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_has_its_layer() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")["layers"]
    listed = [name for layer in layers for name in re.findall(r"[\w.]+", layer)]
    ours = [f"slurm_rl.{p.parent.name}" for p in (ROOT / "slurm_rl").glob("*/__init__.py")]
    ours += [f"slurm_rl.{p.stem}" for p in (ROOT / "slurm_rl").glob("*.py") if not p.stem.startswith("__")]
    assert sorted(listed) == sorted([*ours, "slurm_rl_sim"])
