"""Keeps parsed traces in the user's cache directory, so that a large file is parsed once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from slurm_rl.traces.trace import COLUMN_FIELDS, Labels, Note, Trace

READER_VERSION = 10  # raise it whenever a reader gives another trace for the same bytes
MAX_BYTES = 2 << 30
MAX_FILES = 2000
_MAGIC = b"slurm-rl-trace\n\x00"
_ALIGN = 64


def directory() -> Path:
    """Where parsed traces are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "slurm-rl" / "traces"


def key(sha256: str, format_name: str | None, options: dict[str, object]) -> str:
    """Names a parsed trace by everything that decides what it holds."""
    text = json.dumps([READER_VERSION, sha256, format_name, sorted((k, repr(v)) for k, v in options.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def load(name: str) -> Trace | None:
    """The trace kept under this key, or None where there is none that is whole."""
    path = directory() / name
    try:
        with path.open("rb") as file:
            header = _header(file)
            # Read, not mapped: a mapped file that another process cuts short would kill this one.
            body = np.fromfile(file, dtype=np.uint8)
        if len(body) != header["bytes"]:
            return None
        trace = _unpack(header, body)
        os.utime(path)  # the oldest by use goes first
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return trace


def save(name: str, trace: Trace) -> None:
    """Keeps a trace; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError):
        folder = directory()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_packed(folder / name, trace)
        _shrink(folder, keep=name)


def write_packed(path: Path, trace: Trace) -> None:
    """Writes a trace, its name excepted, as a file that `map_packed` reads: whole, or not at all."""
    header, blocks = _pack(trace)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
            file.write(b"\0" * (-file.tell() % _ALIGN))
            for block in blocks:
                file.write(block.data)
                file.write(b"\0" * (-block.nbytes % _ALIGN))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def map_packed(path: Path) -> Trace:
    """The trace of such a file, mapped: processes that do this share its memory. Nobody may write to the file then.

    Raises OSError or ValueError where there is none that is whole.
    """
    with path.open("rb") as file:
        header = _header(file)
        start, size = int(header["start"]), int(header["bytes"])
        if os.fstat(file.fileno()).st_size != start + size:
            raise ValueError(f"{path} is not whole")
        # Copied on write: kernels are compiled for arrays that may be written to.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return _unpack(header, np.frombuffer(mapped, dtype=np.uint8)[start:])


def _header(file: BinaryIO) -> dict[str, Any]:
    """What the columns are; the file then stands where they begin."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("not a packed trace")
    header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    file.seek(header["start"])
    return header


def _shrink(folder: Path, keep: str) -> None:
    entries = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            status = entry.stat()
            entries.append((status.st_mtime, status.st_size, entry.name))
    total = sum(size for _, size, _ in entries)
    count = len(entries)
    for _, size, name in sorted(entries):
        if total <= MAX_BYTES and count <= MAX_FILES:
            return
        if name != keep:
            with contextlib.suppress(OSError):
                os.unlink(folder / name)
            total, count = total - size, count - 1


def _pack(trace: Trace) -> tuple[bytes, list[npt.NDArray[np.generic]]]:
    blocks: list[npt.NDArray[np.generic]] = []
    columns: dict[str, dict[str, object]] = {}
    position = 0

    def add(array: npt.NDArray[np.generic]) -> dict[str, object]:
        nonlocal position
        array = np.ascontiguousarray(array)
        where: dict[str, object] = {"at": position, "dtype": array.dtype.str, "count": array.size}
        blocks.append(array)
        position += array.nbytes + (-array.nbytes % _ALIGN)
        return where

    for column in COLUMN_FIELDS:
        values = getattr(trace, column)
        if isinstance(values, Labels):
            columns[column] = add(values.codes) | {"names": list(values.names)}
        elif values.dtype == object:
            encoded = [v.encode() for v in values.tolist()]
            text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
            ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
            columns[column] = {"text": add(text), "ends": add(ends)}
        else:
            columns[column] = add(values)
    measured = {name: add(values) for name, values in trace.measured.items()}
    asked = {name: add(values.codes) | {"names": list(values.names)} for name, values in trace.asked.items()}
    keys = {name: add(values.codes) | {"names": list(values.names)} for name, values in trace.keys.items()}
    header: dict[str, object] = {
        "columns": columns,
        "asked": asked,
        "keys": keys,
        "measured": measured,
        "notes": [asdict(n) for n in trace.notes],
        "meta": trace.meta,
        "bytes": position,
        "start": 0,
    }
    length = len(json.dumps(header)) + 24  # room for the digits of `start`
    start = len(_MAGIC) + 8 + length
    header["start"] = start + (-start % _ALIGN)
    return json.dumps(header).ljust(length).encode(), blocks


def _unpack(header: dict[str, object], body: npt.NDArray[np.uint8]) -> Trace:
    def array(where: dict[str, object]) -> npt.NDArray[np.generic]:
        dtype = np.dtype(str(where["dtype"]))
        at, count = int(str(where["at"])), int(str(where["count"]))
        return body[at : at + count * dtype.itemsize].view(dtype)

    values: dict[str, object] = {}
    columns: dict[str, dict[str, object]] = header["columns"]  # type: ignore[assignment]  # as _pack wrote it
    for column in COLUMN_FIELDS:
        where = columns[column]
        if "names" in where:
            values[column] = Labels(array(where), tuple(where["names"]))  # type: ignore[arg-type]
        elif "text" in where:
            text = array(where["text"]).tobytes()  # type: ignore[arg-type]
            ends = array(where["ends"]).tolist()  # type: ignore[arg-type]
            ids = np.empty(len(ends), dtype=object)
            ids[:] = [text[a:b].decode() for a, b in zip([0, *ends[:-1]], ends, strict=True)] if ends else []
            values[column] = ids
        else:
            values[column] = array(where)
    notes = tuple(
        Note(n["what"], n["rows"], tuple(n["lines"]), n["dropped"])
        for n in header["notes"]  # type: ignore[attr-defined]
    )
    for further in ("asked", "keys"):
        named: dict[str, dict[str, object]] = header[further]  # type: ignore[assignment]
        values[further] = {n: Labels(array(where), tuple(where["names"])) for n, where in named.items()}  # type: ignore[arg-type]
    kept: dict[str, dict[str, object]] = header["measured"]  # type: ignore[assignment]
    values["measured"] = {name: array(where) for name, where in kept.items()}
    return Trace(name="", notes=notes, meta=header["meta"], **values)  # type: ignore[arg-type]
