"""Limits that hold jobs back, with their numbers: read once a minute, while jobs wait and limits are in force.

Licences change from minute to minute, so they are read at every tick of a site that has any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slurm_rl.slurm.assoc_limits import binding_limits, is_limit
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import SlurmJob, SlurmState
from slurm_rl.slurm.scontrol import setting
from slurm_rl.slurm.site_limits import SiteLimits, enforced, site_limits

_EVERY = 60.0  # seconds
_HIDING = {"usage", "users", "accounts"}  # words of PrivateData that keep others' numbers from users


class LimitsSeen:
    """What slurmctld last told of its limits; ticks read, any thread asks."""

    def __init__(self) -> None:
        self._text = ""
        self._read = 0.0
        self._private = True
        self._site: SiteLimits | None = None

    def see(self, client: SlurmClient, state: SlurmState) -> None:
        words = setting(state.config, "PrivateData").lower().replace(" ", "").split(",")
        self._private = not _HIDING.isdisjoint(words)
        reasons = {j.reason for j in state.jobs if j.state == "PENDING"}
        by_limits = enforced(setting(state.config, "AccountingStorageEnforce"))
        if not 0 <= state.taken - self._read < _EVERY and (any(map(is_limit, reasons)) or (reasons and by_limits)):
            self._read = state.taken
            self._text = client.assoc_mgr()
        counted = ""
        asked: Mapping[int, Mapping[str, int]] = {}
        if reasons and (setting(state.config, "Licenses") or "Licenses" in reasons):
            counted, asked = client.licenses()
        self._site = None
        if reasons and (by_limits or counted):
            limits = site_limits(self._text if by_limits else "", counted, state.partitions)
            self._site = SiteLimits(limits, asked)

    @property
    def in_force(self) -> SiteLimits | None:
        """What holds jobs back here, as last read; None if nothing does."""
        return self._site

    def of(self, job: SlurmJob, *, to_user: bool = False) -> list[dict[str, Any]]:
        """The limits that hold a job back; to its user without others' numbers where PrivateData hides them."""
        found = []
        for limit in binding_limits(job, self._text):
            hidden = to_user and self._private and limit.shared
            numbers = {"allowed": None, "used": None} if hidden else {}
            told = {name: value for name, value in asdict(limit).items() if name != "shared"}
            found.append(told | numbers | {"text": limit.reached() if hidden else str(limit)})
        return found
