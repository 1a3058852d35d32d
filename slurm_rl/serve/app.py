"""The FastAPI application: submit, rank, queue, explain, reload, mode, health, metrics, dashboard."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse

from slurm_rl import __version__
from slurm_rl.errors import SlurmRlError
from slurm_rl.obs.metrics import CONTENT_TYPE
from slurm_rl.obs.queue import JobView, QueueView
from slurm_rl.serve.dashboard import PAGE
from slurm_rl.serve.limits import Limits
from slurm_rl.serve.live import Live
from slurm_rl.serve.peers import Peer, peer_of
from slurm_rl.serve.schemas import ModeRequest, Problem, RankRequest, SubmitAnswer, SubmitRequest

_REFUSALS: dict[int | str, dict[str, Any]] = {code: {"model": Problem} for code in (401, 403, 404, 413, 422, 503, 504)}


def make_app(live: Live, *, token: str | None = None, seconds: float = 0.2, concurrent: int = 64) -> Callable[..., Any]:
    """The application, with its limits around it."""
    app = FastAPI(
        title="slurm-rl", version=__version__, docs_url=None, redoc_url=None, responses=_REFUSALS, openapi_url=None
    )

    async def ask_peer(request: Request) -> Peer:  # a plain function would be run in a thread
        return peer_of(request, live.writers, token)

    Asker = Annotated[Peer, Depends(ask_peer)]
    JobId = Annotated[int, Path(ge=1, le=2**31 - 1)]

    @app.exception_handler(SlurmRlError)
    async def refused(request: Request, error: SlurmRlError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not repeated: it may hold what JSON cannot (NaN), or be long.
        places = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]]
        return JSONResponse({"detail": "; ".join(places)}, 422)

    @app.post("/v1/submit", response_model=SubmitAnswer, response_model_exclude_none=True)
    async def submit(job: SubmitRequest, peer: Asker) -> Any:
        """Advice for a job that is being submitted; {} in shadow mode and whenever nothing is known."""
        peer.must_write()
        return live.advise(job.asked())

    @app.post("/v1/rank")
    async def rank(request: RankRequest, peer: Asker) -> dict[str, Any]:
        """Orders the queue in the request, whatever the live one looks like."""
        return await asyncio.to_thread(live.rank, request.model_dump())

    @app.get("/v1/queue")
    async def queue(
        peer: Asker,
        offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> dict[str, Any]:
        """The pending queue in the order of the last tick, as far as the asker may see it."""
        view = _view(live)
        own = None if peer.writer or not view.private else await peer.name()
        count, rows = await asyncio.to_thread(view.page, offset, limit, own)
        head = {
            name: getattr(view, name) for name in ("time", "tick", "cluster", "policy", "model", "bound", "deferrals")
        }
        return head | {"mode": live.mode, "pending": count, "jobs": [asdict(j) for j in rows]}

    @app.get("/v1/jobs/{job_id}/explain")
    async def explain(job_id: JobId, peer: Asker) -> dict[str, Any]:
        """Where a job stands, why, when it may start, and what would move it; for its owner and for admins."""
        view = _view(live)
        job = await asyncio.to_thread(view.job, job_id)
        if job is None:
            raise HTTPException(404, f"job {job_id} was not pending at the last tick")
        if not peer.writer and job.user != await peer.name():
            raise HTTPException(404 if view.private else 403, f"job {job_id} is not yours")
        standing = await asyncio.to_thread(live.standing, job_id)
        past = await asyncio.to_thread(live.past, job.job_id, job.submit_time)
        return {"features": [], "what_would_move_it": [], "changes": past} | explanation(view, job) | standing

    @app.post("/v1/reload")
    async def reload(peer: Asker) -> dict[str, Any]:
        """Reads the configuration again; a wrong one is refused and the old one stays."""
        peer.must_write()
        return await asyncio.to_thread(live.reload)

    @app.get("/v1/mode")
    async def mode(peer: Asker) -> dict[str, str]:
        """The mode in effect."""
        return {"mode": live.mode}

    @app.put("/v1/mode")
    async def change_mode(wanted: ModeRequest, peer: Asker) -> dict[str, str]:
        """Changes the mode from the next tick on; leaving enforce takes every SiteFactor back."""
        peer.must_write()
        await asyncio.to_thread(live.set_mode, wanted.mode, f"uid {peer.uid}" if peer.uid is not None else "tcp")
        return {"mode": wanted.mode}

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answers while the service lives."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Whether ticks succeed."""
        missing = live.ready()
        return JSONResponse({"status": missing or "ready"}, 503 if missing else 200)

    @app.get("/metrics")
    async def metrics(peer: Asker) -> Response:
        """Prometheus metrics."""
        return Response(live.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(app.openapi())

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def dashboard() -> str:
        return PAGE

    return Limits(app, metrics=live.metrics, seconds=seconds, concurrent=concurrent)


def _view(live: Live) -> QueueView:
    view = live.queue()
    if view is None:
        raise HTTPException(404, "no tick has observed the queue yet")
    return view


def explanation(view: QueueView, job: JobView) -> dict[str, Any]:
    """A job's place and the reasons for it, as one JSON object."""
    if job.rank < 0:
        place: dict[str, Any] = {"ordered": False, "why": job.why}
    else:
        place = {
            "ordered": True,
            "rank": job.rank + 1,
            "of": job.of,
            "why": job.why,
            "promoted": job.promoted,
            "policy": {
                "name": view.policy,
                "model": view.model,
                "score": job.score,
                "inputs": {"wait": job.wait, "estimate": job.estimate, "time_limit": job.time_limit, "gpus": job.gpus},
            },
            "site_factor": {"now": job.site_factor, "wanted": job.wanted, "bound": view.bound},
            "estimate": {"seconds": job.estimate, "range": list(job.estimate_range)},
            "expected_start": {
                "time": job.expected_start,
                "range": list(job.expected_range or ()),
                "by_slurm": job.slurm_start,
            },
        }
    names = ("job_id", "user", "account", "name", "partition", "gpus", "nodes", "time_limit", "wait")
    return {
        "job": {name: getattr(job, name) for name in names},
        "tick": view.tick,
        "time": view.time,
        "mode": view.mode,
        "slurm": dict(job.slurm_factors),
    } | place
