"""Advice given at submission, one line each in a separate file: sbatch waits for the write, so no database."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from slurm_rl.obs import quick_calls

_TAIL = 65_536  # bytes


class AdviceLog:
    """Appends with one write each, which outlives this process; several processes may append to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1

    def append(self, now: float, uid: int, value: int) -> None:
        """Raises OSError, with nothing written, if the disk is full."""
        row = f"{now:.3f} {uid} {value}\n".encode()
        while True:
            if self._file < 0:
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                quick_calls.lock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # `prune` is at work
                fcntl.flock(self._file, fcntl.LOCK_SH)
            try:
                if os.fstat(self._file).st_nlink:
                    _whole(self._file, row)
                    return
            finally:
                quick_calls.lock(self._file, fcntl.LOCK_UN)
            self.close()  # `prune` has put another file in its place

    def read(self, since: float) -> list[tuple[float, int, int]]:
        """(time, uid, SiteFactor) of advice given since; a line that was cut off is no advice that was given."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        # Rows are in the order of time, and most who ask want the last few minutes of some months.
        length = _TAIL if since > 0 else size
        while True:
            rows = _parsed(self.path, max(size - length, 0))
            if length >= size or (rows and rows[0][0] < since):
                return [row for row in rows if row[0] >= since]
            length *= 8

    def prune(self, before: float) -> None:
        """Drops what is older, by replacing the file."""
        with suppress(FileNotFoundError), self.path.open("rb") as old:
            fcntl.flock(old, fcntl.LOCK_EX)  # until it is closed: nobody appends to what is about to vanish
            temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            rows = (f"{when:.3f} {uid} {value}\n" for when, uid, value in self.read(before))
            temporary.write_text("".join(rows), encoding="ascii")
            temporary.replace(self.path)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _parsed(path: Path, start: int) -> list[tuple[float, int, int]]:
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("ascii", errors="replace").splitlines()
    found = []
    for line in lines[1 if start else 0 :]:  # the first of a part is a part
        with suppress(ValueError):
            when, uid, value = line.split()
            found.append((float(when), int(uid), int(value)))
    return found


def _whole(file: int, row: bytes) -> None:
    """A disk that fills up may take a part of a line: it is ended, lest the next one be taken for its rest."""
    written = quick_calls.write(file, row)
    if written < len(row):
        with suppress(OSError):
            os.write(file, b"\n")
        raise OSError(f"only {written} of {len(row)} bytes were written")
