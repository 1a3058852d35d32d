"""A running service for tests, and ways to ask it."""

from __future__ import annotations

import json
import os
import pwd
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive
from slurm_rl.serve.ask import ask
from slurm_rl.serve.run import server

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@contextmanager
def serving(live: ControllerLive, **settings: Any) -> Iterator[Path]:
    """A running service; its directory is short and open, as a unix socket for everybody needs it."""
    with tempfile.TemporaryDirectory(prefix="srl-") as directory:
        Path(directory).chmod(0o755)
        where = Path(directory) / "s.sock"
        config = Config(socket=str(where), request_timeout_ms=5000, max_connections=64, **settings)
        runner, sockets = server(config, live)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": sockets})
        thread.start()
        while not runner.started:
            time.sleep(0.01)
        yield where
        runner.should_exit = True
        thread.join()
        for listener in sockets:
            listener.close()


def raw(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(str(path))
        s.sendall(request)
        answer = b""
        while chunk := s.recv(65536):
            answer += chunk
        return answer


def by_nobody(call: Callable[[], Any]) -> Any:
    """What a call comes to in a child process that has become `nobody`; what it imports must be there already."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(pwd.getpwnam("nobody").pw_gid)
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            try:
                said: list[Any] = ["returned", call()]
            except BaseException as error:
                said = ["raised", f"{type(error).__name__}: {error}"]
            os.write(write, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        how, what = json.loads(answer.read())
    os.waitpid(child, 0)
    if how == "raised":
        raise AssertionError(what)
    return what


def as_nobody(path: Path, method: str, route: str, body: object = None) -> tuple[int, Any]:
    """Asks as a user who may not write."""
    status, content = by_nobody(lambda: ask(path, method, route, body))
    return status, content


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
