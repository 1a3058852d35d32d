"""Slurm's notations, each with the answer worked out by hand."""

from __future__ import annotations

import math

import pytest

from slurm_rl.domain.tres import size_mb
from slurm_rl.errors import SlurmError
from slurm_rl.slurm.quantities import (
    array_tasks,
    expand_hosts,
    gpus_in_gres,
    gpus_in_tres,
    seconds,
    timestamp,
    tres,
)
from slurm_rl.slurm.release import Release, parse_release


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1-02:03:04", 93_784),
        ("02:03:04", 7_384),
        ("03:04", 184),
        ("5", 300),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("N/A", None),
    ],
)
def test_durations(text: str, expected: int | None) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["soon", "1:2:3:4", "x-1:00"])
def test_an_unreadable_duration_is_named(text: str) -> None:
    with pytest.raises(SlurmError, match=text):
        seconds(text)


def test_times_are_unix_seconds_or_absent() -> None:
    assert timestamp("1794797298") == 1_794_797_298
    assert [timestamp(t) for t in ("N/A", "Unknown", "0", "")] == [None] * 4


@pytest.mark.parametrize(
    ("text", "mb"), [("4G", 4096), ("512M", 512), ("2048K", 2), ("1.50T", 1_572_864), ("1000", 1000)]
)
def test_memory_is_in_megabytes(text: str, mb: int) -> None:
    assert size_mb(text) == mb
    assert math.isnan(size_mb(text + "?"))


def test_tres_are_numbers_and_memory_is_in_megabytes() -> None:
    assert tres("cpu=4,mem=1G,node=1,gres/gpu:a100=2,billing=1.5K") == {
        "cpu": 4,
        "mem": 1024,
        "node": 1,
        "gres/gpu:a100": 2,
        "billing": 1500,
    }
    assert tres("(null)") == {}


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gres:gpu:a100:2", {"a100": 2}),  # 22.05
        ("gres/gpu:a100:2", {"a100": 2}),  # newer
        ("gres/gpu:a100=2", {"a100": 2}),
        ("gres:gpu:2", {"": 2}),
        ("gres/gpu:2", {"": 2}),
        ("gpu", {"": 1}),
        ("gpu:a100", {"a100": 1}),
        ("gpu:4090:8", {"4090": 8}),  # a type of digits only is still a type
        ("gpu:A100:8(S:0-1)", {"a100": 8}),
        ("gpu:a100:3(IDX:0,2,5),gpu:t4:1(IDX:6)", {"a100": 3, "t4": 1}),
        ("gpu:(null):2(IDX:0-1)", {"": 2}),
        ("shard:8,license:matlab:1", {}),
        ("N/A", {}),
    ],
)
def test_gpus_in_every_spelling(text: str, gpus: dict[str, int]) -> None:
    assert gpus_in_gres(text) == gpus


def test_gpus_beyond_the_typed_ones_have_no_type() -> None:
    assert gpus_in_tres({"gres/gpu": 8, "gres/gpu:a100": 8}) == {"a100": 8}
    assert gpus_in_tres({"gres/gpu": 3, "gres/gpu:a100": 2}) == {"a100": 2, "": 1}
    assert gpus_in_tres({"gres/gpu": 2}) == {"": 2}
    assert gpus_in_tres({"cpu": 2}) == {}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ("a",)),
        ("a[1-3]", ("a1", "a2", "a3")),
        ("a[08-10,15],b", ("a08", "a09", "a10", "a15", "b")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a100-[1-2],t4-1", ("a100-1", "a100-2", "t4-1")),
        ("(null)", ()),
    ],
)
def test_host_lists(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["a[1-", "a[x-2]"])
def test_an_unreadable_host_list_is_named(text: str) -> None:
    with pytest.raises(SlurmError, match="host list"):
        expand_hosts(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4-50%3", ("4-50", 47, 3)),
        ("1,3,5", ("1,3,5", 3, 0)),
        ("0-8:2", ("0,2,4,6,8", 5, 0)),
        ("7", ("7", 1, 0)),
        ("[2-3]", ("2-3", 2, 0)),
        ("3-5,4", ("3-5", 3, 0)),
        ("1,2,7-7", ("1-2,7", 3, 0)),
        ("", ("", 1, 0)),
        ("0-999999999%50", ("0-999999999", 1_000_000_000, 50)),  # not written out: that would take minutes
    ],
)
def test_array_tasks_are_counted(text: str, expected: tuple[str, int, int]) -> None:
    assert array_tasks(text) == expected


def test_releases_compare_and_tell_whether_they_are_known() -> None:
    assert parse_release("slurm-wlm 22.05.8") == Release(22, 5, 8)
    assert str(Release(24, 11, 4)) == "24.11.4"
    assert Release(23, 2, 1) < Release(23, 11) < Release(24, 5)
    assert Release(26, 5, 0).known
    assert not Release(27, 5, 0).known
    assert not Release(21, 8, 8).known
    with pytest.raises(SlurmError, match="no Slurm release"):
        parse_release("hello")
