"""The journal: every write to Slurm is committed here before it is sent, by the one controller that holds the lease."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import SlurmRlError
from slurm_rl.obs.advice import AdviceLog
from slurm_rl.obs.journal_tables import TABLES
from slurm_rl.obs.lease_holder import is_gone

Key = tuple[int, int]  # job id, submit time


class JournalError(SlurmRlError):
    """The journal cannot be written or read; without it nothing is written to Slurm."""


class LostLease(SlurmRlError):
    """Another controller leads: this one must not write."""


@dataclass(frozen=True, slots=True)
class Change:
    """One SiteFactor to write: of which job, from what to what, and why."""

    job_id: int
    submit_time: int
    old: int | None
    new: int
    reason: str


@dataclass(frozen=True, slots=True)
class Watched:
    """A job that should have no factor of ours any more, though nobody has seen so."""

    value: int  # the last factor that it had from us; 0: not known
    confirmed: bool  # slurmctld confirmed that it took the 0; else the job had ended, and may yet be requeued
    time: float  # when it was last there


@dataclass(frozen=True, slots=True)
class Steered:
    """A feature expression that we wrote: into which field, what, and what the user had there."""

    field: str
    value: str
    own: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """A start time that we wrote to a job, or lifted again, and what is to be known until it starts."""

    written: int  # the second that Slurm was told
    lifted: bool  # it was the second of the writing itself: the job may start
    own: int  # since when it was eligible before we first wrote
    due: int  # by when it should start on the type that it waits for
    awaits: str
    times: int  # how often it was deferred
    settled: bool = False  # it did not start in time, and is counted so

    def lasts(self, now: float) -> bool:
        """Whether the job may not start before a later moment than `now`."""
        return not self.lifted and self.written > now


class Journal:
    """One SQLite file in WAL mode; a Journal may be shared by threads."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._advice = AdviceLog(path.with_suffix(".advice"))
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
            try:
                self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a new file only
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                # Only if something is missing: a journal on a full disk must still open, for undo.
                known = {row[0] for row in self._db.execute("SELECT name FROM sqlite_master")}
                for name, script in TABLES:
                    if name not in known:
                        self._db.executescript(f"BEGIN IMMEDIATE; {script} COMMIT;")
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._advice.close()
            self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"journal {self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, query: str, *values: object) -> list[tuple[int, ...]]:
        with self._lock, self._errors():
            return self._db.execute(query, values).fetchall()

    # The lease: its token grows with every change of leader, and every write carries it.

    def acquire(self, holder: str, now: float, seconds: float, *, force: bool = False) -> int | None:
        """The token of the lease if it was free, ours, expired or its holder dead; None while another one leads."""
        with self._transaction() as db:
            token, old, expires = db.execute("SELECT token, holder, expires FROM lease").fetchone()
            if old == holder and not force:  # perhaps expired, but nobody led meanwhile
                db.execute("UPDATE lease SET expires = ?", (now + seconds,))
                return int(token)
            if old and old != holder and expires > now and not is_gone(old) and not force:
                return None
            db.execute("UPDATE lease SET token = ?, holder = ?, expires = ?", (token + 1, holder, now + seconds))
            return int(token) + 1

    def leader(self, now: float) -> str | None:
        """Who holds the lease and lives."""
        ((holder, expires),) = self._rows("SELECT holder, expires FROM lease")
        alive = holder and float(expires) > now and not is_gone(str(holder))
        return str(holder) if alive else None

    def release(self, token: int) -> None:
        with self._transaction() as db:
            db.execute("UPDATE lease SET holder = '', expires = 0 WHERE token = ?", (token,))

    # Ticks and changes.

    def tick(self, now: float, mode: str, policy: str, model: str, pending: int, wanted: int, note: str = "") -> int:
        """Records a tick and returns its number."""
        with self._transaction() as db:
            row = db.execute(
                "INSERT INTO tick (time, mode, policy, model, pending, wanted, note) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (now, mode, policy, model, pending, wanted, note),
            )
            return int(row.lastrowid or 0)

    def intend(self, tick: int, token: int, now: float, changes: Sequence[Change]) -> list[int]:
        """Commits what is about to be written; raises LostLease, having recorded nothing, if we do not lead.

        A job stays touched until it was seen without a factor: a 0 may be journaled, and never sent.
        """
        with self._transaction() as db:
            _check_lease(db, token, now)
            numbers = _insert(db, tick, token, now, changes, "intended")
            db.executemany(
                "INSERT INTO touched VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET value = excluded.value, time = excluded.time",
                [(c.job_id, c.submit_time, c.new, now) for c in changes],
            )
            return numbers

    def shadow(self, tick: int, now: float, changes: Sequence[Change]) -> None:
        """Records what would have been written."""
        with self._transaction() as db:
            _insert(db, tick, 0, now, changes, "shadow")

    def shadow_deferrals(self, tick: int, now: float, rows: Sequence[tuple[Key, Deferred]]) -> None:
        """Records start times that would have been written."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO would_defer (tick, time, job_id, submit_time, until, awaits) VALUES (?, ?, ?, ?, ?, ?)",
                [(tick, now, *job, row.written, row.awaits) for job, row in rows],
            )

    def remember(self, name: str, now: float, state: str) -> None:
        """Keeps something that must outlive a restart, in place of what was kept by that name."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (name, now, state))

    def recall(self, name: str) -> str | None:
        """What was last kept by a name."""
        rows: list[tuple[object, ...]] = list(self._rows("SELECT state FROM memory WHERE name = ?", name))
        return str(rows[0][0]) if rows else None

    def settle(self, results: Sequence[tuple[int, str]]) -> None:
        """Records what became of changes: (number, status)."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE change SET status = ? WHERE id = ?", [(status, number) for number, status in results]
            )

    def touched(self) -> dict[Key, int]:
        """The last value written, or about to be, of every job that may still have one of ours."""
        return {(j, s): v for j, s, v in self._rows("SELECT job_id, submit_time, value FROM touched")}

    def touched_before(self, when: float) -> set[Key]:
        """Jobs to which nothing was written since."""
        return {(j, s) for j, s in self._rows("SELECT job_id, submit_time FROM touched WHERE time < ?", when)}

    def in_flight(self, since: float) -> bool:
        """Whether a write was journaled since then whose outcome nobody recorded: it may still be under way.

        Of types and start times outcomes are not recorded: a young one may be.
        """
        queries = (
            "SELECT 1 FROM change WHERE status = 'intended' AND time >= ? LIMIT 1",
            "SELECT 1 FROM steered WHERE time >= ? LIMIT 1",
            "SELECT 1 FROM deferred WHERE time >= ? LIMIT 1",
        )
        return any(self._rows(query, since) for query in queries)

    def watch(self, jobs: Sequence[tuple[Key, bool]], now: float) -> None:
        """Moves touched jobs to the watch list: (job, whether slurmctld confirmed the 0)."""
        with self._transaction() as db:
            for key, confirmed in jobs:
                row = db.execute("SELECT value FROM touched WHERE job_id = ? AND submit_time = ?", key).fetchone()
                if row is not None and row[0] == 0:
                    row = db.execute(
                        "SELECT new FROM change WHERE job_id = ? AND submit_time = ? AND new != 0 ORDER BY id DESC",
                        key,
                    ).fetchone()
                db.execute(
                    "INSERT INTO watched VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET confirmed = excluded.confirmed, time = excluded.time, "
                    "value = CASE excluded.value WHEN 0 THEN value ELSE excluded.value END",
                    (*key, row[0] if row is not None else 0, confirmed, now),
                )
                db.execute("DELETE FROM touched WHERE job_id = ? AND submit_time = ?", key)

    def watched(self) -> dict[Key, Watched]:
        """Jobs that should have no factor of ours any more, though nobody has seen so."""
        rows = self._rows("SELECT job_id, submit_time, value, confirmed, time FROM watched")
        return {(j, s): Watched(v, bool(c), float(t)) for j, s, v, c, t in rows}

    def unwatch(self, jobs: Sequence[Key]) -> None:
        """Drops jobs that were seen without a factor of ours, or are gone for good."""
        if jobs:
            with self._transaction() as db:
                db.executemany("DELETE FROM watched WHERE job_id = ? AND submit_time = ?", jobs)

    def adopt(self, jobs: Sequence[tuple[int, int, int]], now: float) -> None:
        """Takes responsibility for SiteFactors that the submit plugin wrote on our advice."""
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO touched VALUES (?, ?, ?, ?)", [(*job, now) for job in jobs])

    def steer(self, token: int, now: float, rows: Sequence[tuple[Key, Steered]]) -> None:
        """Commits feature expressions that are about to be written; what the user had is kept from the first time."""
        with self._transaction() as db:
            _check_lease(db, token, now)
            db.executemany(
                "INSERT INTO steered VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET field = excluded.field, "
                "value = excluded.value, time = excluded.time",
                [(*job, row.field, row.value, row.own, now) for job, row in rows],
            )

    def steered(self) -> dict[Key, Steered]:
        """The feature expressions that jobs have from us: (id, submit time) -> what, and the user's own."""
        rows = self._rows("SELECT job_id, submit_time, field, value, own FROM steered")
        return {(j, s): Steered(str(f), str(v), str(o)) for j, s, f, v, o in rows}

    def steered_before(self, when: float) -> set[Key]:
        """Jobs whose expression was written before then."""
        return {(j, s) for j, s in self._rows("SELECT job_id, submit_time FROM steered WHERE time < ?", when)}

    def absent_since(self, jobs: Iterable[Key], now: float) -> dict[Key, float]:
        """Since when each of these steered jobs is not there; those that are not named are there again."""
        rows = self._rows("SELECT job_id, submit_time, since FROM absent")
        known, given = {(j, s): float(since) for j, s, since in rows}, set(jobs)
        if known.keys() != given:
            with self._transaction() as db:
                db.executemany("DELETE FROM absent WHERE job_id = ? AND submit_time = ?", sorted(known.keys() - given))
                db.executemany("INSERT OR IGNORE INTO absent VALUES (?, ?, ?)", [(*k, now) for k in given])
        return {key: known.get(key, now) for key in given}

    def release_steered(self, jobs: Sequence[Key]) -> None:
        """Drops jobs that have started, have ended or have their own expression again."""
        if jobs:
            with self._transaction() as db:
                db.executemany("DELETE FROM steered WHERE job_id = ? AND submit_time = ?", jobs)

    def defer(self, token: int, now: float, rows: Sequence[tuple[Key, Deferred]]) -> None:
        """Commits start times that are about to be written."""
        with self._transaction() as db:
            _check_lease(db, token, now)
            _insert_deferred(db, now, rows)

    def settle_deferred(self, now: float, rows: Sequence[tuple[Key, Deferred]]) -> None:
        """Notes what became of jobs that wait on."""
        if rows:
            with self._transaction() as db:
                _insert_deferred(db, now, rows)

    def deferred(self) -> dict[Key, Deferred]:
        """Jobs to which we wrote a start time and which have not started since, as far as we know."""
        query = "SELECT job_id, submit_time, written, lifted, own, due, awaits, times, settled FROM deferred"
        return {
            (j, s): Deferred(w, bool(gone), own, due, str(awaits), times, bool(settled))
            for j, s, w, gone, own, due, awaits, times, settled in self._rows(query)
        }

    def release_deferred(self, jobs: Sequence[Key]) -> None:
        """Drops jobs that have started, have ended, or whose start time is not ours any more."""
        if jobs:
            with self._transaction() as db:
                db.executemany("DELETE FROM deferred WHERE job_id = ? AND submit_time = ?", jobs)

    def forget(self, jobs: Sequence[Key]) -> None:
        """Drops jobs that are gone for good, or that were seen at 0."""
        if jobs:
            with self._transaction() as db:
                db.executemany("DELETE FROM touched WHERE job_id = ? AND submit_time = ?", jobs)

    def history(self, job_id: int, submit_time: int) -> list[tuple[float, int | None, int, str, str]]:
        """(time, old, new, reason, status) of a job's changes, oldest first."""
        query = "SELECT time, old, new, reason, status FROM change WHERE job_id = ? AND submit_time = ? ORDER BY id"
        return [(float(a), b, int(c), str(d), str(e)) for a, b, c, d, e in self._rows(query, job_id, submit_time)]

    def decisions(
        self, limit: int, before: int | None = None, job_id: int | None = None, status: str = ""
    ) -> list[tuple[int, float, int, int | None, int, str, str]]:
        """(number, time, job id, old, new, reason, status) of changes below a number, the newest first."""
        clauses, values = ["1"], list[object]()
        for clause, value in (("id < ?", before), ("job_id = ?", job_id), ("status = ?", status or None)):
            if value is not None:
                clauses.append(clause)
                values.append(value)
        where = " AND ".join(clauses)  # fixed words alone: what was asked for goes by parameters
        query = f"SELECT id, time, job_id, old, new, reason, status FROM change WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608
        rows = self._rows(query, *values, limit)
        return [(int(a), float(b), int(c), d, int(e), str(f), str(g)) for a, b, c, d, e, f, g in rows]

    def changes_since(self, when: float) -> dict[str, int]:
        """How many changes were written (or would have been) since, by what became of them."""
        rows = self._rows("SELECT status, count(*) FROM change WHERE time >= ? GROUP BY status", when)
        return {str(status): count for status, count in rows}

    def shadow_period(self) -> tuple[float, float, int, int] | None:
        """First and last tick in shadow mode, how many, and how many updates they would have made."""
        ((first, last, count),) = self._rows("SELECT min(time), max(time), count(*) FROM tick WHERE mode = 'shadow'")
        ((changes,),) = self._rows("SELECT count(*) FROM change WHERE status = 'shadow'")
        return (float(first), float(last), count, changes) if count else None

    def shadow_deferred(self) -> tuple[int, int]:
        """How many start times shadow mode would have written, and to how many jobs."""
        ((times,),) = self._rows("SELECT count(*) FROM would_defer")
        ((jobs,),) = self._rows("SELECT count(*) FROM (SELECT DISTINCT job_id, submit_time FROM would_defer)")
        return times, jobs

    def last_policy(self) -> str | None:
        rows = self._rows("SELECT policy FROM tick ORDER BY id DESC LIMIT 1")
        return str(rows[0][0]) if rows else None

    def prune(self, before: float, most_bytes: float = float("inf")) -> None:
        """Drops records that are older, then the oldest of the rest, until they fit; never what undo goes by."""
        with self._transaction() as db:
            db.execute("DELETE FROM change WHERE time < ?", (before,))
            db.execute("DELETE FROM tick WHERE time < ?", (before,))
            db.execute("DELETE FROM would_defer WHERE time < ?", (before,))
        while self._used() > most_bytes:
            with self._transaction() as db:
                (first, last), (tick, newest) = (
                    db.execute(f"SELECT min(id), max(id) FROM {table}").fetchone()  # noqa: S608  (two names of ours)
                    for table in ("change", "tick")
                )
                if first == last and tick == newest:
                    break
                db.execute("DELETE FROM change WHERE id < ?", ((first or 0) + ((last or 0) - (first or 0) + 7) // 8,))
                db.execute("DELETE FROM tick WHERE id < ?", ((tick or 0) + ((newest or 0) - (tick or 0) + 7) // 8,))
        with self._lock, self._errors():
            self._db.executescript("PRAGMA incremental_vacuum;")  # execute() would free one page
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with self._errors():
            self._advice.prune(before)

    def _used(self) -> int:
        """Bytes that records take, without free pages."""
        ((pages,),), ((free,),), ((size,),) = (
            self._rows(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    # Advice given at submission, and commands to a running controller.

    def advise(self, now: float, uid: int, value: int) -> None:
        """Records advice before it is given."""
        with self._errors():
            self._advice.append(now, uid, value)

    def advice(self, since: float) -> list[tuple[float, int, int]]:
        """(time, uid, SiteFactor) of advice given since."""
        with self._errors():
            return self._advice.read(since)

    def promotion(self, now: float, action: str, model: str, digest: str, who: str, gate: str) -> None:
        """Records that a model was put in charge (promote, rollback) or refused, and what the gate found."""
        with self._transaction() as db:
            row = (now, action, model, digest, who, gate)
            db.execute("INSERT INTO promotion (time, action, model, hash, who, gate) VALUES (?, ?, ?, ?, ?, ?)", row)

    def promotions(self) -> list[tuple[float, str, str, str, str, str]]:
        """(time, action, model, hash, who, gate), oldest first."""
        rows = self._rows("SELECT time, action, model, hash, who, gate FROM promotion ORDER BY id")
        return [(float(a), str(b), str(c), str(d), str(e), str(f)) for a, b, c, d, e, f in rows]

    def command(self, now: float, mode: str, who: str) -> None:
        """Tells every controller on this journal to change its mode."""
        with self._transaction() as db:
            db.execute("INSERT INTO command (time, mode, who) VALUES (?, ?, ?)", (now, mode, who))

    def last_command(self) -> tuple[int, str, str] | None:
        """(number, mode, who) of the last command."""
        rows = self._rows("SELECT id, mode, who FROM command ORDER BY id DESC LIMIT 1")
        return (int(rows[0][0]), str(rows[0][1]), str(rows[0][2])) if rows else None


def _check_lease(db: sqlite3.Connection, token: int, now: float) -> None:
    held, expires = db.execute("SELECT token, expires FROM lease").fetchone()
    if held != token or expires <= now:
        raise LostLease(f"another controller leads (lease {held}, ours was {token}): nothing is written")


def _insert_deferred(db: sqlite3.Connection, now: float, rows: Sequence[tuple[Key, Deferred]]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO deferred VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(*key, r.written, r.lifted, r.own, r.due, r.awaits, r.times, r.settled, now) for key, r in rows],
    )


def _insert(
    db: sqlite3.Connection, tick: int, token: int, now: float, changes: Sequence[Change], status: str
) -> list[int]:
    query = (
        "INSERT INTO change (tick, time, token, job_id, submit_time, old, new, reason, status) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    numbers = []
    for c in changes:
        row = db.execute(query, (tick, now, token, c.job_id, c.submit_time, c.old, c.new, c.reason, status))
        numbers.append(int(row.lastrowid or 0))
    return numbers
