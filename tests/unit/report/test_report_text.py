"""Figures as people read them."""

from __future__ import annotations

import pytest

from slurm_rl.report.text import clipped, duration, number, plural, ratio, share, shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1.0 min"), (5400, "1.5 h"), (172800, "2.0 d"), (1e8, "1,157.4 d"), (None, "–")],
)
def test_a_duration_stands_in_its_largest_unit(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_keep_three_digits_and_separate_thousands() -> None:
    assert [number(v) for v in (0, 2, 2.0, 1.4944, 66.6449, 120.3, 12345.6, None)] == [
        "0", "2", "2.00", "1.49", "66.6", "120", "12,346", "–",
    ]  # fmt: skip


def test_shares_and_ratios() -> None:
    assert [share(v) for v in (0.5984, 11.9629, None)] == ["59.8%", "1,196%", "–"]
    assert [ratio(1.0, 2.0), ratio(None, 2.0), ratio(1.0, 0.0), ratio(1.0, None)] == ["×0.50", "–", "–", "–"]


def test_a_value_is_shown_in_its_unit() -> None:
    assert [shown(90, u) for u in ("s", "share", "ratio", "count")] == ["1.5 min", "9,000%", "×90.00", "90"]


def test_words() -> None:
    assert [plural(1, "job"), plural(2000, "job")] == ["1 job", "2,000 jobs"]
    assert [clipped("abcd", 4), clipped("abcde", 4)] == ["abcd", "abc…"]
