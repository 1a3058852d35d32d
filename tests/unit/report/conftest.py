"""Replays to report on: a tiny one whose figures are worked out by hand, and the bundled trace."""

from __future__ import annotations

import pytest
from builders import a_job
from report_cases import ROOT, Case, a_case

from slurm_rl.traces.read import read_trace
from slurm_rl_sim.replay import find_cluster, parse_contenders, prepare, replay


@pytest.fixture(scope="session")
def long_before_short() -> Case:
    """One node of four GPUs. At 0, `first` takes all for 100 s; at 10 `long` wants all for 1000 s, at 20 `short` two.

    In order of arrival, long waits 90 s and short 1080 s. With the shortest first, short starts at 100 and waits
    80 s, and long starts at 200 and waits 190 s.
    """
    jobs = [
        a_job(0, 100, gpus=4, user="first", priority=1),
        a_job(10, 1000, gpus=4, user="long", priority=1),
        a_job(20, 100, gpus=2, user="short", priority=2),
    ]
    return a_case(jobs, "multifactor,fcfs,sjf,sjf@oracle")


@pytest.fixture(scope="session")
def hetero() -> Case:
    """The bundled heterogeneous trace under three policies."""
    path = ROOT / "traces" / "hetero.csv.gz"
    trace = read_trace(path)
    prepared = prepare(trace, find_cluster(trace, path, None))
    return prepared, replay(prepared, parse_contenders("multifactor,fcfs+firstfit,sjf@oracle", "easy"))
