"""Lists where a model can grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from slurm_rl.grow.analysis import analyse
from slurm_rl.grow.deepen import deepenable
from slurm_rl.grow.shell import own, unwrap

Action = Literal["widen", "deepen"]


def places(model: Any, layers: Sequence[str] | None = None) -> list[tuple[Action, str]]:
    """What `widen` and `deepen` take: one name for each width that can change, then each layer to put one behind."""
    found = analyse(unwrap(model).bare, own(layers, model))
    return [*(("widen", name) for name in found.widenable()), *(("deepen", name) for name in deepenable(found))]
