"""`slurm-rl replay --sweep`: every combination once, from one parsed trace; a stopped sweep goes on; bad keys told."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slurm_rl.bench import sweep, sweep_tables
from slurm_rl.bench.rows import ROWS
from slurm_rl.bench.running import run_units
from slurm_rl.bench.sweep_file import combinations, read_sweep
from slurm_rl.cli import main
from slurm_rl.errors import InputError
from slurm_rl.traces.cache import map_packed, write_packed
from slurm_rl.traces.read import read_trace
from slurm_rl_sim.replay import find_cluster, parse_contenders, prepare, replay, window_of

TRACE = Path(__file__).parents[3] / "traces" / "real01.csv"
SMALL = f"""
trace = "{TRACE}"
policies = ["multifactor", "sjf@user", "fcfs+firstfit"]
influences = [0.5, 1]
seeds = [0, 1]
windows = ["0:0.5", ":"]
"""


def test_the_example_is_a_sweep() -> None:
    settings = read_sweep(TRACE.parents[1] / "examples" / "sweep.toml")
    assert Path(settings["trace"]).is_file()
    assert len(combinations(settings)) == 72


def a_file(folder: Path, text: str) -> Path:
    file = folder / "s.toml"
    file.write_text(text)
    return file


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, object]]:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("replay", *words)), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def test_every_combination_once(tmp_path: Path) -> None:
    text = """trace = "t.csv"\npolicies = ["fcfs", "fcfs+firstfit"]\nbackfills = ["easy", "slurm"]\nseeds = [3, 4]\n"""
    settings = read_sweep(a_file(tmp_path, text))
    assert settings["trace"] == str(tmp_path / "t.csv"), "paths are relative to the file"
    found = [tuple(u.what.values()) for u in combinations(settings)]
    # A policy with a rule of its own runs under that alone; a rule brings its placement; a seed's runs stay together.
    ways = [("fcfs", "easy", "best-fit", 1.0), ("fcfs", "slurm", "slurm", 1.0), ("fcfs", "firstfit", "best-fit", 1.0)]
    assert found == [(*way, seed, ":") for seed in (3, 4) for way in ways]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polices = 1", "s.toml: unknown key 'polices' (did you mean 'policies'?)"),
        ("trace = 't'", 's.toml: names no policies (add policies = ["fcfs", …])'),
        ("policies = 'fcfs'", 's.toml: names no trace (add trace = "FILE", or give TRACE)'),
        ("policies = []", "s.toml: policies: must name at least one"),
        ("policies = ['fcsf']", "s.toml: policies: unknown policy 'fcsf' (did you mean 'fcfs'?)"),
        ("policies = ['auto']", "s.toml: policies: a sweep cannot take the policy auto"),
        ("policies = ['fcfs']\nbackfills = ['eazy']", "(did you mean 'easy'?)"),
        ("policies = ['fcfs']\nplacements = ['bestfit']", "(did you mean 'best-fit'?)"),
        ("policies = ['fcfs']\ninfluences = [1.5]", "s.toml: influences: must be within 0 and 1, got 1.5"),
        ("policies = ['fcfs']\nseeds = [0.5]", "s.toml: seeds: must be whole numbers, got 0.5"),
        ("policies = ['fcfs']\nwindows = ['1:0']", "s.toml: windows: must be A:B with 0 ≤ A < B, got '1:0'"),
        ("policies = ['fcfs']\nweights = {agee = 1}", "(did you mean 'age'?)"),
        ("policies = ['fcfs']\nslurm_options = ['bf_interval=60']", 'add "slurm" to backfills'),
        ("policies = [", "s.toml: cannot be read: "),
    ],
)
def test_what_is_wrong_is_said_once_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    trace = "" if "no trace" in said or "trace" in text else 'trace = "t"\n'
    with pytest.raises(InputError) as told:
        read_sweep(a_file(tmp_path, trace + text))
    assert said in str(told.value)


def test_a_mapped_trace_is_the_trace_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    trace, file = read_trace(TRACE, cache=False), tmp_path / "t"
    write_packed(file, trace)
    found = map_packed(file)
    assert found.user.strings() == trace.user.strings()
    np.testing.assert_array_equal(found.submit_time, trace.submit_time)
    base: object = found.submit_time
    while isinstance(base, np.ndarray):
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    assert isinstance(owner, mmap.mmap), "processes share the pages"
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(ValueError, match="not whole"):
        map_packed(file)


def test_a_sweep_is_its_replays_and_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = a_file(tmp_path, SMALL), tmp_path / "out"
    code, said = call(capsys, "--sweep", file, "--out", out, "--workers", 1)
    assert code == 0, said
    table = pd.read_parquet(out / "runs.parquet")
    assert len(table) == 3 * 2 * 2 * 2
    assert json.loads((out / "bench.json").read_text())["settings"]["sha256"]
    assert not (out / sweep.SHARED).exists(), "the parsed trace is taken away"
    page = (out / "report.html").read_text()
    assert "By policy" in page
    assert "By influence" in page
    assert "<script>" in page

    # A row is what `replay` gives for the same settings, the clock excepted.
    jobs = read_trace(TRACE)
    prepared = prepare(jobs, find_cluster(jobs, TRACE, None), window=window_of(jobs, "0:0.5"), seed=1)
    alone = replay(prepared, parse_contenders("sjf@user", "easy"), influence=0.5)[0]
    picked = table.query("policy == 'sjf@user' and influence == 0.5 and seed == 1 and window == '0:0.5'")
    assert len(picked) == 1
    for name, value in alone.metrics.items():
        if value is not None and not name.endswith("_us"):
            assert picked[name].item() == pytest.approx(value), name

    # What a killed sweep lacks is run, and nothing else.
    lines = (out / ROWS).read_bytes().splitlines(keepends=True)
    (out / ROWS).write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    assert call(capsys, "--sweep", file, "--out", out, "--workers", 1)[0] == 0
    again = (out / ROWS).read_bytes().splitlines(keepends=True)
    assert again[: len(lines) - 2] == lines[:-2]
    assert len(again) == len(lines) + 1, "the torn line stays, closed"
    clock = ["wall_seconds", "jobs_per_second", "peak_rss_mb", "decision_p50_us", "decision_p99_us"]
    pd.testing.assert_frame_equal(pd.read_parquet(out / "runs.parquet").drop(columns=clock), table.drop(columns=clock))

    code, said = call(capsys, "--sweep", a_file(tmp_path, SMALL + "starvation = 'none'"), "--out", out)
    assert (code, "holds a sweep with another starvation" in str(said["error"])) == (2, True)


def test_processes_read_the_shared_trace_and_no_other(tmp_path: Path) -> None:
    text = f'trace = "{TRACE}"\ncluster = "{TRACE.with_suffix(".cluster.json")}"\npolicies = ["fcfs"]\nseeds = [0, 1]\n'
    out = tmp_path / "out"
    out.mkdir()
    settings, jobs = sweep.parse(read_sweep(a_file(tmp_path, text)), out)
    gone = settings | {"trace": str(tmp_path / "gone.csv")}
    with sweep.shared(jobs, out):
        run_units(sweep.SUITE, gone, out, workers=2, part=None, told=lambda done, count: None)
    assert len((out / ROWS).read_text().splitlines()) == 2
    assert not (out / sweep.SHARED).exists()


def test_options_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path, SMALL)
    for words, message in (
        (("--sweep", file, "--policy", "fcfs"), "--policy: does not go with --sweep"),
        ((TRACE, "--executor", "slurm"), "--executor: needs --sweep FILE.toml"),
        (("--sweep", file, "--part", "1/2", "--out", tmp_path / "none"), "holds no sweep of this file"),
        (("--sweep", file, "--executor", "sulrm"), "did you mean 'slurm'"),
        ((), "TRACE: names no trace"),
    ):
        code, said = call(capsys, *words)
        assert (code, message in str(said["error"])) == (2, True), said


def a_run(policy: str, influence: float, seed: int, wait: float, bsld: float) -> dict[str, object]:
    same = {"backfill": "easy", "placement": "best-fit", "window": ":", "utilization": 0.5, "jobs_per_second": 1.0}
    waits = {"mean_wait": wait, "p99_wait": wait, "max_wait": wait, "mean_bsld": bsld, "geomean_bsld": bsld}
    return {"policy": policy, "influence": influence, "seed": seed} | same | waits


def test_tables_by_hand() -> None:
    rows = [a_run("fcfs", i, s, 99.0, 4.0) for i in (0.5, 1.0) for s in (0, 1)]
    rows += [a_run("multifactor", i, s, 49.0, 2.0) for i in (0.5, 1.0) for s in (0, 1)]
    rows += [a_run("sjf@oracle", 1.0, s, 0.0, 1.0) for s in (0, 1)]
    found = sweep_tables.find(rows, {"name": "t"})
    assert found.figures["baseline"]["policy"] == "multifactor"
    ratios = {(r["policy"], r["influence"]): r for r in found.figures["compared"]}
    assert ratios["fcfs", 1.0]["mean_wait"] == [2.0, 2.0, 2.0]
    assert ratios["fcfs", 0.5]["mean_bsld"] == [2.0, 2.0, 2.0]
    assert "Smallest mean wait: multifactor 0.5" in found.summary[1], "what nobody can reach wins nothing"
    by_policy = next(t for t in found.tables if t.title == "By policy")
    assert [(r[0], r[1], r[2][:4]) for r in by_policy.rows] == [
        ("fcfs", "4", "1.00"), ("multifactor", "4", "0.50"), ("sjf@oracle", "2", "0.01")
    ]  # fmt: skip
    gaps = [r["oracle_gap"] for r in sweep_tables.with_oracle_gap(rows)]
    assert gaps == [None, None, 3.0, 3.0, None, None, 1.0, 1.0, 0.0, 0.0]
