"""Every example runs: the programs on small settings, the notebook as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import slurm_rl
from slurm_rl.kernel.imports import module_of
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.policy import outside
from slurm_rl.policy.catalogue import POLICIES
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import FORMATS

from .test_public_api import CLUSTER, some_jobs

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SMALL: dict[str, Any] = {"jobs": 40, "warm_up": 10, "train_share": 1.0}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples run in the repository's root, and what they add is gone after them."""
    for catalogue in (POLICIES, PLACEMENTS):
        monkeypatch.setattr(catalogue, "_rows", dict(catalogue._rows))
    monkeypatch.setattr(outside, "_registered", {})
    monkeypatch.chdir(ROOT)


def example(name: str) -> ModuleType:
    return module_of(str(EXAMPLES / f"{name}.py"))


def test_there_is_a_test_for_every_example() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    names = {p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".ipynb", ".sh")} - {"grow_digits.py"}
    assert [n for n in sorted(names) if n.removesuffix(".py") not in here] == []  # grow has tests of its own


@pytest.mark.parametrize("name", ["cleanrl_ppo", "maskable_ppo", "own_policy", "own_reward"])
def test_it_says_what_it_takes(name: str) -> None:
    said = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--help"], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout[:6]) == (0, "usage:"), said.stderr[-500:]


def test_own_heuristic() -> None:
    """The ten lines of `own_heuristic`, by the name that the guide gives it."""
    found = slurm_rl.replay(some_jobs(), CLUSTER, policies=[f"{EXAMPLES / 'own_heuristic.py'}:short_and_old@user"])
    assert found.labels == ["short-and-old@user"]
    lines = (EXAMPLES / "own_heuristic.py").read_text(encoding="utf-8").split("@slurm_rl")[1].split("if __name__")[0]
    assert len([line for line in lines.splitlines() if line.strip()]) <= 10


def test_own_policy() -> None:
    results = example("own_policy").main(window="0:0.01")
    assert results.labels == ["multifactor", "fair-short"]
    assert results.runs[0].placement == "fast-and-full"
    assert "exception" not in results.failures["fair-short"]["failures"]


def test_own_reward() -> None:
    rewards = example("own_reward").main(2, some_jobs(160), cluster=CLUSTER, **SMALL)
    assert len(rewards) == 2
    assert np.isfinite(rewards).all()


def test_maskable_ppo_to_a_policy_of_the_service(tmp_path: Path) -> None:
    from slurm_rl.controller.live_policy import load_policy
    from slurm_rl.controller.promote import Promotions
    from slurm_rl.decide import Guardrails

    options = SMALL | {"cluster": CLUSTER, "train_share": 0.6}
    found = example("maskable_ppo").main(1.0, 64, tmp_path, trace=some_jobs(200), window=8, windows=2, **options)
    table = found.table()
    name = f"onnx:{tmp_path / 'policy.onnx'}"
    assert table.index.tolist() == ["fcfs", name, "random", "sjf@user"]
    live = load_policy(name)
    assert not Promotions(tmp_path).permitted(live.spec)  # shadow until promoted
    simulation = slurm_rl.Simulation(some_jobs(), CLUSTER, "fcfs")
    while len(simulation.pending) < 12:  # more than the agent's window of 8
        simulation.step()
    plan = live.plan(simulation.engine.snapshot(), Guardrails(), {})
    assert not plan.reasons[0].fallback
    assert len(plan.order) >= 12
    again = slurm_rl.replay(some_jobs(), CLUSTER, policies=[name]).failures[name]
    assert "exception" not in again["failures"]


def test_cleanrl_ppo(capsys: pytest.CaptureFixture[str]) -> None:
    made = example("cleanrl_ppo")
    args = made.Args(
        some_jobs(160), CLUSTER, total_steps=128, num_envs=2, num_steps=64, window=8, jobs=40, windows=2, epochs=1
    )
    trained = made.train(args)
    assert "update 0" in capsys.readouterr().out
    scores = slurm_rl.from_torch(lambda jobs, pool, mask: trained(jobs, pool, mask)[0], 8)
    found = slurm_rl.replay(some_jobs(), CLUSTER, policies=[slurm_rl.policy("cleanrl")(scores)])
    assert "exception" not in found.failures["cleanrl"]["failures"], found.failures


def test_own_trace_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_rl.traces.read.FORMATS", dict(FORMATS))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    file = tmp_path / "site.txt"
    file.write_text("id;who;asked;came;ran\n1;ann;2;0;10\n2;bob;1;5;x\n3;bob;1;7;20\n", encoding="utf-8")
    import own_trace_format

    monkeypatch.setitem(FORMATS, "my-site", "own_trace_format")
    trace = slurm_rl.read_trace(file, format=None, cache=False)
    assert own_trace_format.sniff("id;who;asked;came;ran")
    assert trace.meta["format"] == "my-site"
    assert trace.run_time.tolist() == [10, 20]
    assert [str(n) for n in trace.notes] == ["1 row: ran is not a number (lines 3)"]


def test_compare_on_sacct(tmp_path: Path) -> None:
    rows = [
        "JobID|User|Account|Partition|Submit|Start|End|Elapsed|Timelimit|State|NNodes|NCPUS|ReqMem|ReqTRES|QOS|JobName"
    ]
    for i in range(40):
        at = f"2026-01-05T10:{i:02}:00"
        rows.append(
            f"{i + 1}|u{i % 3}|lab|gpu|{at}|{at}|2026-01-05T11:{i:02}:00|00:30:00|01:00:00|COMPLETED|1|8|16G|"
            "cpu=8,gres/gpu=4,mem=16G,node=1|normal|train"
        )
    export, cluster = tmp_path / "jobs.txt", tmp_path / "c.json"
    export.write_text("\n".join(rows) + "\n", encoding="utf-8")
    cluster.write_text('[{"count": 2, "gpu_type": "A100", "gpus": 8, "partition": "gpu"}]', encoding="utf-8")
    results = example("compare_on_sacct").main(export, cluster, tmp_path / "out.html")
    assert results.labels == ["multifactor", "sjf@user", "rl:default"]
    assert (tmp_path / "out.html").is_file()


def test_retrain_for_site_sh(tmp_path: Path) -> None:
    """The script itself, with the smallest training that there is."""
    write_native(some_jobs(300), tmp_path / "t.csv")
    (tmp_path / "t.cluster.json").write_text('[{"count": 2, "gpu_type": "A100", "gpus": 4}]', encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    small = "--iterations 0 --lessons 0 --generations 1 --scenes 1 --jobs 100".split()
    said = subprocess.run(
        [str(EXAMPLES / "retrain_for_site.sh"), str(tmp_path / "t.csv"), str(tmp_path / "run"), *small],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "rl:" in said.stdout
    assert "multifactor" in said.stdout


def test_replay_ipynb_runs_and_was_committed_with_its_output() -> None:
    import nbformat

    notebook = nbformat.read(EXAMPLES / "replay.ipynb", as_version=4)
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    assert all(c.execution_count for c in cells)
    assert "data:image/svg+xml" in "".join(cells[0].outputs[0]["data"]["text/html"])
    # As nbclient would, but in this process: a kernel of its own would compile everything again.
    scope: dict[str, Any] = {}
    os.chdir(EXAMPLES)
    for cell in cells:
        exec(compile(cell.source, "replay.ipynb", "exec"), scope)
    assert scope["results"].labels == ["multifactor", "fcfs", "sjf@user", "rl:default"]
    shown = "".join(cells[1].outputs[0]["data"]["text/plain"])
    again = scope["results"].table("mean_wait", "p99_wait", "mean_bsld", "user_bsld").round(1)
    assert f"{again.loc['sjf@user', 'mean_wait']}" in shown  # the committed output is that of this code
