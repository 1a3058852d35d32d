"""An admin's promise to users about waits, against Slurm's own order: parsed from one line of the configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_rl.errors import InputError

DEFAULT = "p99 wait of any partition ≤ 1.2 × Slurm's own order, longest ≤ 1.5 ×"
FIGURES = {"mean": "wait", "p95": "p95", "p99": "p99", "longest": "max"}  # as promised, and as computed
_CLAUSE = re.compile(
    r"(?P<figure>[a-z0-9]+)(?: wait)?(?: of any (?P<group>[a-z]+))? ?(?:≤|<=) ?(?P<factor>\d+(?:\.\d+)?)"
    r"(?: ?(?:×|x|\*|times))?(?: slurm's own order)?"
)
_LEAST, _MOST = 1.0, 100.0


@dataclass(frozen=True, slots=True)
class Promise:
    """By figure (wait, p95, p99 or max): the largest ratio to Slurm's own order; empty: no promise."""

    bounds: dict[str, float]
    groups: tuple[str, ...] = ("partition",)  # of which every one is held to it

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __str__(self) -> str:
        names = {computed: said for said, computed in FIGURES.items()}
        parts = [f"{names[figure]} ≤ {factor:g} ×" for figure, factor in self.bounds.items()]
        return f"{', '.join(parts)} of any {' or '.join(self.groups)}" if parts else "none"


def parse_promise(text: str, field: str = "promise") -> Promise:
    """`p99 wait of any partition ≤ 1.2 × Slurm's own order, longest ≤ 1.5 ×`; `<=` and `x` will do; "": no promise."""
    bounds: dict[str, float] = {}
    groups: list[str] = []
    for part in text.lower().replace("’", "'").split(","):
        clause = " ".join(part.split())
        if not clause:
            if not text.strip():
                continue
            raise _refused("is empty", part, field)
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise _refused("is not understood", part, field)
        figure, group, factor = found["figure"], found["group"], float(found["factor"])
        if figure not in FIGURES:
            raise _refused(f"is about {figure!r}, not {', '.join(FIGURES)}", part, field)
        if group is not None and group not in ("partition", "account"):
            raise _refused(f"is about any {group}, not partition or account", part, field)
        if not _LEAST <= factor <= _MOST:
            raise _refused(f"has a factor of {factor:g}, not {_LEAST:g} to {_MOST:g}", part, field)
        if FIGURES[figure] in bounds:
            raise _refused("says the same twice", part, field)
        bounds[FIGURES[figure]] = factor
        if group is not None and group not in groups:
            groups.append(group)
    return Promise(bounds, tuple(groups) or ("partition",))


def _refused(what: str, clause: str, field: str) -> InputError:
    return InputError(f"the clause {clause.strip()!r} {what}", field=field, remedy=f'write it like "{DEFAULT}"')
