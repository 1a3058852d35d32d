"""Speeds of jobs on GPU types: published, configured, learned."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.domain.cluster import published_speed
from slurm_rl.errors import InputError
from slurm_rl.place.speed import FinishedRun, SpeedMatrix, learn_speeds, parse_speeds, read_speeds


def test_published_figures_go_by_the_longest_name_that_fits() -> None:
    assert (published_speed("a100"), published_speed("A10"), published_speed("V100M32"), published_speed("G9")) == (
        2.0,
        0.9,
        1.0,
        1.0,
    )


def test_what_is_configured_goes_before_what_is_published() -> None:
    matrix = SpeedMatrix(parse_speeds("a100=3, t4=0.5"))
    assert (matrix.speed("A100"), matrix.speed("t4"), matrix.speed("v100")) == (3.0, 0.5, 1.0)


@pytest.mark.parametrize("text", ["a100", "a100=fast", "a100=0", "=2", "a100=-1"])
def test_a_wrong_speed_is_named(text: str) -> None:
    with pytest.raises(InputError, match="TYPE=SPEED"):
        parse_speeds(text)


def test_jobs_that_ran_on_two_types_move_their_ratio_away_from_what_is_published() -> None:
    # Published: an A100 is twice a V100. These jobs took a quarter of the time on it, many times over.
    history = [FinishedRun("ann", "train", 4, "a100", 100.0), FinishedRun("ann", "train", 4, "v100", 400.0)] * 200
    matrix = learn_speeds(history)
    assert matrix.speed("a100") / matrix.speed("v100") == pytest.approx(4.0, rel=0.05)


def test_one_comparison_moves_it_a_little() -> None:
    matrix = learn_speeds(
        [FinishedRun("ann", "train", 4, "a100", 100.0), FinishedRun("ann", "train", 4, "v100", 400.0)]
    )
    # Each of the two types is held by 4 and drawn by 1: the log ratio goes from ln 2 a third of the way to ln 4.
    assert matrix.speed("a100") / matrix.speed("v100") == pytest.approx(2.0 * 2.0 ** (1 / 3), rel=0.01)


def test_a_class_of_jobs_has_its_own_speeds() -> None:
    alike = [FinishedRun("ann", "train", 1, "a100", 100.0), FinishedRun("ann", "train", 1, "t4", 1000.0)] * 100
    flat = [FinishedRun("bob", "eval", 1, "a100", 100.0), FinishedRun("bob", "eval", 1, "t4", 110.0)] * 100
    matrix = learn_speeds(alike + flat)

    def ratio(user: str, name: str) -> float:
        return matrix.speed("a100", user, name) / matrix.speed("t4", user, name)

    assert ratio("ann", "train") == pytest.approx(10.0, rel=0.1)
    assert ratio("bob", "eval") == pytest.approx(1.1, rel=0.1)
    assert ratio("bob", "eval") < ratio("eve", "other") < ratio("ann", "train")


def test_jobs_of_different_sizes_are_not_compared() -> None:
    assert (
        learn_speeds([FinishedRun("a", "x", 1, "a100", 10.0), FinishedRun("a", "x", 8, "v100", 1000.0)]).speed("a100")
        == 2.0
    )


def test_a_matrix_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "speeds.json"
    file.write_text('{"types": {"t4": 0.4}, "classes": [{"user": "ann", "name": "bert", "T4": 0.2}]}')
    matrix = read_speeds(file)
    assert (matrix.speed("T4"), matrix.speed("T4", "ann", "bert"), matrix.speed("a100", "ann", "bert")) == (
        0.4,
        0.2,
        2.0,
    )
    file.write_text('{"types": {"t4": 0}}')
    with pytest.raises(InputError, match="the speed of t4 must be above 0"):
        read_speeds(file)
