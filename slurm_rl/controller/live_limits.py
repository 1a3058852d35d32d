"""Live jobs under the site's limits and licences: what each counts towards, and who can never start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.quotas import AMOUNTS, COUNTS, USED, Asker, QuotaBook, Row
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.site_limits import SiteLimits


def quota_tables(
    site: SiteLimits, jobs: Sequence[SlurmJob], everyone: Iterable[SlurmJob]
) -> tuple[dict[str, Array], frozenset[int]]:
    """The tables of a World for these jobs, used up by all that run; and which of the jobs no limit ever lets start."""
    book = QuotaBook(site.limits)
    lists: dict[tuple[Row, ...], int] = {}
    of_job = np.zeros(len(jobs), dtype=np.int64)
    never = set()
    known: dict[object, tuple[int, bool]] = {}  # by what limits look at: its list, and whether it can ever start
    for i, job in enumerate(jobs):
        asker = _asker(job, site)
        alike = (*_who(asker), frozenset(asker.tres.items()), frozenset(asker.licenses.items()))
        if alike not in known:
            rows = tuple(book.rows(asker))
            known[alike] = lists.setdefault(rows, len(lists)), bool(book.why_never(asker))
        of_job[i], hopeless = known[alike]
        if hopeless and job.pending:
            never.add(i)
    used: dict[int, int] = {}
    for job in everyone:
        if job.running and job.state != "COMPLETING":  # what a job that is being cleaned up held is free for others
            for quota, amount, kind in book.rows(_asker(job, site)):
                if kind <= AMOUNTS or kind == COUNTS:
                    used[quota] = used.get(quota, 0) + amount
    tables = book.tables([list(rows) for rows in lists] or [[]], of_job)
    for quota, amount in used.items():
        tables["quotas"][quota, USED] = amount
    return tables, frozenset(never)


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
