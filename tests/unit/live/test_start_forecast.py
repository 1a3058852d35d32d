"""When jobs of a live queue may start: told, recorded, scored, and asked before they are submitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from slurm_rl.cli import main
from slurm_rl.cli.when import text
from slurm_rl.controller.explain import held_back
from slurm_rl.controller.explain.live_scene import LiveScene, RecentJobs
from slurm_rl.controller.explain.start_forecast import HORIZON, foretell
from slurm_rl.controller.explain.when import Wish
from slurm_rl.controller.limit_advice import RunsOfUsers, duration
from slurm_rl.controller.live import ControllerLive
from slurm_rl.controller.tick import Controller
from slurm_rl.errors import InputError
from slurm_rl.obs.forecast_store import ForecastStore
from slurm_rl.slurm.model import HistoryJob, SlurmPartition
from slurm_rl_sim.residuals import Residuals

from .conftest import MakeController
from .fake_slurm import NOW, FakeSlurm, a_job, a_running_job
from .service import serving


def a_scene(c: Controller, recent: RecentJobs | None = None) -> LiveScene:
    assert c.observed is not None
    view, plan = c.observed
    waiting = [view.jobs[j] for j in plan.order]
    run_times = c.run_times.known()
    run_times.residuals = Residuals([0.0] * 200)  # every job runs for as long as is estimated
    return LiveScene(
        view.state, waiting, recent or RecentJobs(), run_times, c.policy, c.mode, c.config, limits=view.limits
    )


def told(c: Controller, scene: LiveScene) -> dict[int, float]:
    """Median waits by job id."""
    raw = foretell(scene.scene(), np.array(scene.waiting), np.random.default_rng(1), most=5, seconds=600.0)
    assert raw is not None
    return {scene.queue.jobs[row].job_id: one.median for row, one in zip(scene.waiting, raw, strict=True)}


def a_full_cluster(*jobs: Any, **config: str) -> FakeSlurm:
    return FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"), **config)


@pytest.mark.parametrize("mode", ["shadow", "enforce"])
def test_starts_are_foreseen_one_after_the_other(controller: MakeController, mode: str) -> None:
    """Two nodes of 8 GPUs, held for 600 s by jobs of 7,200 s; five jobs of 8 GPUs and 3,600 s wait."""
    waiting = [a_job(i, limit=3600, gpus=8, waited=1000 - i) for i in range(1, 6)]
    c = controller(a_full_cluster(*waiting), mode=mode)
    c.tick()
    # For want of history a job lasts half of its limit: the running ones end in 3,000 s, then two at a time, 1,800 s.
    assert told(c, a_scene(c)) == {1: 3000, 2: 3000, 3: 4800, 4: 4800, 5: 6600}


def test_a_job_that_fits_now_starts_now(controller: MakeController) -> None:
    c = controller(FakeSlurm(a_job(1, gpus=4), a_running_job(901, "n1")))
    c.tick()
    assert c.report is not None
    row = c.report.job(1)
    assert row is not None
    assert (row.expected_start, row.expected_range, row.expected_made) == (NOW, (NOW, NOW), NOW)


def test_tasks_of_an_array_take_their_share(controller: MakeController) -> None:
    """An array of four tasks of 8 GPUs goes first: two at a time, so that the job behind it waits for both rounds."""
    array = a_job(1, limit=3600, gpus=8, waited=500, own=900, array_job_id=1, array_tasks="0-3", array_task_count=4)
    c = controller(a_full_cluster(array, a_job(9, limit=3600, gpus=8, waited=100)), mode="shadow")
    c.tick()
    assert told(c, a_scene(c)) == {1: 3000, 9: 3000 + 2 * 1800}


def test_a_higher_tier_goes_first(controller: MakeController) -> None:
    low, high = a_job(1, gpus=8, waited=900), a_job(2, gpus=8, waited=10, partition="urgent")
    slurm = a_full_cluster(low, high, a_job(3, gpus=8, waited=800))
    slurm.partitions = (*slurm.partitions, SlurmPartition(name="urgent", state="UP", priority_tier=10))
    slurm.nodes = tuple(msgspec.structs.replace(n, partitions=("batch", "urgent")) for n in slurm.nodes)
    c = controller(slurm, mode="shadow")
    c.tick()
    assert told(c, a_scene(c)) == {2: 3000, 1: 3000, 3: 3000 + 1800}


def test_builtin_scheduling_lets_nobody_overtake(controller: MakeController) -> None:
    """Node 2 has 4 GPUs free; the head wants 8, so the job of 4 behind it waits for it, or is backfilled."""
    jobs = [a_job(1, gpus=8, waited=900, limit=7200), a_job(2, gpus=4, waited=100, limit=1200)]
    for scheduler, expected in (("sched/builtin", 3000.0), ("sched/backfill", 0.0)):
        busy = (a_running_job(901, "n1"), a_running_job(902, "n2", gpus=4))
        c = controller(FakeSlurm(*jobs, *busy, SchedulerType=scheduler), mode="shadow")
        c.tick()
        assert told(c, a_scene(c))[2] == pytest.approx(expected, abs=60)


def test_recent_arrivals_come_again(controller: MakeController) -> None:
    """Urgent jobs of 8 GPUs came every 20 minutes: they will again, and the waiting job starts later for it."""
    c = controller(a_full_cluster(a_job(1, limit=3600, gpus=8, waited=60, own=1)), mode="shadow")
    c.tick()
    calm = told(c, a_scene(c))
    recent = RecentJobs()
    came = [a_job(100 + i, limit=7200, gpus=8, waited=1200 * i, own=5000) for i in range(1, 72)]
    recent.see(came, NOW - 86_400)
    busy = told(c, a_scene(c, recent))
    assert calm == {1: 3000}
    assert busy[1] >= calm[1]


def test_forecasts_are_recorded_and_scored_by_what_happens(controller: MakeController, tmp_path: Path) -> None:
    jobs = [a_job(1, gpus=8, waited=500), a_job(2, gpus=8, waited=400), a_job(3, gpus=8, waited=300)]
    slurm = a_full_cluster(*jobs)
    c = controller(slurm, mode="shadow")
    c.tick()
    assert c.start_forecasts.skill.forecasts == 0
    assert str(c.start_forecasts.skill) == "no forecast has come true yet"
    # Job 1 starts 3,000 s later, job 2 at once, job 3 is cancelled.
    slurm.now = NOW + 3060
    for job_id, start in ((1, NOW + 3000), (2, NOW)):
        slurm.jobs[job_id] = msgspec.structs.replace(slurm.jobs[job_id], state="RUNNING", start_time=int(start))
    del slurm.jobs[3]
    c.tick()
    rows = c.forecasts.latest(10)
    assert {r.key[0]: r.wait for r in rows} == {1: 3000.0, 2: 0.0, 3: None}
    held = [low <= r.wait <= high for r in rows if r.wait is not None for _, low, high in [r.told]]
    skill = c.start_forecasts.skill
    assert (skill.forecasts, skill.held) == (2, sum(held) / 2)
    assert "of 2 forecasts in 7 days" in str(skill)
    assert f"slurmrl_forecast_held_ratio {sum(held) / 2}" in c.metrics.text().decode()
    # Nobody ever sees job 3 again: it is not a forecast that failed.
    slurm.now = NOW + 4 * 3600
    c.tick()
    assert [r.key[0] for r in c.forecasts.latest(10)] == [1, 2]
    # Another service on the same records goes on where this one stopped.
    again = ForecastStore(c.journal.path.with_name("forecasts.sqlite"))
    assert again.skill(slurm.now).forecasts == 2
    again.close()


def test_a_forecast_is_recorded_again_after_an_hour_not_at_every_tick(controller: MakeController) -> None:
    slurm = a_full_cluster(a_job(1, gpus=8, waited=500))
    c = controller(slurm, mode="shadow")
    for later in (0, 60, 120, 3700):
        slurm.now = NOW + later
        c.start_forecasts._rested = 0.0
        c.tick()
    assert [r.made - NOW for r in c.forecasts.latest(10)] == [0, 3700]


def test_how_long_each_cause_held_a_job_back(controller: MakeController) -> None:
    slurm = a_full_cluster(a_job(1, gpus=8, waited=30, reason="Priority"))
    c = controller(slurm, mode="shadow")
    for later, reason in ((0, "Priority"), (60, "Priority"), (120, "Resources"), (140, "Resources")):
        slurm.now = NOW + later
        slurm.jobs[1] = msgspec.structs.replace(slurm.jobs[1], reason=reason)
        c.tick()
    submit = slurm.jobs[1].submit_time or 0
    assert c.held_back.of(1, submit) == {"Resources": 80.0, "Priority": 60.0}
    slurm.jobs[1] = msgspec.structs.replace(slurm.jobs[1], state="RUNNING", start_time=int(NOW + 150))
    slurm.now = NOW + 160
    c.tick()
    assert c.forecasts.held_back(1) == ("ann", {"Resources": 80.0, "Priority": 60.0})
    assert c.held_back.of(1, submit) == {}


def test_a_long_queue_keeps_its_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """More jobs wait than are followed: those that are keep what is known, and leave when they leave."""
    monkeypatch.setattr(held_back, "_MOST", 3)
    store = ForecastStore(None)
    causes = held_back.HeldBack(store)
    slurm = FakeSlurm(*(a_job(i, waited=1000, reason="Priority") for i in range(1, 6)))
    submit = int(NOW) - 1000
    for later in (0, 10, 20):
        slurm.now = NOW + later
        causes.see(slurm.snapshot())
    assert [causes.of(i, submit) for i in range(1, 6)] == [{"Priority": 20.0}] * 3 + [{}] * 2
    del slurm.jobs[2]
    slurm.now = NOW + 30
    causes.see(slurm.snapshot())
    assert store.held_back(2) == ("ann", {"Priority": 20.0})
    assert causes.of(1, submit) == {"Priority": 30.0}
    assert causes.of(4, submit) == {}  # it finds room at the next look
    slurm.now = NOW + 40
    causes.see(slurm.snapshot())
    assert causes.of(4, submit) == {"Priority": 10.0}
    store.close()


def test_causes_of_a_long_queue_are_saved_a_part_at_a_time() -> None:
    store = ForecastStore(None)
    causes = held_back.HeldBack(store)
    slurm = FakeSlurm(*(a_job(i, waited=1000, reason="Priority") for i in range(1, 31)))
    saved = []
    for tick in range(32):
        slurm.now = NOW + 10 * tick
        causes.see(slurm.snapshot())
        saved.append(sum(store.held_back(i) is not None for i in range(1, 31)))
    assert saved[5] < 10
    assert saved[-1] == 30
    # Another service on the same records goes on with them.
    again = held_back.HeldBack(store)
    again.see(slurm.snapshot())
    assert all(v >= 10 for i in range(1, 31) for v in again.of(i, int(NOW) - 1000).values())
    assert again.of(30, int(NOW) - 1000)
    store.close()


@pytest.fixture
def asked(controller: MakeController) -> ControllerLive:
    """A cluster of an a100 and a t4 node, the first one held; three jobs wait for a100."""
    waiting = [msgspec.structs.replace(a_job(i, waited=100 - i), gpus={"a100": 8}) for i in (1, 2, 3)]
    slurm = FakeSlurm(*waiting, a_running_job(901, "n1"))
    slurm.nodes = (slurm.nodes[0], msgspec.structs.replace(slurm.nodes[1], gpus={"t4": 8}))
    c = controller(slurm, mode="shadow")
    c.tick()
    return ControllerLive(c, c.journal)


def test_when_tells_a_start_and_what_would_change_it(asked: ControllerLive) -> None:
    said = asked.when({"gpus": 4, "gpu_type": "a100", "limit": 7200, "user": "ann"})
    assert said["start"]["wait"] > 3000, "three jobs go before it"
    assert said["never"] == ""
    other = {a["what"]: a for a in said["alternatives"]}
    soon = other["GPU type t4"]["start"]["wait"]
    assert soon <= 30, "there it would start with the next cycle of backfill"
    assert other["GPU type t4"]["earlier"] == said["start"]["wait"] - soon
    assert other["any GPU type"]["start"]["wait"] <= 30
    assert other["2 GPUs instead of 4"]["change"] == {"gpus": 2}
    assert "a time limit of 1 h instead of 2 h" in other
    shown = text(said)
    assert "4 GPUs of type a100 for 2 h in batch, behind 3 waiting jobs" in shown
    assert "with GPU type t4: about" in shown


def test_the_command_asks_as_printed(asked: ControllerLive, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(asked) as path, pytest.raises(SystemExit) as ended:
        main(["when", "--gpus", "4", "--gpu-type", "a100", "--time", "8:00:00", "--socket", str(path)])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("4 GPUs of type a100 for 8 h in batch, behind 3 waiting jobs\n  start    in about ")
    assert "  with 2 GPUs instead of 4: " in shown


def test_when_refuses_what_makes_no_sense_and_names_what_never_fits(asked: ControllerLive) -> None:
    with pytest.raises(InputError, match="no partition 'nowhere'"):
        asked.when({"gpus": 1, "limit": 3600, "partition": "nowhere"})
    with pytest.raises(InputError, match="no GPU type 'h100'"):
        asked.when({"gpus": 1, "gpu_type": "h100", "limit": 3600})
    said = asked.when({"gpus": 9, "gpu_type": "a100", "limit": 3600})
    assert said["start"] is None
    assert "only" in said["never"] or "fit" in said["never"]
    assert "would never start" in text(said)


def test_when_changes_nothing_of_the_tick(asked: ControllerLive) -> None:
    observed = asked.controller.observed
    assert observed is not None
    world = observed[0].snapshot.world
    before = {name: world[name].tobytes() for name in ("jobs", "live", "requests", "users", "groups")}
    asked.when({"gpus": 4, "limit": 7200})
    assert {name: world[name].tobytes() for name in before} == before


def test_a_question_that_takes_too_long_is_given_up(controller: MakeController) -> None:
    c = controller(a_full_cluster(a_job(1, gpus=8)), mode="shadow")
    c.tick()
    scene = a_scene(c)
    ticks = iter(range(1000))
    late = foretell(
        scene.scene(), np.array(scene.waiting), np.random.default_rng(1), seconds=3.0, clock=lambda: float(next(ticks))
    )
    assert late is None
    assert HORIZON == 7 * 86_400


def a_finished(
    user: str, name: str, elapsed: int, *, at: int = 0, gpus: int = 1, state: str = "COMPLETED"
) -> HistoryJob:
    row = {"job_id": 1, "display_id": "1", "name": name, "user": user, "account": "", "partition": "batch", "qos": ""}
    times = {"submit_time": at, "eligible_time": at, "start_time": at, "end_time": at + elapsed, "elapsed": elapsed}
    more = {"time_limit": 86_400, "nodes": 1, "cpus": 4, "mem_mb": 0, "gpus_requested": {"": gpus}}
    rest = {"gpus_allocated": {}, "node_list": (), "priority": 0, "exit_code": 0, "state": state}
    return HistoryJob(**(row | times | more | rest))  # type: ignore[arg-type]


def test_advice_on_a_limit_is_from_the_users_own_jobs() -> None:
    runs = RunsOfUsers()
    runs.learn(a_finished("ann", "train", 60 * (100 + i % 31), at=86_400 * i) for i in range(40))
    runs.learn(a_finished("bob", "train", 80_000, at=86_400 * i) for i in range(40))
    advice = runs.advise("ann", "train", 1, 4, 86_400)
    assert advice is not None
    # 38 of the 40 runs (95%) took at most 128 min: with a margin of a quarter 160 min, so 3 h.
    assert (advice.runs, advice.within, advice.limit) == (40, 60 * 128, 3 * 3600)
    assert str(advice) == ("40 runs of 'train' ended within 2 h 8 min in 95% of cases: 3 h instead of 24 h would do")
    assert runs.advise("bob", "train", 1, 4, 86_400) is None, "his jobs need their limit"
    assert runs.advise("ann", "train", 1, 4, 4 * 3600) is None, "3 h instead of 4 h is not worth a word"
    assert runs.advise("cyd", "train", 1, 4, 86_400) is None
    other = runs.advise("ann", "another", 1, 4, 86_400)
    assert other is not None
    assert "your jobs of this size" in str(other)
    assert duration(90) == "2 min"


def test_the_scene_is_not_of_the_future(controller: MakeController) -> None:
    """Rows of the recent past and of tasks are neither pending nor running to anybody else."""
    c = controller(a_full_cluster(a_job(1, gpus=8)), mode="shadow")
    c.tick()
    recent = RecentJobs()
    recent.see([a_job(50, waited=5000)], NOW - 9000)
    scene = a_scene(c, recent)
    assert [scene.queue.jobs[j].job_id for j in scene.queue.snapshot.pending] == [1]
    made = scene.scene()
    assert made.past is not None
    assert [scene.queue.jobs[j].job_id for j in made.past.jobs] == [50]
    assert replace(made, past=None).past is None


def test_old_records_are_dropped(controller: MakeController) -> None:
    slurm = a_full_cluster(a_job(1, gpus=8, waited=500))
    c = controller(slurm, mode="shadow", journal_days=1.0)
    c.tick()
    assert len(c.forecasts.latest(10)) == 1
    slurm.now = NOW + 3 * 86_400
    del slurm.jobs[1]
    c.tick()
    assert c.forecasts.latest(10) == []


def test_a_wish_without_cpus_has_one_for_each_node_as_sbatch_has_it() -> None:
    """More would raise its size in Slurm's priority above that of the same job once it is submitted."""
    assert [Wish(gpus=4, nodes=n).job(0, 0.0).cpus for n in (1, 2)] == [1, 2]
    assert Wish(gpus=4, cpus=32).job(0, 0.0).cpus == 32
