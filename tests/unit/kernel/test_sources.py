"""Compiled kernels are kept under a digest of the files they are made of: of all of these, and of no others."""

from __future__ import annotations

import ast
from pathlib import Path

from slurm_rl.kernel.jit import kernel_sources

ROOT = Path(__file__).parents[3]
COMPILED = {"kernel", "inner", "inlined"}


def module_file(module: str, name: str) -> Path | None:
    """The file that `from module import name` takes the name from."""
    base = ROOT / ("sim" if module.startswith("slurm_rl_sim") else "") / Path(*module.split("."))
    for path in (base / f"{name}.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def read_by_kernels(path: Path) -> set[Path]:
    """The files that a file's compiled functions take numbers, records or other functions from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name: module_file(node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("slurm_rl")
        for alias in node.names
    }
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and any(
            isinstance(d, ast.Name) and d.id in COMPILED for d in function.decorator_list
        ):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and (source := imported.get(node.id)) is not None:
                    found.add(source)
    return found


def test_whatever_a_kernel_reads_is_part_of_the_digest() -> None:
    sources = set(kernel_sources())
    lacking = {str(read.relative_to(ROOT)) for path in sources for read in read_by_kernels(path)} - {
        str(path.relative_to(ROOT)) for path in sources
    }
    assert lacking == set()
    names = {path.name for path in sources}
    assert {"easy.py", "engine.py", "network.py", "arrays.py", "simd.py", "ticks.py", "sizes.py"} <= names


def test_a_new_study_writer_or_algorithm_compiles_nothing_anew() -> None:
    within = {str(path.relative_to(ROOT)) for path in kernel_sources()}
    assert not {p for p in within if p.startswith(("slurm_rl/studies", "slurm_rl/train", "slurm_rl/cli"))}
    assert "slurm_rl/controller/writers/catalogue.py" not in within
