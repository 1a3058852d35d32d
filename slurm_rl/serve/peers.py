"""Identifies the caller: a unix socket's peer by its credentials, a TCP client by a token or a munge credential."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_rl.serve import munge
from slurm_rl.serve.door import AtOnce, uid_of
from slurm_rl.serve.gate import Gate, Key
from slurm_rl.serve.roles import Role, Tokens

_ACCEPTED = "accepted"  # the key of a scope's state under which a connection's identity is kept
_SECONDS_TO_ASK = 2.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted connection: the uid behind a unix socket, or the address behind TCP.

    Made from the socket when it is accepted, and handed on as an object: no byte of a request can make one.
    """

    uid: int | None
    address: str = ""

    def put_in(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, _ACCEPTED: self}

    @property
    def key(self) -> Key:
        return self.address if self.uid is None else self.uid


def accepted_in(scope: Any) -> Accepted | None:
    found = scope.get("state", {}).get(_ACCEPTED)
    return found if isinstance(found, Accepted) else None


class PeerProtocol(H11Protocol):
    """HTTP/1.1 that knows its peer, and drops those that ask nothing.

    What `at_once` answers does not go through the application.
    """

    at_once: AtOnce = staticmethod(lambda uid, request: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begun = False
        self._uid: int | None = None
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.family == socket.AF_UNIX:
            self._uid = uid_of(peer)
        address = "" if self._uid is not None else str(transport.get_extra_info("peername")[0])
        self.app_state = Accepted(self._uid, address).put_in(self.app_state)
        self._patience = self.loop.call_later(_SECONDS_TO_ASK, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self._uid is not None and not self._begun:
            self._begun = True
            answer = self.at_once(self._uid, data)
            if answer is not None:
                self.transport.write(answer)
                self.transport.close()
                return
        super().data_received(data)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        super().connection_lost(exc)


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender of a request."""

    key: Key
    uid: int | None
    role: Role

    @property
    def sees_all(self) -> bool:
        return self.role >= Role.READER

    @property
    def is_stranger(self) -> bool:
        """Whether work for it is bounded."""
        return self.role < Role.OPERATOR

    @property
    def who(self) -> str:
        return f"uid {self.uid}" if self.uid is not None else f"{self.role.name.lower()} token"

    def must_be(self, role: Role) -> None:
        if self.role < role:
            who = "root, SlurmUser or one of write_uids"
            raise HTTPException(403, f"this needs {who}, or on TCP the {role.name.lower()} token")


@dataclass(frozen=True, slots=True)
class Identify:
    """The sender of this request; raises 401 for a TCP client without a valid token or credential."""

    gate: Gate
    tokens: Tokens
    pool: Executor  # a name service or munged may be slow: they are asked off the loop
    munge: bool = False
    munge_socket: str = ""

    async def peer_of(self, request: Request) -> Peer:
        accepted = accepted_in(request.scope)
        if accepted is None:
            raise HTTPException(401, "unknown caller")
        if accepted.uid is not None:
            return Peer(accepted.uid, accepted.uid, Role.USER if self.gate.is_stranger(accepted.uid) else Role.ADMIN)
        given = request.headers.get("authorization", "")
        if self.munge and given.startswith(munge.SCHEME):
            return await self._by_munge(request, given.removeprefix(munge.SCHEME))
        role = self.tokens.role(given)
        if role is None:
            raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
        return Peer(accepted.key, None, role)

    async def _by_munge(self, request: Request, given: str) -> Peer:
        asked = (given, request.method, request.scope["path"], self.munge_socket)
        found = await asyncio.get_running_loop().run_in_executor(self.pool, munge.uid_behind, *asked)
        if isinstance(found, str):
            raise HTTPException(401, found, {"WWW-Authenticate": "Munge"})
        return Peer(found, found, Role.USER)  # whoever it is, from afar nobody is more than a user
