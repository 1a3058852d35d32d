"""The answer about a job that is not pending: its delays and its use, for its owner and for admins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import HTTPException

from slurm_rl.serve.jobid import JobId
from slurm_rl.serve.live import Live
from slurm_rl.slurm.reasons import in_words


def causes(seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """What held a job back and for how long, in words, the weightiest first."""
    ordered = sorted(seconds.items(), key=lambda c: -c[1])
    return [{"code": code, "seconds": s, "meaning": in_words(code).meaning} for code, s in ordered if s > 0]


def explain_past(live: Live, wanted: JobId, user: str | None, private: bool) -> dict[str, Any]:
    """The jobs of `user`; None sees every job."""
    measured = live.measured(wanted.job)
    single = wanted.task is None and wanted.offset is None  # Slurm gives a task that has started an id of its own
    waited = live.waited(wanted.job) if single else None
    if measured is None and waited is None:
        raise HTTPException(404, f"job {wanted} was not pending at the last tick")
    owner = measured.user if measured is not None else waited[0] if waited is not None else ""
    if user is not None and (not owner or owner != user):
        raise HTTPException(404 if private else 403, f"job {wanted} is not yours")
    told: dict[str, Any] = {"job_id": wanted.job, "user": owner}
    told["held_back"] = causes(waited[1] if waited is not None else {})
    told["forecasts"] = live.forecasts_of(wanted.job)
    return told | ({"measured": asdict(measured)} if measured is not None else {})
