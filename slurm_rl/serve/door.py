"""The listening sockets: they reject strangers beyond their allowance, and answer the plugin directly."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from slurm_rl.errors import InputError
from slurm_rl.obs import quick_calls
from slurm_rl.serve.gate import Gate, Key
from slurm_rl.serve.limits import LARGEST
from slurm_rl.slurm.sockets import RESERVED

AtOnce = Callable[[int, bytes], bytes | None]  # a peer's uid and the first bytes of its request -> the whole answer

_CREDENTIALS = struct.Struct("3i")
_AT_A_TIME = 16  # visitors turned away in one turn of the loop
_HOLD = 0.1  # seconds that somebody waits who is turned away: a flood of those who wait for an answer is none
_HELD = 512  # of them at a time
_LONGEST_PATH = 107 - len(RESERVED)
_BACKLOG = 4096
_ACL = "system.posix_acl_access"


def uid_of(peer: socket.socket) -> int:
    """Who has connected to a unix socket, by the kernel's word."""
    return int(_CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])


class Visitor(socket.socket):
    """An accepted connection that leaves the gate's account when either side closes it."""

    gate: Gate | None = None
    key: Key = ""

    def close(self) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.leave(self.key)
        if self.family == socket.AF_UNIX and (descriptor := self.detach()) >= 0:
            quick_calls.close(descriptor)
        else:
            super().close()


class Door(socket.socket):
    """A listening socket with a gate. On a unix socket it answers the plugin without transport, task or framework.

    By the time a connection is accepted, its request is usually there: no second turn of the loop is needed then.
    """

    gate: Gate
    at_once: AtOnce
    tls = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held: list[tuple[Visitor, bytes]] = []

    def guard(self, gate: Gate, at_once: AtOnce = lambda uid, request: None, *, tls: bool = False) -> None:
        self.gate, self.at_once, self.tls = gate, at_once, tls

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(_AT_A_TIME):
            visitor, address = self._next()
            try:
                refusal = self._refusal(visitor, address)
                if not refusal and not self._served(visitor):
                    return visitor, address
            except OSError:
                refusal = ""  # it has gone away: so much the better for the next one
            if refusal and len(self._held) < _HELD:
                self._hold(visitor, refusal)
            else:
                visitor.close()
        raise BlockingIOError  # the others get their turn first

    def _next(self) -> tuple[Visitor, Any]:
        if self.family == socket.AF_UNIX:
            descriptor, kind = quick_calls.accept(self.fileno()), self.type | socket.SOCK_NONBLOCK
            return Visitor(self.family, kind, self.proto, fileno=descriptor), ""
        descriptor, address = self._accept()  # type: ignore[attr-defined]
        visitor = Visitor(self.family, self.type, self.proto, fileno=descriptor)
        visitor.setblocking(False)
        return visitor, address

    def _refusal(self, visitor: Visitor, address: Any) -> str:
        key: Key = uid_of(visitor) if self.family == socket.AF_UNIX else str(address[0])
        refusal = self.gate.enter(key)
        if not refusal:
            visitor.gate, visitor.key = self.gate, key
        return refusal

    def _served(self, visitor: Visitor) -> bool:
        if self.family != socket.AF_UNIX or self.gate.is_stranger(visitor.key):
            return False
        try:
            request = quick_calls.receive(visitor.fileno(), LARGEST + 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False  # it has not asked yet
        answer = self.at_once(int(visitor.key), request)
        if answer is None:
            return False
        descriptor = visitor.fileno()
        quick_calls.receive(
            descriptor, len(request)
        )  # what is left unread when a socket is closed resets the connection
        quick_calls.send(descriptor, answer, socket.MSG_NOSIGNAL)
        return True

    def _hold(self, visitor: Visitor, refusal: str) -> None:
        if not self._held:
            asyncio.get_running_loop().call_later(_HOLD, self._dismiss)
        self._held.append((visitor, b"" if self.tls else _too_much(refusal)))

    def _dismiss(self) -> None:
        held, self._held = self._held, []
        for visitor, answer in held:
            with contextlib.suppress(OSError):
                _say(visitor, answer)
            visitor.close()

    def close(self) -> None:
        self._dismiss()
        super().close()


@functools.lru_cache
def _too_much(detail: str) -> bytes:
    body = json.dumps({"detail": detail}).encode()
    head = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def _say(visitor: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(BlockingIOError):
        visitor.recv(LARGEST)
    if answer:
        visitor.send(answer)


def unix_socket(path: Path, mode: int = 0o666) -> Door:
    """A listening socket; who may do what is told by the peer's credentials, who may connect by the mode."""
    if len(os.fsencode(path)) > _LONGEST_PATH + (len(RESERVED) if path.name.endswith(RESERVED) else 0):
        raise InputError(f"{path} is too long for a unix socket: at most {_LONGEST_PATH} bytes", field="socket")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise InputError("is not a socket", file=str(path), field="socket", remedy="choose another path")
    if path.exists() and _answers(path):
        raise InputError("another service answers there", file=str(path), field="socket")
    listener = Door(socket.AF_UNIX)
    temporary = path.with_name(f".{path.name[:20]}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    listener.bind(str(temporary))
    temporary.chmod(mode)
    listener.listen(_BACKLOG)
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


def tcp_socket(address: str) -> Door:
    host, _, port = address.rpartition(":")
    listener = Door(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), int(port)))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {address}: {error}", field="tcp") from None
    return listener


def allow(path: Path, uids: Iterable[int]) -> bool:
    """Lets these users, the owner and root connect, and nobody else; False where the file system knows no ACLs."""
    entries = [(1, 6, -1), *((2, 6, uid) for uid in sorted(uids)), (4, 0, -1), (16, 6, -1), (32, 0, -1)]
    packed = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, may, who & 0xFFFFFFFF) for tag, may, who in entries
    )
    try:
        os.setxattr(path, _ACL, packed)
    except OSError:
        return False
    return True
