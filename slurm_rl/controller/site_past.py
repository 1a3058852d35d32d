"""A site's past as replays need it: its finished jobs, its nodes, and the rules that it has now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slurm_rl.backfill.slurm_settings import SlurmSettings, site_settings
from slurm_rl.config import Config
from slurm_rl.controller.slurm_snapshot import site_weights
from slurm_rl.domain.cluster import Cluster, published_speed
from slurm_rl.domain.limits import Limits
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import HistoryJob
from slurm_rl.slurm.scontrol import setting
from slurm_rl.slurm.site_limits import enforced, site_limits
from slurm_rl.traces.site import history_trace, site_cluster
from slurm_rl.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class SitePast:
    """Jobs that ended, and under what they are replayed; None: the usual weights and settings, no limits."""

    trace: Trace
    cluster: Cluster
    weights: dict[str, float] | None = None
    slurm: SlurmSettings | None = None
    limits: Limits | None = None


def read_past(client: SlurmClient, since: float, until: float | None = None) -> SitePast:
    """The jobs of accounting that ended in a time, until now unless said otherwise, on the site as it is now.

    Licences are left out: accounting does not tell who held them.
    """
    rows = client.history(since, until if until is not None else time.time())
    state = client.snapshot()
    nodes, _ = site_cluster(state.nodes, state.cluster)
    weights = site_weights(state.weights)
    by_limits = enforced(setting(state.config, "AccountingStorageEnforce"))
    return SitePast(
        history_trace([_at_speed_one(row) for row in rows], state.cluster),
        nodes,
        weights if sum(weights.values()) else None,
        site_settings(state.config),
        site_limits(client.assoc_mgr(), "", state.partitions) if by_limits else None,
    )


def slurm_client(settings: Config) -> CliClient:
    """The Slurm of the configuration."""
    return CliClient(Path(settings.slurm_conf) if settings.slurm_conf else None, settings.slurm_timeout)


def past_of(settings: Config, days: float, trace: Path | None, cluster: Path | None) -> SitePast:
    """The past of the last days, or a trace file with its cluster."""
    if trace is not None:
        from slurm_rl.traces.read import read_trace
        from slurm_rl_sim.replay import find_cluster

        past = read_trace(trace)
        return SitePast(past, find_cluster(past, trace, cluster))
    return read_past(slurm_client(settings), time.time() - days * 86_400)


def _at_speed_one(row: HistoryJob) -> HistoryJob:
    """A job that asked for no GPU type, as if it had run at speed 1: a replay takes its run time to be of that."""
    given = [kind for kind, count in row.gpus_allocated.items() if kind and count]
    if len(given) != 1 or any(kind for kind in row.gpus_requested):
        return row
    return msgspec.structs.replace(row, elapsed=round(row.elapsed * published_speed(given[0])))
