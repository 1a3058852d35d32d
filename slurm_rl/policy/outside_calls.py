"""Calls a Python policy, and passes only scores that the output gate (gate.py) lets through."""

from __future__ import annotations

import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import Any

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.gate import objection
from slurm_rl.policy.outside import Outside
from slurm_rl.policy.queue import Queue


class OutsideCalls:
    """Asks a policy for scores; counts what was not usable, and how long answers took.

    `aside`: asks in a thread of its own, so that a policy that never answers holds up nobody. While it is still busy
    it is not asked again.
    """

    def __init__(self, policy: Outside, *, aside: bool = False) -> None:
        self.policy = policy
        self.failures: Counter[str] = Counter()
        self.last = ""  # what the last failure was
        self.seconds: list[float] = []
        self._asked: SimpleQueue[Queue] | None = SimpleQueue() if aside else None
        self._answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        self._busy = False

    def __call__(self, queue: Queue) -> Array | None:
        """The scores of a queue's jobs; None if they are of no use."""
        began = time.perf_counter()
        if self._asked is None:
            given, error = self._ask(queue)
        else:
            given, error = self._ask_aside(queue)
        taken = time.perf_counter() - began
        self.seconds.append(taken)
        scores = None if error is not None else _array(given)
        problem = "" if error is None else ("slow" if isinstance(error, TimeoutError) else "exception")
        told = "" if error is None else f"{type(error).__name__}: {error}"
        if not problem and taken > self.policy.seconds:
            problem, told = "slow", f"took {taken:.3g} s for {len(queue)} jobs, may take {self.policy.seconds:g}"
        if not problem:
            problem, told = objection(scores, queue.rows)
        if problem:
            self.failures[problem] += 1
            self.last = told
            return None
        return scores

    def _ask(self, queue: Queue) -> tuple[Any, Exception | None]:
        try:
            return self.policy.call(queue), None
        except Exception as error:
            return None, error

    def _ask_aside(self, queue: Queue) -> tuple[Any, Exception | None]:
        asked = self._asked
        if asked is None:
            raise ValueError("asked aside without a thread")
        if self._busy:
            if self._answers.empty():
                return None, TimeoutError("it is still busy with an earlier queue")
            self._answers.get()  # of a question that nobody waits for any more
            self._busy = False
        if not self.seconds:
            threading.Thread(target=self._work, args=(asked,), daemon=True, name="outside-policy").start()
        asked.put(queue)
        try:
            return self._answers.get(timeout=self.policy.seconds)
        except Exception:  # queue.Empty
            self._busy = True
            return None, TimeoutError(f"no answer within {self.policy.seconds:g} s for {len(queue)} jobs")

    def _work(self, asked: SimpleQueue[Queue]) -> None:
        while True:
            self._answers.put(self._ask(asked.get()))

    def figures(self) -> dict[str, Any]:
        """How often it was asked, how often in vain and why, and how fast it is."""
        times = 1000.0 * np.array(self.seconds or [np.nan])
        return {
            "calls": len(self.seconds),
            "failures": dict(self.failures),
            "last_failure": self.last,
            "p50_ms": float(np.median(times)) if self.seconds else None,
            "p99_ms": float(np.quantile(times, 0.99)) if self.seconds else None,
        }


def _array(given: Any) -> Array | None:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        return None
