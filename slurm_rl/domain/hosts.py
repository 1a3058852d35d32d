"""Lists of nodes as Slurm writes them: `a[1-2,07],b`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from slurm_rl.errors import InputError

_ABSENT = ("", "(null)", "N/A", "None", "none")


@lru_cache(maxsize=4096)
def expand_hosts(text: str) -> tuple[str, ...]:
    """`a[1-2,07],b` as a1, a2, a07, b."""
    if text in _ABSENT:
        return ()
    return tuple(host for item in _split_outside_brackets(text) for host in _expand_one(item))


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth = begin = 0
    for i, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield text[begin:i]
            begin = i + 1
    yield text[begin:]


def _expand_one(item: str) -> list[str]:
    head, bracket, rest = item.partition("[")
    if not bracket:
        return [item]
    ranges, closing, tail = rest.partition("]")
    if not closing:
        raise InputError(f"unreadable host list {item!r}")
    tails = _expand_one(tail)
    return [head + number + end for number in _numbers(ranges, item) for end in tails]


def _numbers(ranges: str, item: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"unreadable host list {item!r}")
        width = len(first) if first.startswith("0") else 0
        yield from (f"{n:0{width}d}" for n in range(int(first), int(last or first) + 1))
