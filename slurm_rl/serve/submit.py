"""Answers the plugin's own requests without the framework around them: slurmctld holds a lock meanwhile.

Only what the plugin sends is recognised, to the byte, from those who may write, and only if it is well-formed. All
else goes the usual way through the application, which also says what is wrong with a request.
"""

from __future__ import annotations

import re
import socket
import time
from typing import Any

import msgspec
import structlog
from pydantic import ValidationError

from slurm_rl.serve.limits import LARGEST
from slurm_rl.serve.live import Live
from slurm_rl.serve.peers import AtOnce, uid_of
from slurm_rl.serve.schemas import SubmitRequest

ROUTE = "/v1/submit"
_HEAD = re.compile(
    rb"POST /v1/submit HTTP/1\.1\r\nHost: [\w.-]+\r\nContent-Type: application/json\r\nConnection: close\r\n"
    rb"Content-Length: (\d{1,5})\r\n\r\n"
)
log = structlog.get_logger()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"


class Door(socket.socket):
    """A listening unix socket that answers the plugin where it stands, and lets all others in.

    By the time a connection is accepted, its request is usually there: no transport, no task and no second turn of the
    loop are needed then.
    """

    at_once: AtOnce = staticmethod(lambda uid, request: None)

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            visitor, address = super().accept()
            try:
                if not self._served(visitor):
                    return visitor, address
            except OSError:
                pass  # it has gone away: so much the better for the next one
            visitor.close()

    def _served(self, visitor: socket.socket) -> bool:
        visitor.setblocking(False)
        try:
            request = visitor.recv(LARGEST + 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False  # it has not asked yet
        answer = type(self).at_once(uid_of(visitor), request)
        if answer is None:
            return False
        visitor.recv(len(request))  # what is left unread when a socket is closed resets the connection
        visitor.send(answer)
        return True


def submit_at_once(live: Live) -> AtOnce:
    """What a connection asks with its first bytes."""
    count = live.metrics.requests.labels(ROUTE, "200")
    seconds = live.metrics.request_seconds.labels(ROUTE)
    encode = msgspec.json.Encoder().encode

    def answer(uid: int, request: bytes) -> bytes | None:
        began = time.perf_counter()
        head = _HEAD.match(request)
        if head is None or len(request) > LARGEST or int(head[1]) != len(request) - head.end():
            return None
        if uid not in live.writers:
            return None
        try:
            job = SubmitRequest.model_validate_json(request[head.end() :])
            body = encode(live.advise(job.asked()))
        except ValidationError:
            return None
        except Exception:  # a defect of ours: the application answers 500, and the plugin goes on without advice
            log.exception("submit")
            return None
        count.inc()
        seconds.observe(time.perf_counter() - began)
        return _ANSWER % (len(body), body)

    return answer
