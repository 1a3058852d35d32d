"""Keys: what a site knows of a job besides its name that tells jobs of one kind, as further groups of the estimator."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.errors import InputError

KEY_LEVELS = 3  # keys that the estimator can use at a time: each is a level of groups in its tables
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its column in a trace, the fields of sacct and squeue that tell it ("": none does), and how it is read."""

    name: str
    sacct: str
    squeue: str
    help: str
    value: Callable[[str], str] = str.strip


def _array(job_id: str) -> str:
    """`12` of `12_3` and of `12_[4-9]`; "" for a job that is no array's."""
    head, underscore, _ = job_id.partition("_")
    return head if underscore else ""


def _folded(text: str) -> str:
    """A name with every number in it as one sign: `seed-12` and `seed-7` are one kind."""
    return _DIGITS.sub("#", text.strip())


# From general to specific: an estimate is drawn towards each in turn.
KEYS = (
    Key("stem", "JobName", "Name", "the job name without its numbers", _folded),
    Key("workdir", "WorkDir", "WorkDir", "the working directory"),
    Key("container", "Container", "Container", "the container image"),
    Key(
        "submitline", "SubmitLine", "", "the command line of sbatch, without its numbers; only sacct tells it", _folded
    ),
    Key("array", "JobID", "JobArrayID", "the array that the job is a task of", _array),
)
BY_NAME = {key.name: key for key in KEYS}


def parse_keys(text: str, field: str = "--keys") -> tuple[Key, ...]:
    """`workdir,array` as keys, from general to specific; "" and `none` are no keys."""
    names = [n for n in (part.strip().lower() for part in text.split(",")) if n and n != "none"]
    names = ["stem" if n == "name" else n for n in names]
    unknown = [n for n in names if n not in BY_NAME]
    if unknown:
        raise InputError(f"unknown key: {unknown[0]!r}", field=field, remedy="choose from " + ", ".join(BY_NAME))
    if len(set(names)) > KEY_LEVELS:
        raise InputError(f"{len(set(names))} keys", field=field, remedy=f"name at most {KEY_LEVELS}")
    return tuple(key for key in KEYS if key.name in names)


def hashed(values: Sequence[str], salt: str, prefix: str) -> list[str]:
    """Each value as a salted hash; blank stays blank, and equal values stay equal."""
    secret = hashlib.sha256(salt.encode()).digest()
    return [_hash(value, secret, prefix) if value else "" for value in values]


def _hash(value: str, secret: bytes, prefix: str) -> str:
    # The prefix is part of what is hashed: a value of one column must not show as equal to one of another.
    return prefix + hashlib.blake2b(f"{prefix}:{value}".encode(), key=secret, digest_size=5).hexdigest()


def key_values(fields: Mapping[str, str], keys: Sequence[Key], *, live: bool) -> dict[str, str]:
    """The values of the keys by name, from the fields of a record of sacct or squeue; those that it tells."""
    found = {key.name: key.value(fields.get(key.squeue if live else key.sacct, "")) for key in keys}
    return {name: value for name, value in found.items() if value}
