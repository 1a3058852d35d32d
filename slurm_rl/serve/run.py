"""Runs the application with uvicorn: on unix sockets always, on TCP if configured."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from slurm_rl.config import Config, read_tokens
from slurm_rl.errors import InputError
from slurm_rl.serve.app import make_app
from slurm_rl.serve.door import Door, allow, tcp_socket, unix_socket
from slurm_rl.serve.gate import Gate
from slurm_rl.serve.live import Live
from slurm_rl.serve.peers import PeerProtocol
from slurm_rl.serve.roles import Role, Tokens
from slurm_rl.serve.submit import submit_at_once
from slurm_rl.slurm.sockets import reserved_path

_TURN = 0.0002  # seconds
_SEARCHES = (5000, 10, 10_000)  # of the garbage collector: small and often, hardly ever through a whole queue
_HANDSHAKE = 5.0  # seconds for TLS to come about
_LOOK_AGAIN = 2.0  # seconds after which it is looked who may connect to the reserved socket

log = structlog.get_logger()


class Server(uvicorn.Server):
    """uvicorn with TLS on TCP only, and a reserved socket that follows who the writers are."""

    def __init__(self, settings: uvicorn.Config, live: Live, reserved: Path, tls: ssl.SSLContext | None) -> None:
        super().__init__(settings)
        self._live, self._reserved, self._tls = live, reserved, tls
        self._following: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listening = sockets or []
        await super().startup([s for s in listening if s.family == socket.AF_UNIX])
        loop, settings = asyncio.get_running_loop(), self.config

        def protocol() -> asyncio.Protocol:
            return settings.http_protocol_class(  # type: ignore[call-arg]
                config=settings, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        for listener in listening:
            if listener.family != socket.AF_UNIX:
                handshake = _HANDSHAKE if self._tls else None
                made = await loop.create_server(
                    protocol, sock=listener, ssl=self._tls, backlog=settings.backlog, ssl_handshake_timeout=handshake
                )
                self.servers.append(made)
        self._following = loop.create_task(self._follow_writers())

    async def _follow_writers(self) -> None:
        """SlurmUser is known after the first tick, and configuration may name other users."""
        allowed: frozenset[int] | None = None
        while True:
            if allowed != self._live.writers:
                allowed = self._live.writers
                if not allow(self._reserved, allowed):
                    log.warning("the reserved socket is for root and our own user only", path=str(self._reserved))
            await asyncio.sleep(_LOOK_AGAIN)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._following is not None:
            self._following.cancel()
        await super().shutdown(sockets)


def _tls(config: Config) -> ssl.SSLContext | None:
    if not config.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"cannot be used: {error}", file=config.tls_cert, field="tls_cert, tls_key") from None
    return context


def server(config: Config, live: Live) -> tuple[Server, list[socket.socket]]:
    """The server and its sockets, not yet running."""
    tokens = {Role[name.upper()]: token for name, token in read_tokens(config).items()}
    tls = _tls(config) if config.tcp else None
    gate = Gate(lambda: live.writers, config.max_connections)
    app = make_app(
        live,
        gate=gate,
        tokens=Tokens(tokens),
        munge=config.munge,
        munge_socket=config.munge_socket,
        seconds=config.request_timeout_ms / 1000,
        concurrent=max(4, config.max_connections // 2),
    )
    public = Path(config.socket)
    at_once = submit_at_once(live)
    doors: list[Door] = []
    try:
        doors.append(unix_socket(public))
        doors.append(unix_socket(reserved_path(public), mode=0o600))
        if config.tcp:
            doors.append(tcp_socket(config.tcp))
    except InputError:
        for door in doors:
            door.close()
        raise
    for door in doors:
        door.guard(gate, at_once, tls=tls is not None and door.family != socket.AF_UNIX)
    settings = uvicorn.Config(
        app,
        http=type("Protocol", (PeerProtocol,), {"at_once": staticmethod(at_once)}),
        loop="asyncio",
        lifespan="on",
        ws="none",
        proxy_headers=False,  # who asks is told by the socket, never by a header
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=config.max_connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=16 * 1024,
    )
    return Server(settings, live, reserved_path(public), tls), list(doors)


def serve(config: Config, live: Live, on_listening: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM or SIGINT, then removes the socket."""
    runner, sockets = server(config, live)

    def already_ended(number: int, frame: Any) -> None:
        """uvicorn raises the signal again after it has shut down; the caller still has things to end."""

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, already_ended)
    # A submission must not wait for a tick: the threads take turns often, and what lives long is not searched for
    # garbage over and over.
    sys.setswitchinterval(_TURN)
    gc.freeze()
    gc.set_threshold(*_SEARCHES)
    on_listening()
    try:
        runner.run(sockets=sockets)
    finally:
        for listener in sockets:
            listener.close()
        for path in (Path(config.socket), reserved_path(Path(config.socket))):
            path.unlink(missing_ok=True)
