"""The journal's tables; those at the end were added later, and an older journal gets them when it is opened."""

from __future__ import annotations

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tick (
  id INTEGER PRIMARY KEY, time REAL NOT NULL, mode TEXT NOT NULL, policy TEXT NOT NULL, model TEXT NOT NULL,
  pending INTEGER NOT NULL, wanted INTEGER NOT NULL, note TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS change (
  id INTEGER PRIMARY KEY, tick INTEGER NOT NULL, time REAL NOT NULL, token INTEGER NOT NULL, job_id INTEGER NOT NULL,
  submit_time INTEGER NOT NULL, old INTEGER, new INTEGER NOT NULL, reason TEXT NOT NULL, status TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS change_job ON change (job_id, submit_time);
CREATE INDEX IF NOT EXISTS change_time ON change (time);
CREATE TABLE IF NOT EXISTS touched (
  job_id INTEGER NOT NULL, submit_time INTEGER NOT NULL, value INTEGER NOT NULL, time REAL NOT NULL,
  PRIMARY KEY (job_id, submit_time)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lease (
  one INTEGER PRIMARY KEY CHECK (one = 1), token INTEGER NOT NULL, holder TEXT NOT NULL, expires REAL NOT NULL);
CREATE TABLE IF NOT EXISTS promotion (
  id INTEGER PRIMARY KEY, time REAL NOT NULL, action TEXT NOT NULL, model TEXT NOT NULL, hash TEXT NOT NULL,
  who TEXT NOT NULL, gate TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS command (id INTEGER PRIMARY KEY, time REAL NOT NULL, mode TEXT NOT NULL, who TEXT NOT NULL);
INSERT OR IGNORE INTO lease VALUES (1, 0, '', 0);
"""
_STEERED = """
CREATE TABLE IF NOT EXISTS steered (
  job_id INTEGER NOT NULL, submit_time INTEGER NOT NULL, field TEXT NOT NULL, value TEXT NOT NULL, own TEXT NOT NULL,
  time REAL NOT NULL, PRIMARY KEY (job_id, submit_time)) WITHOUT ROWID;
"""
_DEFERRED = """
CREATE TABLE IF NOT EXISTS deferred (
  job_id INTEGER NOT NULL, submit_time INTEGER NOT NULL, written INTEGER NOT NULL, lifted INTEGER NOT NULL,
  own INTEGER NOT NULL, due INTEGER NOT NULL, awaits TEXT NOT NULL, times INTEGER NOT NULL, settled INTEGER NOT NULL,
  time REAL NOT NULL, PRIMARY KEY (job_id, submit_time)) WITHOUT ROWID;
"""
_WOULD_DEFER = """
CREATE TABLE IF NOT EXISTS would_defer (
  id INTEGER PRIMARY KEY, tick INTEGER NOT NULL, time REAL NOT NULL, job_id INTEGER NOT NULL,
  submit_time INTEGER NOT NULL, until INTEGER NOT NULL, awaits TEXT NOT NULL);
"""
_WATCHED = """
CREATE TABLE IF NOT EXISTS watched (
  job_id INTEGER NOT NULL, submit_time INTEGER NOT NULL, value INTEGER NOT NULL, confirmed INTEGER NOT NULL,
  time REAL NOT NULL, PRIMARY KEY (job_id, submit_time)) WITHOUT ROWID;
"""
_ABSENT = """
CREATE TABLE IF NOT EXISTS absent (
  job_id INTEGER NOT NULL, submit_time INTEGER NOT NULL, since REAL NOT NULL,
  PRIMARY KEY (job_id, submit_time)) WITHOUT ROWID;
"""
_MEMORY = """
CREATE TABLE IF NOT EXISTS memory (name TEXT PRIMARY KEY, time REAL NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
"""
TABLES = (  # made in one transaction each; a journal of an older version lacks the last ones
    ("promotion", _SCHEMA),
    ("steered", _STEERED),
    ("deferred", _DEFERRED),
    ("would_defer", _WOULD_DEFER),
    ("watched", _WATCHED),
    ("absent", _ABSENT),
    ("memory", _MEMORY),
)
