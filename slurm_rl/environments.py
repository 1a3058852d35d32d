"""Registers our gymnasium environment as soon as both packages are imported, in either order.

gymnasium 1.0 and later load no plugins by themselves, and importing it here would cost every command a quarter of a
second. So a finder waits until gymnasium imports its list of environments, and then steps aside.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_AWAITED = "gymnasium.envs.registration"  # not gymnasium: somebody may import us while that is half imported


def _register() -> None:
    from slurm_rl_sim.register import register

    register()


class _Registering(Loader):
    """Loads the awaited module as its own loader does, then registers the environment."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _register()


class _Waiting(MetaPathFinder):
    """Wraps the loader of the awaited module, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


def register_when_gymnasium_is_there() -> None:
    """Registers now if gymnasium's list of environments is imported already, and upon its import otherwise."""
    if _AWAITED in sys.modules:
        _register()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())
