"""Who loses against Slurm's own order is told, with what sets their jobs apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.report.fairness import as_value, fairness, losers, told
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import parse_contenders, prepare, replay

CLUSTER = Cluster("eight", (NodeClass(1, cpus=8, partition="p"),))


def _shifted(delays: dict[str, int]) -> tuple[object, ...]:
    """Jobs of three users under FCFS, and the same with each user's jobs started so much later."""
    users = ["small"] * 30 + ["wide"] * 30 + ["rare"] * 3
    trace = make_trace(
        "three",
        np.arange(len(users)) * 10,
        run_time=[600] * len(users),
        time_limit=[1200] * 60 + [12_000] * 3,
        cpus=[1.0] * 30 + [8.0] * 30 + [1.0] * 3,
        user=users,
        account=["a"] * 30 + ["b"] * 33,
        partition=["p"] * len(users),
    )
    prepared = prepare(trace, CLUSTER)
    (run,) = replay(prepared, parse_contenders("fcfs", "easy"))
    shift = np.array([delays.get(u, 0) for u in prepared.trace.user.strings()])
    later = replace(run.result, start=run.result.start + shift, end=run.result.end + shift)
    return prepared.trace, prepared.workload, prepared.measured, run.result, later


def test_those_who_lose_most_come_first_with_their_reason() -> None:
    found = fairness(*_shifted({"wide": 40_000, "rare": 90_000, "small": -0}))  # type: ignore[arg-type]
    assert set(found) == {"user", "account", "size"}, "one partition and no GPU types: nobody to compare with"
    worst = losers(found)
    assert [g.name for g in worst] == ["rare", "wide"]
    assert worst[0].why == "they request 10 times the usual time; with 3 jobs, little is known of its run times"
    assert "8 times as large" in worst[1].why
    assert worst[0].wait - worst[0].own_wait == 90_000
    small = next(g for g in found["user"] if g.name == "small")
    assert not small.loses
    assert small.why == ""
    text = told(found)
    assert "of 3 users, 2 wait noticeably longer" in text
    assert max(map(len, text.splitlines())) <= 80
    value = as_value(found)
    assert value["lose_most"]["user"] == ["rare", "wide"]
    assert value["groups"]["account"][0]["jobs"] == 33


def test_where_nobody_loses_it_says_so() -> None:
    found = fairness(*_shifted({}))  # type: ignore[arg-type]
    assert losers(found) == []
    assert "of 3 users, 0 wait noticeably longer" in told(found)
