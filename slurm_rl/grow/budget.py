"""How long a training may still run: by Slurm, by a warning, or by a given number of seconds."""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from slurm_rl.errors import InputError, SlurmRlError
from slurm_rl.grow.pressure import Pressure, ask_pressure

END = "SLURM_RL_BUDGET_END"  # what `slurm-rl grow run` sets: Unix seconds
SOCKET = "SLURM_RL_SOCKET"
_DEFAULT_SOCKET = "/run/slurm-rl/slurm-rl.sock"
_KILL_WAIT = 30.0  # seconds between SIGTERM and SIGKILL, Slurm's default
_ASK_EVERY = 60.0  # Slurm is not asked more often whether the limit has changed
_RESERVE, _MOST_RESERVE = 0.1, 60.0
WARNINGS = (signal.SIGTERM, signal.SIGUSR1)


class Budget:
    """The time that is left; `warned` once Slurm has announced the end."""

    def __init__(
        self,
        seconds: float | None = None,
        *,
        end: float | None = None,
        reserve: float = 0.0,
        ask: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`seconds` from now or `end` in Unix seconds; neither: no limit. `ask` tells the end anew.

        `reserve` seconds before the end are for what a script does after its last epoch.
        """
        if seconds is not None and not seconds >= 0:
            raise InputError(f"a budget must be a number of seconds, 0 or more, got {seconds}")
        self._clock, self._ask = clock, ask
        self.began = clock()
        self.end: float = math.inf if end is None else end
        if seconds is not None:
            self.end = self.began + seconds
        self.reserve = reserve
        self._asked = self.began
        self._warned_at: float | None = None
        self._kills = False
        self._previous: dict[int, Any] = {}

    @classmethod
    def from_slurm(cls, warnings: Iterable[int] = WARNINGS) -> Budget:
        """The rest of this job's time limit; without a job or a limit there is no end.

        A tenth of it, a minute at most, is kept in reserve.
        Listens to the signals in `warnings`, as `sbatch --signal=B:USR1@120` sends them.
        """
        if os.environ.get(END):
            budget = cls(end=_number(END))
        elif os.environ.get("SLURM_JOB_ID"):
            given = _number("SLURM_JOB_END_TIME") if os.environ.get("SLURM_JOB_END_TIME") else None
            budget = cls(end=given if given is not None else end_by_slurm(), ask=end_by_slurm)
        else:
            budget = cls()
        budget.reserve = min(_RESERVE * max(budget.end - budget.began, 0.0), _MOST_RESERVE)
        budget.listen(warnings)
        return budget

    @property
    def warned(self) -> bool:
        return self._warned_at is not None

    @property
    def ending(self) -> bool:
        """Slurm has sent SIGTERM: the job was cancelled or preempted, or its time is up."""
        return self._kills

    @property
    def whole(self) -> float:
        """Seconds to train that there were in all, from when this budget was made."""
        return max(self.end - self.reserve - self.began, 0.0)

    def left(self) -> float:
        """Seconds to train until the end, 0 or more."""
        now = self._clock()
        left = self.end - self.reserve - now
        if self._kills and self._warned_at is not None:
            left = min(left, self._warned_at + _KILL_WAIT - now)
        return max(left, 0.0)

    def refresh(self) -> float:
        """Asks Slurm whether the limit was changed, once a minute at most: seconds left."""
        now = self._clock()
        if self._ask is not None and now - self._asked >= _ASK_EVERY:
            self._asked = now
            try:
                end = self._ask()
            except SlurmRlError:
                end = self.end  # slurmctld is away for a moment: the limit known stands
            self.end = math.inf if end is None else end
        return self.left()

    def warn(self, number: int = signal.SIGTERM) -> None:
        """What a warning signal does."""
        if self._warned_at is None:
            self._warned_at = self._clock()
        self._kills = self._kills or number == signal.SIGTERM

    def listen(self, warnings: Iterable[int] = WARNINGS) -> None:
        """Takes the signals; handlers that were there are called as well. Only the main thread can do that."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in warnings:
            if number not in self._previous:
                self._previous[number] = signal.signal(number, self._on_signal)
                if number != signal.SIGTERM:
                    # Python puts handlers away before it has ended; a warning would then kill a job that is done.
                    atexit.register(signal.signal, number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.warn(number)
        previous = self._previous.get(number)
        if callable(previous):
            previous(number, frame)

    def pressure(self, time_limit: float | None = None) -> Pressure | None:
        """The service's word on a job like this one, with another limit if given; None where no service answers."""
        env = os.environ
        return ask_pressure(
            Path(env.get(SOCKET) or _DEFAULT_SOCKET),
            partition=env.get("SLURM_JOB_PARTITION", ""),
            gpus=_gpus(env.get("SLURM_GPUS") or env.get("SLURM_GPUS_ON_NODE") or "0"),
            time_limit=time_limit,
        )


def _gpus(text: str) -> int:
    """The count in `2` or `a100:2`."""
    last = text.split(",", 1)[0].rpartition(":")[2]
    return int(last) if last.isdigit() else 0


def _number(name: str) -> float:
    text = os.environ[name]
    try:
        return float(text)
    except ValueError:
        raise InputError(f"must be Unix seconds, got {text!r}", field=name) from None


def end_by_slurm() -> float | None:
    """When this job's time limit ends, by squeue or scontrol; None: never."""
    from slurm_rl.slurm.command import Commands, key_values

    commands, job = Commands(timeout=30.0), os.environ["SLURM_JOB_ID"]
    try:
        text = commands.run("squeue", "-h", "-j", job, "-o", "%e").strip()
        if not text.isdigit():
            text = key_values(commands.run("scontrol", "-o", "show", "job", job)).get("EndTime", "")
    except SlurmRlError:
        text = key_values(commands.run("scontrol", "-o", "show", "job", job)).get("EndTime", "")
    return float(text) if text.isdigit() else None
