"""Slurm's reasons in words: a sentence and a remedy each, limits by their grammar."""

from __future__ import annotations

import pytest

from slurm_rl.slurm.reasons import in_words


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("Resources", "It is next in line, and waits until enough resources are free."),
        ("(Priority)", "Jobs of higher priority wait for the same nodes."),
        ("ReqNodeNotAvail, UnavailableNodes:a[1-3]", "A node that it needs is down, drained or reserved."),
        ("QOSGrpGRES", "All jobs of its QOS together hold as much as they may: GPUs or other GRES."),
        ("AssocMaxJobsLimit", "Its account bounds what one user may have: running jobs."),
        ("QOSMaxCpuMinutesPerJobLimit", "Its QOS bounds what one job may have: CPUs times minutes."),
        ("QOSMinCpuNotSatisfied", "Its QOS requires more CPUs than the job requests."),
        ("", "Slurm has not looked at it yet."),
    ],
)
def test_a_reason_in_words(reason: str, meaning: str) -> None:
    assert in_words(reason).meaning == meaning


def test_waiting_does_not_help_a_job_that_is_too_large_by_itself() -> None:
    assert "other jobs end" in in_words("QOSMaxCpuPerUserLimit").remedy
    assert "other jobs end" not in in_words("QOSMaxCpuPerJobLimit").remedy


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    assert in_words("BrandNewReason").meaning == "Slurm says BrandNewReason."
