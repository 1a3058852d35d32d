"""A planned GPU type becomes a feature of the job, and the user's own constraint comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.errors import InputError
from slurm_rl.obs.journal import Journal, Steered
from slurm_rl.place.problem import Weights
from slurm_rl.slurm.findings import SiteFacts
from slurm_rl.slurm.gpufeatures import examine_lever, feature_names, lacking
from slurm_rl.slurm.model import JobUpdate, SlurmNode, SlurmState, UpdateResult, UpdateStatus
from slurm_rl.slurm.release import Release

from .fake_slurm import FakeSlurm, a_job, a_running_job


class MixedSlurm(FakeSlurm):
    """One node of A100 and one of T4, each with its type and "ssd" as features; takes feature expressions too."""

    release = Release(22, 5, 8)
    refuse = False  # as of jobs that have just started

    def __init__(self, *jobs: Any, features: bool = True) -> None:
        super().__init__(*jobs)
        kinds = ("a100", "t4")
        self.nodes = tuple(
            msgspec.structs.replace(n, gpus={k: 8}, gpus_allocated={}, features=(k, "ssd") if features else ())
            for n, k in zip(self.nodes, kinds, strict=True)
        )

    def snapshot(self) -> SlurmState:
        return msgspec.structs.replace(super().snapshot(), release=self.release)

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        for u in updates:
            if u.site_factor is not None:
                self.set_site(u.job_id, u.site_factor)
            for field in ("features", "prefer"):
                if getattr(u, field) is not None and not self.refuse:
                    changed = msgspec.structs.replace(self.jobs[u.job_id], **{field: getattr(u, field)})
                    self.jobs[u.job_id] = changed
        self.written += updates
        status = UpdateStatus.REFUSED if self.refuse else UpdateStatus.APPLIED
        return [UpdateResult(u.job_id, status) for u in updates]

    def features(self) -> dict[int, str]:
        return {j.job_id: j.features for j in self.jobs.values()}

    def start(self, job_id: int, node: str) -> None:
        self.jobs[job_id] = msgspec.structs.replace(
            self.jobs[job_id], state="RUNNING", node_list=(node,), start_time=int(self.now)
        )

    def requeue(self, job_id: int) -> None:
        """As scontrol does it: the expression stays, the submit time does not."""
        self.now += 100
        self.jobs[job_id] = msgspec.structs.replace(
            self.jobs[job_id], state="PENDING", node_list=(), start_time=None, submit_time=int(self.now), restarts=1
        )


def a_controller(slurm: FakeSlurm, folder: Path, **settings: Any) -> Controller:
    defaults = {"mode": "enforce", "policy": "fcfs", "placement": "mip", "placement_lever": "features"}
    return Controller(Config(**(defaults | settings)), slurm, Journal(folder / "j"), clock=lambda: slurm.now)


def test_a_job_of_any_type_gets_the_feature_of_the_planned_one(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4), a_job(2, gpus=8))
    a_controller(slurm, tmp_path).tick()
    assert slurm.features() == {1: "a100", 2: "t4"}  # job 1 is first in order, and an A100 is faster


def test_typed_and_constrained_jobs_are_left_as_they_are(tmp_path: Path) -> None:
    slurm = MixedSlurm(
        a_job(1, gpus=1, features="t4|a100"),
        a_job(2, gpus=0),
        msgspec.structs.replace(a_job(3), gpus={"t4": 2}),
        a_job(4, gpus=1, required_nodes=("n2",)),
        a_job(5, gpus=1, prefer="t4"),
        a_job(6, gpus=1, features="ssd"),
    )
    a_controller(slurm, tmp_path).tick()
    assert slurm.features() == {1: "t4|a100", 2: "", 3: "", 4: "", 5: "", 6: "ssd"}


def test_a_job_that_does_not_start_gets_its_own_back_after_some_ticks(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path, placement_ticks=3)
    seen = []
    for _ in range(5):
        controller.tick()
        seen.append(slurm.features()[1])
        slurm.now += 10
    assert seen == ["a100", "a100", "a100", "", ""]
    assert controller.journal.steered() == {}


def test_a_started_job_is_forgotten_when_it_is_gone_for_good(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.start(1, "n1")
    controller.tick()
    assert slurm.features() == {1: "a100"}
    assert len(controller.journal.steered()) == 1, "it may be requeued, and wait with our expression"
    del slurm.jobs[1]
    seen = []
    for _ in range(3):
        controller.tick()
        seen.append(len(controller.journal.steered()))
        slurm.now += 300
    assert seen == [1, 1, 0]


def test_a_requeued_job_gets_its_own_back(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.start(1, "n1")
    controller.tick()
    slurm.requeue(1)
    done = undo(slurm, controller.journal, clock=lambda: slurm.now)
    assert (done.steered, done.freed) == (1, 1)
    assert slurm.features() == {1: ""}
    assert controller.journal.steered() == {}


def test_undo_while_a_job_runs_does_not_forget_it(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.start(1, "n1")
    undo(slurm, controller.journal, clock=lambda: slurm.now)
    assert slurm.features() == {1: "a100"}, "a running job's cannot be changed"
    slurm.requeue(1)
    controller.command("off", "test")
    controller.tick()
    assert slurm.features() == {1: ""}


def test_a_job_that_had_ended_and_is_requeued_after_the_undo_gets_its_own_back(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    ended = slurm.jobs.pop(1)
    done = undo(slurm, controller.journal, clock=lambda: slurm.now)
    assert (done.steered, done.ended, done.complete) == (0, 1, True)
    slurm.jobs[1] = ended
    slurm.requeue(1)
    done = undo(slurm, controller.journal, clock=lambda: slurm.now)
    assert (done.steered, done.freed, done.ended) == (1, 1, 0)
    assert slurm.features() == {1: ""}


@pytest.mark.parametrize(("age", "known"), [("300 sec", [1, 1, 0]), ("1000 sec", [1, 1, 1]), ("0 sec", [1, 1, 1])])
def test_undo_remembers_a_job_as_long_as_slurm_may(tmp_path: Path, age: str, known: list[int]) -> None:
    """With MinJobAge=0 Slurm forgets none. Each look is of another process: what was seen is in the journal."""
    slurm = MixedSlurm(a_job(1, gpus=4))
    slurm.config |= {"MinJobAge": age}
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    controller.journal.close()
    del slurm.jobs[1]
    seen = []
    for _ in range(3):
        with Journal(tmp_path / "j") as journal:
            undo(slurm, journal, clock=lambda: slurm.now)
            seen.append(len(journal.steered()))
        slurm.now += 300
    assert seen == known


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("kind", ["t4", ""])
def test_a_kill_while_an_expression_is_replaced_loses_nothing(tmp_path: Path, kind: str, heard: bool) -> None:
    """It had ours and gets another one, or its own: whichever it has when we are killed, undo knows it."""
    slurm = MixedSlurm(a_job(1, gpus=8))
    controller = a_controller(slurm, tmp_path, placement_ticks=2 if kind else 1)
    controller.tick()
    assert slurm.features() == {1: "a100"}
    if kind:
        slurm.jobs[9] = a_running_job(9, "n1")
        slurm.nodes = (msgspec.structs.replace(slurm.nodes[0], gpus_allocated={"a100": 8}), slurm.nodes[1])
    update, writes = slurm.update, []

    def dies(updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        if not updates or updates[0].features is None:
            return update(updates)
        writes.append(updates[0].features)
        if heard or len(writes) < (2 if kind else 1):
            update(updates)
        if len(writes) == (2 if kind else 1):
            raise KeyboardInterrupt
        return [UpdateResult(u.job_id, UpdateStatus.APPLIED) for u in updates]

    slurm.update = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        controller.tick()
    assert writes == (["", "t4"] if kind else [""])
    slurm.update = update  # type: ignore[method-assign]
    undo(slurm, controller.journal, clock=lambda: slurm.now, sleep=lambda seconds: None)
    assert slurm.features()[1] == ""


def test_what_a_user_changed_since_is_not_changed_back(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path, placement_ticks=9)
    controller.tick()
    slurm.jobs[1] = msgspec.structs.replace(slurm.jobs[1], features="t4&fast")
    for _ in range(12):
        slurm.now += 10
        controller.tick()
    assert slurm.features() == {1: "t4&fast"}
    assert controller.journal.steered() == {}


def test_ticks_steer_a_requeued_job_anew(tmp_path: Path) -> None:
    """Its expression is ours, not the user's: with the A100s taken it goes to the T4s, and later back to nothing."""
    slurm = MixedSlurm(a_job(1, gpus=8))
    controller = a_controller(slurm, tmp_path, placement_ticks=2)
    controller.tick()
    slurm.start(1, "n1")
    controller.tick()
    slurm.requeue(1)
    slurm.jobs[9] = a_running_job(9, "n1")
    slurm.nodes = (msgspec.structs.replace(slurm.nodes[0], gpus_allocated={"a100": 8}), slurm.nodes[1])
    seen = []
    for _ in range(3):
        controller.tick()
        seen.append(slurm.features()[1])
        slurm.now += 10
    assert seen == ["t4", "t4", ""]
    assert controller.journal.steered() == {}


def test_a_job_that_starts_before_it_is_steered_anew_is_remembered_as_it_is(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=8))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.jobs[9] = a_running_job(9, "n1")
    slurm.nodes = (msgspec.structs.replace(slurm.nodes[0], gpus_allocated={"a100": 8}), slurm.nodes[1])
    slurm.refuse = True
    controller.tick()
    assert [s.value for s in controller.journal.steered().values()] == ["a100"]


def test_the_plan_follows_what_is_free(tmp_path: Path) -> None:
    # The feature of the last tick is ours, not the user's: when the A100s are taken, the job goes to the T4s.
    slurm = MixedSlurm(a_job(1, gpus=8))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    assert slurm.features() == {1: "a100"}
    slurm.jobs[9] = a_running_job(9, "n1")
    slurm.nodes = (msgspec.structs.replace(slurm.nodes[0], gpus_allocated={"a100": 8}), slurm.nodes[1])
    controller.tick()
    assert slurm.features()[1] == "t4"


def test_undo_returns_every_jobs_own(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4), a_job(2, gpus=8))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    done = undo(slurm, controller.journal, clock=lambda: slurm.now)
    assert (done.steered, done.freed) == (2, 2)
    assert slurm.features() == {1: "", 2: ""}
    assert controller.journal.steered() == {}


def test_leaving_enforce_mode_returns_them_too(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    controller.command("shadow", "test")
    controller.tick()
    assert slurm.features() == {1: ""}


def test_a_constraint_that_somebody_else_wrote_meanwhile_stays(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4))
    controller = a_controller(slurm, tmp_path)
    controller.tick()
    slurm.jobs[1] = msgspec.structs.replace(slurm.jobs[1], features="ssd")
    undo(slurm, controller.journal, clock=lambda: slurm.now)
    assert slurm.features() == {1: "ssd"}


def test_the_wish_keeps_the_users_constraint_and_needs_a_sound_release(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4, features="ssd"))
    a_controller(slurm, tmp_path, placement_lever="prefer").tick()
    assert slurm.jobs[1].prefer == "", "22.05.8 would drop the constraint"
    slurm.release = Release(25, 5, 0)
    a_controller(slurm, tmp_path / "b", placement_lever="prefer").tick()
    assert (slurm.jobs[1].prefer, slurm.jobs[1].features) == ("(ssd)&a100", "ssd")


def test_without_the_features_nothing_is_written(tmp_path: Path) -> None:
    slurm = MixedSlurm(a_job(1, gpus=4), features=False)
    a_controller(slurm, tmp_path).tick()
    assert slurm.features() == {1: ""}


def test_shadow_and_off_write_no_feature(tmp_path: Path) -> None:
    for settings in ({"mode": "shadow"}, {"placement_lever": "off"}):
        slurm = MixedSlurm(a_job(1, gpus=4))
        a_controller(slurm, tmp_path, **settings).tick()
        assert slurm.features() == {1: ""}


def test_features_may_have_other_names_than_types(tmp_path: Path) -> None:
    assert feature_names("A100=gpu_a100, t4=small") == {"a100": "gpu_a100", "t4": "small"}
    nodes = [SlurmNode(name="n1", state="IDLE", gpus={"a100": 8}, features=("gpu_a100",))]
    assert lacking(nodes, feature_names("a100=gpu_a100")) == {}
    assert lacking(nodes, {}) == {"a100": ["n1"]}


@pytest.mark.parametrize(
    ("lever", "setting", "codes"),
    [
        ("off", "a100=nothing", []),
        ("features", "", ["gpu-features-named ok"]),
        ("features", "a100=nothing", ["gpu-features-missing error"]),
        ("features", "h100=h100", ["gpu-features-named warning", "gpu-features-named ok"]),
        ("prefer", "", ["placement-lever error", "gpu-features-named ok"]),
    ],
)
def test_the_doctor_checks_the_names(lever: str, setting: str, codes: list[str]) -> None:
    slurm = MixedSlurm()
    state = slurm.snapshot()
    site = SiteFacts(state.release, {}, state.weights, state.nodes, state.partitions, slurm.health())
    assert [f"{f.code} {f.severity.name.lower()}" for f in examine_lever(site, lever, setting)] == codes


def test_a_journal_of_an_older_version_learns_of_steered_jobs(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal._db.execute("DROP TABLE steered")
    journal.close()
    journal = Journal(tmp_path / "j")
    token = journal.acquire("me", 0.0, 60.0)
    assert token is not None
    journal.steer(token, 1.0, [((7, 5), Steered("features", "t4", "ssd"))])
    journal.steer(token, 2.0, [((7, 5), Steered("features", "a100", "t4"))])
    assert journal.steered() == {(7, 5): Steered("features", "a100", "ssd")}, "the user's own is that of the first time"


def test_wrong_speeds_are_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpu_speeds"):
        a_controller(MixedSlurm(), tmp_path, gpu_speeds="a100=fast")


def test_weights_come_from_the_configuration_and_wrong_ones_change_nothing(tmp_path: Path) -> None:
    controller = a_controller(MixedSlurm(), tmp_path, placement="mip", placement_weights="energy=500")
    assert controller.planner.settings.weights == Weights(energy=500.0)
    before = controller.config
    with pytest.raises(InputError, match="placement_weights: unknown weight 'enrgy'"):
        controller.reconfigure(replace(before, placement_weights="enrgy=1"))
    assert controller.config is before
    controller.tick()
    assert controller.observed is not None
    nodes = controller.observed[0].snapshot.world["nodes"]
    assert len({round(watts) for watts in nodes["watts"].tolist()}) > 1, "GPU types draw different power"
