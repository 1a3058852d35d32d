"""Reads Microsoft's Philly `cluster_job_log`: JSON, one entry a job with its attempts."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from slurm_rl.traces.assemble import assemble
from slurm_rl.traces.files import Source
from slurm_rl.traces.jsonfile import decode, entries_screen
from slurm_rl.traces.trace import Trace

_STATUS = {"Pass": "COMPLETED", "Killed": "CANCELLED", "Failed": "FAILED"}


def sniff(head: str) -> bool:
    return head.lstrip()[:1] == "[" and '"attempts"' in head and '"jobid"' in head


def sniff_files(files: dict[str, bytes]) -> bool:
    return any("cluster_job_log" in name for name in files)


def read(source: Source) -> Trace:
    """Reads jobs; a job that was started several times ran for the sum of its attempts, on the largest of them."""
    raw = next((raw for name, raw in source.files.items() if "cluster_job_log" in name), source.raw)
    entries = decode(source, raw)
    if not isinstance(entries, list):
        raise source.error("must be a JSON list of jobs", remedy="give cluster_job_log as published")
    screen = entries_screen(source, len(entries))
    submit, run, gpus, nodes = (np.full(len(entries), np.nan) for _ in range(4))
    attempts, unreadable, unfinished = (np.zeros(len(entries), dtype=bool) for _ in range(3))
    ids, users, partitions, states = ([""] * len(entries) for _ in range(4))
    for i, entry in enumerate(entries):
        try:
            ids[i], users[i] = str(entry["jobid"]), str(entry.get("user") or "")
            partitions[i] = str(entry.get("vc") or "")
            states[i] = _STATUS.get(entry["status"], str(entry["status"]).upper())
            submit[i] = _moment(entry["submitted_time"])
            runs = [a for a in entry["attempts"] if a.get("start_time") not in (None, "None")]
            attempts[i] = len(runs) > 1
            unfinished[i] = bool(runs) and math.isnan(_moment(runs[-1].get("end_time")))
            lengths = [_moment(a.get("end_time")) - _moment(a["start_time"]) for a in runs]
            run[i] = sum(x for x in lengths if not math.isnan(x)) if lengths else math.nan
            shapes = [[len(d["gpus"]) for d in a.get("detail") or []] for a in runs]
            gpus[i], nodes[i] = max(((sum(s), len(s)) for s in shapes), default=(math.nan, math.nan))
        except (KeyError, TypeError, ValueError, AttributeError):
            unreadable[i] = True
    screen.drop(unreadable, "the entry is unreadable")
    screen.skip(unfinished, "still running when the log ends: its run time is unknown")
    screen.skip(np.isnan(run), "no attempt was recorded: it never ran")
    screen.drop(np.isnan(gpus) | (gpus <= 0), "its GPUs are not recorded")
    screen.note(attempts, "several attempts: their run times are added")
    return assemble(
        screen,
        submit,
        run,
        absolute=True,
        job_id=np.array(ids, dtype=object),
        num_gpus=gpus,
        num_nodes=np.nan_to_num(nodes),
        user=users,
        partition=partitions,
        status=states,
    )


def _moment(text: Any) -> float:
    """Unix seconds of a date without a zone, NaN where there is none."""
    if text in (None, "None", ""):
        return math.nan
    return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp()
