"""Batches through scontrol: what is sent, and what is made of every answer it can give."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.errors import EnvironmentMissing, InputError, SlurmError
from slurm_rl.slurm import updates
from slurm_rl.slurm.command import Commands
from slurm_rl.slurm.model import JobUpdate, SlurmJob, UpdateResult, UpdateStatus
from slurm_rl.slurm.release import TABLE

Fake = Callable[[str, str], Path]
APPLIED, REFUSED, UNKNOWN, NOT_SENT = (
    UpdateStatus.APPLIED,
    UpdateStatus.REFUSED,
    UpdateStatus.UNKNOWN,
    UpdateStatus.NOT_SENT,
)


def test_the_command_of_an_update() -> None:
    update = JobUpdate(job_id=7, site_factor=-5, features="(a100|t4)&ib", prefer="", start_at=1794798552)
    assert updates.command_line(update) == (
        "update JobId=7 SiteFactor=-5 Features=(a100|t4)&ib Prefer= StartTime=uts1794798552"
    )
    assert updates.command_line(JobUpdate(job_id=7, start_at=0)) == "update JobId=7 StartTime=now"


def test_an_array_record_is_addressed_by_its_waiting_tasks() -> None:
    waiting = SlurmJob(job_id=3, array_job_id=3, array_tasks="4-50", array_task_count=47)
    separate = SlurmJob(job_id=9, array_job_id=3, array_tasks="2", array_task_id=2)
    plain = SlurmJob(job_id=11)
    lines = [updates.command_line(JobUpdate.of(j, site_factor=1)) for j in (waiting, separate, plain)]
    assert lines == [
        "update JobId=3_[4-50] SiteFactor=1",
        "update JobId=9 SiteFactor=1",
        "update JobId=11 SiteFactor=1",
    ]


@pytest.mark.parametrize(
    "update",
    [
        JobUpdate(job_id=1),
        JobUpdate(job_id=1, features="a100\nupdate JobId=2 SiteFactor=9"),
        JobUpdate(job_id=1, prefer="a100 Priority=1"),
        JobUpdate(job_id=1, features="a\tb"),
        JobUpdate(job_id=1, site_factor=2**31),
        JobUpdate(job_id=1, start_at=-5),
        JobUpdate(job_id=1, array_tasks="1 Priority=9", site_factor=1),
        JobUpdate(job_id=1, array_tasks="0-100000:2", site_factor=1),  # longer than an argument may be
    ],
)
def test_a_value_that_must_not_reach_scontrol_is_refused(update: JobUpdate) -> None:
    with pytest.raises(InputError, match="job 1"):
        updates.command_line(update)


def test_two_updates_for_one_job_are_refused(fake: Fake) -> None:
    with pytest.raises(InputError, match="two updates for job 1"):
        updates.apply(Commands(), [JobUpdate(job_id=1, site_factor=1), JobUpdate(job_id=1, site_factor=2)], 1)


def answered(fake: Fake, answers: dict[int, str], ids: tuple[int, ...] = (1, 2, 3)) -> list[UpdateResult]:
    """Results when scontrol echoes each command, as it does, and says something about some jobs."""
    cases = "\n".join(f'    *"JobId={job_id}"[_\\ ]*) {script} ;;' for job_id, script in answers.items())
    fake("scontrol", f'while read -r line; do echo "scontrol: $line"; case "$line" in\n{cases}\n esac; done')
    return updates.apply(Commands(timeout=5), [JobUpdate(job_id=i, site_factor=i) for i in ids], 5)


def test_silence_about_a_job_means_yes(fake: Fake) -> None:
    assert [r.status for r in answered(fake, {})] == [APPLIED] * 3


def test_an_error_belongs_to_the_job_it_names(fake: Fake) -> None:
    results = answered(fake, {2: "echo 'Invalid job id specified for job 2' >&2"})
    assert [r.status for r in results] == [APPLIED, REFUSED, APPLIED]
    assert results[1].message == "Invalid job id specified for job 2"


def test_an_error_that_names_no_job_belongs_to_the_command_before_it(fake: Fake) -> None:
    results = answered(fake, {3: "echo 'Requested node configuration is not available' >&2"})
    assert [r.status for r in results] == [APPLIED, APPLIED, REFUSED]


def test_an_array_whose_waiting_tasks_took_it_is_applied(fake: Fake) -> None:
    script = "echo '2_0: Job is no longer pending execution' >&2; echo '2_1-20: No error' >&2"
    results = answered(fake, {2: script})
    assert results[1] == UpdateResult(2, APPLIED, "2_0: Job is no longer pending execution")


def test_an_array_of_which_no_task_took_it_is_refused(fake: Fake) -> None:
    results = answered(fake, {2: "echo '2_1-20: Invalid feature specification' >&2"})
    assert [r.status for r in results] == [APPLIED, REFUSED, APPLIED]


@pytest.mark.parametrize(
    ("said", "major", "status"),
    [
        ("2_0: Job is no longer pending execution", (24, 11), APPLIED),
        ("2_[0,3-4]: Job is no longer pending execution", (26, 5), APPLIED),
        ("2_[0-9]: Invalid feature specification", (26, 5), REFUSED),
        ("2_0,1,2...: Job is no longer pending execution", (24, 11), UNKNOWN),
        ("2_0,1,2...: Invalid feature specification", (22, 5), REFUSED),
    ],
)
def test_which_tasks_refused_tells_whether_the_others_took_it(
    fake: Fake, said: str, major: tuple[int, int], status: UpdateStatus
) -> None:
    """From 23.02 on those that took it are not listed."""
    fake("scontrol", f"while read -r line; do echo \"scontrol: $line\"; echo '{said}' >&2; done")
    batch = [JobUpdate(job_id=2, array_tasks="0-9", site_factor=1)]
    (result,) = updates.apply(Commands(timeout=5), batch, 5, TABLE[major])
    assert (result.status, result.message) == (status, said)


def test_a_bad_update_is_refused_alone(fake: Fake) -> None:
    fake("scontrol", "exec cat")
    bad = JobUpdate(job_id=2, array_tasks="1-400:", site_factor=1)
    worse = JobUpdate(job_id=4, site_factor=2**31)
    batch = [JobUpdate(job_id=1, site_factor=1), bad, JobUpdate(job_id=3, site_factor=1), worse]
    results = updates.apply(Commands(timeout=5), batch, 5)
    assert [r.status for r in results] == [APPLIED, REFUSED, APPLIED, REFUSED]
    assert "not a list of array tasks" in results[1].message
    assert [r.status for r in updates.apply(Commands(timeout=5), [bad], 5)] == [REFUSED]


def test_steps_are_spelt_out_and_long_lists_get_a_command_of_their_own(fake: Fake, tmp_path: Path) -> None:
    fake("scontrol", f'if [ $# -gt 0 ]; then printf "%s\\n" "$*" >> {tmp_path}/words; else tee -a {tmp_path}/lines; fi')
    batch = [
        JobUpdate(job_id=1, array_tasks="1-9:4", site_factor=5),
        JobUpdate(job_id=2, array_tasks="0-5998:2", site_factor=5),
        JobUpdate(job_id=3, array_tasks="0-5998", site_factor=5),
    ]
    assert [r.status for r in updates.apply(Commands(timeout=5), batch, 5)] == [APPLIED] * 3
    assert (tmp_path / "lines").read_text().splitlines() == [
        "update JobId=1_[1,5,9] SiteFactor=5",
        "update JobId=3_[0-5998] SiteFactor=5",
    ]
    evens = ",".join(map(str, range(0, 6000, 2)))
    assert (tmp_path / "words").read_text() == f"update JobId=2_[{evens}] SiteFactor=5\n"


def test_a_lost_answer_is_unknown_and_not_a_refusal(fake: Fake) -> None:
    results = answered(fake, {2: "echo 'Unexpected message received for job 2' >&2"})
    assert [r.status for r in results] == [APPLIED, UNKNOWN, APPLIED]


def test_when_slurmctld_goes_silent_the_rest_is_not_sent(fake: Fake) -> None:
    results = answered(fake, {2: "echo 'Unable to contact slurm controller (connect failure)' >&2; sleep 9"})
    assert [r.status for r in results] == [APPLIED, UNKNOWN, NOT_SENT]
    assert "Unable to contact" in results[2].message


def test_when_slurmctld_hangs_the_batch_ends_in_bounded_time(fake: Fake) -> None:
    fake("scontrol", 'read -r a; echo "scontrol: $a"; read -r b; echo "scontrol: $b"; exec sleep 60')
    began = time.monotonic()
    results = updates.apply(Commands(timeout=1.5), [JobUpdate(job_id=i, site_factor=1) for i in (1, 2, 3)], 9)
    assert time.monotonic() - began < 8
    assert [r.status for r in results] == [APPLIED, UNKNOWN, NOT_SENT]


def test_a_dead_slurmctld_before_the_first_job_is_an_error(fake: Fake) -> None:
    fake(
        "scontrol",
        'if [ "$1" = ping ]; then echo "Slurmctld(primary) at head is DOWN"; exit 1; fi\n'
        'read -r a; echo "scontrol: $a"; exec sleep 60',
    )
    began = time.monotonic()
    with pytest.raises(SlurmError, match="head is DOWN"):
        updates.apply(Commands(timeout=30), [JobUpdate(job_id=1, site_factor=1)], 30)
    assert time.monotonic() - began < 5


def test_a_user_without_rights_gets_one_clear_error(fake: Fake) -> None:
    refusal = "echo 'Access/permission denied for job 1' >&2"
    with pytest.raises(SlurmError, match=r"AdminLevel=Operator"):
        answered(fake, {1: refusal}, ids=(1,))


def test_a_broken_configuration_is_an_error_and_no_result(fake: Fake) -> None:
    fake("scontrol", "echo 'scontrol: fatal: Unable to process configuration file' >&2; exit 1")
    with pytest.raises(SlurmError, match="check SLURM_CONF"):
        updates.apply(Commands(), [JobUpdate(job_id=1, site_factor=1)], 5)


def test_pieces_of_a_broken_echo_are_no_message(fake: Fake) -> None:
    results = answered(fake, {2: "echo 'Factor=2'"})
    assert [r.status for r in results] == [APPLIED] * 3


def test_a_large_batch_does_not_block_on_full_pipes(fake: Fake) -> None:
    fake("scontrol", "exec cat")
    batch = [JobUpdate(job_id=i, site_factor=i) for i in range(1, 20_001)]
    assert {r.status for r in updates.apply(Commands(timeout=20), batch, 30)} == {APPLIED}


def test_no_scontrol_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with pytest.raises(EnvironmentMissing, match="slurm-client"):
        updates.apply(Commands(), [JobUpdate(job_id=1, site_factor=1)], 5)
