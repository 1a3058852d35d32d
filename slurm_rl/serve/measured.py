"""The answer about a job that is not pending: what it used, for its owner and for admins."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import HTTPException

from slurm_rl.telemetry.store import Measured


def explain_measured(measured: Measured | None, job_id: object, user: str | None, private: bool) -> dict[str, Any]:
    """`user` is who asks; None sees every job."""
    if measured is None:
        raise HTTPException(404, f"job {job_id} was not pending at the last tick")
    if user is not None and (not measured.user or measured.user != user):
        raise HTTPException(404 if private else 403, f"job {job_id} is not yours")
    return {"measured": asdict(measured)}
