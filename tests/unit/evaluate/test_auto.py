"""`auto` chooses by the past alone: the best that keeps the promise beyond chance, or Slurm's own order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.backfill.slurm_settings import SlurmSettings, with_options
from slurm_rl.domain.cluster import Cluster, NodeClass, write_cluster
from slurm_rl.domain.limits import limits_from
from slurm_rl.domain.promise import parse_promise
from slurm_rl.domain.reservations import Reservation
from slurm_rl.evaluate.auto import OWN, Standing, auto, candidates, choose, compare_on_past, replay_auto, varied
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl.traces.native import write_native
from slurm_rl.traces.trace import Labels, Trace
from slurm_rl_sim.replay import parse_contenders, prepare, replay
from tests.unit.evaluate.test_paired import call

FRONT = NodeClass(3, "V100", 4, 16, 64.0, "front")
BACK = NodeClass(3, "V100", 4, 16, 64.0, "back")
BOTH = Cluster("two pools", (FRONT, BACK))


def standing(name: str, price: float, *, keeps: bool = True, error: float = 0.02) -> Standing:
    figures = dict.fromkeys(("bsld", "wait", "p95", "p99", "max"), 1.0)
    return Standing(name, figures, dict.fromkeys(figures, 0.0), price, error, keeps)


OWN_STANDS = standing(OWN, 0.0, error=0.0)


def test_the_best_that_keeps_the_promise_is_chosen() -> None:
    table = [OWN_STANDS, standing("fast", -0.5, keeps=False), standing("safe", -0.3), standing("slow", -0.1)]
    found = choose(("p",), 500, 900.0, table)
    assert (found.chosen, found.before) == ("safe", "")
    assert "better than multifactor by 26%" in found.why


def test_slurms_own_order_stays_where_none_is_better_beyond_chance() -> None:
    assert choose(("p",), 500, 900.0, [OWN_STANDS, standing("a", -0.3, keeps=False)]).chosen == OWN
    assert choose(("p",), 500, 900.0, [OWN_STANDS, standing("a", -0.10, error=0.08)]).chosen == OWN
    assert choose(("p",), 99, 900.0, [OWN_STANDS, standing("a", -0.3)]).chosen == OWN
    assert choose(("p",), 500, 30.0, [OWN_STANDS, standing("a", -0.3)]).why == "nobody waits"


def test_what_is_in_charge_stays_unless_another_is_clearly_better() -> None:
    table = [OWN_STANDS, standing("a", -0.30), standing("b", -0.34)]
    assert choose(("p",), 500, 900.0, table, before="a").chosen == "a"
    better = [*table[:2], standing("b", -0.40)]
    assert choose(("p",), 500, 900.0, better, before="a").chosen == "b"
    broken = [OWN_STANDS, standing("a", -0.30, keeps=False), standing("b", -0.2)]
    assert choose(("p",), 500, 900.0, broken, before="a").chosen == "b", "it keeps the promise no more"


def test_what_suits_the_site_stands_in_a_pool_that_tells_little() -> None:
    table = [OWN_STANDS, standing("a", -0.05, error=0.2), standing("b", -0.20, error=0.2)]
    assert choose(("p",), 500, 900.0, table).chosen == OWN, "chance alone"
    found = choose(("p",), 500, 900.0, table, usual="a")
    assert found.chosen == "a"
    assert "suits the site" in found.why
    clear = [OWN_STANDS, standing("a", -0.05), standing("b", -0.20)]
    assert choose(("p",), 500, 900.0, clear, usual="a").chosen == "b", "better than what suits the site"
    harms = [OWN_STANDS, standing("a", 0.05), standing("c", -0.3, keeps=False)]
    assert choose(("p",), 500, 900.0, harms, usual="a").chosen == OWN
    assert choose(("p",), 500, 900.0, harms, usual="c").chosen == OWN
    assert choose(("p",), 500, 900.0, table, before="b", usual="a").chosen == "b", "what is in charge stays"


def test_replicates_hold_the_same_jobs_on_other_days() -> None:
    trace = _two_pools()
    assert varied(trace, 0, 0) is trace
    moved = varied(trace, 3, 0)
    assert sorted(moved.job_id.tolist()) == sorted(trace.job_id.tolist())
    assert moved.span()[1] <= trace.span()[1]
    run = dict(zip(trace.job_id.tolist(), trace.run_time.tolist(), strict=True))
    assert [run[j] for j in moved.job_id.tolist()] == moved.run_time.tolist()
    assert not np.array_equal(moved.submit_time, trace.submit_time)
    assert np.array_equal(varied(trace, 3, 0).submit_time, moved.submit_time)


def test_the_candidates_are_what_was_promised() -> None:
    names = set(candidates(parse_policy("rl:default"), tuned={"age": 1.0}))
    assert names == {
        "multifactor", "multifactor, tuned", "sjf-age@user", "saf@user", "wfp3@user",
        "rl:default", "rl:default, lane", "rl:default, wide", "rl:default, narrow",
    }  # fmt: skip


def _two_pools() -> Trace:
    busy = generate(WorkloadSpec(jobs=500, days=2, load=1.3, users=12, max_gpus=4, seed=3), Cluster("f", (FRONT,)))
    idle = generate(WorkloadSpec(jobs=200, days=2, load=0.05, users=12, max_gpus=2, seed=4), Cluster("b", (BACK,)))
    rows = [(t, i) for t, trace in enumerate((busy, idle)) for i in range(len(trace))]
    columns = {
        k: np.concatenate([getattr(busy, k), getattr(idle, k)])
        for k in ("submit_time", "run_time", "time_limit", "num_gpus", "num_nodes", "cpus", "mem_gb", "priority")
    }
    blank = Labels.blank(len(rows))
    users = Labels.of([*busy.user.strings(), *idle.user.strings()])
    both = replace(
        busy,
        **columns,
        name="two pools",
        job_id=np.arange(1, len(rows) + 1),
        deadline=np.full(len(rows), -1),
        user=users,
        partition=Labels.of(["front"] * len(busy) + ["back"] * len(idle)),
        **dict.fromkeys(("account", "gpu_type", "status", "qos", "job_name"), blank),
    )
    return both.sorted()


def test_each_pool_gets_its_own_and_its_jobs_run_as_under_that_policy() -> None:
    trace = _two_pools()
    judged = auto(trace, BOTH, "easy", model=None, tune=False, replicates=1)
    assert [c.partitions for c in judged.choices] == [("front",), ("back",)]
    assert judged.choices[1].why == "nobody waits"
    picked = (replace(judged.choices[0], chosen="sjf-age@user"), judged.choices[1])
    found = replace(judged, choices=picked)
    prepared = prepare(trace, BOTH)
    mixed = replay_auto(prepared, found, "easy")
    assert mixed.policy == "auto"
    front = np.array(list(prepared.trace.partition.strings())) == "front"
    for name, mine in ((found.chosen["front"], front), (OWN, ~front)):
        (alone,) = replay(prepared, parse_contenders(name, "easy"))
        assert np.array_equal(mixed.result.start[mine], alone.result.start[mine])
        assert np.array_equal(mixed.result.end[mine], alone.result.end[mine])
    assert mixed.metrics["jobs"] == len(trace)
    held = sorted(zip(*(column.tolist() for column in mixed.result.entries()), strict=True))
    assert len({job for job, _, _ in held}) == int(mixed.result.ran.sum())


def test_candidates_are_judged_under_the_limits_of_the_site() -> None:
    """Where each user may run one job at a time, the same jobs wait longer."""
    one_each = limits_from({"user": {"*": {"MaxJobs": 1}}})
    own = {OWN: candidates(None)[OWN]}
    waits = [compare_on_past(_two_pools(), BOTH, own, "easy", replicates=1, limits=x)[-1][1] for x in (None, one_each)]
    assert waits[1] > 1.5 * waits[0]


def test_candidates_are_judged_beside_the_reservations() -> None:
    """Half of the nodes are under maintenance for half a day; and a job keeps its day if it is for a reservation."""
    trace = _two_pools()
    first = trace.span()[0]
    half = Reservation("half", first + 20_000, first + 63_200, tuple(str(n) for n in range(BOTH.nodes // 2)))
    own = {OWN: candidates(None)[OWN]}
    waits = [compare_on_past(trace, BOTH, own, "easy", replicates=1, reservations=r)[-1][1] for r in ((), (half,))]
    assert waits[1] > 1.1 * waits[0]
    mine = ["half" if j % 7 == 0 else "" for j in range(len(trace))]
    moved = varied(replace(trace, asked={"reservation": Labels.of(mine)}), 3, 0)
    was = dict(zip(trace.job_id.tolist(), trace.submit_time.tolist(), strict=True))
    late = [abs(t - was[j]) for j, t in zip(moved.job_id.tolist(), moved.submit_time.tolist(), strict=True)]
    stays = np.array(list(moved.asked["reservation"].strings())) == "half"
    assert max(np.array(late)[stays]) <= 300
    assert max(np.array(late)[~stays]) > 3600


def test_the_chosen_run_under_the_sites_own_settings() -> None:
    trace = _two_pools()
    site = with_options(SlurmSettings(), ["bf_interval=600"])
    found = auto(trace, BOTH, "slurm", model=None, tune=False, replicates=1, slurm=site)
    own = replace(found, choices=tuple(replace(c, chosen=OWN) for c in found.choices))
    prepared = prepare(trace, BOTH)
    (alone,) = replay(prepared, parse_contenders(OWN, "slurm"), slurm=site)
    mine, default = (replay_auto(prepared, own, "slurm", slurm=s) for s in (site, None))
    assert np.array_equal(mine.result.start, alone.result.start)
    assert not np.array_equal(default.result.start, alone.result.start)


def test_a_promise_nobody_can_keep_leaves_slurms_own_order() -> None:
    found = auto(_two_pools(), BOTH, "easy", model=None, tune=False, replicates=1, promise=parse_promise("mean <= 1"))
    assert {s.candidate for s in found.choices[0].table if s.keeps} >= {OWN}
    worse = [s for s in found.choices[0].table if s.ratio["wait"] > 1.0 and s.candidate != OWN]
    assert not any(s.keeps for s in worse)


def test_replay_chooses_on_the_time_before_the_window_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = _two_pools()
    late = trace.submit_time >= trace.span()[1] * 0.6
    changed = replace(trace, run_time=np.where(late, 7, trace.run_time), name="changed")
    told = []
    for name, one in (("a", trace), ("b", changed)):
        write_native(one, tmp_path / f"{name}.csv")
        write_cluster(BOTH, tmp_path / f"{name}.cluster.json")
        code, said = call(capsys, "replay", str(tmp_path / f"{name}.csv"), "--policy", "auto", "--window", "0.6:1")
        assert code == 0
        assert isinstance(said, dict)
        assert {run["policy"] for run in said["runs"]} == {"auto", "multifactor"}
        told.append(said["auto"])
    assert told[0] == told[1], "what happens later has no say"
    code, said = call(capsys, "replay", str(tmp_path / "a.csv"), "--policy", "auto")
    assert code != 0
    assert "before the window" in str(said)


def test_evaluate_compares_auto_and_says_who_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_native(_two_pools(), tmp_path / "a.csv")
    write_cluster(BOTH, tmp_path / "a.cluster.json")
    asked = ("evaluate", "--policy", "auto", "--trace", str(tmp_path / "a.csv"), "--window", "0.6:1")
    code, said = call(capsys, *asked, "--no-opponents", "--replicates", "1")
    assert code == 0
    assert isinstance(said, dict)
    assert {s["policy"] for s in said["standings"]} == {"auto", "multifactor"}
    assert {c["partitions"][0] for c in said["auto"]} == {"front", "back"}
    assert said["fairness"]["policy"] == "auto"
    assert {"user", "partition", "size"} <= set(said["fairness"]["groups"])
