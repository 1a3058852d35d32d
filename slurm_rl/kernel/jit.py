"""How kernels are compiled: once, cached on disk, and never from stale sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import get_host_cpu_features
from numba.core.registry import CPUDispatcher

_DAY = 86_400.0  # seconds
# Kernels that a package brings, compiled for a processor that nearly every machine has (packaging/precompile.py).
_SHIPPED = Path(__file__).resolve().parents[1] / "_data" / "kernels"
SHIPPED_CPU = "x86-64-v3"
_ITS_FEATURES = "avx2 bmi bmi2 f16c fma lzcnt movbe".split()


# Folders whose kernels others call, and files without kernels whose numbers are part of them.
_FOLDERS = ("backfill", "controller", "kernel", "place", "policy", "slurm_rl", "slurm_rl_sim")
_NUMBERS = ("backfill/catalogue.py", "domain/gres.py", "domain/sizes.py", "place/catalogue.py", "policy/catalogue.py")


def kernel_sources() -> list[Path]:
    """The files that compiled code is made of: kernels, what they compile calls to, their records and codes.

    A study's kernels are not among them: nobody calls these, and numba looks at a kernel's own file by itself.
    """
    here = Path(__file__).resolve().parents[1]
    simulator = here.parent / "sim" / "slurm_rl_sim"
    found = [here / name for name in _NUMBERS]
    for root in (here, simulator if simulator.is_dir() else here.parent / "slurm_rl_sim"):
        for path in root.rglob("*.py"):
            folder = path.parent.name
            if folder == "kernel" or (folder in _FOLDERS and _has_kernels(path.read_bytes())):
                found.append(path)
    return sorted(set(found))


def _has_kernels(source: bytes) -> bool:
    return b"slurm_rl.kernel.jit import" in source or b"\nfrom numba" in source or b"\nimport numba" in source


def _sources_digest() -> str:
    """One digest over all sources of kernels: numba compares only a kernel's own file, not those it calls."""
    digest = hashlib.blake2b(digest_size=8)
    for path in kernel_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _use_own_cache() -> bool:
    """Whether kernels can be kept on disk; numba itself fails where it finds no place for them."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return True
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurm-rl" / "kernels"
        digest = _sources_digest()
        directory = base / digest
        if _use_shipped() and not directory.exists():
            _take_shipped(_SHIPPED / digest, directory)
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, RuntimeError):  # no home, or none that can be written: slower starts, same results
        return False
    numba.config.CACHE_DIR = str(directory)  # type: ignore[attr-defined]  # made at import from the environment
    _drop_old(base, keep=4)
    return True


def _use_shipped() -> bool:
    """Compiles for the processor of the shipped kernels from now on, if there are any and this machine can run them."""
    if not _SHIPPED.is_dir() or os.environ.get("NUMBA_CPU_NAME"):
        return False
    features = get_host_cpu_features()
    if not all(features.get(name) for name in _ITS_FEATURES):
        return False
    numba.config.CPU_NAME, numba.config.CPU_FEATURES = SHIPPED_CPU, ""  # type: ignore[attr-defined]
    return True


def _take_shipped(shipped: Path, directory: Path) -> None:
    """Copies shipped kernels to where numba can add to them; another process may do the same at this moment."""
    if not shipped.is_dir():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as beside:
        copy = Path(shutil.copytree(shipped, Path(beside) / "kernels"))
        try:
            copy.rename(directory)
        except OSError:  # the other one was first
            return


def _drop_old(base: Path, keep: int) -> None:
    """Leaves the caches of the last few versions of the sources, and those of versions that are in use side by side."""
    recent = time.time() - _DAY
    stale = sorted(base.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)[keep:]
    for directory in stale:
        if directory.stat().st_mtime > recent:
            continue
        for path in directory.rglob("*"):
            if path.is_file():
                path.unlink(missing_ok=True)


_CACHED = _use_own_cache()


def cache_directory() -> Path | None:
    """Where kernels of these sources are kept; None: nowhere."""
    return Path(str(numba.config.CACHE_DIR)) if _CACHED else None  # type: ignore[attr-defined]


def on_disk(where: str) -> bool:
    """Whether a kernel, `package.module:function`, was compiled before, here or when the package was built."""
    directory = cache_directory()
    module, _, function = where.partition(":")
    name = f"{module.rpartition('.')[2]}.{function}-*.nbi"
    return directory is not None and any(directory.glob(f"*/{name}"))


_njit: Any = numba.njit  # its published types leave options out


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles to machine code on first use; releases the GIL, so that replays can run side by side in threads."""
    return _njit(cache=_CACHED, nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)


def quick_kernel(function: Callable[..., Any]) -> Any:
    """A kernel of microseconds that keeps the GIL: getting it back from a thread at work would take longer."""
    return _njit(cache=_CACHED, error_model="numpy", no_cfunc_wrapper=True)(function)


class Inner(CPUDispatcher):
    """A kernel without an entrance from Python."""

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__}: only kernels can call it")


def inner(function: Callable[..., Any]) -> Any:
    """A kernel that only kernels call: to be called from Python would make it a third slower to compile."""
    options = {"nopython": True, "nogil": True, "error_model": "numpy"}
    compiled = Inner(function, targetoptions=options | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True})
    if _CACHED:
        compiled.enable_caching()
    return compiled


def inlined(function: Callable[..., Any]) -> Any:
    """A small kernel that becomes part of its callers: each kernel of its own costs seconds of compilation."""
    return numba.njit(inline="always", error_model="numpy")(function)
