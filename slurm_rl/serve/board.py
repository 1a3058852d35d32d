"""The dashboard: its files, its own routes, and the stream that announces new ticks."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from slurm_rl.serve.live import Live
from slurm_rl.serve.peers import Peer

EVENTS = "/v1/events"
_LOOK_EVERY = 1.0  # seconds
_SILENCE = 15.0  # seconds after which a word is sent, so that a dead connection is noticed
_STREAM_LASTS = 600.0  # seconds; the page asks again
_MOST_STREAMS = 64
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    # Everything comes from the service itself; nothing of it may be framed, or run from anywhere else.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "max-age=300",  # else each look at the page costs a dozen requests of what a stranger may have
}


def _files() -> dict[str, tuple[bytes, str]]:
    """The page's files by name, with their types."""
    found = {}
    for file in (resources.files("slurm_rl.serve") / "web").iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind:
            found[file.name] = (file.read_bytes(), kind)
    return found


def add_board(
    app: FastAPI,
    live: Live,
    ask_peer: Callable[..., Awaitable[Peer]],
    own_jobs_of: Callable[[Peer], Awaitable[str]],
    do: Callable[..., Awaitable[Any]],
) -> None:
    """Adds the dashboard's routes."""
    Asker = Annotated[Peer, Depends(ask_peer)]
    files, streams = _files(), [0]

    def sent(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "no such file")
        content, kind = files[name]
        return Response(content, media_type=kind, headers=_HEADERS)

    @app.get("/", include_in_schema=False)
    async def dashboard() -> Response:
        return sent("index.html")

    @app.get("/ui/{file}", include_in_schema=False)
    async def file_of_the_page(file: str) -> Response:
        return sent(file)

    @app.get("/v1/overview")
    async def overview(peer: Asker) -> Response:
        """The machine and its queue in counts, waits by partition, and how the policy fares."""
        return _json(await do(peer, live.overview))

    @app.get("/v1/nodes")
    async def nodes(peer: Asker) -> Response:
        """Every node, what is used of it, and its jobs as far as the asker may see them."""
        view = live.queue()
        hidden = not peer.sees_all and (view is None or view.private)
        own = await own_jobs_of(peer) if hidden else None
        return await do(peer, lambda: _json({"nodes": live.nodes(own)}))  # type: ignore[no-any-return]

    @app.get("/v1/decisions")
    async def decisions(
        peer: Asker,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
        job: Annotated[int | None, Query(ge=1, le=2**32)] = None,
        status: Annotated[str, Query(max_length=20)] = "",
    ) -> Response:
        """What was written to Slurm, or would have been in shadow mode: the journal, the newest first."""
        return _json({"decisions": await do(peer, live.decisions, limit, before, job, status)})

    @app.get("/v1/models")
    async def models(peer: Asker) -> Response:
        """The policy in charge, and which models were promoted, refused or rolled back."""
        return _json(await do(peer, live.models))

    @app.get(EVENTS)
    async def events(peer: Asker) -> StreamingResponse:
        """Server-sent events: one for each tick."""
        if streams[0] >= _MOST_STREAMS:
            raise HTTPException(503, "too many pages are open: ask again, or poll")
        return StreamingResponse(_ticks(live, streams), media_type="text/event-stream", headers=_HEADERS)


async def _ticks(live: Live, streams: list[int]) -> AsyncIterator[str]:
    streams[0] += 1
    try:
        ends = time.monotonic() + _STREAM_LASTS
        told, spoke = None, time.monotonic()
        while time.monotonic() < ends:
            view = live.queue()
            said = None if view is None else (view.tick, live.mode)
            if view is not None and said != told:
                told, spoke = said, time.monotonic()
                data = {"tick": view.tick, "time": view.time, "mode": live.mode, "cluster": view.cluster}
                yield f"event: tick\ndata: {json.dumps(data)}\n\n"
            elif time.monotonic() - spoke > _SILENCE:
                spoke = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(_LOOK_EVERY)
    finally:
        streams[0] -= 1


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
