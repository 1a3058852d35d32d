"""Evaluation: paired comparisons, goals, and fitting to a site. Called, the package is `slurm_rl.evaluate(…)`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that can be called: the function and this package share one public name."""

    def __call__(self, *given: Any, **options: Any) -> Any:
        from slurm_rl.evaluate.api import evaluate

        return evaluate(*given, **options)


sys.modules[__name__].__class__ = _Package
