"""Published GPU traces: each on a small file written here, with the exact jobs it must give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_builders import a_file, jobs

from slurm_rl.errors import InputError
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Note


class TestHelios:
    HEADER = "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"

    def test_jobs(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "cluster_log.csv",
            self.HEADER,
            "7,uA,vcX,train,8,16,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-09 18:42:11,60,10",
            "9,uB,vcY,eval,0,4,2,FAILED,2020-06-10 18:41:01,2020-06-10 18:41:01,2020-06-10 18:41:04,3,0",
        )
        trace = read_trace(path)
        assert trace.meta["format"] == "helios"
        assert trace.meta["time_origin"] == 1591728061  # 2020-06-09 18:41:01 UTC
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "cpus", "num_nodes") == [
            (7, 0, 60, -1, 8.0, 16.0, 1),
            (9, 86400, 3, -1, 0.0, 4.0, 2),
        ]
        assert jobs(trace, "user", "partition", "job_name", "status") == [
            ("uA", "vcX", "train", "COMPLETED"),
            ("uB", "vcY", "eval", "FAILED"),
        ]
        assert trace.notes == ()

    def test_bad_rows_are_named(self, tmp_path: Path) -> None:
        good = "{0},uA,vcX,train,1,1,1,COMPLETED,2020-06-09 18:41:0{0},2020-06-09 18:41:11,2020-06-09 18:42:11,60,10"
        path = a_file(
            tmp_path,
            "cluster_log.csv",
            self.HEADER,
            *(good.format(i) for i in range(1, 6)),
            "6,uA,vcX,train,1,1,1,COMPLETED,yesterday,2020-06-09 18:41:11,2020-06-09 18:42:11,60,10",
            "7,uA,vcX,train,one,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-09 18:42:11,60,10",
        )
        trace = read_trace(path)
        assert len(trace) == 5
        assert set(trace.notes) == {
            Note("gpu_num is not a number", 1, (8,), dropped=True),
            Note("submit_time is not a time", 1, (7,), dropped=True),
        }

    def test_the_first_release_had_no_job_names(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "cluster_log.csv",
            self.HEADER.replace("jobname,", ""),
            "7,uA,vcX,8,16,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-09 18:42:11,60,10",
        )
        assert jobs(read_trace(path), "job_id", "num_gpus", "job_name") == [(7, 8.0, "")]


class TestRltune:
    def test_jobs(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "alibaba.csv",
            "c936,2693235,-1,2612,1,-1,-1,-1,-1,29.296875,1,-1,-1,-1,0,-1,-1,-1,1",
            "bert-2_1,1432,0,41,16,-1,-1,8,600,-1,2,7,2,-1,0,-1,-1,vc3,4",
            "x,5,0,41,2,-1,-1,8,600,-1,0,7,2,-1,0,-1,-1,2,-1",
        )
        trace = read_trace(path)
        assert trace.meta["format"] == "rltune"
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "gpu_type", "partition") == [
            ("x", 5, 41, 600, 2.0, "", "2"),
            ("bert-2_1", 1432, 41, 600, 16.0, "V100_32GB", "vc3"),
            ("c936", 2693235, 2612, -1, 1.0, "MISC", ""),
        ]
        assert jobs(trace, "cpus", "mem_gb", "user", "account", "qos", "status") == [
            (8.0, None, "7", "2", "0", "FAILED"),
            (8.0, None, "7", "2", "0", "2"),
            (None, 29.296875, "", "", "0", "COMPLETED"),
        ]

    @pytest.mark.parametrize(
        ("code", "name"), [("0", "T4"), ("1", "MISC"), ("2", "P100"), ("3", "V100_16GB"), ("4", "V100_32GB")]
    )
    def test_gpu_types(self, tmp_path: Path, code: str, name: str) -> None:
        path = a_file(tmp_path, "t.csv", f"a,1,0,41,1,-1,-1,-1,-1,-1,2,7,2,-1,0,-1,-1,-1,{code}")
        assert read_trace(path).gpu_type.strings() == [name]

    def test_an_unknown_gpu_type_is_a_bad_row(self, tmp_path: Path) -> None:
        row = "{},1,0,41,1,-1,-1,-1,-1,-1,2,7,2,-1,0,-1,-1,-1,{}"
        path = a_file(tmp_path, "t.csv", row.format("a", 0), row.format("b", 9), row.format("c", 0))
        trace = read_trace(path)
        assert trace.job_id.tolist() == ["a", "c"]
        assert trace.notes == (Note("gpu_type '9' is none of 0 to 4 and -1", 1, (2,), dropped=True),)


def an_attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, object]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(count)]} for i, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


class TestPhilly:
    def a_log(self, folder: Path, *entries: object) -> Path:
        path = folder / "cluster_job_log"
        path.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        return path

    def a_job(self, name: str, *attempts: object, status: str = "Pass") -> dict[str, object]:
        submitted = "2017-10-07 01:00:00"
        return {
            "status": status,
            "vc": "v1",
            "jobid": name,
            "attempts": attempts,
            "submitted_time": submitted,
            "user": "u1",
        }

    def test_attempts_add_up(self, tmp_path: Path) -> None:
        path = self.a_log(
            tmp_path,
            self.a_job(
                "a",
                an_attempt("2017-10-07 01:12:00", "2017-10-07 01:13:00", 8),
                an_attempt("2017-10-07 02:00:00", "2017-10-07 03:00:00", 8, 8),
            ),
            self.a_job("b", an_attempt("2017-10-07 01:12:00", "2017-10-07 01:12:30", 1), status="Killed"),
        )
        trace = read_trace(path)
        assert trace.meta["format"] == "philly"
        assert jobs(
            trace, "job_id", "submit_time", "run_time", "num_gpus", "num_nodes", "status", "partition", "user"
        ) == [
            ("a", 0, 3660, 16.0, 2, "COMPLETED", "v1", "u1"),
            ("b", 0, 30, 1.0, 1, "CANCELLED", "v1", "u1"),
        ]
        assert trace.notes == (Note("several attempts: their run times are added", 1, (1,)),)

    def test_what_never_ran_or_never_ended_is_counted(self, tmp_path: Path) -> None:
        path = self.a_log(
            tmp_path,
            self.a_job("never"),
            self.a_job("running", an_attempt("2017-10-07 01:12:00", "None", 4)),
            self.a_job("done", an_attempt("2017-10-07 01:12:00", "2017-10-07 01:12:30", 1), status="Failed"),
            {"jobid": "half an entry"},
        )
        trace = read_trace(path)
        assert jobs(trace, "job_id", "status") == [("done", "FAILED")]
        assert [(n.rows, n.lines, n.dropped) for n in trace.notes] == [
            (1, (4,), True),
            (1, (2,), True),
            (1, (1,), True),
        ]


class TestPai:
    TASKS = (
        "j1,worker,2.0,Terminated,110.0,500.0,600.0,29.0,50.0,T4",
        "j1,ps,1.0,Terminated,105.0,490.0,400.0,10.0,,",
        "j2,tensorflow,3.0,Failed,200.0,260.0,100.0,1.0,100.0,P100",
        "j3,tensorflow,1.0,Running,300.0,,100.0,1.0,100.0,P100",
    )
    JOBS = ("j1,i1,uA,Terminated,100.0,500.0", "j2,i2,uB,Failed,150.0,260.0", "j3,i3,uC,Running,290.0,")

    def test_jobs_of_a_directory(self, tmp_path: Path) -> None:
        a_file(tmp_path / "pai", "pai_task_table.csv", *self.TASKS)
        a_file(tmp_path / "pai", "pai_job_table.csv", *self.JOBS)
        a_file(tmp_path / "pai", "pai_sensor_table.csv", "not", "read")
        trace = read_trace(tmp_path / "pai")
        assert trace.meta["format"] == "pai"
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "gpu_type", "cpus", "mem_gb", "user") == [
            ("j1", 100, 395, 1.0, "T4", 16.0, 68.0, "uA"),  # 2 × 50% GPU; 2 × 6 + 4 CPUs; 105 to 500
            ("j2", 150, 60, 3.0, "P100", 3.0, 3.0, "uB"),
        ]
        assert trace.status.strings() == ["COMPLETED", "FAILED"]
        assert trace.notes == (Note("the task has no end: still running", 1, (4,), dropped=True),)

    def test_a_task_table_alone_has_no_users(self, tmp_path: Path) -> None:
        header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
        trace = read_trace(a_file(tmp_path, "tasks.csv", header, *self.TASKS))
        assert jobs(trace, "job_id", "submit_time", "run_time", "user", "status") == [
            ("j1", 105, 395, "", "COMPLETED"),
            ("j2", 200, 60, "", "FAILED"),
        ]

    def test_a_job_table_alone_says_what_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"holds no GPUs .*pai_task_table"):
            read_trace(a_file(tmp_path, "jobs.csv", *self.JOBS))


class TestOpenb:
    HEADER = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )

    def test_pods(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "openb_pod_list_default.csv",
            self.HEADER,
            "p0,12000,16384,1,1000,,LS,Running,0,12537496,0",
            "p1,6500,12288,1,460,,LS,Failed,427061,427161,427071",
            "p2,88000,327680,8,1000,V100M16|V100M32,BE,Succeeded,500000,500300,500100",
            "p3,4000,1024,0,0,,Burstable,Pending,500001,500301,",
        )
        trace = read_trace(path)
        assert trace.meta["format"] == "openb"
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "gpu_type", "cpus", "mem_gb", "qos") == [
            ("p0", 0, 12537496, 1.0, "", 12.0, 16.0, "LS"),
            ("p1", 427061, 90, 0.46, "", 6.5, 12.0, "LS"),
            ("p2", 500000, 200, 8.0, "V100M16|V100M32", 88.0, 320.0, "BE"),
        ]
        assert trace.notes == (Note("the pod was never scheduled", 1, (5,), dropped=True),)


class TestGoogle2011:
    TASKS = (
        "600000000,,11,0,,0,uA,2,9,0.25,0.1,0.001,0",
        "600000000,,11,1,,0,uA,2,9,0.25,0.1,0.001,0",
        "610000000,,11,0,4,1,uA,2,9,0.25,0.1,0.001,0",
        "620000000,,11,1,5,1,uA,2,9,0.25,0.1,0.001,0",
        "700500000,,11,0,4,4,uA,2,9,0.25,0.1,0.001,0",
        "800000000,,11,1,5,4,uA,2,9,0.25,0.1,0.001,0",
        "900000000,,12,0,,0,uB,0,0,0.0625,0.1,0.001,0",
        "901000000,,12,0,6,1,uB,0,0,0.0625,0.1,0.001,0",
        "0,,13,0,6,0,uB,0,0,0.0625,0.1,0.001,0",
        "0,,13,0,6,1,uB,0,0,0.0625,0.1,0.001,0",
        "950000000,,13,0,6,5,uB,0,0,0.0625,0.1,0.001,0",
    )

    def test_jobs(self, tmp_path: Path) -> None:
        a_file(tmp_path / "g", "task_events/part-00000-of-00500.csv", *self.TASKS)
        a_file(tmp_path / "g", "job_events/part-00000-of-00500.csv", "599000000,,11,0,uA,2,hash,logical")
        trace = read_trace(tmp_path / "g", cpus_per_gpu=0.2)
        assert trace.meta["format"] == "google"
        # 0.5 of the largest machine at 0.2 a GPU: 2.5, rounded up to 3 GPUs; from 610 s to 800 s.
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "user", "priority", "job_name") == [
            ("11", 0, 190, 3.0, "uA", 9.0, "logical")
        ]
        assert trace.meta["time_origin"] == 599
        assert [(n.what.split(":")[0], n.rows) for n in trace.notes] == [
            ("submitted before the trace begins", 1),
            ("still running when the trace ends", 1),
        ]

    def test_the_mapping_must_be_declared(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="--cpus-per-gpu"):
            read_trace(a_file(tmp_path, "task_events.csv", *self.TASKS))

    def test_no_gpus_at_all(self, tmp_path: Path) -> None:
        trace = read_trace(a_file(tmp_path, "task_events.csv", *self.TASKS), cpus_per_gpu=0)
        assert jobs(trace, "job_id", "num_gpus") == [("11", 0.0)]

    def test_an_unreadable_event_is_counted(self, tmp_path: Path) -> None:
        path = a_file(tmp_path, "task_events.csv", *self.TASKS, "x,,11,0,4,1,uA,2,9,0.25,0.1,0.001,0", "1,2,3")
        assert Note("the event is unreadable", 2, (12, 13), dropped=True) in read_trace(path, cpus_per_gpu=1).notes


class TestGoogle2019:
    def test_json_lines(self, tmp_path: Path) -> None:
        def event(time: int, kind: object, **more: object) -> str:
            return json.dumps({"time": str(time), "type": kind, "collection_id": "5", **more})

        ask = {"resource_request": {"cpus": 0.5, "memory": 0.1}, "instance_index": "0", "priority": "200"}
        path = a_file(
            tmp_path,
            "instance_events.json",
            event(1_000_000, "SUBMIT", **ask),
            event(3_000_000, 3, **ask),
            event(9_000_000, "FINISH", **ask),
            event(9_000_000, 0, collection_type=1, instance_index="0"),
        )
        trace = read_trace(path, cpus_per_gpu=0.25)
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "status", "priority") == [
            ("5", 0, 6, 2.0, "COMPLETED", 200.0)
        ]

    def test_csv_with_a_header(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "events.csv",
            "time,type,collection_id,instance_index,resource_request",
            "1000000,SUBMIT,5,0,\"{'cpus': 0.5, 'memory': 0.1}\"",
            "3000000,SCHEDULE,5,0,\"{'cpus': 0.5, 'memory': 0.1}\"",
            "9000000,KILL,5,0,\"{'cpus': 0.5, 'memory': 0.1}\"",
        )
        assert jobs(read_trace(path, cpus_per_gpu=1), "run_time", "num_gpus", "status") == [(6, 1.0, "CANCELLED")]


class TestArrivals:
    def test_jobs(self, tmp_path: Path) -> None:
        path = a_file(tmp_path, "a.csv", "arrival_time,runtime,gpus,priority", "0.5,10.4,2,1", "100,20,8,")
        trace = read_trace(path)
        assert trace.meta["format"] == "arrivals"
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "priority") == [
            (1, 1, 10, 2.0, 1.0),
            (2, 100, 20, 8.0, None),
        ]

    def test_bad_rows(self, tmp_path: Path) -> None:
        rows = ("0,10,1,1", "1,10,1,1", "2,10,1,1", "3,-4,1,1", ",5,1,1")
        trace = read_trace(a_file(tmp_path, "a.csv", "arrival_time,runtime,gpus,priority", *rows))
        assert len(trace) == 3
        assert set(trace.notes) == {
            Note("runtime is negative", 1, (5,), dropped=True),
            Note("the submit time is unknown", 1, (6,), dropped=True),
        }
