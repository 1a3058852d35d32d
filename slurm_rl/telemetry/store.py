"""The service's store of job records: SQLite beside the journal."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import InputError
from slurm_rl.telemetry.account import Watts, percentile

FILE = "telemetry.sqlite"
_SAME_RUN = 5.0  # seconds by which the starts of one run may differ from node to node, and from sacct's
_NUMBERS = (
    "start end gpus gpus_used energy_j memory_peak_mb idle_gpu_minutes gpu_seconds unmeasured_seconds slowed_seconds"
).split()
_SCHEMA = """
create table if not exists records (
    node text, job_id integer, start real, end real, user text, running integer, body text,
    primary key (node, job_id, start)
);
create index if not exists records_by_job on records (job_id);
create index if not exists records_by_end on records (end);
create table if not exists cursors (node text, ring text, number integer, primary key (node, ring));
create table if not exists watts (
    node text, gpu_type text, held_seconds real, held_joules real, free_seconds real, free_joules real,
    primary key (node, gpu_type)
);
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of a job used, over all its nodes."""

    job_id: int
    user: str
    start: float
    end: float
    running: bool
    nodes: tuple[str, ...]
    gpu_type: str
    gpus: int
    gpus_used: int
    energy_j: float
    util_mean: float | None
    util_p95: int | None
    memory_peak_mb: int
    idle_gpu_minutes: float
    gpu_seconds: float
    unmeasured_seconds: float
    slowed_seconds: float
    sm_mhz: int | None  # mean SM clock while kernels ran
    shared: bool
    complete: bool


class Store:
    """Every method may be called from any thread."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        if read_only and not path.is_file():
            raise InputError("no such file", file=str(path), remedy="name the service's telemetry.sqlite")
        uri = f"{path.absolute().as_uri()}{'?mode=ro' if read_only else ''}"
        try:
            self._db = sqlite3.connect(uri, uri=True, timeout=10.0, check_same_thread=False)
        except sqlite3.Error as error:
            raise InputError(f"cannot be used: {error}", file=str(path)) from None
        try:
            if not read_only:
                self._db.execute("pragma journal_mode=wal")
                self._db.executescript(_SCHEMA)
            self._db.execute("select count(*) from records").fetchone()
        except sqlite3.Error as error:
            self._db.close()
            raise InputError(f"cannot be used: {error}", file=str(path)) from None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def cursor(self, node: str, ring: str) -> int:
        """The last record of this node's ring that is here; 0 for a ring that was not seen before."""
        with self._lock:
            row = self._db.execute("select number from cursors where node=? and ring=?", (node, ring)).fetchone()
        return int(row[0]) if row else 0

    def add(self, node: str, ring: str, records: Sequence[Mapping[str, Any]]) -> int:
        """Takes ended jobs of a node; those that make no sense or are another node's are left out. Returns how many."""
        rows = [_row(r, node, running=False) for r in records]
        good = [r for r in rows if r is not None]
        with self._lock, self._db:
            self._db.executemany("delete from records where node=? and job_id=? and running", [r[:2] for r in good])
            self._db.executemany("insert or replace into records values (?,?,?,?,?,?,?)", good)
            if records:
                last = max(int(r.get("number", 0)) for r in records)
                self._db.execute("insert or replace into cursors values (?,?,?)", (node, ring, last))
        return len(good)

    def now(self, node: str, running: Sequence[Mapping[str, Any]], watts: Mapping[str, Sequence[float]]) -> None:
        """Takes a node's running jobs in place of those before, and its GPU types' watts."""
        rows = [row for r in running if (row := _row(r, node, running=True)) is not None]
        sums = [(node, kind, *map(float, values)) for kind, values in watts.items() if len(values) == 4]
        with self._lock, self._db:
            self._db.execute("delete from records where node=? and running", (node,))
            self._db.executemany("insert or ignore into records values (?,?,?,?,?,?,?)", rows)
            self._db.execute("delete from watts where node=?", (node,))
            self._db.executemany("insert into watts values (?,?,?,?,?,?)", sums)

    def forget(self, before: float) -> None:
        with self._lock, self._db:
            self._db.execute("delete from records where end < ? and not running", (before,))

    def runs(self, job_id: int) -> list[Measured]:
        """The runs of a job, oldest first; a requeued job has several."""
        with self._lock:
            rows = self._db.execute("select * from records where job_id=? order by start", (job_id,)).fetchall()
        return _runs(rows)

    def run(self, job_id: int, start: float) -> Measured | None:
        """The run of a job that began when Slurm says."""
        return match_run(self.runs(job_id), start)

    def running(self, user: str | None = None, limit: int = 100) -> list[Measured]:
        """Jobs that run now, of one user or of all; those with the most idle GPU time first."""
        with self._lock:
            rows = self._db.execute(
                "select * from records where running and (? is null or user=?) order by job_id, start", (user, user)
            ).fetchall()
        return sorted(_runs(rows), key=lambda m: -m.idle_gpu_minutes)[:limit]

    def ended(self, since: float, until: float) -> list[Measured]:
        """Every run that ended between two times."""
        with self._lock:
            rows = self._db.execute(
                "select * from records where job_id in (select job_id from records where end between ? and ?)"
                " and not running order by job_id, start",
                (since, until),
            ).fetchall()
        return _runs(rows)

    def idlest(self, since: float, user: str | None = None, limit: int = 100) -> list[Measured]:
        """Runs that ended since a time, of one user or of all; those with the most idle GPU time first."""
        with self._lock:
            rows = self._db.execute(
                "select * from records where not running and end >= ? and (? is null or user=?) order by job_id, start",
                (since, user, user),
            ).fetchall()
        return sorted(_runs(rows), key=lambda m: -m.idle_gpu_minutes)[:limit]

    def watts(self) -> dict[str, Watts]:
        """Seconds and joules of each GPU type, over all nodes."""
        with self._lock:
            rows = self._db.execute(
                "select gpu_type, sum(held_seconds), sum(held_joules), sum(free_seconds), sum(free_joules)"
                " from watts group by gpu_type"
            ).fetchall()
        return {kind: Watts(*sums) for kind, *sums in rows}


def match_run(runs: Iterable[Measured], start: float) -> Measured | None:
    """The run that began when Slurm says."""
    return next((r for r in runs if abs(r.start - start) <= _SAME_RUN), None)


def _row(record: Mapping[str, Any], node: str, running: bool) -> tuple[Any, ...] | None:
    sound = all(isinstance(record.get(n), int | float) and abs(record[n]) < 1e15 for n in (*_NUMBERS, "job_id"))
    if not sound or record.get("node") != node or not isinstance(record.get("percents"), list):
        return None
    user = str(record.get("user", ""))[:64]
    kept = json.dumps({k: v for k, v in record.items() if k not in ("number", "ring", "places")})
    return node, int(record["job_id"]), float(record["start"]), float(record["end"]), user, int(running), kept


def _runs(rows: Iterable[tuple[Any, ...]]) -> list[Measured]:
    """Rows by job and start, put together where they are parts of one run."""
    gathered: list[list[dict[str, Any]]] = []
    for row in rows:
        record = json.loads(row[6]) | {"running": bool(row[5])}
        last = gathered[-1][0] if gathered else None
        if last and last["job_id"] == record["job_id"] and abs(last["start"] - record["start"]) <= _SAME_RUN:
            gathered[-1].append(record)
        else:
            gathered.append([record])
    return [_measured(parts) for parts in gathered]


def _number(record: Mapping[str, Any], name: str) -> float:
    """A figure that a record may lack; 0 if it is missing or not a number."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e15 else 0.0


def _measured(parts: list[dict[str, Any]]) -> Measured:
    percents: dict[int, float] = {}
    for part in parts:
        for percent, seconds in part["percents"]:
            percents[int(percent)] = percents.get(int(percent), 0.0) + float(seconds)
    told = sum(percents.values())

    def total(name: str) -> float:
        return float(sum(p[name] for p in parts))

    # A part counts by the time of its kernels; records of older agents tell no clock.
    clocks = [(_number(p, "sm_mhz"), _number(p, "util_mean") * p["gpu_seconds"]) for p in parts]
    clocks = [(mhz, weight) for mhz, weight in clocks if mhz > 0 and weight > 0]
    ran = sum(weight for _, weight in clocks)
    return Measured(
        job_id=parts[0]["job_id"],
        user=next((p["user"] for p in parts if p["user"]), ""),
        start=min(p["start"] for p in parts),
        end=max(p["end"] for p in parts),
        running=any(p["running"] for p in parts),
        nodes=tuple(p["node"] for p in parts),
        gpu_type="|".join(sorted({p["gpu_type"] for p in parts})),
        gpus=int(total("gpus")),
        gpus_used=int(total("gpus_used")),
        energy_j=total("energy_j"),
        util_mean=round(sum(p * s for p, s in percents.items()) / told, 2) if told else None,
        util_p95=percentile(percents, 0.95),
        memory_peak_mb=max(int(p["memory_peak_mb"]) for p in parts),
        idle_gpu_minutes=round(total("idle_gpu_minutes"), 3),
        gpu_seconds=total("gpu_seconds"),
        unmeasured_seconds=total("unmeasured_seconds"),
        slowed_seconds=total("slowed_seconds"),
        sm_mhz=round(sum(mhz * weight for mhz, weight in clocks) / ran) if ran else None,
        shared=any(p["shared"] for p in parts),
        complete=all(p["complete"] for p in parts),
    )
