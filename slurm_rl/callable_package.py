"""Packages that can be called: `slurm_rl.evaluate(…)` and `@slurm_rl.policy(…)` share their names with packages."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package with a `_called`: the module of its function of the package's own name."""

    _called: str

    def __call__(self, *given: Any, **options: Any) -> Any:
        return getattr(import_module(self._called), self.__name__.rpartition(".")[2])(*given, **options)


def make_callable(package: str, module: str) -> None:
    """Lets `package` be called as the function of its own name in `module`, which is imported with the first call."""
    found = sys.modules[package]
    found.__class__ = _CallablePackage
    found.__dict__["_called"] = module
