"""Newer published traces: each on a small file written here, with the exact jobs it must give."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builders import a_file, jobs

from slurm_rl.errors import InputError
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.nodelists import read_nodes
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Note
from slurm_rl_sim.replay import Contender, prepare, replay


class TestAcme:
    SEREN = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time"
    KALOS = (
        "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
        "end_time,fail_time,stop_time,duration,queue,gpu_time"
    )

    def test_seren(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "trace_seren.csv",
            self.SEREN,
            "5,u1,2,16,32,Pretrain,COMPLETED,2023-03-01 08:00:00+08:00,2023-03-01 08:00:10+08:00,"
            "2023-03-01 08:01:10+08:00,60.0,10.0,960.0",
            "6,u2,1,1,4,Evaluation,FAILED,2023-03-01 00:00:20+00:00,2023-03-01 00:00:20+00:00,"
            "2023-03-01 00:00:25+00:00,,0.0,5.0",
            "7,u2,1,1,4,Evaluation,CANCELLED,2023-03-01 00:00:30+00:00,,2023-03-01 00:00:31+00:00,,1.0,0.0",
        )
        trace = read_trace(path)
        assert trace.meta["format"] == "acme"
        assert trace.meta["time_origin"] == 1677628800  # 2023-03-01 00:00 UTC: the zones are told apart
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "num_nodes", "cpus", "mem_gb") == [
            (5, 0, 60, 16.0, 2, 32.0, None),
            (6, 20, 5, 1.0, 1, 4.0, None),
        ]
        assert jobs(trace, "user", "job_name", "status") == [
            ("u1", "Pretrain", "COMPLETED"),
            ("u2", "Evaluation", "FAILED"),
        ]
        assert trace.notes == (Note("the job never started", 1, (4,), dropped=True),)

    def test_kalos_ends_by_a_stop_or_a_failure(self, tmp_path: Path) -> None:
        def row(job: int, ends: str) -> str:
            times = f"2023-08-01 00:00:0{job}+08:00,2023-08-01 00:01:00+08:00"
            return f"{job},u,4,32,64,500,100,Pretrain,FAILED,{times},{ends},,60,0"

        at = "2023-08-01 00:02:{:02}+08:00"
        path = a_file(
            tmp_path,
            "trace_kalos.csv",
            self.KALOS,
            row(1, f"{at.format(0)},,"),
            row(2, f",{at.format(10)},"),
            row(3, f",,{at.format(20)}"),
        )
        trace = read_trace(path)
        assert jobs(trace, "submit_time", "run_time", "num_gpus", "num_nodes", "mem_gb") == [
            (0, 60, 32.0, 4, 2000.0),
            (1, 70, 32.0, 4, 2000.0),
            (2, 80, 32.0, 4, 2000.0),
        ]

    def test_a_missing_column_is_named(self, tmp_path: Path) -> None:
        path = a_file(tmp_path, "trace_seren.csv", "job_id,node_num,gpu_time", "1,1,1")
        with pytest.raises(InputError, match="lacks the column 'submit_time'"):
            read_trace(path, format="acme")


class TestSpot:
    HEADER = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"

    def write(self, tmp_path: Path) -> Path:
        return a_file(
            tmp_path,
            "job_info_df.csv",
            self.HEADER,
            "job_a,org1,A100,8,4,2,0,100,Spot",
            "job_b,org2,A100,16,8,1,10,50,HP",
            "job_c,org2,,1,0.5,1,20,5,Spot",
            "job_d,org3,A100,8,1,1,400,5,other",
        )

    def test_jobs(self, tmp_path: Path) -> None:
        trace = read_trace(self.write(tmp_path))
        assert trace.meta["format"] == "alibaba-spot"
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "num_nodes", "cpus") == [
            ("job_a", 0, 100, 8.0, 2, 16.0),
            ("job_b", 10, 50, 8.0, 1, 16.0),
            ("job_c", 20, 5, 0.5, 0, 1.0),
            ("job_d", 400, 5, 1.0, 1, 8.0),
        ]
        assert jobs(trace, "gpu_type", "user", "qos", "priority") == [
            ("A100", "org1", "Spot", 0.0),
            ("A100", "org2", "HP", 1.0),
            ("", "org2", "Spot", 0.0),
            ("A100", "org3", "HP", 1.0),
        ]
        assert trace.notes == (Note("job_type is neither HP nor Spot: taken as HP", 1, (5,)),)

    def test_its_nodes_and_preempted_spot_jobs(self, tmp_path: Path) -> None:
        nodes = a_file(
            tmp_path, "node_info_df.csv", "node_name,gpu_model,gpu_capacity_num,cpu_num", "n1,A100,8,64", "n2,A100,8,64"
        )
        cluster = read_nodes(nodes)
        assert [(c.count, c.gpu_type, c.gpus, c.cpus) for c in cluster.classes] == [(2, "A100", 8, 64)]
        one = a_file(tmp_path, "one/node_info_df.csv", "node_name,gpu_model,gpu_capacity_num,cpu_num", "n1,A100,8,64")
        # On one node job_a's two workers cannot be apart: give it one worker of all 8 GPUs.
        path = a_file(
            tmp_path,
            "small/job_info_df.csv",
            self.HEADER,
            "job_a,org1,A100,8,8,1,0,100,Spot",
            "job_b,org2,A100,16,8,1,10,50,HP",
            "job_c,org2,A100,16,8,1,20,5,Spot",
        )
        prepared = prepare(read_trace(path), read_nodes(one))
        contender = Contender(parse_policy("static-priority"), "easy")
        (calm,) = replay(prepared, [contender])
        (spot,) = replay(prepared, [contender], preempt=True)
        assert calm.result.start.tolist() == [0, 100, 150]
        assert spot.result.requeued == 1
        assert spot.result.start.tolist()[1] == 10  # the HP job takes the Spot job's GPUs
        assert spot.result.end.tolist()[0] == 150  # whose ten seconds are kept

    def test_a_directory(self, tmp_path: Path) -> None:
        self.write(tmp_path / "v2026")
        a_file(tmp_path, "v2026/node_info_df.csv", "node_name,gpu_model,gpu_capacity_num,cpu_num", "n1,A100,8,64")
        assert len(read_trace(tmp_path / "v2026")) == 4


class TestSupercloud:
    # The columns that the dataset's own introductory notebook prints.
    HEADER = (
        "id_job,id_array_job,id_array_task,id_user,kill_requid,nodes_alloc,nodelist,cpus_req,derived_ec,exit_code,"
        "gres_used,array_max_tasks,array_task_pending,constraints,flags,mem_req,partition,priority,state,timelimit,"
        "time_submit,time_eligible,time_start,time_end,time_suspended,track_steps,tres_alloc,tres_req,job_type"
    )

    def row(self, job: int, gres: str, state: int, limit: int, times: str, tres: str) -> str:
        return (
            f"{job},0,4294967294,77,-1,2,\"['n1', 'n2']\",40,0,0,{gres},0,0,,,8500,normal,99,{state},{limit},{times},"
            f'0,0,"","{tres}",other'
        )

    def test_jobs(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "slurm-log.csv",
            self.HEADER,
            self.row(1, "gpu:volta:2", 3, 1440, "1000,1000,1100,1400", "1=40,2=170000,4=2,5=40,1001=4,1002=4"),
            self.row(2, "", 6, 4294967295, "1010,1010,1010,1015", "1=40,2=4000,4=2"),
            self.row(3, "gpu:volta:2", 5, 60, "1020,1020,1030,1031", ""),
            self.row(4, "", 4, 60, "1030,1030,0,1031", ""),
            self.row(82691694838059, "", 3, 60, "1040,1040,1050,1051", "1=20,2=85000,4=1,5=20,1002=1"),
        )
        trace = read_trace(path)
        assert trace.meta["format"] == "supercloud"
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "num_nodes", "cpus") == [
            (1, 0, 300, 86400, 4.0, 2, 40.0),
            (2, 10, 5, -1, 0.0, 2, 40.0),
            (3, 20, 1, 3600, 4.0, 2, 40.0),
            (82691694838059, 40, 1, 3600, 1.0, 2, 40.0),
        ]
        assert jobs(trace, "gpu_type", "user", "partition", "status", "job_name") == [
            ("V100", "77", "normal", "COMPLETED", "other"),
            ("", "77", "normal", "TIMEOUT", "other"),
            ("V100", "77", "normal", "FAILED", "other"),
            ("V100", "77", "normal", "COMPLETED", "other"),
        ]
        assert jobs(trace, "mem_gb") == [(170000 / 1024,), (4000 / 1024,), (None,), (85000 / 1024,)]
        assert trace.notes == (Note("the job never started", 1, (5,), dropped=True),)


def test_every_format_is_in_the_guide() -> None:
    from slurm_rl.traces.read import FORMATS

    guide = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")
    assert [name for name in FORMATS if f"| `{name}` |" not in guide] == []
