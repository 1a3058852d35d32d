"""Placements by name: ours, those of a module or a file, and those of installed packages."""

from __future__ import annotations

from slurm_rl.errors import InputError
from slurm_rl.kernel.imports import MARK, attribute, load_entry, module_of
from slurm_rl.place.catalogue import PLACEMENTS

GROUP = "slurm_rl.placements"


def find_placement(text: str) -> str:
    """The name of the row that `NAME`, `module:name` or `FILE.py:name` stands for; what is not ours is imported."""
    if text in PLACEMENTS:
        return text
    kind, colon, name = text.partition(":")
    given = attribute(module_of(text), name, text) if colon else load_entry(GROUP, text)
    if given is None:
        return PLACEMENTS[kind].name  # an error that lists the names
    marked = getattr(given, MARK, None)
    if isinstance(marked, str) and marked in PLACEMENTS:
        return marked
    if not callable(given):
        raise InputError(f"{text} is a {type(given).__name__}, not a placement")
    from slurm_rl.place.formula import placement

    placement(name or kind)(given)
    return name or kind
