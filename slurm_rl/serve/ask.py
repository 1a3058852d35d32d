"""Asks the service: over a unix socket on its own machine, over TCP from elsewhere, as `slurm-rl explain` does."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from slurm_rl.config import Config
from slurm_rl.errors import EnvironmentMissing, InputError
from slurm_rl.serve import munge
from slurm_rl.slurm.sockets import reserved_path


class _UnixConnection(http.client.HTTPConnection):
    """Over the reserved socket, where strangers cannot be in the way, if we may; else over the public one."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        own = reserved_path(self._path)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        if os.access(own, os.W_OK):
            with suppress(ConnectionRefusedError, FileNotFoundError, PermissionError):
                self.sock.connect(str(own))
                return
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, route: str, body: object = None, timeout: float = 5.0) -> tuple[int, Any]:
    """The status and the decoded JSON (or text) of one answer."""
    return _exchange(_UnixConnection(path, timeout), str(path), method, route, body, {})


def ask_from_afar(
    url: str, method: str, route: str, headers: Mapping[str, str], ca: str = "", timeout: float = 5.0
) -> tuple[int, Any]:
    """The same over TCP; an https address is checked against its certificate."""
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 443
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=ca or None)
        except OSError as error:
            raise InputError(f"cannot be read: {error}", file=ca, field="tls_ca") from None
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    return _exchange(connection, url, method, route, None, headers)


def _exchange(
    connection: http.client.HTTPConnection,
    where: str,
    method: str,
    route: str,
    body: object,
    headers: Mapping[str, str],
) -> tuple[int, Any]:
    try:
        content = None if body is None else json.dumps(body)
        with suppress(BrokenPipeError):  # a service that refuses the size answers before it has the whole body
            connection.request(method, route, content, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise EnvironmentMissing(f"no service answers on {where}: {error}; is slurm-rl serve running?") from None
    finally:
        connection.close()
    is_json = answer.getheader("content-type", "").startswith("application/json")
    return answer.status, json.loads(text) if is_json else text


def ask_here_or_afar(
    settings: Config, path: str, query: str = "", *, socket: Path | None = None, url: str = "", timeout: float = 5.0
) -> Any:
    """What the service says on GET: over its socket, or over TCP with a munge credential where an address is given."""
    route = quote(path) + (f"?{query}" if query else "")
    address = url or ("" if socket else settings.url)
    if not address:
        return must(ask(socket or Path(settings.socket), "GET", route, timeout=timeout))
    headers = {"Authorization": munge.SCHEME + munge.credential("GET", path, settings.munge_socket)}
    return must(ask_from_afar(address, "GET", route, headers, settings.tls_ca, timeout))


def must(answer: tuple[int, Any]) -> Any:
    """The answer's content; a refusal becomes an error."""
    status, said = answer
    if status >= 400:
        raise InputError(str(said.get("detail", said)) if isinstance(said, dict) else f"the service answers {status}")
    return said
