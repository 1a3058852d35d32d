"""Reads what sprio prints: weighted priority terms, and SiteFactors alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_rl.errors import SlurmError
from slurm_rl.slurm.command import UNIT, Answer, split_records
from slurm_rl.slurm.model import PriorityFactors

FACTOR_FIELDS = ("%i", "%Y", "%A", "%B", "%F", "%J", "%P", "%Q", "%S", "%T", "%N", "%f")
_SITE_FIELDS = ("%i", "%S")
_TRES_TERM = re.compile(r"=(-?[\d.]+)")


def factor_format(mark: str, *, plain: bool = False) -> str:
    """`sprio -o`'s argument; `plain` as of `split_records`."""
    return (UNIT if plain else mark).join(FACTOR_FIELDS) + mark


def factors(
    output: str | Answer, mark: str, known: dict[str, tuple[int, PriorityFactors]] | None = None, *, plain: bool = False
) -> dict[int, PriorityFactors]:
    """Weighted priority terms by job id, of several partitions those of the best one; `known` as of `jobs`."""
    before = {} if known is None else known
    now: dict[str, tuple[int, PriorityFactors]] = {}
    rows = []
    for raw in split_records(output, FACTOR_FIELDS, mark, plain=plain):
        row = now[raw] = before.get(raw) or _factor(raw.split("\0"))
        rows.append(row)
    if known is not None:
        known.clear()
        known.update(now)
    found = dict(rows)
    if len(found) < len(rows):
        for job_id, terms in rows:
            if found[job_id].priority < terms.priority:
                found[job_id] = terms
    return found


def _factor(values: Sequence[str]) -> tuple[int, PriorityFactors]:
    """A job's id and its weighted terms from one record of sprio."""
    try:
        job_id, priority, age, assoc, fairshare, job_size, partition, qos, site, tres_terms, nice, share = values
        return int(job_id), PriorityFactors(
            priority=_integer(priority),
            age=_integer(age),
            assoc=_integer(assoc),
            fairshare=_integer(fairshare),
            job_size=_integer(job_size),
            partition=_integer(partition),
            qos=_integer(qos),
            site=_integer(site),
            tres=round(sum(map(float, _TRES_TERM.findall(tres_terms)))) if tres_terms else 0,
            nice=_integer(nice),
            fairshare_normalized=float(share),
        )
    except ValueError as error:
        raise SlurmError(f"sprio: unreadable record {values[0]!r}: {error}") from None


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text)) if text.strip() else 0


def site_format(mark: str) -> str:
    """`sprio -o`'s argument for `site_factors`."""
    return "".join(field + mark for field in _SITE_FIELDS)


def site_factors(output: str, mark: str) -> dict[int, int]:
    """SiteFactors by job id; of a job in several partitions they are the same."""
    rows = (raw.split("\0") for raw in split_records(output, _SITE_FIELDS, mark))
    try:
        return {int(job_id): _integer(site) for job_id, site in rows}
    except ValueError as error:
        raise SlurmError(f"sprio: unreadable record: {error}") from None
