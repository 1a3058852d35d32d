"""Every package of ours has its layer in the import contract; no two classes have one name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_has_its_layer() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")["layers"]
    listed = [name for layer in layers for name in re.findall(r"[\w.]+", layer)]
    ours = [f"slurm_rl.{p.parent.name}" for p in (ROOT / "slurm_rl").glob("*/__init__.py")]
    ours += [f"slurm_rl.{p.stem}" for p in (ROOT / "slurm_rl").glob("*.py") if not p.stem.startswith("__")]
    assert sorted(listed) == sorted([*ours, "slurm_rl_sim"])


def test_no_two_classes_have_one_name() -> None:
    """`slurm_rl.Simulation` and the like are public: tests/unit/api pins them, and the others give way."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sorted([*(ROOT / "slurm_rl").rglob("*.py"), *(ROOT / "sim").rglob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
