"""The optional client: jobs and nodes, and most writes, through pyslurm's bindings instead of Slurm's commands."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.errors import EnvironmentMissing, SlurmError
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import (
    Health,
    HistoryJob,
    JobUpdate,
    PriorityFactors,
    SlurmJob,
    SlurmNode,
    SlurmState,
    UpdateResult,
    UpdateStatus,
)
from slurm_rl.slurm.quantities import array_tasks, expand_hosts, gpus_in_gres, gpus_in_tres, tres
from slurm_rl.slurm.release import Release, parse_release

_ACTIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"})


def installed_major() -> tuple[int, int] | None:
    """The major release pyslurm was built for, found without importing it; None if it is not installed."""
    try:
        return parse_release(importlib.metadata.version("pyslurm")).major
    except importlib.metadata.PackageNotFoundError:
        return None


def load(release: Release, conf: Path | None) -> Any:
    """Imports pyslurm after making sure that it can be: it ends the process if it finds no configuration."""
    major = installed_major()
    if major is None:
        raise EnvironmentMissing("pyslurm is not installed: pip install 'slurm-rl[pyslurm]'")
    if major != release.major:
        raise EnvironmentMissing(
            f"pyslurm is for Slurm {major[0]}.{major[1]:02}, this is Slurm {release}: install pyslurm "
            f"{release.year}.{release.month}.*"
        )
    path = str(conf) if conf is not None else os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    if not os.access(path, os.R_OK):
        raise SlurmError(f"SLURM_CONF={path} cannot be read: name the slurm.conf of the cluster")
    os.environ["SLURM_CONF"] = path  # the only way to tell pyslurm
    return importlib.import_module("pyslurm")


class PyslurmClient:
    """A SlurmClient that uses pyslurm for jobs, nodes and SiteFactor, and Slurm's commands for everything else.

    pyslurm's calls cannot be interrupted, so each is preceded by a ping that can; after that, Slurm's own
    MessageTimeout bounds them.
    """

    def __init__(self, conf: Path | None = None, timeout: float = 10.0, module: Any = None) -> None:
        self.cli = CliClient(conf, timeout)
        self.pyslurm = module if module is not None else load(self.cli.release(), conf)

    def snapshot(self) -> SlurmState:
        self._ping()
        return self.cli.assemble(self._jobs, self._nodes)

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        """SiteFactor alone goes through pyslurm; what it cannot express goes through scontrol, in one batch."""
        self._ping()
        if not self.cli.release().known:
            return self.cli.update(updates)  # which refuses, and says why
        through_cli = [u for u in updates if not expressible(u)]
        results = {r.job_id: r for r in self.cli.update(through_cli)}
        for update in updates:
            if update.job_id not in results:
                results[update.job_id] = self._modify(update)
        return [results[u.job_id] for u in updates]

    def history(self, start: float, end: float) -> list[HistoryJob]:
        return self.cli.history(start, end)

    def health(self) -> Health:
        return self.cli.health()

    def _ping(self) -> None:
        health = self.cli.commands.run("scontrol", "ping")
        if " UP" not in health:
            raise SlurmError(f"scontrol: {health.strip().splitlines()[0]}")

    def _jobs(self, factors: Mapping[int, PriorityFactors]) -> list[SlurmJob]:
        try:
            loaded = self.pyslurm.Jobs.load()
        except self.pyslurm.PyslurmError as error:
            raise SlurmError(f"pyslurm: {error}") from None
        return [job(j, factors) for j in loaded.values() if j.state in _ACTIVE]

    def _nodes(self) -> list[SlurmNode]:
        try:
            loaded = self.pyslurm.Nodes.load()
        except self.pyslurm.PyslurmError as error:
            raise SlurmError(f"pyslurm: {error}") from None
        return [node(n) for n in loaded.values()]

    def _modify(self, update: JobUpdate) -> UpdateResult:
        try:
            change = self.pyslurm.JobSubmitDescription(site_factor=update.site_factor)
            self.pyslurm.Job(update.job_id).modify(change)
        except self.pyslurm.PyslurmError as error:
            return UpdateResult(update.job_id, UpdateStatus.REFUSED, str(error))
        return UpdateResult(update.job_id, UpdateStatus.APPLIED)


def expressible(update: JobUpdate) -> bool:
    """Whether pyslurm can send it: it drops a SiteFactor of 0, and knows neither prefer nor array records."""
    others = (update.features, update.prefer, update.start_at)
    return bool(update.site_factor) and not update.array_tasks and all(value is None for value in others)


def job(j: Any, factors: Mapping[int, PriorityFactors]) -> SlurmJob:
    """A pyslurm Job as ours."""
    counts = _tres(j.requested_tres if j.state == "PENDING" else j.allocated_tres)
    is_array = bool(j.array_id)
    waiting, count, _ = array_tasks(j.array_tasks_waiting or "")
    if j.array_task_id is not None:
        waiting, count = str(j.array_task_id), 1
    return SlurmJob(
        job_id=j.id,
        name=j.name or "",
        user=j.user_name or "",
        account=j.account or "",
        qos=j.qos or "",
        partitions=tuple((j.partition or "").split(",")),
        state=j.state,
        reason=j.state_reason if j.state_reason not in (None, "None") else "",
        dependency=_dependency(j.dependencies),
        reservation=j.reservation or "",
        cron=bool(j.is_cronjob),
        array_job_id=j.array_id if is_array else 0,
        array_task_id=j.array_task_id if is_array else None,
        array_tasks=waiting if is_array else "",
        array_task_count=count if is_array else 1,
        array_max_running=(j.array_tasks_parallel or 0) if is_array and j.array_task_id is None else 0,
        het_job_id=j.heterogeneous_id or 0,
        het_offset=j.heterogeneous_offset or 0,
        submit_time=j.submit_time,
        eligible_time=j.eligible_time,
        start_time=j.start_time,
        deadline=getattr(j, "deadline", None),
        end_time=None if j.time_limit is None else j.end_time,
        time_limit=None if j.time_limit is None else int(j.time_limit) * 60,
        nodes=j.num_nodes or 1,
        cpus=j.cpus or 1,
        tasks=j.ntasks or 1,
        mem_mb=counts.get("mem", 0) or j.memory or 0,
        gpus=gpus_in_tres(counts) or _gpus(j.gres_per_node, j.num_nodes or 1),
        tres=counts,
        features=",".join(j.constraints or ()),
        prefer=",".join(j.preferred_features or ()),
        required_nodes=expand_hosts(j.required_nodes or ""),
        exclusive=j.resource_sharing in ("NO", "EXCLUSIVE"),
        node_list=expand_hosts(j.allocated_nodes or ""),
        priority=j.priority or 0,
        nice=j.nice or 0,
        factors=factors.get(j.id),
    )


def node(n: Any) -> SlurmNode:
    """A pyslurm Node as ours."""
    state, *flags = n.state.split("+")
    return SlurmNode(
        name=n.name,
        state=state,
        flags=tuple(flags),
        cpus=n.total_cpus or 0,
        cpus_allocated=n.allocated_cpus or 0,
        mem_mb=n.real_memory or 0,
        mem_mb_allocated=n.allocated_memory or 0,
        gpus=_gpus(n.configured_gres, 1),
        gpus_allocated=_gpus(n.allocated_gres, 1),
        features=tuple(n.active_features or ()),
        partitions=tuple(n.partitions or ()),
    )


def _tres(resources: Any) -> dict[str, int]:
    """pyslurm's TrackableResources as numbers; newer ones keep Slurm's own text, which says it all."""
    if resources is None:
        return {}
    if getattr(resources, "raw_str", None):
        return tres(resources.raw_str)
    plain = {key: getattr(resources, key, None) for key in ("cpu", "mem", "node", "billing")}
    counts = {key: int(getattr(value, "count", value)) for key, value in plain.items() if value}
    return counts | {f"gres/{name}": int(gres.count) for name, gres in (resources.gres or {}).items()}


def _gpus(gres: Mapping[str, int] | None, times: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in (gres or {}).items():
        for kind in gpus_in_gres(name):
            found[kind] = found.get(kind, 0) + int(count) * times
    # A node tracks its GPUs in total and by type; count the total only for what has no type.
    typed = sum(n for kind, n in found.items() if kind)
    if typed and found.get(""):
        found[""] = max(found[""] - typed, 0)
    return {kind: n for kind, n in found.items() if n}


def _dependency(value: Mapping[str, Any] | None) -> str:
    """Slurm lists only what is not fulfilled yet, so all of it is."""
    if not value:
        return ""
    kinds = [(kind, jobs) for kind, jobs in value.items() if isinstance(jobs, list) and jobs]
    terms = [f"{kind}:{str(job_id).partition('(')[0]}(unfulfilled)" for kind, jobs in kinds for job_id in jobs]
    if value.get("singleton"):
        terms.append("singleton(unfulfilled)")
    return ("?" if value.get("satisfy") == "any" else ",").join(terms)
