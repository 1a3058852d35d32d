"""`GET /v1/when`: simulates the queue forward, in a separate thread of the lowest priority."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from slurm_rl.serve.gate import Key
from slurm_rl.serve.live import Live
from slurm_rl.serve.turns import Turns

_REST = 5.0  # times what a question cost, until a stranger's next


def _last_in_line() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class Foreteller:
    """One question after the other; kernels run without the interpreter's lock, so that others are served meanwhile."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, "when", _last_in_line)
        self._turns = Turns("such question", rest=_REST)

    def admit(self, key: Key) -> None:
        self._turns.enter(key)

    def work(self, live: Live, asked: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """The answer, and the seconds of processor time that it took. Runs in the pool."""
        began = time.thread_time()
        return live.when(asked), time.thread_time() - began

    def leave(self, key: Key, seconds: float) -> None:
        self._turns.leave(key, seconds)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
