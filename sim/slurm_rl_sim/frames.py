"""A replay as pandas DataFrames: one row a job, and one row each time something changes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from slurm_rl_sim.result import STATE_NAMES, Result

JOB_COLUMNS = ("job_id", "start_time", "end_time", "wait", "nodes", "gpus", "gpu_type", "state")


def jobs_frame(result: Result) -> pd.DataFrame:
    """One row a job of the trace: JOB_COLUMNS, then what was submitted; blank where a job never ran."""
    workload, trace, ran = result.workload, result.trace, result.ran
    job, node, _, count = result.runs()
    pairs, first = np.unique(np.stack([job, node]), axis=1, return_index=True)  # a node may have several records
    nodes = np.zeros(len(result.start), dtype=np.int64)
    np.add.at(nodes, pairs[0], count[first])
    shape = workload.requests[workload.jobs["request"]]
    on_gpus = (shape["gpu"] + shape["share"]) > 0
    types: dict[int, set[str]] = {}
    used = np.unique(np.stack(result.gpu_types()), axis=1)
    for j, kind in used[:, on_gpus[used[0]]].T.tolist():
        name = workload.type_names[kind]
        if name:
            types.setdefault(j, set()).add(name)
    gpus = shape["units"] * (shape["gpu"] + shape["share"] / 1000)

    def where_it_ran(values: np.ndarray) -> pd.Series:
        return pd.Series(values).astype("Int64").where(ran)

    return pd.DataFrame(
        {
            "job_id": trace.job_id,
            "start_time": where_it_ran(result.start),
            "end_time": where_it_ran(result.end),
            "wait": where_it_ran(result.wait),
            "nodes": where_it_ran(nodes),
            "gpus": pd.Series(gpus.astype(float)).where(ran),
            "gpu_type": ["|".join(sorted(types.get(j, ()))) for j in range(len(ran))],
            "state": [STATE_NAMES[int(s)] for s in result.state],
            "submit_time": trace.submit_time,
            "time_limit": trace.time_limit,
            "user": trace.user.strings(),
            "partition": trace.partition.strings(),
            "measured": result.measured,
        }
    )


def timeline_frame(result: Result) -> pd.DataFrame:
    """One row for each moment at which a job came, started or ended: how many wait and run, and what is held then."""
    ran = np.flatnonzero(result.ran)
    shape = result.workload.requests[result.workload.jobs["request"]][ran]
    gpus = shape["units"] * (shape["gpu"] + shape["share"] / 1000)
    submit, start, end = result.trace.submit_time[ran], result.start[ran], result.end[ran]
    one, none = np.ones(len(ran)), np.zeros(len(ran))
    changes = pd.DataFrame(
        {
            "time": np.concatenate([submit, start, end]),
            "queued": np.concatenate([one, -one, none]),
            "running": np.concatenate([none, one, -one]),
            "gpus": np.concatenate([none, gpus, -gpus]),
        }
    )
    levels = changes.groupby("time").sum().cumsum()
    levels["queued"], levels["running"] = levels["queued"].astype(int), levels["running"].astype(int)
    levels["gpus"] = levels["gpus"].round(6) + 0.0
    return levels.reset_index()
