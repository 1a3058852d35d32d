"""The queue run forward: as the replay itself goes on, if run times are as they are and nobody comes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.limits import limits_from
from slurm_rl.evaluate.forecasts import ReplayEstimator, scene_of
from slurm_rl.policy.catalogue import BY_LIMIT
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim import forward
from slurm_rl_sim import state as st
from slurm_rl_sim.engine import advance
from slurm_rl_sim.forecast import Calibration, Forecast, Made, summarise
from slurm_rl_sim.forward import (
    DAY,
    Past,
    Scene,
    SiteRules,
    _arrivals,
    _present,
    _run,
    draw_starts,
    futures,
    starts_by_limits,
)
from slurm_rl_sim.replay import prepare
from slurm_rl_sim.residuals import Residuals
from slurm_rl_sim.simulation import ReplayState
from tests.builders import Job, a_cluster, a_job, a_trace


def a_moment(jobs: list[Job], cluster: Cluster, now: int, policy: str = "fcfs", backfill: str = "easy") -> Scene:
    """The scene at a moment of the replay of these jobs."""
    prepared = prepare(a_trace(jobs), cluster)
    simulation = ReplayState(prepared.workload, prepared.trace.run_time, parse_policy(policy), backfill=backfill)
    simulation.run(now)
    return scene_of(
        simulation, SiteRules(parse_policy(policy), backfill, "first-fit"), ReplayEstimator(prepared.workload), now
    )


def with_run_times(scene: Scene, runs: list[int]) -> Scene:
    """As if every run time were known."""
    return replace(scene, log_median=np.log(np.array(runs, dtype=float)), spread=np.zeros(len(runs)))


@pytest.mark.parametrize("rule", ["easy", "firstfit", "none", "slurm"])
@pytest.mark.parametrize("policy", ["fcfs", "multifactor", "sjf@user", "sjf-age@limit", "rl:default"])
def test_the_future_of_a_replay_is_the_replay(policy: str, rule: str) -> None:
    """Nobody comes after the moment, and run times are what they were: each job starts when the replay starts it.

    A policy that learns estimates waiting jobs anew at the moment, where the replay renews those whose user has
    finished a job since: there, a few change places.
    """
    rng = np.random.default_rng(len(policy) * 100 + len(rule))
    same = []
    cluster = a_cluster(NodeClass(3, cpus=16, gpus=4), NodeClass(2, cpus=8, gpus=2))
    for _ in range(3):
        jobs = []
        for i in range(40):
            run = int(rng.integers(50, 2000))
            gpus, user = int(rng.integers(1, 6)), f"u{rng.integers(0, 4)}"
            jobs.append(a_job(int(rng.integers(0, 1000)), run, 2 * run, gpus=gpus, user=user, name=f"n{i % 3}"))
        jobs.sort(key=lambda job: (job.submit, job.id))
        prepared = prepare(a_trace(jobs), cluster)
        simulation = ReplayState(prepared.workload, prepared.trace.run_time, parse_policy(policy), backfill=rule)
        now = 1200
        simulation.run(now)
        learned = ReplayEstimator(prepared.workload)
        scene = scene_of(simulation, SiteRules(parse_policy(policy), rule, "first-fit"), learned, now)
        targets = scene.pending[:]
        assert len(targets) > 5
        present = _present(scene)
        runs = prepared.trace.run_time[present].astype(float)
        nobody = np.zeros(0, np.int64)
        told = _run(scene, present, nobody, nobody, runs, targets, 14 * DAY)
        simulation.run()
        same += ((now + told) == simulation.world["live"]["start"][targets]).tolist()
    assert np.mean(same) == 1.0 if parse_policy(policy).source == BY_LIMIT else np.mean(same) > 0.6


@pytest.mark.parametrize("rule", ["easy", "firstfit", "slurm"])
def test_the_future_goes_by_limits_as_the_replay_does(rule: str) -> None:
    """Two jobs a user at a time, five GPUs of all users, one of two partitions first: what runs has used some of it."""
    rng = np.random.default_rng(len(rule))
    cluster = a_cluster(NodeClass(3, cpus=16, gpus=4, partition="p"), NodeClass(2, cpus=16, gpus=4, partition="q"))
    owners = {"qos": {"normal": {"GrpTRES": "gres/gpu=9"}}, "user": {"*": {"MaxJobs": 2, "MaxSubmitJobs": 30}}}
    limits = limits_from(owners | {"default_qos": "normal", "partition": {"p": {"PriorityTier": 2}}})
    jobs = []
    for _ in range(40):
        run, gpus, user = int(rng.integers(50, 2000)), int(rng.integers(1, 5)), f"u{rng.integers(0, 4)}"
        where = "pq"[rng.integers(0, 2)]
        jobs.append(a_job(int(rng.integers(0, 1000)), run, 2 * run, gpus=gpus, user=user, partition=where))
    jobs.sort(key=lambda job: (job.submit, job.id))
    prepared = prepare(a_trace(jobs), cluster, limits=limits)
    policy = parse_policy("fcfs")
    simulation = ReplayState(prepared.workload, prepared.trace.run_time, policy, backfill=rule)
    simulation.run(1200)
    scene = scene_of(simulation, SiteRules(policy, rule, "first-fit"), ReplayEstimator(prepared.workload), 1200)
    assert len(scene.running) > 1
    assert len(scene.pending) > 20
    nobody = np.zeros(0, np.int64)
    present = _present(scene)
    told = _run(scene, present, nobody, nobody, prepared.trace.run_time[present].astype(float), scene.pending, 14 * DAY)
    of_q = scene.pending[scene.world["jobs"]["partition"][scene.pending] == 1]
    assert np.isfinite(starts_by_limits(scene, of_q[:1])).all(), "those of the other partition count, too"
    simulation.run()
    assert (1200 + told).tolist() == simulation.world["live"]["start"][scene.pending].tolist()


def test_asking_changes_nothing_of_the_replay() -> None:
    jobs = [a_job(i, 500, 900, gpus=2) for i in range(20)]
    prepared = prepare(a_trace(jobs), a_cluster(NodeClass(1, cpus=8, gpus=4)))
    simulation = ReplayState(prepared.workload, prepared.trace.run_time, parse_policy("multifactor"))
    simulation.run(100)
    names = ("jobs", "live", "requests", "pools", "free", "total", "entries", "users", "groups", "running", "queue")
    before = {name: simulation.world[name].tobytes() for name in names}
    scene = scene_of(simulation, SiteRules(parse_policy("multifactor")), ReplayEstimator(prepared.workload), 100)
    draw_starts(scene, scene.pending, 4, np.random.default_rng(1))
    assert {name: simulation.world[name].tobytes() for name in names} == before


def test_by_limits_everybody_lasts_to_the_end() -> None:
    """Two GPUs, each held to its limit of 1,000 s since second 0; then the next two, and so on."""
    scene = a_moment([a_job(0, 100, 1000, gpus=1) for _ in range(5)], a_cluster(NodeClass(1, cpus=4, gpus=2)), 10)
    assert starts_by_limits(scene, scene.pending).tolist() == [990, 990, 1990]


def test_jobs_to_come_delay_those_that_they_overtake() -> None:
    """Under lcfs, each job that comes goes first."""
    jobs = [a_job(60 * i, 3000, 3000, gpus=1) for i in range(50)]
    scene = a_moment(jobs, a_cluster(NodeClass(1, cpus=4, gpus=1)), 2990, policy="lcfs")
    scene = with_run_times(scene, [3000] * 50)
    target = scene.pending[-1:]
    alone = draw_starts(replace(scene, past=None), target, 4, np.random.default_rng(1))
    assert alone.max() < 60, "it is the last that came: it starts when the first job ends"
    busy = draw_starts(scene, scene.pending[-3:-2], 12, np.random.default_rng(1))
    calm = draw_starts(replace(scene, past=None), scene.pending[-3:-2], 4, np.random.default_rng(1))
    assert calm.max() < 7000
    # Their user may send nothing more; in most futures somebody comes.
    assert np.mean(busy > 7000) >= 0.4
    assert np.mean(busy < 7000) > 0


def test_a_burst_just_seen_is_not_taken_for_the_usual_rate() -> None:
    """400 jobs within 20 seconds, and nothing is known of the time before: they count as an hour's."""
    scene = a_moment([a_job(i // 20, 10) for i in range(400)], a_cluster(1, cpus=1), 20)
    assert scene.past is not None
    counts = []
    for seed in range(40):
        came, submit, _, _ = _arrivals(scene, np.random.default_rng(seed), DAY)
        hours = np.bincount((submit - 21) // 3600, minlength=24)
        counts.append(len(came) / 24 / 400)
        assert hours.sum() == len(came), "none comes before now or after the day"
    # All are of one user, whose jobs come not at all in a third of the futures, and once in the mean.
    assert set(counts) <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    assert 8 <= counts.count(0.0) <= 20
    assert 0.7 <= float(np.mean(counts)) <= 1.3


def test_a_past_of_many_users_tells_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty users in six hours: as many jobs come as came, more or less; after two days their days are taken whole."""
    jobs = [a_job(60 * i, 10, user=f"u{i % 20}") for i in range(360)]
    scene = a_moment(jobs, a_cluster(1, cpus=1), 6 * 3600)
    counts = [len(_arrivals(scene, np.random.default_rng(seed), 6 * 3600)[0]) for seed in range(40)]
    assert np.mean(counts) == pytest.approx(360, rel=0.1)
    assert 0.15 <= np.std(counts) / np.mean(counts) <= 0.3  # 1/sqrt(20) = 0.22
    monkeypatch.setattr(forward, "_YOUNG", 0)
    assert len(_arrivals(scene, np.random.default_rng(0), 6 * 3600)[0]) == 360


def test_jobs_to_come_are_bounded() -> None:
    """100 jobs an hour would be 67,200 in four weeks."""
    scene = a_moment([a_job(36 * i, 10) for i in range(100)], a_cluster(1, cpus=1), 3600)
    found = [_arrivals(scene, np.random.default_rng(seed), 28 * DAY)[:2] for seed in range(8)]
    assert max(len(came) for came, _ in found) == 50_000
    assert all(len(came) == len(submit) for came, submit in found)


def test_a_future_with_a_deadline_looks_at_the_clock_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a simulated hour costs a second: steps grow shorter, the deadline is kept."""
    scene = a_moment([a_job(0, 50_000, 50_000, gpus=1) for _ in range(60)], a_cluster(NodeClass(1, cpus=4, gpus=1)), 10)
    clock, until, looks = [0.0], [10], []

    def slow(record: object, then: int, pause: bool) -> int:
        clock[0] += (then - until[0]) / 3600
        until[0] = then
        return int(advance(record, then, pause))

    def stop() -> bool:
        looks.append(clock[0])
        return clock[0] > 5.0

    monkeypatch.setattr(forward, "advance", slow)
    monkeypatch.setattr("slurm_rl_sim.forward.time.perf_counter", lambda: clock[0])
    assert list(futures(scene, scene.pending, np.random.default_rng(0), 14 * DAY, stop)) == []
    assert looks[-1] < 5.5
    assert max(np.diff(looks)) <= 1.0


def test_arrivals_are_days_of_the_past_at_the_same_time_of_day() -> None:
    """One job a day at second 500 of the day, for three days; now is second 400 of the fourth."""
    now = 3 * DAY + 400
    scene = a_moment([a_job(d * DAY + 500, 10) for d in range(3)], a_cluster(1, cpus=1), now)
    found, submit, run, _ = _arrivals(scene, np.random.default_rng(0), 2 * DAY)
    assert len(found) == 2
    assert [int(s) % DAY for s in submit] == [501, 501]
    assert submit[0] - now < DAY < submit[1] - now
    assert run.tolist() == [10, 10], "it is over: its run time is known"


def test_a_run_is_longer_than_it_has_lasted_and_within_its_limit() -> None:
    rng = np.random.default_rng(3)
    residuals = Residuals(np.sort(rng.normal(size=4000)))
    count = 5000
    ran, limit = np.full(count, 5000.0), np.full(count, 20_000.0)
    drawn = residuals.draw(rng.random(count), np.full(count, np.log(1000.0)), np.ones(count), ran, limit)
    assert drawn.min() > 5000
    assert drawn.max() == 20_000
    # Of normal residuals above log 5 = 1.609 (5.4% of them), half are below 1.928.
    assert np.median(drawn) == pytest.approx(1000 * np.exp(1.928), rel=0.12)
    fresh = residuals.draw(rng.random(count), np.full(count, np.log(1000.0)), np.ones(count), 0 * ran, limit)
    assert np.median(fresh) == pytest.approx(1000, rel=0.1)


def test_residuals_are_learned_from_what_happened() -> None:
    """Jobs that always last four times as long as estimated are drawn so."""
    residuals = Residuals()
    residuals.note(np.zeros(200) + np.log(100.0), np.ones(200), np.full(200, 400.0))
    drawn = residuals.draw(np.array([0.1, 0.9]), np.log([100.0, 100.0]), np.ones(2), np.zeros(2), np.full(2, 1e6))
    assert drawn == pytest.approx([400.0, 400.0])


def test_a_few_residuals_count_before_there_are_enough() -> None:
    """Fifty jobs that ran four times as long as expected are half of what is known; a normal one is the rest."""
    residuals = Residuals()
    residuals.note(np.zeros(50) + np.log(100.0), np.ones(50), np.full(50, 400.0))
    many = 2000
    luck = (np.arange(many) + 0.5) / many
    drawn = residuals.draw(luck, np.full(many, np.log(100.0)), np.ones(many), np.zeros(many), np.full(many, 1e6))
    assert np.mean(np.isclose(drawn, 400.0, rtol=0.01)) == pytest.approx(0.5, abs=0.02)
    assert np.mean(drawn < 100.0) == pytest.approx(0.25, abs=0.03)


def test_the_range_holds_four_futures_of_five() -> None:
    (forecast,) = summarise(np.arange(100.0)[:, None])
    assert (forecast.low, forecast.median, forecast.high) == (10.0, 50.0, 90.0)


def test_calibration_learns_from_outcomes_that_are_known_by_now() -> None:
    """Futures told half of every wait, within 1%: ranges were far too narrow, and the median too early."""
    rng = np.random.default_rng(5)
    calibration = Calibration()
    raw = Forecast(3600.0, 3580.0, 3620.0)
    for i in range(200):
        calibration.note(Made(100.0 * i, raw, float(7200 * np.exp(rng.normal(0, 0.5)))))
    calibration.learn(0.0)
    assert calibration.corrected(raw) == raw, "at second 0 nothing has come true"
    calibration.learn(1e6)
    told = calibration.corrected(raw)
    assert told.median == pytest.approx(7200, rel=0.15)
    held = np.mean([told.holds(float(7200 * np.exp(x))) for x in rng.normal(0, 0.5, 2000)])
    assert 0.74 < held < 0.86


def test_a_bad_day_does_not_keep_ranges_wide() -> None:
    """200 outcomes scatter widely, 300 later ones do not, and all are remembered."""
    rng = np.random.default_rng(6)
    calibration, held = Calibration(), []
    raw = Forecast(3600.0, 3300.0, 3900.0)
    for i in range(500):
        now = 10_000.0 * i
        calibration.learn(now)
        told = calibration.corrected(raw)
        wait = float(3600 * np.exp(rng.normal(0, 1.0 if i < 200 else 0.2)))
        calibration.note(Made(now, raw, min(wait, 9_999.0), told))
        held.append(told.holds(wait))
    assert 0.7 < np.mean(held[100:200]) < 0.9
    assert 0.73 < np.mean(held[-200:]) < 0.87


def test_a_forecast_that_is_overdue_counts_before_its_job_starts() -> None:
    calibration = Calibration()
    for i in range(40):
        calibration.note(Made(float(i), Forecast(100.0, 50.0, 200.0)))
    calibration.learn(10_000.0)
    assert calibration.corrected(Forecast(100.0, 50.0, 200.0)).high > 5000


def test_arrivals_of_other_pools_are_left_out() -> None:
    cluster = a_cluster(NodeClass(1, cpus=1, partition="a"), NodeClass(1, cpus=1, partition="b"))
    jobs = [a_job(i, 100, partition="ab"[i % 2]) for i in range(20)]
    scene = a_moment(jobs, cluster, 30)
    part = scene.of_pools(np.array([0]))
    assert isinstance(part.past, Past)
    partitions = scene.world["jobs"]["partition"]
    for rows in (part.past.jobs, part.pending, part.running):
        assert len(set(partitions[rows].tolist())) == 1
    assert scene.world["live"]["state"][scene.running[0]] == st.RUNNING
