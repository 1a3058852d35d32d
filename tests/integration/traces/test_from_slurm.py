"""A real Slurm's history as a trace: plain, array and heterogeneous jobs; three ways lead to the same."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_rl.cli.app import main
from slurm_rl.domain.cluster import read_cluster
from slurm_rl.lab.lab import Lab
from slurm_rl.traces.read import read_trace

pytestmark = [pytest.mark.slurm, pytest.mark.releases]

FIELDS = ("job_id", "run_time", "time_limit", "num_gpus", "num_nodes", "cpus", "mem_gb")


def sbatch(lab: Lab, *options: str, seconds: float = 1) -> int:
    words = ("sbatch", "--parsable", "--output=/dev/null", "--mem=100", "--time=10", *options)
    return int(lab.run(*words, f"--wrap=exec sleep {seconds}").strip().partition(";")[0])


def rows(path: Path, ids: set[int]) -> dict[int, tuple[object, ...]]:
    trace = read_trace(path, cache=False)
    columns = [getattr(trace, f).tolist() for f in FIELDS] + [trace.gpu_type.strings(), trace.status.strings()]
    return {r[0]: r[1:] for r in zip(*columns, strict=True) if r[0] in ids}


def test_from_slurm(slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 2))
    one = sbatch(slurm, "--gres=gpu:a100:2", "--job-name=one")
    array = sbatch(slurm, "--gres=gpu:1", "--array=1-2")
    het = int(
        slurm.run(
            *"sbatch --parsable --output=/dev/null --time=5 --mem=100 --gres=gpu:a100:1".split(),
            *": --mem=200 -N2 --gres=gpu:t4:1".split(),
            "--wrap=exec sleep 1",
        )
    )
    held = sbatch(slurm, "--hold")
    slurm.run("scancel", str(held))
    deadline = time.monotonic() + 60
    while slurm.run("squeue", "-h", "-o", "%i").strip() or one_unfinished(slurm, one, array, het):
        assert time.monotonic() < deadline, "jobs do not end"
        time.sleep(0.3)

    out, cluster = tmp_path / "site.csv", tmp_path / "site.json"
    words = [
        "traces",
        "from-slurm",
        "--out",
        out,
        "--cluster-out",
        cluster,
        "--since",
        began,
        "--conf",
        slurm.slurm_conf,
    ]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--anonymise", "--keys", "name,workdir,array", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, said
    tasks = {int(i) for i in slurm.run("sacct", "-X", "-n", "-P", "-j", str(array), "-o", "JobIDRaw").split()}
    assert len(tasks) == 2
    ids = {one, het, held, *tasks}
    pulled = rows(out, ids)
    assert set(pulled) == ids - {held}  # it never started
    assert pulled[one][1:] == (600, 2.0, 1, 1.0, 100 / 1024, "a100", "COMPLETED")
    assert pulled[het][1:] == (300, 3.0, 3, 3.0, 500 / 1024, "", "COMPLETED")
    for task in tasks:
        assert pulled[task][1:4] == (600, 1.0, 1)
    assert all(0 <= pulled[i][0] <= 5 for i in pulled)
    assert "root" not in out.read_text()
    told = read_trace(out, cache=False)
    keys = {name: dict(zip(told.job_id.tolist(), labels.strings(), strict=True)) for name, labels in told.keys.items()}
    assert list(keys) == ["stem", "workdir", "array"]
    assert len({keys["workdir"][i] for i in pulled}) == 1  # all were submitted from here
    assert str(Path.cwd()) not in out.read_text()
    assert len({keys["array"][task] for task in tasks}) == 1
    assert all(keys["array"][task] for task in tasks)
    assert not keys["array"][one]
    assert sum(c.count * c.gpus for c in read_cluster(cluster).classes) == read_cluster(cluster).gpus > 0

    for name, export in (("sacct.txt", ("-P", "-o", "ALL")), ("sacct.json", ("--json",))):
        (tmp_path / name).write_text(slurm.run("sacct", "-a", "-D", "-S", began, *export, timeout=60))
        assert rows(tmp_path / name, ids) == pulled, name


def one_unfinished(lab: Lab, *ids: int) -> bool:
    """Whether accounting has yet to hear of an end."""
    states = lab.run("sacct", "-X", "-n", "-P", "-j", ",".join(map(str, ids)), "-o", "State").split()
    return len(states) < 5 or any(s in ("RUNNING", "PENDING", "COMPLETING") for s in states)
