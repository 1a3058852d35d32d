"""Arguments of the Python API: a trace and a cluster as files or objects, policies by name or as objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.policy.named import policy_of
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import Contender, find_cluster, parse_contenders


def trace_and_cluster(trace: str | Path | Trace, cluster: str | Path | Cluster | None) -> tuple[Trace, Cluster]:
    """Reads what is given as files; the cluster of a trace file may be the one beside it."""
    if isinstance(trace, Trace):
        path, read = Path(trace.name), trace
    else:
        path, read = Path(trace), read_trace(Path(trace))
    if isinstance(cluster, Cluster):
        return read, cluster
    if cluster is None and isinstance(trace, Trace) and "max_procs" not in trace.meta:
        raise InputError("a Trace needs a Cluster", field="cluster")
    return read, find_cluster(read, path, None if cluster is None else Path(cluster))


def contenders_of(policies: Sequence[Any] | str | Any, backfill: str) -> list[Contender]:
    """Policies in any form; a name may carry its own backfill rule, `fcfs+firstfit`."""
    rule = RULES[backfill].name
    if isinstance(policies, str):
        return parse_contenders(policies, rule)
    found: list[Contender] = []
    for given in policies if isinstance(policies, list | tuple) else [policies]:
        made = parse_contenders([given], rule) if isinstance(given, str) else [Contender(policy_of(given), rule)]
        found += [c for c in made if c not in found]
    if not found:
        raise InputError("names no policy", field="policies")
    return found
