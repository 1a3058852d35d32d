"""Sums over time, worked out by hand, and the fragmentation that the metrics give."""

from __future__ import annotations

import numpy as np
import pytest
from report_cases import Case

from slurm_rl.report.measured import Comparison
from slurm_rl.report.series import Grid, fragmentation, integrals


def test_an_interval_is_shared_out_to_the_slices_it_crosses() -> None:
    # Twice 5 s in the first slice, twice 10 s in the second, twice 1 s in the third.
    got = integrals(Grid(0, 10, 3), np.array([5]), np.array([21]), np.array([2.0]), np.array([0]), 1)
    assert got.tolist() == [[10, 20, 2]]


def test_groups_are_summed_apart_and_what_lies_outside_is_cut_off() -> None:
    begin, end = np.array([-50, 100, 100, 128]), np.array([104, 110, 999, 130])
    got = integrals(Grid(100, 10, 2), begin, end, np.ones(4), np.array([0, 0, 1, 2]), 3)
    assert got.tolist() == [[4 + 10, 0], [10, 10], [0, 0]]


def test_fragmentation_is_the_share_of_what_is_free_on_partly_used_nodes() -> None:
    # Two nodes of 4. A piece of 1 on node 0 for 0…10 leaves 7 free, 3 of them on the partly used node 0; then a piece
    # of 4 fills node 1 for 10…20: 4 free on an empty node. Somebody waits from 0 to 20, nobody from 20 to 30.
    got = fragmentation(
        Grid(0, 10, 3), np.array([4.0, 4.0]), np.array([0, 1]), np.array([1.0, 4.0]), np.array([0, 10]),
        np.array([10, 20]), np.array([0]), np.array([20]),
    )  # fmt: skip
    assert got[:2] == pytest.approx([3 / 7, 0])
    assert np.isnan(got[2])


def test_nobody_waits_and_nothing_runs() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert np.isnan(fragmentation(Grid(0, 10, 2), np.ones(1), none, none, none, none, none, none)).all()


def test_over_the_whole_replay_fragmentation_is_the_metric(hetero: Case) -> None:
    prepared, runs = hetero
    measured = Comparison(prepared, runs)
    submit = prepared.trace.submit_time
    for run in runs:
        job, node, amount = measured.amounts(run)
        first, last = int(submit.min()), int(run.result.end.max())
        whole = Grid(first, last - first, 1)
        got = fragmentation(
            whole, measured.capacity, node, amount, run.result.start[job], run.result.end[job], submit, run.result.start
        )
        assert got[0] == pytest.approx(run.metrics["fragmentation"], rel=1e-6)
