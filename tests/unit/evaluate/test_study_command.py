"""`slurm-rl study`: the commands of the guides run, and what is missing is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.cli import main
from slurm_rl.studies import policy
from slurm_rl.studies.catalogue import STUDIES

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def folder_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command tells its processes of the folder by a variable: it is gone after a test."""
    monkeypatch.setenv("SLURM_RL_TRACES", "")
    monkeypatch.delenv("SLURM_RL_TRACES")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["study", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_it_lists_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "pwa_ricc_2010.csv.gz").touch()
    code, out, _ = run(capsys, "list", "--traces", str(tmp_path), "--json")
    rows = {row["name"]: row["missing"] for row in json.loads(out)}
    assert code == 0
    assert rows["stretches"] == []
    assert rows["styles"] == []
    assert "microsoft_itp_2021.csv.gz" in rows["development"]
    code, _, err = run(capsys, "table-easy", "--traces", str(tmp_path))
    assert code == 2
    assert "helios_venus_sept2020.csv.gz" in err
    assert run(capsys, "tabel-easy")[2].count("did you mean 'table-easy'") == 1


def test_picks_in_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "windows", "4", "64")
    assert code == 0
    rows = {line[:24].strip(): line[24:].split() for line in out.splitlines()[2:]}
    assert {float(x.strip("[],")) for x in rows["FCFS"]} == {0.0}  # the environment's first slot is FCFS
    assert float(rows["random"][0]) != 0.0
    assert len(rows) == 8


def test_all_goes_on_past_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slurm_rl.studies import decision, placement, standing, telemetry, topology, windows

    asked: list[tuple[str, ...]] = []
    # The tables themselves take minutes to hours.
    for module in (policy, placement, decision, standing, telemetry, topology, windows):
        monkeypatch.setattr(module, "main", lambda *given: (asked.append(given), print("a table")))
    code, out, err = run(capsys, "all", "--traces", str(tmp_path), "--out", str(tmp_path / "paper"), "--json")
    assert code == 0
    asked_first = [("machines", "easy", "3"), ("styles", "easy", "8"), ("160",)]
    on_slices = [("8", "sjf-age@user", "slices"), ("weights", "8", "slices")]
    assert asked == [*asked_first, ("weights", "2"), *on_slices, ("orders",), ("8",), ("11",), ()]
    assert (tmp_path / "paper" / "styles.txt").read_text(encoding="utf-8") == "a table\n"
    assert "table-easy: missing: helios_venus_sept2020.csv.gz" in err
    assert {r["name"] for r in json.loads(out)} == set(STUDIES)
    times = (tmp_path / "paper" / "times.csv").read_text(encoding="utf-8")
    assert times.count("\n") == 1 + len(STUDIES)
    assert times.startswith("study,seconds,cpu_seconds,problem\n")
    assert re.search(r"^styles,\d+\.\d,\d+\.\d,$", times, re.MULTILINE)


def test_quick_takes_the_short_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(policy, "main", lambda *given: asked.append(given))
    assert run(capsys, "styles", "--quick")[0] == 0
    assert asked == [("styles", "easy", "1")]


def test_orders_of_gpu_types_are_tried_on_the_requests_of_a_replay() -> None:
    from slurm_rl.studies.placement import _ordered, load
    from slurm_rl_sim.replay import prepare
    from tests.unit.test_decide import CLUSTER, a_workload

    prepared = prepare(a_workload(3, jobs=120), CLUSTER)
    as_it_is = _ordered(prepared, None, fastest_last=False)
    assert as_it_is > 0
    assert _ordered(prepared, (1, 99), fastest_last=True) != as_it_is
    assert 0.0 < load(prepared) < 20.0


def test_the_standing_table_has_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    from slurm_rl.studies import standing

    trace, cluster, _ = policy.workload("hetero")
    part = trace.take(np.arange(600))
    logs = standing.table(iter([("part", part, cluster, "0.5:1")]), "easy", 1, tune=False)
    assert set(logs) == {standing.FITTED, standing.LANE, standing.KEPT, standing.AUTO, *standing.HEURISTICS}
    said = capsys.readouterr().out
    assert "auto to the best heuristic of each: BSLD" in said
    assert said.count("users ") == 2 * len(logs), "each row of the workload, and each of the means"


def test_the_hidden_layers_are_taken_apart(capsys: pytest.CaptureFixture[str]) -> None:
    from slurm_rl.policy.checkpoint import find_model, load_model
    from slurm_rl.policy.registry import learned
    from slurm_rl.studies import hidden
    from slurm_rl_sim.replay import prepare

    model = load_model(find_model("default"))
    trace, cluster, _ = policy.workload("hetero")
    prepared = prepare(trace.take(np.arange(400)), cluster)
    nets = dict(list(hidden.variants(model).items())[:3])
    rows = hidden.worth(nets, learned(model), [prepared], "easy")
    assert set(rows["as trained"].values()) == {0.0}
    assert any(rows["no hidden layers"].values())
    shares = hidden.far(model, learned(model), prepared, "easy")
    assert all(0.0 <= part <= 1.0 for part, _ in shares.values())
    assert shares["on_gpu"][0] == 0.0, "training has seen jobs with and without GPUs"


def test_a_figure_that_tells_run_times_corrects_the_estimate_by_as_much_as_it_tells() -> None:
    from types import SimpleNamespace

    from slurm_rl.studies.telemetry import ShortestFirst

    queue = SimpleNamespace(estimate=np.array([100.0, 100.0]), jobs=np.array([0, 1]))
    run = np.log([50.0, 200.0])
    nothing, all_of_it = (ShortestFirst(run, np.array([0.5, -0.5]), r) for r in (0.0, 1.0))
    assert nothing(queue) == pytest.approx(-np.log([100.0, 100.0]))
    assert all_of_it(queue) == pytest.approx(-run)
    assert nothing.errors == pytest.approx({0: np.log(0.5), 1: np.log(2.0)})
    noise = ShortestFirst(run, np.array([0.5, -0.5]), 0.6, tells=False)
    assert noise(queue) == pytest.approx(-(np.log(100.0) + 0.6 * np.array([0.5, -0.5])))


def test_the_bundled_trace_is_found() -> None:
    trace, cluster, window = policy.workload("hetero")
    assert (len(trace), cluster.gpus, window) == (12_000, 448, "0.3:1")


def test_the_guides_name_studies_that_exist() -> None:
    first = {"table", "development", "stretches", "styles", "hindsight", "controls", "ablations", "estimator"}
    found = 0
    for guide in ("learning.md", "auto.md", "placement.md", "studies.md"):
        text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
        assert "PYTHONPATH" not in text
        for name, argument in re.findall(r"slurm-rl study ([a-z-]+)\s+([^\s`]*)", text):
            found += 1
            assert name in {*STUDIES, "policy", "list", "all"}, name
            if name == "policy":
                assert argument in first, argument
    assert found > 10


def test_choosing_is_judged_on_regimes_that_nobody_trained_on() -> None:
    from slurm_rl.studies import meta
    from slurm_rl.traces.perturb import KINDS
    from slurm_rl.train.meta_scenes import HELD_OUT

    assert {s.name for s in meta._scenes("regimes", 4)} <= set(HELD_OUT)
    perturbed = [s.prepared.trace for s in meta._scenes("perturbed", len(KINDS))]
    assert [t.notes[-1].what.split()[2].partition("=")[0] for t in perturbed] == list(KINDS)
    again = [s.prepared.trace for s in meta._scenes("perturbed", 2)]
    assert all((a.submit_time == b.submit_time).all() for a, b in zip(perturbed, again, strict=False))


def test_a_workload_that_is_not_one_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "meta", "2", "venis")
    assert code == 2
    assert "did you mean 'venus'" in err
