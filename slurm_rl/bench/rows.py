"""Keeps the rows of finished units in append-only files, so a killed run resumes."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_rl import __version__
from slurm_rl.bench.suite import Row, Settings
from slurm_rl.errors import InputError

MANIFEST, ROWS, PARTS = "bench.json", "runs.jsonl", "parts"


@dataclass(frozen=True, slots=True)
class FinishedUnit:
    """A finished unit."""

    rows: list[Row]
    seconds: float


def append(file: Path, unit: str, rows: Sequence[Row], seconds: float) -> None:
    """Adds a unit as one line, on the disk when this returns; a line that a crash tore is closed, and not read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"unit": unit, "seconds": round(seconds, 3), "rows": rows}, allow_nan=False) + "\n"
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = "\n" + line
        unsent = line.encode()
        while unsent:
            unsent = unsent[os.write(handle, unsent) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def finished(out: Path) -> dict[str, FinishedUnit]:
    """Finished units by name, from the common file and from those of parts."""
    found: dict[str, FinishedUnit] = {}
    for file in [out / ROWS, *sorted((out / PARTS).glob("*.jsonl"))]:
        if not file.is_file():
            continue
        for line in file.read_bytes().split(b"\n"):
            try:
                value = json.loads(line)
                found.setdefault(value["unit"], FinishedUnit(value["rows"], value["seconds"]))
            except (ValueError, KeyError, TypeError):
                continue  # torn, or empty
    return found


def begin(out: Path, suite: str, settings: Settings, what: str = "bench", option: str = "--") -> None:
    """Makes OUT the place of this bench, or goes on with it; refuses what holds something else.

    `what` it is called and what its options begin with are for errors.
    """
    _enter(out)
    wanted = {"suite": suite, "settings": settings, "version": __version__}
    file = out / MANIFEST
    if file.is_file():
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError("not readable", file=str(file), remedy="remove it, or give another --out") from None
        if known != json.loads(json.dumps(wanted)):
            differs = _difference(known, wanted, option)
            raise InputError(f"{out} holds a {what} with another {differs}", field="--out", remedy="give another --out")
        return
    replace(file, json.dumps(wanted, indent=1).encode() + b"\n")


def _enter(out: Path) -> None:
    """Makes OUT a directory; what holds something else is refused before anything is written to it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{out} cannot be made: {error.strerror}"
        raise InputError(why, field="--out", remedy="give a directory that can be written") from None
    if not os.access(out, os.W_OK):
        raise InputError(f"{out} cannot be written", field="--out", remedy="give another directory")
    if not (out / MANIFEST).is_file() and any(p.name != ".lock" for p in out.iterdir()):
        raise InputError(f"{out} holds something else", field="--out", remedy="give a new directory")


def _difference(known: Mapping[str, object], wanted: Mapping[str, object], option: str) -> str:
    for name in ("suite", "version"):
        if known.get(name) != wanted[name]:
            return f"{name} ({known.get(name)})"
    had, want = known.get("settings"), wanted["settings"]
    assert isinstance(want, dict)  # noqa: S101  # ours
    names = [n for n in want if not isinstance(had, dict) or had.get(n) != json.loads(json.dumps(want[n]))]
    return f"{option}{names[0].replace('_', '-') if option else names[0]}" if names else "set of options"


@contextmanager
def locked(out: Path, what: str = "bench") -> Iterator[None]:
    """Keeps a second bench out of the directory; the lock ends with the process, however that ends."""
    _enter(out)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another {what} writes to {out}", field="--out") from None
        yield


def replace(path: Path, content: bytes) -> Path:
    """Writes a whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    """Writes rows; columns are those of the first row, blank means unknown, numbers are written in full."""
    names = [name for name in rows[0] if not name.startswith("_")] if rows else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if row.get(n) is None else row[n] for n in names])
    return replace(path, text.getvalue().encode())
