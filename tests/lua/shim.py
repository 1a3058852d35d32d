"""Runs the shim under a real Lua interpreter, against unix-socket services that misbehave in known ways."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "plugin"
HARNESS = Path(__file__).parent / "harness.lua"
# Debian no longer packages 5.2: tried where it is found, not missed where it is not.
LUAS = ["lua5.1", *filter(shutil.which, ["lua5.2"]), "lua5.3", "lua5.4"]

FEATURES = ("a", "b", "c", "gpu", "ours", "a100", "h100", "ib", "nvme", "rack-1.b", "a" * 256)  # known on the nodes

Service = Callable[[socket.socket, bytes], None]


def install(directory: Path, *, service: Path, site: str | None = None, **settings: object) -> Path:
    """The shim in a directory of its own, as install-plugin would leave it."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in PLUGIN.glob("*.lua"):
        shutil.copy(file, directory)
    values: dict[str, object] = {
        "socket": str(service),
        "deadline_ms": 1000,  # of no concern to most tests, however busy the machine
        "breaker_failures": 3,
        "breaker_seconds": 30,
        "site_factor_limit": 1000000,
        "features": FEATURES,
        "send_user_name": False,
    } | settings
    rows = ", ".join(f"{name} = {_literal(value)}" for name, value in values.items())
    (directory / "slurm_rl_settings.lua").write_text(f"return {{ {rows} }}\n")
    if site is not None:
        (directory / "job_submit.site.lua").write_text(site)
    return directory


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "{" + ", ".join(map(repr, value)) + "}"
    return repr(value)


def run(lua: str, directory: Path, scenario: str, *args: str, seconds: float = 30) -> list[str]:
    """The lines a scenario prints; in it `load_shim()` runs job_submit.lua as slurmctld does."""
    prelude = (
        f"dofile({str(HARNESS)!r})\n"
        f"local function load_shim() return dofile({str(directory / 'job_submit.lua')!r}) end\n"
        "local a_job, dump, milliseconds = harness.a_job, harness.dump, harness.milliseconds\n"
    )
    done = subprocess.run(
        [lua, "-", *args], input=prelude + scenario, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def http(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    """A whole HTTP reply."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    return head.encode() + body


def answers(reply: bytes) -> Service:
    """A service that sends this, whatever it is asked, and closes."""
    return lambda connection, _request: connection.sendall(reply)


def hangs(connection: socket.socket, _request: bytes) -> None:
    """Accepts and says nothing until the client gives up."""
    connection.settimeout(5)
    connection.recv(1)


def drips(connection: socket.socket, _request: bytes) -> None:
    """A valid reply, one byte every 4 ms: over half a second in all."""
    for byte in http(b'{"site_factor": 7}' + b" " * 60):
        connection.sendall(bytes([byte]))
        time.sleep(0.004)


FACTOR = b'{"site_factor": 7}'
FAILING: dict[str, Service] = {
    "closes at once": answers(b""),
    "hangs": hangs,
    "drips": drips,
    "not HTTP": answers(b"220 mail.example.org ESMTP\r\n\r\n" + FACTOR),
    "HTTP/2": answers(b"HTTP/2 200\r\n\r\n" + FACTOR),
    "an endless head": answers(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000),
    "cut in its head": answers(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "cut in its body": answers(http(FACTOR[:-1], length=len(FACTOR))),
    "two lengths": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\nContent-Length: 17\r\n\r\n" + FACTOR),
    "chunked": answers(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n" + FACTOR + b"\r\n0\r\n\r\n"),
    "status 500": answers(http(FACTOR, "500 Internal Server Error")),
    "status 302": answers(http(FACTOR, "302 Found")),
    "one megabyte": answers(http(FACTOR + b" " * 1_000_000)),
    "one megabyte, announced less": answers(http(b" " * 1_000_000, length=10**12)),
    "deep JSON": answers(http(b'{"a":' * 10000 + b"1" + b"}" * 10000)),
    "NaN": answers(http(b'{"site_factor": NaN}')),
    "NUL bytes": answers(http(b"\0" * 100)),
    "NULs before HTTP": answers(b"\0" * 100 + http(FACTOR)),
    "random bytes": answers(bytes(range(256)) * 16),
}


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [int(row.split(b":")[1]) for row in head.lower().split(b"\r\n") if row.startswith(b"content-length")]
    while lengths and len(body) < lengths[0]:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def serving(path: Path, service: Service) -> Iterator[list[bytes]]:
    """Runs a service on a unix socket; yields the requests it has seen."""
    requests: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)

    def accept_all() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    requests.append(_read_request(connection))
                    service(connection, requests[-1])
                except OSError:
                    pass  # the client went away, as it may

    thread = threading.Thread(target=accept_all, daemon=True)
    thread.start()
    try:
        yield requests
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)
        path.unlink()
        assert not thread.is_alive()
