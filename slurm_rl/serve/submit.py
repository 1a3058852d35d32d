"""Answers the plugin's own requests without the framework around them: slurmctld holds a lock meanwhile.

Only what the plugin sends is recognised, to the byte, from those who may write, and only if it is well-formed. All
else goes the usual way through the application, which also says what is wrong with a request.
"""

from __future__ import annotations

import re
import time

import msgspec
import structlog
from pydantic import ValidationError

from slurm_rl.serve.door import AtOnce
from slurm_rl.serve.limits import LARGEST
from slurm_rl.serve.live import Live
from slurm_rl.serve.schemas import SubmitRequest

ROUTE = "/v1/submit"
_HEAD = re.compile(
    rb"POST /v1/submit HTTP/1\.1\r\nHost: [\w.-]+\r\nContent-Type: application/json\r\nConnection: close\r\n"
    rb"Content-Length: (\d{1,5})\r\n\r\n"
)
log = structlog.get_logger()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"


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
