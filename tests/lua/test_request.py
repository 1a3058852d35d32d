"""What the shim tells the service about a job: what the user asked for, never the script or the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .shim import answers, http, install, run, serving

# The job as job_submit/lua shows it, and the request it becomes.
SHAPES = {
    "nothing given": ("{}", {"user_id": 1000, "name": "train"}),
    "everything given": (
        """{ user_id = 7, account = "phys", partition = "gpu,cpu", qos = "high", time_limit = 90, min_nodes = 2,
             max_nodes = 4, num_tasks = 8, cpus_per_task = 6, min_cpus = 48, min_mem_per_node = 524288,
             tres_per_node = "gres:gpu:a100:4", features = "ib", prefer = "nvme", array_inx = "0-9%2",
             name = "a", nice = 2147483648 - 100, default_account = "other", default_qos = "low",
             comment = "mine, slurm-rl:off" }""",
        {
            "user_id": 7,
            "account": "phys",
            "partition": "gpu,cpu",
            "qos": "high",
            "time_limit_min": 90,
            "min_nodes": 2,
            "max_nodes": 4,
            "num_tasks": 8,
            "cpus_per_task": 6,
            "min_cpus": 48,
            "mem_per_node_mb": 524288,
            "gpus": 8,
            "gpu_type": "a100",
            "tres_per_node": "gres:gpu:a100:4",
            "features": "ib",
            "prefer": "nvme",
            "array": "0-9%2",
            "name": "a",
            "nice": -100,
            "comment": "mine, slurm-rl:off",
        },
    ),
    "infinite values are no values": (
        "{ time_limit = 4294967295, cpus_per_task = 65535, min_mem_per_cpu = 2^64 }",
        {"user_id": 1000, "name": "train"},
    ),
    "what Slurm will fill in": (
        '{ default_account = "phys", default_qos = "normal", begin_time = 1000, comment = "a secret of mine" }',
        {"user_id": 1000, "default_account": "phys", "default_qos": "normal", "name": "train"},
    ),
    "an odd name is still JSON": (
        r'{ name = "q\"\\\n\0\127\233" }',
        {"user_id": 1000, "name": 'q"\\\n\0\x7f\xe9'},
    ),
    "an endless field is left out": ('{ name = ("x"):rep(2000) }', {"user_id": 1000}),
}

# tres strings of several Slurm releases, and the GPUs they mean.
GPUS = {
    '{ tres_per_job = "gres:gpu:4", min_nodes = 2 }': (4, None),
    '{ tres_per_job = "gres/gpu:v100=3" }': (3, "v100"),
    '{ tres_per_node = "gres/gpu:2", min_nodes = 3 }': (6, None),
    '{ tres_per_node = "gres:gpu" }': (1, None),
    '{ tres_per_node = "gres:gpu:t4" }': (1, "t4"),
    '{ tres_per_node = "gres:gpu:a100:1,gres:gpu:t4:2" }': (3, None),
    '{ tres_per_node = "gres:gpu:a100:1,gres:gpu:2" }': (3, None),
    '{ tres_per_node = "gres:gpumem:4,license:matlab:2" }': (None, None),
    '{ tres_per_task = "gres:gpu:1", num_tasks = 5 }': (5, None),
    '{ tres_per_socket = "gres:gpu:2", sockets_per_node = 2, min_nodes = 2 }': (8, None),
}


def request_for(lua: str, where: Path, job: str, **settings: object) -> dict[str, object]:
    directory = install(where / "etc", service=where / "s", **settings)
    with serving(where / "s", answers(http(b"{}"))) as requests:
        run(lua, directory, f"load_shim() slurm_job_submit(a_job({job}), {{}}, 0)")
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/submit HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    assert b"Connection: close" in head
    assert b"SECRET" not in body
    value: dict[str, object] = json.loads(body)
    return value


@pytest.mark.parametrize("shape", SHAPES)
def test_the_request_says_what_the_user_asked_for(lua: str, short_dir: Path, shape: str) -> None:
    job, expected = SHAPES[shape]
    assert request_for(lua, short_dir, job) == expected


@pytest.mark.parametrize("job", GPUS)
def test_gpus_are_counted_in_every_spelling(short_dir: Path, job: str) -> None:
    request = request_for("lua5.1", short_dir, job)
    assert (request.get("gpus"), request.get("gpu_type")) == GPUS[job]


def test_the_user_name_is_sent_only_where_the_site_wants_it(lua: str, short_dir: Path) -> None:
    job = '{ user_name = "ada" }'
    assert "user_name" not in request_for(lua, short_dir, job)
    assert request_for(lua, short_dir, job, send_user_name=True)["user_name"] == "ada"


@pytest.mark.parametrize(
    "fields",
    [
        "priority = 0",
        "priority = 77",
        "het_job_offset = 0",
        "het_job_offset = 1",
        "cron_job = true",
        "begin_time = os.time() + 3600",
        'dependency = "afterok:7"',
        'dependency = ("afterok:7,"):rep(1000)',
        'reservation = "maintenance"',
    ],
)
def test_a_job_that_ticks_leave_alone_is_not_asked_about(lua: str, short_dir: Path, fields: str) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s")
    scenario = """load_shim() local job, stored = a_job({ %s }) local before = dump(stored)
    print(slurm_job_submit(job, {}, 0), dump(stored) == before)"""
    with serving(short_dir / "s", answers(http(b'{"site_factor": 777}'))) as requests:
        assert run(lua, directory, scenario % fields) == ["0\ttrue"]
    assert requests == []


def test_a_job_too_large_to_describe_is_not_asked_about(lua: str, short_dir: Path) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s")
    fields = ("account", "partition", "qos", "features", "prefer", "array_inx", "name")
    job = ", ".join(f'{field} = ("\\233"):rep(1024)' for field in fields)  # each byte becomes six
    with serving(short_dir / "s", answers(http(b"{}"))) as requests:
        out = run(lua, directory, f"load_shim() print(slurm_job_submit(a_job({{ {job} }}), {{}}, 0))")
    assert out == ["0"]
    assert requests == []
