"""Refusals to grow, in one sentence that names the layer."""

from __future__ import annotations

from slurm_rl.errors import InputError


class CannotGrow(InputError):
    """A step that would not keep the function, or a layer that is not there; the model is as it was."""
