"""The service's interface to the live side; the controller implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from slurm_rl.obs.metrics import Metrics
from slurm_rl.obs.queue import QueueView
from slurm_rl.telemetry.store import Measured


class Live(Protocol):
    """The controller as the service sees it. Every method may be called from any thread."""

    @property
    def metrics(self) -> Metrics: ...

    @property
    def mode(self) -> str: ...

    @property
    def writers(self) -> frozenset[int]:
        """User ids that may change things and see every job."""
        ...

    def ready(self) -> str:
        """ "" while ticks succeed, else what is missing."""
        ...

    def queue(self) -> QueueView | None:
        """The last tick's view."""
        ...

    def advise(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Advice for a job that is being submitted, as the plugin takes it; {} if there is none. Never blocks long."""
        ...

    def ranking(self) -> tuple[str, str]:
        """The policy that ranks queues where a request names none, and the directory that models are found in."""
        ...

    def place_in_queue(self, job_id: int) -> dict[str, Any]:
        """`features` by what they contribute to a job's place, and `what_would_move_it`; {} for one not in order."""
        ...

    def when(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """When a job would start that is described so, and what would change that; raises InputError. Takes seconds."""
        ...

    def forecast_skill(self) -> dict[str, Any]:
        """How the forecasts of the last week fared."""
        ...

    def forecasts_of(self, job_id: int) -> list[dict[str, float | None]]:
        """What was told of a job's start, and when it came."""
        ...

    def waited(self, job_id: int, submit_time: int | None = None) -> tuple[str, dict[str, float]] | None:
        """(user, seconds by Slurm's reason) that held a job back: one that waits, or without its time, any."""
        ...

    def limit_advice(self, user: str, name: str, gpus: int, cpus: int, limit: int) -> dict[str, Any] | None:
        """What the user's finished jobs say of a time limit, if it is worth a word."""
        ...

    def around(self, job_id: int, *, to_user: bool = False) -> dict[str, Any]:
        """Who is `ahead` of a pending job, by kind, and the `limits` and reservations that hold it back.

        A user does not see the numbers of others where Slurm's PrivateData hides them.
        """
        ...

    def past(self, job_id: int, submit_time: int) -> list[dict[str, object]]:
        """What was written to a job, or would have been."""
        ...

    def measured(self, job_id: int) -> Measured | None:
        """What the last run of a job used, if node agents told."""
        ...

    def measured_now(self, user: str | None, limit: int) -> list[Measured]:
        """What running jobs have used so far; of one user, or of all (None)."""
        ...

    def measured_ended(self, seconds: float, user: str | None, limit: int) -> list[Measured]:
        """What jobs used that ended within the last `seconds`; of one user, or of all (None)."""
        ...

    def auto(self) -> dict[str, Any]:
        """The policy of each partition and the table behind it; the promise, and what is withheld for it."""
        ...

    def choose(self) -> bool:
        """Starts another choice; False while one is being made, or if policies are not chosen."""
        ...

    def overview(self) -> dict[str, Any]:
        """The machine in counts, health and what the policy has done so far; names no job."""
        ...

    def nodes(self, own: str | None) -> list[dict[str, Any]]:
        """Every node with its jobs; `own`: other users' jobs are counted, not named."""
        ...

    def decisions(self, limit: int, before: int | None, job_id: int | None, status: str) -> list[dict[str, object]]:
        """Changes from the journal, the newest first."""
        ...

    def models(self) -> dict[str, Any]:
        """The policy in charge, and promotions."""
        ...

    def shadow_report(self) -> dict[str, Any] | None:
        """What `slurm-rl shadow-report` found when it ran last."""
        ...

    def set_mode(self, mode: str, who: str) -> None: ...

    def reload(self) -> dict[str, Any]:
        """Reads the configuration again; raises InputError and keeps the old one if it is wrong."""
        ...
