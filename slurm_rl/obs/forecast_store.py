"""Forecasts and their outcomes, and how long each cause held jobs back: a small database beside the journal.

Nothing that undo goes by is here: it may be lost, and where it cannot be written the service goes on without.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Key = tuple[int, int]  # job id, submit time

_SCHEMA = """
PRAGMA journal_mode=WAL;
PRAGMA synchronous=NORMAL;
CREATE TABLE IF NOT EXISTS forecast (
  id INTEGER PRIMARY KEY, made REAL NOT NULL, job_id INTEGER NOT NULL, submit INTEGER NOT NULL,
  raw_median REAL NOT NULL, raw_low REAL NOT NULL, raw_high REAL NOT NULL,
  median REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, slurm REAL, wait REAL, gone INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS forecast_made ON forecast (made);
CREATE INDEX IF NOT EXISTS forecast_job ON forecast (job_id, submit);
CREATE TABLE IF NOT EXISTS waited (
  job_id INTEGER NOT NULL, submit INTEGER NOT NULL, user TEXT NOT NULL, reason TEXT NOT NULL, seconds REAL NOT NULL,
  time REAL NOT NULL, PRIMARY KEY (job_id, submit, reason)) WITHOUT ROWID;
"""
_FLOOR = 60.0  # seconds: as slurm_rl_sim.forecast compares waits


@dataclass(slots=True)
class Told:
    """A forecast that was told: seconds from when it was made; `raw` as the futures had it (median, low, high)."""

    key: Key
    made: float
    raw: tuple[float, float, float]
    told: tuple[float, float, float]
    slurm: float | None = None  # what Slurm itself expected
    number: int = 0
    wait: float | None = None  # what came; None: not known yet


@dataclass(frozen=True, slots=True)
class Skill:
    """How the forecasts of some days fared."""

    days: float
    forecasts: int  # whose outcome is known
    held: float | None  # share of the starts within their ranges
    log_error: float | None  # median of |log((told + 1 min) / (came + 1 min))|
    slurm_log_error: float | None  # the same of Slurm's own expectation, where it had one
    slurm_forecasts: int = 0

    def __str__(self) -> str:
        if not self.forecasts:
            return "no forecast has come true yet"
        return f"of {self.forecasts:,} forecasts in {self.days:g} days, {100 * (self.held or 0):.0f}% held"


class ForecastStore:
    """One SQLite file; may be shared by threads. A disk that is full costs the records, not the service."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path or ":memory:", timeout=2.0, isolation_level=None, check_same_thread=False)
            self._db.executescript(_SCHEMA)
        except sqlite3.Error:
            self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __del__(self) -> None:
        with suppress(AttributeError, sqlite3.Error):
            self._db.close()

    def tell(self, rows: Sequence[Told]) -> None:
        """Records forecasts; gives each its number."""
        query = (
            "INSERT INTO forecast (made, job_id, submit, raw_median, raw_low, raw_high, median, low, high, slurm) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        with self._lock, suppress(sqlite3.Error):
            self._db.execute("BEGIN")
            for row in rows:
                values = (row.made, *row.key, *row.raw, *row.told, row.slurm)
                row.number = int(self._db.execute(query, values).lastrowid or 0)
            self._db.execute("COMMIT")

    def settle(self, rows: Iterable[Told], *, gone: bool = False) -> None:
        """Records what became of forecasts: the wait that came, or that the job went without a start."""
        values = [(row.wait, int(gone), row.number) for row in rows]
        with self._lock, suppress(sqlite3.Error):
            self._db.executemany("UPDATE forecast SET wait = ?, gone = ? WHERE id = ?", values)

    def latest(self, count: int) -> list[Told]:
        """The latest forecasts that are open or have come true, oldest first."""
        rows = self._all("SELECT * FROM forecast WHERE gone = 0 ORDER BY id DESC LIMIT ?", count)
        return [
            Told((r[2], r[3]), r[1], (r[4], r[5], r[6]), (r[7], r[8], r[9]), r[10], r[0], r[11]) for r in rows[::-1]
        ]

    def skill(self, now: float, days: float = 7.0) -> Skill:
        """How the forecasts of the last days fared."""
        query = "SELECT median, low, high, slurm, wait FROM forecast WHERE made >= ? AND wait IS NOT NULL"
        rows = self._all(query, now - days * 86_400)
        held = [low <= wait <= high for _, low, high, _, wait in rows]
        errors = [_log_error(median, wait) for median, _, _, _, wait in rows]
        slurm = [_log_error(said, wait) for _, _, _, said, wait in rows if said is not None]
        return Skill(
            days,
            len(rows),
            sum(held) / len(held) if held else None,
            statistics.median(errors) if errors else None,
            statistics.median(slurm) if slurm else None,
            len(slurm),
        )

    def of_job(self, job_id: int) -> list[dict[str, float | None]]:
        """The forecasts of a job, oldest first, as Unix times; `came` is when it started."""
        rows = self._all("SELECT made, median, low, high, wait FROM forecast WHERE job_id = ? ORDER BY id", job_id)
        return [
            {"made": m, "median": m + a, "low": m + b, "high": m + c, "came": None if w is None else m + w}
            for m, a, b, c, w in rows[-50:]
        ]

    def hold_back(self, rows: Sequence[tuple[Key, str, Mapping[str, float]]], now: float) -> None:
        """Records how long each cause has held jobs back so far: (job, user, seconds by reason)."""
        values = [(*key, user, reason, s, now) for key, user, causes in rows for reason, s in causes.items()]
        query = (
            "INSERT INTO waited VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET seconds = excluded.seconds, "
            "time = excluded.time"
        )
        with self._lock, suppress(sqlite3.Error):
            self._db.execute("BEGIN")
            self._db.executemany(query, values)
            self._db.execute("COMMIT")

    def held_back(self, job_id: int) -> tuple[str, dict[str, float]] | None:
        """(user, seconds by reason) of the last submission of a job, the weightiest first."""
        query = (
            "SELECT user, reason, seconds FROM waited WHERE job_id = ? AND submit = "
            "(SELECT max(submit) FROM waited WHERE job_id = ?) ORDER BY seconds DESC"
        )
        rows = self._all(query, job_id, job_id)
        return (str(rows[0][0]), {str(r): float(s) for _, r, s in rows}) if rows else None

    def causes(self, keys: Collection[Key]) -> dict[Key, dict[str, float]]:
        """Seconds by reason of these submissions; those of which nothing is recorded are left out."""
        found: dict[Key, dict[str, float]] = {}
        with self._lock, suppress(sqlite3.Error):
            rows = self._db.execute("SELECT job_id, submit, reason, seconds FROM waited")
            for job_id, submit, reason, seconds in rows:
                if (job_id, submit) in keys:
                    found.setdefault((job_id, submit), {})[str(reason)] = float(seconds)
        return found

    def prune(self, before: float, most: int = 500_000) -> None:
        """Drops older rows, and the oldest beyond the row limit."""
        with self._lock, suppress(sqlite3.Error):
            self._db.execute("DELETE FROM forecast WHERE made < ?", (before,))
            self._db.execute("DELETE FROM forecast WHERE id <= (SELECT max(id) FROM forecast) - ?", (most,))
            self._db.execute("DELETE FROM waited WHERE time < ?", (before,))

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                rows: list[tuple[Any, ...]] = self._db.execute(query, values).fetchall()
                return rows
            except sqlite3.Error:
                return []


def _log_error(told: float, came: float) -> float:
    return abs(math.log((told + _FLOOR) / (came + _FLOOR)))
