"""Policies: which job goes first. Called, the package is the decorator `@slurm_rl.policy("mine")`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that can be called: the decorator and this package share one public name."""

    def __call__(self, *given: Any, **options: Any) -> Any:
        from slurm_rl.policy.outside import policy

        return policy(*given, **options)


sys.modules[__name__].__class__ = _Package
