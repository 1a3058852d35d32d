"""Whatever a trace holds: writing and reading keep it, readers never crash, and rows never get lost silently."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_rl.errors import InputError
from slurm_rl.traces.limits import with_time_limits
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.swf import write_swf
from slurm_rl.traces.trace import COLUMN_FIELDS, Labels, Trace, make_trace

HEADER = b"job_id,submit_time,run_time,time_limit,num_gpus,gpu_type,num_nodes,cpus,mem_gb,user,group,vc,status\n"

times = st.integers(0, 10**9)
amounts = st.floats(0, 1e6, allow_nan=False).map(lambda x: round(x, 6))
maybe = st.one_of(amounts, st.just(float("nan")))
names = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=8).map(str.strip)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 12))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=n, max_size=n))

    return make_trace(
        "t",
        column(times),  # type: ignore[arg-type]
        run_time=column(times),
        time_limit=column(st.one_of(st.just(-1), st.integers(1, 10**9))),
        num_gpus=column(amounts),
        num_nodes=column(st.integers(0, 5000)),
        cpus=column(maybe),
        mem_gb=column(maybe),
        priority=column(maybe),
        deadline=column(st.one_of(st.just(-1), times)),
        **{label: column(names) for label in ("gpu_type", "user", "group", "vc", "status", "qos", "job_name")},
    )


@quick
@given(trace=traces(), ending=st.sampled_from(["", ".gz", ".xz", ".zst"]))
def test_native_keeps_everything(trace: Trace, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t.csv{ending}"
        write_native(trace, path)
        again = read_trace(path, cache=False)
    for field in COLUMN_FIELDS:
        a, b = getattr(trace, field), getattr(again, field)
        if isinstance(a, Labels):
            assert a.strings() == b.strings(), field
        else:
            np.testing.assert_array_equal(a, b, err_msg=field)
    assert not again.notes


@quick
@given(trace=traces())
def test_swf_keeps_times_and_who_is_who(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.swf"
        write_swf(trace, path)
        again = read_trace(path, cache=False)
    np.testing.assert_array_equal(trace.submit_time, again.submit_time)
    np.testing.assert_array_equal(trace.run_time, again.run_time)
    for a, b in ((trace.user, again.user), (trace.group, again.group)):
        same_a, same_b = (x.codes[:, None] == x.codes[None, :] for x in (a, b))
        np.testing.assert_array_equal(same_a, same_b)


@quick
@given(st.one_of(st.binary(max_size=400), st.binary(max_size=200).map(lambda b: HEADER + b)))
def test_garbage_is_refused_or_read_but_never_crashes(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(raw)
        try:
            trace = read_trace(path, cache=False)
        except InputError:
            return
        assert len(trace) > 0


good = st.builds(lambda i, s: f"{i},{s},60,,1,,,,,u,,,", st.integers(1, 10**6), st.integers(0, 10**6))
bad = st.sampled_from(
    ["x,0,abc,,1,,,,,u,,,", "1,2", "1,0,-5,,1,,,,,u,,,", ",0,5,,1,,,,,u,,,", "1,,5,,1,,,,,u,,,", "1,0,5,,1,,,,,u,,,,,"]
)


@quick
@given(rows=st.lists(st.one_of(good, good, bad), min_size=1, max_size=60))
def test_every_row_is_a_job_or_is_counted(rows: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(HEADER + "\n".join(rows).encode())
        try:
            trace = read_trace(path, cache=False)
        except InputError:
            return
    assert len(trace) + sum(n.rows for n in trace.notes if n.dropped) == len(rows)


@quick
@given(trace=traces(), seed=st.integers(0, 2**70))
def test_limits_cover_the_run(trace: Trace, seed: int) -> None:
    made = with_time_limits(trace, seed)
    filled = trace.time_limit < 0
    assert (made.time_limit[filled] >= np.maximum(trace.run_time[filled], 60)).all()
    np.testing.assert_array_equal(made.time_limit[~filled], trace.time_limit[~filled])


@pytest.mark.parametrize("block", [40, 200, 1 << 20])
def test_lines_are_right_wherever_blocks_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("slurm_rl.traces.table._BLOCK", block)
    rows = [f"{i},{i},{'x' if i % 7 == 0 else 60},,1,,,,,u,,," for i in range(1, 50)]
    path = tmp_path / "t.csv"
    path.write_bytes(HEADER + "\n".join(rows).encode())
    trace = read_trace(path, cache=False)
    (note,) = trace.notes
    assert (note.rows, note.lines) == (7, (8, 15, 22, 29, 36))
    assert trace.job_id.tolist() == [i for i in range(1, 50) if i % 7]
