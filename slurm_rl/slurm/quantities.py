"""Slurm's notations: host lists, durations, memory sizes, TRES and GRES in every spelling."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

from slurm_rl.domain import hosts
from slurm_rl.domain.tres import gres_gpus, size_mb, tres_counts, typed_gpus
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.slurm.model import UNTYPED

_ABSENT = frozenset({"", "(null)", "N/A", "None", "none", "NONE", "Unknown", "None assigned", "n/a"})


def present(text: str) -> str:
    """The text, or "" where Slurm writes one of its words for nothing."""
    return "" if text in _ABSENT else text


def named(text: str) -> str:
    """A name or text that somebody chose, or "" where Slurm says that there is none; "None" is a name like others."""
    return "" if text in ("(null)", "N/A") else text


@lru_cache(maxsize=4096)
def seconds(text: str) -> int | None:
    """`1-02:03:04`, `02:03:04`, `03:04` (minutes and seconds) or `5` (minutes); None if unlimited or absent."""
    if text in _ABSENT or text.upper() in ("UNLIMITED", "INFINITE", "PARTITION_LIMIT", "INVALID", "NOT_SET"):
        return None
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(p.isdecimal() for p in (*parts, days or "0")) or len(parts) > 3:
        raise SlurmError(f"unreadable duration {text!r}")
    numbers = [int(p) for p in parts]
    if days:  # D-H, D-H:M, D-H:M:S
        hours, minutes, secs = (*numbers, 0, 0)[:3]
    elif len(numbers) == 1:
        hours, minutes, secs = 0, numbers[0], 0
    else:
        hours, minutes, secs = (0, *numbers)[-3:]
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + secs


def timestamp(text: str) -> int | None:
    """A Unix time (we ask Slurm for `%s`); None if there is none yet."""
    return int(text) if text.isdecimal() and text != "0" else None


def megabytes(text: str) -> int:
    """`4G`, `1024M`, `500000K` or a plain number of megabytes; 0 where the text is none of these."""
    found = size_mb(text)
    return 0 if math.isnan(found) else round(found)


def tres(text: str) -> dict[str, int]:
    """`cpu=4,mem=1G,gres/gpu:a100=2` as whole numbers; memory in megabytes."""
    return {key: round(value) for key, value in tres_counts(text).items()} if text not in _ABSENT else {}


def gpus_in_gres(text: str) -> dict[str, int]:
    """GPUs by type in a GRES request or a node's Gres line."""
    found: dict[str, int] = {}
    if text not in _ABSENT:
        for kind, count in gres_gpus(text):
            name = (kind or UNTYPED).lower()
            found[name] = found.get(name, 0) + count
    return found


def gpus_in_tres(counts: dict[str, int]) -> dict[str, int]:
    """GPUs by type in TRES counts; those beyond the typed ones are untyped."""
    typed, others = typed_gpus(counts)
    return {kind.lower(): round(n) for kind, n in typed.items()} | ({UNTYPED: round(others)} if others else {})


def expand_hosts(text: str) -> tuple[str, ...]:
    """`a[1-2,07],b` as a1, a2, a07, b."""
    if text in _ABSENT:
        return ()
    try:
        return hosts.expand_hosts(text)
    except InputError as error:
        raise SlurmError(error.message) from None


_NUMBER = re.compile(r"0|[1-9][0-9]*")  # as `ranges` writes it


def task_numbers(text: str) -> tuple[frozenset[int], int]:
    """`1-9:4%3` as the tasks 1, 5 and 9, and how many may run at once (0: any number)."""
    listed, _, limit = text.partition("%")
    numbers: set[int] = set()
    for part in listed.strip("[]").split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        if not first.isdecimal():
            continue  # a truncated list ends in "..."
        until = int(last) if dash and last.isdecimal() else int(first)
        numbers.update(range(int(first), until + 1, int(step) if step.isdecimal() else 1))
    return frozenset(numbers), int(limit) if limit.isdecimal() else 0


def array_tasks(text: str) -> tuple[str, int, int]:
    """`4-50%3` as its tasks `4-50`, how many they are, and how many may run at once.

    The tasks are ranges in ascending order, without a step, because scontrol takes none.
    """
    listed, _, limit = text.partition("%")
    plain, count, end = listed.strip("[]"), 0, -2
    for part in plain.split(","):
        # As a rule the list is one of ranges already: the tasks, which may be a million, need not be written out.
        first, dash, last = part.partition("-")
        if _NUMBER.fullmatch(first) is None or (dash and _NUMBER.fullmatch(last) is None):
            break
        if int(first) <= end + 1 or (dash and int(last) <= int(first)):
            break
        end = int(last or first)
        count += end - int(first) + 1
    else:
        return plain, count, int(limit) if limit.isdecimal() else 0
    numbers, most = task_numbers(text)
    return ranges(numbers), max(len(numbers), 1), most


def ranges(numbers: Iterable[int]) -> str:
    """{1, 2, 3, 7} as `1-3,7`."""
    parts: list[str] = []
    begin = end = None
    for n in [*sorted(numbers), None]:
        if begin is not None and end is not None and (n is None or n != end + 1):
            parts += [str(begin)] if end == begin else [f"{begin}-{end}"]
            begin = None
        begin, end = (n if begin is None else begin), n
    return ",".join(parts)


def first_number(text: str, absent: int) -> int:
    """The number that a text is, or the first of a range as NumNodes has it (1-4)."""
    digits = text.partition("-")[0]
    return int(digits) if digits.isdecimal() else absent
