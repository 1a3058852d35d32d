"""Asks the service over its unix socket, as `slurm-rl explain` does."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurm_rl.errors import EnvironmentMissing, InputError


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, route: str, body: object = None, timeout: float = 5.0) -> tuple[int, Any]:
    """The status and the decoded JSON (or text) of one answer."""
    connection = _UnixConnection(path, timeout)
    try:
        content = None if body is None else json.dumps(body)
        with suppress(BrokenPipeError):  # a service that refuses the size answers before it has the whole body
            connection.request(method, route, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise EnvironmentMissing(f"no service answers on {path}: {error}; is slurm-rl serve running?") from None
    finally:
        connection.close()
    return answer.status, json.loads(text) if answer.getheader("content-type", "").startswith(
        "application/json"
    ) else text


def must(answer: tuple[int, Any]) -> Any:
    """The answer's content; a refusal becomes an error."""
    status, said = answer
    if status >= 400:
        raise InputError(str(said.get("detail", said)) if isinstance(said, dict) else f"the service answers {status}")
    return said
