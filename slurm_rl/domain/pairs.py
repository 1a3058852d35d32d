"""Reads `NAME=NUMBER,NAME=NUMBER,…`, as settings and options write weights and speeds."""

from __future__ import annotations

import math
from collections.abc import Collection

from slurm_rl.errors import InputError


def parse_pairs(text: str, field: str, wanted: str, *, what: str = "", known: Collection[str] = ()) -> dict[str, float]:
    """Numbers by name; bounds are the caller's.

    `wanted` says in errors how it is written, `what` what the names are; `known`: no other name will do.
    """
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if known and name not in known:
            raise InputError(f"unknown {what} {name!r}", field=field, remedy=f"known: {', '.join(known)}")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not name or not equals or math.isnan(number):
            raise InputError(f"must be {wanted}, got {part!r}", field=field)
        found[name] = number
    return found
