"""The FastAPI application: submit, rank, queue, explain, reload, mode, health, metrics, dashboard."""

import asyncio
import functools
import pwd
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from slurm_rl import __version__
from slurm_rl.errors import SlurmRlError
from slurm_rl.obs.metrics import CONTENT_TYPE
from slurm_rl.obs.queue import SORTS, JobView, QueueFilter, QueueView
from slurm_rl.serve.board import EVENTS, add_board
from slurm_rl.serve.gate import Gate
from slurm_rl.serve.jobid import JobId, parse
from slurm_rl.serve.limits import RequestLimits
from slurm_rl.serve.live import Live
from slurm_rl.serve.measured import causes, explain_past
from slurm_rl.serve.peers import Identify, Peer, accepted_in
from slurm_rl.serve.pressure import measure
from slurm_rl.serve.ranker import Ranker, TooMuch
from slurm_rl.serve.roles import NEEDED, Tokens
from slurm_rl.serve.schemas import ModeRequest, Problem, RankRequest, SubmitAnswer, SubmitRequest
from slurm_rl.serve.turns import Busy
from slurm_rl.serve.when import Foreteller
from slurm_rl.slurm.reasons import in_words

_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (401, 403, 404, 413, 422, 429, 503, 504)
}
_RANK, _WHEN = "/v1/rank", "/v1/when"
_HEAD = ("time", "tick", "cluster", "policy", "model", "bound", "deferrals")

Found = TypeVar("Found")


class Workers:
    """Threads for what would hold up the loop: some for strangers, who pay for it, and others for the rest."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.strangers = ThreadPoolExecutor(2, "strangers")
        self._own = ThreadPoolExecutor(4, "own")

    async def do(self, peer: Peer, call: Callable[..., Found], *args: Any) -> Found:
        loop = asyncio.get_running_loop()
        if not peer.is_stranger:
            return await loop.run_in_executor(self._own, call, *args)
        wait = self._gate.wait_for_work(peer.key)
        if wait > 0:
            raise HTTPException(429, f"you have had your share: try again in {wait:.1f} s", {"Retry-After": "1"})
        return await loop.run_in_executor(self.strangers, self._charged, peer, call, *args)

    def _charged(self, peer: Peer, call: Callable[..., Found], *args: Any) -> Found:
        began = time.thread_time()
        try:
            return call(*args)
        finally:
            self._gate.charge(peer.key, time.thread_time() - began)

    def close(self) -> None:
        for pool in (self.strangers, self._own):
            pool.shutdown(wait=False, cancel_futures=True)


@functools.lru_cache(maxsize=1024)
def user_name(uid: int, _minutes: int) -> str:
    """A user's name; asked anew after some minutes."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_app(
    live: Live,
    *,
    gate: Gate | None = None,
    tokens: Tokens | None = None,
    munge: bool = False,
    munge_socket: str = "",
    seconds: float = 0.2,
    concurrent: int = 64,
) -> Callable[..., Any]:
    """The application, with its limits around it."""
    gate = gate or Gate(lambda: live.writers)
    workers, ranker, foreteller = Workers(gate), Ranker(), Foreteller()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()
        ranker.close()
        foreteller.close()

    app = FastAPI(
        title="slurm-rl",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses=_REFUSALS,
        openapi_url=None,
        lifespan=lifespan,
    )
    identify = Identify(gate, tokens or Tokens({}), workers.strangers, munge, munge_socket)

    async def ask_peer(request: Request) -> Peer:  # a plain function would be run in a thread
        peer = await identify.peer_of(request)
        peer.must_be(NEEDED[request.method, request.scope["route"].path])
        return peer

    Asker = Annotated[Peer, Depends(ask_peer)]

    async def own_jobs_of(peer: Peer) -> str:
        """The name that a user's jobs carry; a name service may be slow."""
        return "" if peer.uid is None else await workers.do(peer, user_name, peer.uid, int(time.monotonic() // 300))

    @app.exception_handler(SlurmRlError)
    async def refused(request: Request, error: SlurmRlError) -> JSONResponse:
        code = 429 if isinstance(error, Busy) else 413 if isinstance(error, TooMuch) else 422
        return JSONResponse({"detail": str(error)}, code)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not repeated: it may hold what JSON cannot (NaN), or be long.
        places = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]]
        return JSONResponse({"detail": "; ".join(places)}, 422)

    @app.post("/v1/submit", response_model=SubmitAnswer, response_model_exclude_none=True)
    async def submit(job: SubmitRequest, peer: Asker) -> Any:
        """Advice for a job that is being submitted; {} in shadow mode and whenever nothing is known."""
        return live.advise(job.asked())

    @app.post(_RANK)
    async def rank(request: RankRequest, peer: Asker) -> Response:
        """Orders the queue in the request, not the live one; in a process of its own."""
        asked = request.model_dump()
        ranker.admit(peer.key, asked)
        try:
            loop = asyncio.get_running_loop()
            return _json(await loop.run_in_executor(ranker.pool, ranker.work, asked, *live.ranking()))
        finally:
            ranker.leave(peer.key)

    @app.get("/v1/queue")
    async def queue(
        peer: Asker,
        offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        match: Annotated[str, Query(max_length=100)] = "",
        partition: Annotated[str, Query(max_length=100)] = "",
        sort: Annotated[Literal[SORTS], Query()] = "rank",  # type: ignore[valid-type]
        descending: bool = False,
    ) -> Response:
        """The pending queue in the order of the last tick, as far as the asker may see it.

        `match` finds jobs by their user, name or id. `pending` counts all jobs, `matching` those that were found.
        `sort` is by rank, or by what a row shows.
        """
        view = _view(live)
        own = None if peer.sees_all or not view.private else await own_jobs_of(peer)
        return await workers.do(
            peer, _page, view, live.mode, offset, limit, own, QueueFilter(match, partition, sort, descending)
        )

    @app.get("/v1/pressure")
    async def pressure(
        peer: Asker,
        partition: Annotated[str, Query(max_length=1000)] = "",
        gpus: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        time_limit: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    ) -> dict[str, Any]:
        """How long jobs like this wait: counts and waits alone, which name no job, so everyone may ask."""
        return await workers.do(peer, measure, _view(live), partition, gpus, time_limit)

    @app.get(_WHEN)
    async def when(
        peer: Asker,
        time_limit: Annotated[int, Query(ge=60, le=366 * 86_400)],
        gpus: Annotated[int, Query(ge=0, le=100_000)] = 0,
        gpu_type: Annotated[str, Query(max_length=64)] = "",
        partition: Annotated[str, Query(max_length=64)] = "",
        nodes: Annotated[int, Query(ge=1, le=10_000)] = 1,
        cpus: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
        mem_mb: Annotated[int, Query(ge=0, le=2**40)] = 0,
        name: Annotated[str, Query(max_length=200)] = "",
        account: Annotated[str, Query(max_length=64)] = "",
        qos: Annotated[str, Query(max_length=64)] = "",
    ) -> Response:
        """When a job would start if it were submitted now, and what other requests would change about that.

        Times are seconds. One question at a time for each user, and a rest of five times what it cost.
        """
        asked = {"gpus": gpus, "gpu_type": gpu_type, "limit": time_limit, "partition": partition, "nodes": nodes}
        asked |= {"cpus": cpus, "mem_mb": mem_mb, "name": name, "account": account, "qos": qos}
        asked["user"] = await own_jobs_of(peer)
        foreteller.admit(peer.key)
        cost = 0.0
        try:
            loop = asyncio.get_running_loop()
            told, cost = await loop.run_in_executor(foreteller.pool, foreteller.work, live, asked)
            return _json(told)
        finally:
            foreteller.leave(peer.key, cost if peer.is_stranger else 0.0)

    @app.get("/v1/forecasts")
    async def forecasts(peer: Asker) -> Response:
        """How the forecasts of start times of the last week fared: counts alone, so everyone may ask."""
        return _json(await workers.do(peer, live.forecast_skill))

    @app.get("/v1/jobs/{job_id}/explain")
    async def explain(job_id: Annotated[str, Path(max_length=100)], peer: Asker) -> Response:
        """Where a pending job stands and why, or what another one used; for its owner and for admins.

        A job is called as squeue calls it: JOBID, JOBID_TASK, JOBID+OFFSET or JOBID.STEP.
        """
        view, wanted = _view(live), parse(job_id)
        own = None if peer.sees_all else await own_jobs_of(peer)
        return await workers.do(peer, _explained, live, view, wanted, own)

    @app.get("/v1/measured")
    async def measured(
        peer: Asker,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        ended: Annotated[int, Query(ge=0, le=366 * 86_400)] = 0,
    ) -> Response:
        """What running jobs have used so far, or those that ended within `ended` seconds; the idlest first.

        Admins see all jobs, others their own.
        """
        own = None if peer.sees_all else await own_jobs_of(peer)
        if ended:
            return _json({"jobs": await workers.do(peer, live.measured_ended, ended, own, limit)})
        return _json({"jobs": await workers.do(peer, live.measured_now, own, limit)})

    @app.post("/v1/reload")
    async def reload(peer: Asker) -> dict[str, Any]:
        """Reads the configuration again; a wrong one is refused and the old one stays."""
        return await workers.do(peer, live.reload)

    @app.get("/v1/auto")
    async def auto(peer: Asker) -> Response:
        """The policy of each partition with its table, and the promise with what is withheld for it."""
        return _json(await workers.do(peer, live.auto))

    @app.post("/v1/auto")
    async def choose(peer: Asker) -> dict[str, bool]:
        """Looks at the last weeks again, beside the service; `started` is false while it is doing so."""
        return {"started": await workers.do(peer, live.choose)}

    @app.get("/v1/mode")
    async def mode(peer: Asker) -> dict[str, str]:
        """The mode in effect."""
        return {"mode": live.mode}

    @app.put("/v1/mode")
    async def change_mode(wanted: ModeRequest, peer: Asker) -> dict[str, str]:
        """Changes the mode from the next tick on; leaving enforce takes every SiteFactor back."""
        await workers.do(peer, live.set_mode, wanted.mode, peer.who)
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
        return Response(await workers.do(peer, live.metrics.text), media_type=CONTENT_TYPE)

    schema: list[bytes] = []  # made once

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not schema:
            schema.append(msgspec.json.encode(app.openapi()))
        return Response(schema[0], media_type="application/json")

    add_board(app, live, ask_peer, own_jobs_of, workers.do)

    def is_stranger(scope: MutableMapping[str, Any]) -> bool:
        accepted = accepted_in(scope)
        return accepted is None or gate.is_stranger(accepted.key)

    return RequestLimits(
        app,
        metrics=live.metrics,
        seconds=seconds,
        concurrent=concurrent,
        is_stranger=is_stranger,
        patient=frozenset({_RANK, _WHEN, EVENTS}),
    )


def _view(live: Live) -> QueueView:
    view = live.queue()
    if view is None:
        raise HTTPException(404, "no tick has observed the queue yet")
    return view


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _page(view: QueueView, mode: str, offset: int, limit: int, own: str | None, wanted: QueueFilter) -> Response:
    matching, rows = view.page(offset, limit, own, wanted)
    pending = view.page(0, 0, own)[0] if wanted.match or wanted.partition else matching
    head = {name: getattr(view, name) for name in _HEAD}
    return _json(head | {"mode": mode, "pending": pending, "matching": matching, "jobs": rows})


def _explained(live: Live, view: QueueView, wanted: JobId, own: str | None) -> Response:
    """In one go, in a thread: on a crowded loop, each return to it would wait its turn."""
    job = view.find(wanted.job, wanted.task, wanted.offset)
    if job is None:
        return _json(explain_past(live, wanted, own, view.private))
    if own is not None and job.user != own:
        raise HTTPException(404 if view.private else 403, f"job {wanted} is not yours")
    place = live.place_in_queue(job.job_id)
    past = live.past(job.job_id, job.submit_time)
    told = {"features": [], "what_would_move_it": [], "changes": past} | explanation(view, job) | place
    told |= {"ahead": {}, "limits": []} | live.around(job.job_id, to_user=own is not None)
    waited = live.waited(job.job_id, job.submit_time)
    told["held_back"] = causes(waited[1] if waited is not None else {})
    told["limit_advice"] = live.limit_advice(job.user, job.name, job.gpus, job.cpus, job.time_limit)
    if "expected_start" in told:
        told["expected_start"]["skill"] = live.forecast_skill()
    return _json(told)


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
            "ruled_by": dict(job.ruled_by),
            "site_factor": {"now": job.site_factor, "wanted": job.wanted, "bound": view.bound},
            "estimate": {"seconds": job.estimate, "range": list(job.estimate_range)},
            "expected_start": {
                "time": job.expected_start,
                "range": list(job.expected_range or ()),
                "by_slurm": job.slurm_start,
                "made": job.expected_made,  # null: not simulated yet, guessed by the work before it
            },
        }
    names = ("job_id", "user", "account", "name", "partition", "gpus", "nodes", "time_limit", "wait")
    return {
        "job": {name: getattr(job, name) for name in names},
        "tick": view.tick,
        "time": view.time,
        "mode": view.mode,
        "slurm": dict(job.slurm_factors),
        "slurm_reason": {"code": job.reason, **asdict(in_words(job.reason))},
    } | place
