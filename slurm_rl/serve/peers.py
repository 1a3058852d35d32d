"""Who is asking: a unix socket's peer by its credentials, a TCP client by its token."""

from __future__ import annotations

import asyncio
import hmac
import pwd
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import HTTPException, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

UNIX = "unix"  # the host part of a unix peer's address; a TCP peer's is an IP address
_CREDENTIALS = struct.Struct("3i")
_SECONDS_TO_ASK = 2.0
_CONNECTIONS_EACH = 32

AtOnce = Callable[[int, bytes], bytes | None]  # a peer's uid and the first bytes of its request -> the whole answer


def uid_of(peer: socket.socket) -> int:
    """Who has connected to a unix socket, by the kernel's word."""
    return int(_CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])


class PeerProtocol(H11Protocol):
    """HTTP/1.1 that knows its peer's uid, allows each user so many connections, and drops those that ask nothing.

    What `at_once` answers does not go through the application.
    """

    open: ClassVar[Counter[int]] = Counter()  # connections by user
    unlimited: ClassVar[frozenset[int]] = frozenset()  # users without a limit of their own
    at_once: ClassVar[AtOnce] = staticmethod(lambda uid, request: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._uid: int | None = None
        self._begun = False
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX:
            self._uid = uid_of(peer)
            self.client = (UNIX, self._uid)
            self.open[self._uid] += 1
            if self._uid not in self.unlimited and self.open[self._uid] > _CONNECTIONS_EACH:
                transport.close()
                return
        self._patience = self.loop.call_later(_SECONDS_TO_ASK, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self._uid is not None and not self._begun:
            self._begun = True
            answer = PeerProtocol.at_once(self._uid, data)
            if answer is not None:
                self.transport.write(answer)
                self.transport.close()
                return
        super().data_received(data)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._uid is not None:
            self.open[self._uid] -= 1
        if hasattr(self, "_patience"):
            self._patience.cancel()
        super().connection_lost(exc)


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody who asks; a writer may change things and see every job."""

    uid: int | None
    writer: bool

    async def name(self) -> str:
        """The user's name; looked up off the loop, since a name service may be slow."""
        if self.uid is None:
            return ""
        try:
            return (await asyncio.to_thread(pwd.getpwuid, self.uid)).pw_name
        except KeyError:
            return str(self.uid)

    def must_write(self) -> None:
        if not self.writer:
            raise HTTPException(403, "this needs root, SlurmUser or one of write_uids")


def peer_of(request: Request, writers: frozenset[int], token: str | None) -> Peer:
    """The peer of a request; raises 401 for a TCP client without the right token."""
    client: Any = request.client
    if client is not None and client.host == UNIX:
        return Peer(client.port, client.port in writers)
    given = request.headers.get("authorization", "")
    if token is None or not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
    return Peer(None, True)
