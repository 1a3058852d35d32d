"""NAME=VALUE as users write it (`read_pair`, `parse_texts`, `parse_pairs`) and as Slurm prints it (`pairs_in`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from slurm_rl.errors import InputError


def pairs_in(items: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and values of Slurm's own texts; an item without `=` is passed over."""
    return ((name.strip(), value.strip()) for name, equals, value in (i.partition("=") for i in items) if equals)


def read_pair(text: str, field: str, wanted: str, remedy: str = "") -> tuple[str, str]:
    """A name and a value as a user wrote them; `wanted` says in the error how they are written."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or not equals:
        raise InputError(f"must be {wanted}, got {text!r}", field=field, remedy=remedy)
    return name, value


def parse_texts(text: str, field: str, wanted: str) -> dict[str, str]:
    """`NAME=VALUE,NAME=VALUE,…` as a user wrote it."""
    return dict(read_pair(part, field, wanted) for part in text.split(",") if part.strip())


def parse_pairs(text: str, field: str, wanted: str, *, what: str = "", known: Collection[str] = ()) -> dict[str, float]:
    """`NAME=NUMBER,NAME=NUMBER,…` as a user wrote it; bounds are the caller's.

    `what` says in errors what the names are; `known`: no other name will do.
    """
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name = part.partition("=")[0].strip()
        if known and name not in known:
            raise InputError(f"unknown {what} {name!r}", field=field, remedy=f"known: {', '.join(known)}")
        name, value = read_pair(part, field, wanted)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise InputError(f"must be {wanted}, got {part!r}", field=field)
        found[name] = number
    return found
