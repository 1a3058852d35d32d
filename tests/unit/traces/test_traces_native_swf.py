"""Native CSV and SWF: exact values, bad rows by line, detection, compression, and writing back."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import zstandard
from trace_builders import a_file, jobs

from slurm_rl.errors import InputError
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.swf import write_swf
from slurm_rl.traces.trace import COLUMN_FIELDS, Labels, Note, Trace, make_trace

HEADER = "job_id,submit_time,run_time,time_limit,num_gpus,gpu_type,num_nodes,cpus,mem_gb,user,group,vc,status"


def same(a: Trace, b: Trace, *, without: tuple[str, ...] = ()) -> None:
    for field in COLUMN_FIELDS:
        if field not in without:
            x, y = getattr(a, field), getattr(b, field)
            if isinstance(x, Labels):
                assert x.strings() == y.strings(), field
            else:
                np.testing.assert_array_equal(x, y, err_msg=field)


class TestNative:
    def test_every_column(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "t.csv",
            HEADER + ",qos,priority,deadline,name",
            "4,10,60,120,2,A100|V100,1,8,32.5,ann,lab,gpu,COMPLETED,high,2.5,500,train",
            "3,5,7,,0,,,,,,,,,,,,",
        )
        trace = read_trace(path)
        assert (trace.name, trace.meta["format"], len(trace)) == ("t", "native", 2)
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "gpu_type", "num_nodes") == [
            (3, 5, 7, -1, 0.0, "", 0),
            (4, 10, 60, 120, 2.0, "A100|V100", 1),
        ]
        assert jobs(
            trace, "cpus", "mem_gb", "user", "account", "partition", "status", "qos", "priority", "deadline"
        ) == [
            (None, None, "", "", "", "", "", None, -1),
            (8.0, 32.5, "ann", "lab", "gpu", "COMPLETED", "high", 2.5, 500),
        ]
        assert trace.job_name.strings() == ["", "train"]
        assert trace.notes == ()

    def test_dates_become_seconds_from_the_first_submission(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "t.csv",
            HEADER + ",deadline",
            "1,2026-01-31T08:00:00Z,60,,1,,,,,,,,,2026-01-31T09:00:00",
            "2,2026-01-31 08:00:30,60,,1,,,,,,,,,",
            "3,2026-01-31T10:01:00+02:00,60,,1,,,,,,,,,",
            "4,yesterday,60,,1,,,,,,,,,",
        )
        trace = read_trace(path)
        assert jobs(trace, "job_id", "submit_time", "deadline") == [(1, 0, 3600), (2, 30, -1), (3, 60, -1)]
        assert trace.meta["time_origin"] == 1769846400
        assert trace.notes == (Note("submit_time is not a time", 1, (5,), dropped=True),)

    def test_seconds_are_rounded_half_up(self, tmp_path: Path) -> None:
        path = a_file(tmp_path, "t.csv", HEADER, "1,0.5,1.5,2.49,1,,,,,,,,", "2,1.4,2.5,0.5,1,,,,,,,,")
        assert jobs(read_trace(path), "submit_time", "run_time", "time_limit") == [(1, 2, 2), (1, 3, 1)]

    def test_equal_submit_times_keep_the_order_of_the_file(self, tmp_path: Path) -> None:
        path = a_file(tmp_path, "t.csv", HEADER, *(f"{i},5,1,,1,,,,,,,," for i in (9, 2, 7)))
        assert read_trace(path).job_id.tolist() == [9, 2, 7]

    def test_bad_rows_are_counted_and_named(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "t.csv",
            HEADER,
            *(f"{i},{i},10,,1,,,,,,,," for i in range(1, 11)),  # lines 2 to 11
            "11,0,ten,,1,,,,,,,,",
            "12,0,10,,1,,,,,",
            "",
            "13,0,-5,,1,,,,,,,,",
            "14,,10,,1,,,,,,,,",
            "15,0,,,1,,,,,,,,",
            "16,0,10,-60,1,,,,,,,,",
            "17,0,inf,,1,,,,,,,,",
            "18,0,10,,nan,,,,,,,,",
        )
        trace = read_trace(path)
        assert trace.job_id.tolist() == list(range(1, 11))
        assert {(n.what, n.rows, n.lines) for n in trace.notes if n.dropped} == {
            ("run_time is not a number", 1, (12,)),
            ("10 fields, expected 13", 1, (13,)),
            ("run_time is negative", 1, (15,)),
            ("submit_time is blank", 1, (16,)),
            ("run_time is blank", 1, (17,)),
            ("time_limit is negative", 1, (18,)),
            ("run_time is out of range", 1, (19,)),
            ("num_gpus is not a number", 1, (20,)),
        }

    def test_at_most_five_lines_are_named(self, tmp_path: Path) -> None:
        rows = [f"{i},0,10,,1,,,,,,,," for i in range(10)] + [f"{i},0,,,1,,,,,,,," for i in range(10, 18)]
        (note,) = read_trace(a_file(tmp_path, "t.csv", HEADER, *rows)).notes
        assert note == Note("run_time is blank", 8, (12, 13, 14, 15, 16), dropped=True)
        assert str(note) == "8 rows: run_time is blank (lines 12, 13, 14, 15, 16, …)"

    def test_a_pool_of_jobs_without_submit_times(self, tmp_path: Path) -> None:
        trace = read_trace(a_file(tmp_path, "t.csv", HEADER, "1,,10,,1,,,,,,,,", "2,,20,,1,,,,,,,,"))
        assert trace.submit_time.tolist() == [0, 0]
        assert [n.dropped for n in trace.notes] == [False]

    def test_ids_that_are_no_numbers_stay_text(self, tmp_path: Path) -> None:
        trace = read_trace(a_file(tmp_path, "t.csv", HEADER, "1,0,1,,1,,,,,,,,", "a-2,1,1,,1,,,,,,,,"))
        assert trace.job_id.tolist() == ["1", "a-2"]
        trace = read_trace(a_file(tmp_path, "z.csv", HEADER, "1,0,1,,1,,,,,,,,", "007,1,1,,1,,,,,,,,"))
        assert trace.job_id.tolist() == ["1", "007"]

    def test_words_that_pandas_takes_for_nothing_are_names(self, tmp_path: Path) -> None:
        trace = read_trace(a_file(tmp_path, "t.csv", HEADER, "1,0,1,,1,,,,,NA,null,None,nan"))
        assert jobs(trace, "user", "account", "partition", "status") == [("NA", "null", "None", "nan")]

    def test_quotes_commas_and_windows_line_ends(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_bytes(f'\ufeff{HEADER}\r\n1,0,1,,1,,,,,"a, b",,,\r\n2,0,1,,1,,,,,c,,,\r\n'.encode())
        assert read_trace(path).user.strings() == ["a, b", "c"]

    def test_repeated_ids_are_said_and_kept(self, tmp_path: Path) -> None:
        trace = read_trace(a_file(tmp_path, "t.csv", HEADER, "5,0,1,,1,,,,,,,,", "5,1,1,,1,,,,,,,,"))
        assert len(trace) == 2
        assert trace.notes == (Note("job_id repeats an earlier one", 1, (3,)),)

    def test_columns_may_come_in_any_order_and_others_are_ignored(self, tmp_path: Path) -> None:
        trace = read_trace(a_file(tmp_path, "t.csv", "run_time,colour,job_id,submit_time,num_gpus", "60,red,1,5,2"))
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus") == [(1, 5, 60, 2.0)]
        assert trace.meta["ignored_columns"] == ["colour"]

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ((HEADER.replace("run_time", "runtime"), "1,2,3"), "line 1: the header lacks the column 'run_time'"),
            ((HEADER + ",user", "1,2,3"), "names 'user' twice"),
            ((HEADER,), "no jobs in the file"),
            ((HEADER, "1,0,x,,1,,,,,,,,", "2,0,y,,1,,,,,,,,", "3,0,1,,1,,,,,,,,"), "2 of 3 rows cannot be used"),
            (("", "  "), "the file is empty"),
            (("what is this", "1 2 3"), "unknown trace format; the first line is 'what is this'"),
        ],
    )
    def test_hopeless_files_get_one_error(self, tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
        with pytest.raises(InputError) as error:
            read_trace(a_file(tmp_path, "bad.csv", *lines))
        assert message in str(error.value)
        assert str(tmp_path / "bad.csv") in str(error.value)

    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such trace file"):
            read_trace(tmp_path / "none.csv")
        with pytest.raises(InputError, match=r"the sample that comes with slurm-rl is /.*hetero.csv.gz"):
            read_trace(tmp_path / "traces" / "hetero.csv.gz")

    def test_an_unknown_format_or_option_names_the_known_ones(self, tmp_path: Path) -> None:
        path = a_file(tmp_path, "t.csv", HEADER, "1,0,1,,1,,,,,,,,")
        with pytest.raises(InputError, match="did you mean 'native'"):
            read_trace(path, format="nativ")
        with pytest.raises(InputError, match="takes no option 'cpus_per_gpu'"):
            read_trace(path, cpus_per_gpu=2)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst", ""])
def test_compressed_files_are_known_by_content(tmp_path: Path, ending: str) -> None:
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress, "": bytes}[ending]
    path = tmp_path / "plain-name"
    path.write_bytes(pack(f"{HEADER}\n1,0,60,,1,,,,,,,,\n".encode()))
    assert read_trace(path).run_time.tolist() == [60]
    written = tmp_path / f"w.csv{ending}"
    write_native(read_trace(path), written)
    assert read_trace(written).run_time.tolist() == [60]
    assert read_trace(written).name == "w"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_a_cut_compressed_file_is_an_input_error(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "t.csv.gz"
    body = HEADER + "\n" + "".join(f"{i},0,{i * 7919 % 1009},,1,,,,,,,,\n" for i in range(500))
    packed = pack(body.encode())  # type: ignore[operator]
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError):
        read_trace(path)


class TestSwf:
    def test_fields(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "log.swf",
            "; Version: 2.2",
            "; MaxNodes: 1024 (approximately)",
            ";  MaxProcs:   8192",
            "; UnixStartTime: 1272639895",
            "; Computer: Big Iron",
            "  1     0  5  222  80 -1 -1  -1  14400 1048576 1 3 4 -1 2  1 -1 -1",
            "  2  1136  0   10  16 12.5 -1 32 -1      -1      5 3 4 -1 -1 -1 -1 -1",
        )
        trace = read_trace(path)
        assert {k: trace.meta[k] for k in ("format", "max_nodes", "max_procs", "time_origin", "computer")} == {
            "format": "swf",
            "max_nodes": 1024,
            "max_procs": 8192,
            "time_origin": 1272639895,
            "computer": "Big Iron",
        }
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "cpus", "num_gpus", "mem_gb") == [
            (1, 0, 222, 14400, 80.0, 0.0, 80.0),  # 1 GB a processor
            (2, 1136, 10, -1, 32.0, 0.0, None),
        ]
        assert jobs(trace, "user", "account", "qos", "partition", "status") == [
            ("3", "4", "2", "1", "COMPLETED"),
            ("3", "4", "", "", "CANCELLED"),
        ]

    def test_bad_rows(self, tmp_path: Path) -> None:
        row = "{} {} 0 {} {} -1 -1 {} 100 -1 {} 1 1 -1 -1 -1 -1 -1"
        path = a_file(
            tmp_path,
            "log.swf",
            "; comment",
            *(row.format(i, i, 10, 4, 4, 1) for i in range(1, 8)),  # lines 2 to 8
            "; comment in the middle",
            row.format(8, -1, 10, 4, 4, 1),
            row.format(9, 1, -1, 4, 4, 1),
            row.format(10, 1, 10, -1, -1, 1),
            "11 1 2 3",
            row.format(12, "x", 10, 4, 4, 1),
        )
        trace = read_trace(path)
        assert trace.job_id.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert {(n.what, n.lines) for n in trace.notes} == {
            ("submit_time is unknown (-1)", (10,)),
            ("run_time is unknown (-1)", (11,)),
            ("neither requested nor allocated processors are known", (12,)),
            ("4 fields, expected 18", (13,)),
            ("submit_time is not a number", (14,)),
        }

    def test_tabs_and_fractions(self, tmp_path: Path) -> None:
        row = "1 0.5 0 10.5 4 -1 -1 4 100 -1 1 1 1 -1 -1 -1 -1 -1".replace(" ", "\t")
        assert jobs(read_trace(a_file(tmp_path, "log.swf", row)), "submit_time", "run_time") == [(1, 11)]

    def test_writing_back_keeps_what_swf_can_hold(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "log.swf",
            "; MaxProcs: 64",
            "7 3 -1 222 8 -1 -1 8 14400 1048576 1 3 4 -1 2 1 -1 -1",
            "9 5 -1 10 16 -1 -1 16 -1 -1 0 5 6 -1 1 2 -1 -1",
        )
        trace = read_trace(path)
        assert write_swf(trace, tmp_path / "again.swf.gz") == []
        again = read_trace(tmp_path / "again.swf.gz")
        same(trace, again)
        assert again.meta["max_procs"] == 64

    def test_what_swf_cannot_hold_is_said(self, tmp_path: Path) -> None:
        trace = make_trace("t", [0], run_time=[5], num_gpus=[2.0], cpus=[4.0], user=["ann"], priority=[1.0])
        assert write_swf(trace, tmp_path / "t.swf") == [
            "GPUs and their types (SWF counts processors only)",
            "priorities",
        ]
        assert (tmp_path / "t.swf").read_text().splitlines()[-1] == "1 0 -1 5 4 -1 -1 4 -1 -1 -1 1 -1 -1 -1 -1 -1 -1"


class TestWriteNative:
    def test_reads_back_equal(self, tmp_path: Path) -> None:
        trace = make_trace(
            "t",
            [0, 7, 7],
            job_id=np.array(["a", "b,c", 'd"e'], dtype=object),
            run_time=[1, 2, 3],
            time_limit=[-1, 60, 120],
            num_gpus=[0.46, 8, 0],
            gpu_type=["", "A|B", ""],
            num_nodes=[0, 2, 1],
            cpus=[np.nan, 1.5, 2],
            mem_gb=[0.1, np.nan, 3.7109],
            user=["x", "y, z", ""],
            priority=[np.nan, -1.5, 2],
            deadline=[-1, 50, 60],
            job_name=["n", "", "m"],
        )
        write_native(trace, tmp_path / "t.csv")
        same(trace, read_trace(tmp_path / "t.csv"))
        first = (tmp_path / "t.csv").read_text().splitlines()[:2]
        assert first == [HEADER + ",priority,deadline,name", "a,0,1,,0.46,,,,0.1,x,,,,,,n"]

    def test_equal_traces_make_equal_bytes(self, tmp_path: Path) -> None:
        trace = make_trace("t", [0, 7], run_time=[1, 2])
        write_native(trace, tmp_path / "a.csv.gz")
        write_native(trace, tmp_path / "b.csv.gz")
        assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()

    def test_no_half_file_is_left(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be written"):
            write_native(make_trace("t", [0], run_time=[1]), tmp_path / "no such folder" / "t.csv")
        assert list(tmp_path.iterdir()) == []
