"""Runs the application with uvicorn: on a unix socket always, on TCP if configured."""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from slurm_rl.config import Config, read_token
from slurm_rl.errors import InputError
from slurm_rl.serve.app import make_app
from slurm_rl.serve.live import Live
from slurm_rl.serve.peers import PeerProtocol
from slurm_rl.serve.submit import Door, submit_at_once

_TURN = 0.0002  # seconds
_SEARCHES = (5000, 10, 10_000)  # of the garbage collector: small and often, hardly ever through a whole queue


def unix_socket(path: Path) -> Door:
    """A listening socket that everybody may connect to; who may do what is told by the peer's credentials."""
    if len(os.fsencode(path)) > 107:
        raise InputError(f"{path} is too long for a unix socket", field="socket")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise InputError("is not a socket", file=str(path), field="socket", remedy="choose another path")
    if path.exists() and _answers(path):
        raise InputError("another service answers there", file=str(path), field="socket")
    listener = Door(socket.AF_UNIX)
    temporary = path.with_name(f".{path.name[:20]}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    listener.bind(str(temporary))
    temporary.chmod(0o666)
    listener.listen(1024)
    temporary.rename(path)  # one that listens replaces one that does not
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def tcp_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=_family(host), backlog=128)
    except OSError as error:
        raise InputError(f"cannot listen on {address}: {error}", field="tcp") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def server(config: Config, live: Live) -> tuple[uvicorn.Server, list[socket.socket]]:
    """The server and its sockets, not yet running."""
    token = read_token(config) if config.tcp else None
    app = make_app(
        live, token=token, seconds=config.request_timeout_ms / 1000, concurrent=max(4, config.max_connections // 2)
    )
    sockets: list[socket.socket] = [unix_socket(Path(config.socket))]
    if config.tcp:
        sockets.append(tcp_socket(config.tcp))
    PeerProtocol.unlimited = live.writers
    PeerProtocol.at_once = Door.at_once = staticmethod(submit_at_once(live))
    settings = uvicorn.Config(
        app,
        http=PeerProtocol,
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=config.max_connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=16 * 1024,
    )
    return uvicorn.Server(settings), sockets


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
        Path(config.socket).unlink(missing_ok=True)
