"""Bounds on every request: size, time, and number at once; narrower for strangers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from slurm_rl.obs.metrics import Metrics

LARGEST = 16 * 1024
_PATIENCE = 10  # times as long may a request of root, the plugin or an operator take, on a machine under load

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class _BodyTooLarge(Exception):
    pass


class RequestLimits:
    """An ASGI layer: answers 413, 503 or 504 by itself, and counts what the application answers.

    A stranger's connection ends with the answer, so that it is counted anew for every request. `patient` names routes
    that keep their time themselves.
    """

    def __init__(
        self,
        app: App,
        *,
        metrics: Metrics,
        seconds: float,
        concurrent: int,
        is_stranger: Callable[[MutableMapping[str, Any]], bool],
        patient: frozenset[str] = frozenset(),
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.seconds = seconds
        self.room = {True: concurrent // 2, False: concurrent}  # by whether a stranger asks
        self.is_stranger = is_stranger
        self.patient = patient

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0
        stranger = self.is_stranger(scope)

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if body.too_large:  # the application took our exception for a parse error
                    message["status"] = 413
                if stranger:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                status = int(message["status"])
            await send(message)

        body = _Body(receive)
        seconds = None if scope["path"] in self.patient else self.seconds if stranger else _PATIENCE * self.seconds

        async def refuse(code: int, detail: str) -> None:
            if status == 0:
                await _answer(counted, code, detail)

        if self.room[stranger] <= 0:
            await refuse(503, "too many requests at a time")
        elif _declared(scope) > LARGEST:
            await refuse(413, f"a request has at most {LARGEST} bytes")
        else:
            self.room[stranger] -= 1
            try:
                async with asyncio.timeout(seconds):
                    await self.app(scope, body.receive, counted)
            except TimeoutError:
                await refuse(504, f"given up after {(seconds or 0) * 1000:.0f} ms")
            except _BodyTooLarge:
                await refuse(413, f"a request has at most {LARGEST} bytes")
            finally:
                self.room[stranger] += 1
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.request_seconds.labels(route).observe(time.perf_counter() - began)


def _declared(scope: MutableMapping[str, Any]) -> int:
    value = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
    return int(value) if value.isdigit() else 0


class _Body:
    """A request's body, counted as it arrives: what it declares to be need not be true."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen = 0
        self.too_large = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > LARGEST:
                self.too_large = True
                raise _BodyTooLarge
        return message


async def _answer(send: Send, code: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
