"""The schedulers that suites compare, and the figures of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from slurm_rl.bench.suite import Row
from slurm_rl.errors import InputError, SlurmRlError
from slurm_rl.kernel.arrays import Array
from slurm_rl_sim.replay import Contender, Prepared, Run, parse_contenders, replay
from slurm_rl_sim.simulation import NodeEvents

# The ancestor's five, then those of this field and of Slurm, the learned ones, and the limit that nobody can reach.
ANCESTORS = ("srpt", "edf", "static-priority", "static-equal", "dynamic")
OURS = (
    "fcfs", "fcfs+firstfit", "sjf@user", "saf@user", "sjf-age@user", "smith", "wfp3@user", "unicef@user", "f1@user",
    "multifactor",
)  # fmt: skip
LEARNED = ("rl:default", "meta:meta", "bandit:egreedy", "bandit:exp3", "bandit:linucb")
LIMIT = "sjf@oracle"
EVERY = (*ANCESTORS, *OURS, *LEARNED, LIMIT)
BASE = "fcfs"  # what ratios refer to
BACKFILL, PLACEMENT = "easy", "best-fit"
# The four aims of the mixed objective, by column; a ratio below 1 to the base is better.
AIMS = ("avg_jct", "p95_jct", "sla_missed", "energy")
_SOFT = {"sla_missed": 0.1}  # added to both sides: otherwise who misses none outweighs all else
JCT_GRID = np.geomspace(10.0, 1e6, 61)  # seconds: where the distribution of completion times is kept


def available(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those that this installation can run, and why not the others: a model may not be there."""
    found, absent = [], {}
    for name in names:
        try:
            parse_contenders(name, BACKFILL)
        except SlurmRlError as error:
            absent[name] = str(error)
        else:
            found.append(name)
    return found, absent


def chosen(text: str | None) -> list[str]:
    """What `--policy` names, or every scheduler that can run; the base and the limit are always among them."""
    if text is None:
        return available(EVERY)[0]
    names = [_name(c) for c in parse_contenders(text, BACKFILL)]
    if not names:
        raise InputError("names no policy", field="--policy")
    return [*names, *(n for n in (BASE, LIMIT) if n not in names)]


def _name(contender: Contender) -> str:
    own = contender.policy.name
    return own if contender.backfill == BACKFILL else f"{own}+{contender.backfill}"


@lru_cache(maxsize=64)
def contender_of(name: str) -> Contender:
    """A scheduler by name, under the common rule unless it names its own."""
    return parse_contenders(name, BACKFILL)[0]


def fixed(name: str) -> bool:
    """Whether a scheduler is one rule that never changes: not learned, and no limit."""
    return ":" not in name and not name.partition("+")[0].endswith("@oracle")


def reachable(name: str) -> bool:
    """Whether it uses nothing that only the future knows."""
    return not name.partition("+")[0].endswith("@oracle")


def runs(prepared: Prepared, names: Sequence[str], events: NodeEvents | None = None) -> list[Row]:
    """One row a scheduler, all on the same jobs; gaps refer to the best in hindsight and to the limit of this run."""
    rows = []
    for name in names:
        run = replay(prepared, [contender_of(name)], placement=PLACEMENT, events=events)[0]
        rows.append({"scheduler": name} | measured(run))
    _gaps(rows)
    return rows


def measured(run: Run) -> dict[str, Any]:
    """What is kept of a run; all but the speed of the machine."""
    m = run.metrics
    met = m["sla_met"]
    return {
        "jobs": m["jobs"],
        "completed": m["completed"],
        "killed": m["killed"],
        "rejected": m["rejected"],
        "avg_jct": m["mean_jct"],
        "p95_jct": m["p95_jct"],
        "avg_wait": m["mean_wait"],
        "p99_wait": m["p99_wait"],
        "max_wait": m["max_wait"],
        "slowdown": m["mean_bsld"],
        "makespan": m["makespan"],
        "queue_len_max": m["queue_max"],
        "queue_len_mean": m["queue_mean"],
        "fairness_jain": m["jain_users"],
        "sla_met": met,
        "sla_missed": None if met is None else 1.0 - met,
        "utilization": m["utilization"],
        "fragmentation": m["fragmentation"],
        "energy": m["energy_kwh"],
        "_jct": _distribution(run),
    }


def _distribution(run: Run) -> list[int]:
    """How many jobs had completed within each time of the grid."""
    result = run.result
    picked = result.measured & result.ran
    jct: Array = np.sort(result.end[picked] - result.trace.submit_time[picked])
    return [int(n) for n in np.searchsorted(jct, JCT_GRID, side="right")]


def mixed(row: Row, base: Row) -> float:
    """The mixed objective: geometric mean of the ratios to the base in mean and p95 JCT, deadlines missed, energy."""
    logs = [math.log(max(row[a] + _SOFT.get(a, 0.0), 1e-9) / max(base[a] + _SOFT.get(a, 0.0), 1e-9))
            for a in AIMS if row[a] is not None]  # fmt: skip
    return math.exp(sum(logs) / len(logs))


def _gaps(rows: list[Row]) -> None:
    base = next((r for r in rows if r["scheduler"] == BASE), rows[0])
    for row in rows:
        row["mixed"] = mixed(row, base)
    limit = next((r for r in rows if r["scheduler"] == LIMIT), None)
    rivals = [r for r in rows if fixed(r["scheduler"])]
    for row in rows:
        row["oracle_gap"] = None if limit is None else row["slowdown"] / limit["slowdown"] - 1.0
        row["oracle_gap_jct"] = None if limit is None else row["avg_jct"] / limit["avg_jct"] - 1.0
        for name, column in (("best_fixed_gap", "slowdown"), ("best_fixed_gap_jct", "avg_jct"),
                             ("best_fixed_gap_mixed", "mixed")):  # fmt: skip
            row[name] = row[column] / min(r[column] for r in rivals) - 1.0 if rivals else None
        row["best_fixed"] = min(rivals, key=lambda r: r["mixed"])["scheduler"] if rivals else None
