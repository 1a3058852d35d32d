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
from slurm_rl.traces.read import FORMATS, read_trace
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
        **{label: column(names) for label in ("gpu_type", "user", "account", "partition", "status", "qos", "job_name")},
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
    for a, b in ((trace.user, again.user), (trace.account, again.account)):
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


SAMPLES = {
    "native": HEADER.decode() + "1,0,10,,1,A,,,,u,,,\n2,0,10,5,1,A,1,2,3,u,g,v,s\n" * 3,
    "swf": "; MaxProcs: 3\n1 0 5 222 80 -1 -1 -1 14400 1048576 1 3 4 -1 2 1 -1 -1\n" * 4,
    "sacct": "JobID|JobIDRaw|Submit|Start|End|Elapsed|Timelimit|State|ReqTRES\n"
    + "1|1|2024-03-01T10:00:00|2024-03-01T10:05:00|2024-03-01T11:05:30|01:00:30|1-00:00:00|COMPLETED|gres/gpu:a=2\n"
    * 3,
    "sacct-json": '{"meta":{},"jobs":[{"job_id":7,"state":{"current":"COMPLETED"},"time":{"elapsed":90,'
    '"submission":1700,"start":1701,"limit":60},"tres":{"requested":[{"type":"cpu","name":null,"count":8}],"allocated":[]}}]}',
    "helios": "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    + "7,uA,vcX,t,8,16,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-09 18:42:11,60,10\n" * 3,
    "philly": '[{"status":"Pass","vc":"v","jobid":"a","attempts":[{"start_time":"2017-10-07 01:12:00","end_time":'
    '"2017-10-07 01:13:00","detail":[{"ip":"m","gpus":["g"]}]}],"submitted_time":"2017-10-07 01:00:00","user":"u"}]',
    "rltune": "c936,2693235,-1,2612,1,-1,-1,-1,-1,29.296875,1,-1,-1,-1,0,-1,-1,-1,1\n" * 3,
    "pai": "j1,worker,2.0,Terminated,110.0,500.0,600.0,29.0,50.0,T4\n" * 3,
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    "scheduled_time\n" + "p0,12000,16384,1,1000,,LS,Running,0,12537496,0\n" * 3,
    "google": "600000000,,11,0,,0,uA,2,9,0.25,0.1,0.001,0\n610000000,,11,0,4,1,uA,2,9,0.25,0.1,0.001,0\n"
    "700500000,,11,0,4,4,uA,2,9,0.25,0.1,0.001,0\n",
    "arrivals": "arrival_time,runtime,gpus,priority\n" + "0.5,10.4,2,1\n" * 3,
}


def test_every_format_is_documented() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    rows = guide[guide.index("| `--format`") :].partition("\n\n")[0].splitlines()[2:]
    assert sorted(row.split("`")[1] for row in rows) == sorted(FORMATS)
    assert set(SAMPLES) <= set(FORMATS)


BITS = [
    b'"',
    b",",
    b"|",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"-",
    b"nan",
    b"inf",
    b"1e400",
    b"9" * 20,
    b"{}",
    b"null",
    b" ",
    b";",
]
edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8), st.sampled_from(BITS)), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(SAMPLES)), edits=edits, told=st.booleans())
def test_mangled_files_of_every_format_are_refused_or_read(
    name: str, edits: list[tuple[int, int, bytes]], told: bool
) -> None:
    raw = bytearray(SAMPLES[name].encode())
    for at, length, bit in edits:
        start = at % (len(raw) + 1)
        raw[start : start + length] = bit
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(bytes(raw))
        options = {"cpus_per_gpu": 0.2} if name == "google" else {}
        try:
            read_trace(path, cache=False, format=name if told else None, **options)
        except InputError:
            return


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_format_is_recognised(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x"
    path.write_text(SAMPLES[name])
    trace = read_trace(path, cache=False, **({"cpus_per_gpu": 0.2} if name == "google" else {}))
    assert trace.meta["format"] == name
