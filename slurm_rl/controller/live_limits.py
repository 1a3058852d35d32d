"""Live jobs under the site's limits and licences: what each counts towards, and who can never start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.quotas import AMOUNTS, COUNTS, USED, Asker, QuotaBook, Row
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.site_limits import SiteLimits


def quota_tables(
    site: SiteLimits, jobs: Sequence[SlurmJob], everyone: Iterable[SlurmJob]
) -> tuple[dict[str, Array], Mapping[int, str]]:
    """The tables of a World for these jobs, used up by all that run; and why some of the jobs can never start."""
    book = QuotaBook(site.limits)
    lists: dict[tuple[Row, ...], int] = {}
    of_job = np.zeros(len(jobs), dtype=np.int64)
    never: dict[int, str] = {}
    known: dict[object, tuple[int, str]] = {}  # by what limits look at: its list, and why it can never start
    for i, job in enumerate(jobs):
        asker = _asker(job, site)
        alike = (*_who(asker), frozenset(asker.tres.items()), frozenset(asker.licenses.items()))
        if alike not in known:
            rows = tuple(book.rows(asker))
            known[alike] = lists.setdefault(rows, len(lists)), book.why_never(asker)
        of_job[i], why = known[alike]
        if why and not job.running:
            never[i] = why
    used: dict[int, int] = {}
    for job in everyone:
        if job.running and job.state != "COMPLETING":  # what a job that is being cleaned up held is free for others
            for quota, amount, kind in book.rows(_asker(job, site)):
                if kind <= AMOUNTS or kind == COUNTS:
                    used[quota] = used.get(quota, 0) + amount
    tables = book.tables([list(rows) for rows in lists] or [[]], of_job)
    for quota, amount in used.items():
        tables["quotas"][quota, USED] = amount
    return tables, never


def _who(asker: Asker) -> tuple[str, str, str, str]:
    return asker.user, asker.account, asker.qos, asker.partition


def _asker(job: SlurmJob, site: SiteLimits) -> Asker:
    tres = {name.lower(): float(count) for name, count in job.tres.items()}
    tres |= {"cpu": float(job.cpus), "mem": float(job.mem_mb), "node": float(job.nodes)}
    if job.gpus:
        tres["gres/gpu"] = float(job.gpu_count)
        tres |= {f"gres/gpu:{kind}".lower(): float(count) for kind, count in job.gpus.items() if kind}
    licenses = site.licenses.get(job.job_id, {})
    return Asker(job.user, job.account, job.qos, job.partitions[0], tres, licenses)
