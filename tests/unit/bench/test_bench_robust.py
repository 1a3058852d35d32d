"""`bench robust`: the manifest, the distortions, and changes against the clean run."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_rl.bench import robust
from slurm_rl.bench.suite import Unit

SMALL = {"seeds": 2, "jobs": 120, "policy": ["fcfs", "sjf@user", "sjf@oracle"]}


def test_there_are_160_scenarios_each_with_its_clean_run() -> None:
    listed = robust.scenarios()
    assert len({s["scenario"] for s in listed}) == len(listed) == 160
    plan = robust.plan(SMALL)
    assert len({u.name for u in plan}) == len(plan) == 2 * (160 + 8)
    assert {u.what["regime"] for u in plan if u.what["kind"] == "clean"} == {s["regime"] for s in listed}


def test_a_distortion_changes_what_it_says_and_nothing_else() -> None:
    name = "bursty-x2-g16"
    clean, cluster, none = robust.workload(name, "clean", 0.0, 1, 200)
    assert none is None
    assert (cluster.gpus, cluster.nodes) == (16, 8)
    longer, _, _ = robust.workload(name, "drift", 1.0, 1, 200)
    assert longer.run_time[-1] == pytest.approx(2 * clean.run_time[-1], abs=1)
    assert np.array_equal(longer.submit_time, clean.submit_time)
    noisy, _, _ = robust.workload(name, "arrival-noise", 0.2, 1, 200)
    assert not np.array_equal(noisy.submit_time, clean.submit_time)
    assert sorted(noisy.run_time) == sorted(clean.run_time)
    same, _, dips = robust.workload(name, "capacity-dip", 0.5, 1, 200)
    assert np.array_equal(same.submit_time, clean.submit_time)
    assert dips is not None
    assert (len(dips.time), int(dips.up.sum())) == (4 * 2 * 4, 4 * 4), "half of eight nodes go and come, four times"


def test_changes_are_against_the_same_scheduler_regime_and_seed() -> None:
    rows = []
    for kind, level in (("clean", 0.0), ("duration", 0.8), ("capacity-dip", 0.5)):
        what = {"scenario": f"base-x2-g16+{kind}", "regime": "base-x2-g16", "kind": kind, "level": level, "seed": 0}
        rows += robust.run(Unit("u", what), SMALL)
    changed = robust._with_deltas(rows)
    assert len(changed) == 6
    clean = {r["scheduler"]: r for r in rows if r["kind"] == "clean"}
    for row in changed:
        own = clean[row["scheduler"]]
        assert row["delta_avg_jct"] == pytest.approx(row["avg_jct"] / own["avg_jct"] - 1)
        assert row["seed_variance"] is None, "of one seed there is none"
    assert all(r["delta_avg_jct"] > 0 for r in changed if r["kind"] == "capacity-dip"), "fewer nodes, longer waits"


def test_an_explosion_is_a_queue_twice_as_long_with_a_twentieth_of_all_jobs() -> None:
    row = {"scenario": "s", "regime": "r", "seed": 0, "scheduler": "fcfs", "jobs": 1000, "avg_jct": 1.0, "p95_jct": 1.0,
           "slowdown": 1.0, "mixed": 1.0, "sla_met": None}  # fmt: skip
    clean = row | {"scenario": "c", "kind": "clean", "queue_len_max": 40}

    def exploded(longest: int, before: int = 40) -> int:
        dirty = row | {"kind": "burst", "queue_len_max": longest}
        return int(robust._with_deltas([clean | {"queue_len_max": before}, dirty])[0]["queue_explosion"])

    assert [exploded(80), exploded(81)] == [0, 1]
    assert [exploded(49, before=1), exploded(50, before=1)] == [0, 1]
