"""`slurm-rl traces`: one JSON value with --json, narrow tables without, equal bytes for equal seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_traces_native_swf import HEADER
from trace_builders import a_file

from slurm_rl.cli.app import main
from slurm_rl.traces.read import read_trace


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["traces", *map(str, words)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def a_trace(folder: Path) -> Path:
    rows = [f"{i},{i * 60},{i * 7 % 90 + 1},,{i % 4},{'A100' if i % 3 else ''},,,,u{i % 5},,gpu," for i in range(1, 60)]
    return a_file(folder, "t.csv", HEADER, *rows, "99,bad,1,,1,,,,,,,,")


class TestInfo:
    def test_json(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        code, out, _ = run(capsys, "info", a_trace(tmp_path), "--json")
        value = json.loads(out)
        assert code == 0
        assert (value["jobs"], value["gpu_jobs"], value["users"], value["format"]) == (59, 45, 5, "native")
        assert value["sizes"] == {"0": 14, "≤1": 15, "2": 15, "3–4": 15}
        assert value["notes"] == [{"what": "submit_time is not a number", "rows": 1, "lines": [61], "dropped": True}]

    def test_the_table_fits_a_terminal(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        _, out, _ = run(capsys, "info", a_trace(tmp_path))
        assert max(map(len, out.splitlines())) <= 100
        assert "1 row: submit_time is not a number (lines 61): left out" in out

    def test_the_largest_job_and_the_longest_are_shown(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        rows = "job_id,submit_time,run_time,num_gpus,num_nodes,cpus\n" + "".join(
            f"{i},{i},{123456 + 1000 * i},{i % 9},{1 + i % 3},\n" for i in range(100)
        )
        trace = a_file(tmp_path, "t.csv", rows)
        value = json.loads(run(capsys, "info", trace, "--json")[1])
        assert value["largest"] == {"gpus": 8.0, "nodes": 3.0}
        _, out, _ = run(capsys, "info", trace)
        assert "max 222,456" in out
        assert "gpus 8, nodes 3" in out

    def test_a_misspelt_key_and_too_many_nodes_are_named(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        trace = a_trace(tmp_path)
        for row, said in (
            (
                '{"count": 2, "gpu_typ": "V100", "gpus": 4}',
                "node class 2: unknown key 'gpu_typ' (did you mean 'gpu_type'?)",
            ),
            ('{"count": 100000000, "gpus": 4}', "has 100,000,001 nodes, expected 1,000,000 at most"),
        ):
            cluster = a_file(tmp_path, "c.json", f'[{{"count": 1, "note": "old"}}, {row}]')
            code, out, _ = run(capsys, "info", trace, "--cluster", cluster, "--json")
            assert code == 2
            assert said in json.loads(out)["error"]["message"]

    def test_errors_are_json_too(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        code, out, _ = run(capsys, "info", a_file(tmp_path, "x.txt", "hello"), "--json")
        assert code == 2
        assert json.loads(out)["error"]["line"] == 1

    def test_load_against_a_cluster(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        trace = a_file(tmp_path, "t.csv", HEADER, "1,0,50,,2,,,,,,,,", "2,100,50,,2,,,,,,,,")
        cluster = a_file(tmp_path, "c.json", '[{"count": 1, "gpu_type": "V100", "gpus": 4}]')
        _, out, _ = run(capsys, "info", trace, "--cluster", cluster, "--json")
        assert json.loads(out)["load"] == 0.5  # 200 GPU seconds offered in 100 s to 4 GPUs


class TestConvert:
    def test_to_swf_and_back(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        code, out, _ = run(capsys, "convert", a_trace(tmp_path), tmp_path / "t.swf.gz", "--json")
        assert code == 0
        assert json.loads(out)["could_not_hold"] == ["GPUs and their types (SWF counts processors only)"]
        assert run(capsys, "convert", tmp_path / "t.swf.gz", tmp_path / "back.csv")[0] == 0
        back = read_trace(tmp_path / "back.csv")
        assert back.run_time.tolist() == read_trace(tmp_path / "t.csv").run_time.tolist()

    def test_with_limits(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        run(capsys, "convert", a_trace(tmp_path), tmp_path / "l.csv", "--time-limits")
        assert (read_trace(tmp_path / "l.csv").time_limit >= 60).all()

    def test_node_lists_come_along(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        nodes = a_file(tmp_path, "nodes.csv", "sn,cpu_milli,memory_mib,gpu,model", "n1,96000,393216,8,V100M32")
        options = ("--nodes-from", nodes, "--cluster-out", tmp_path / "c.json")
        run(capsys, "convert", a_trace(tmp_path), tmp_path / "o.csv", *options)
        assert json.loads((tmp_path / "c.json").read_text())[0]["gpu_type"] == "V100M32"


class TestGenerate:
    def test_equal_seeds_make_equal_bytes(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        for name, seed in (("a", 3), ("b", 3), ("c", 4)):
            words = ("--regime", "bursty-x2-g8", "--jobs", 300, "--seed", seed)
            run(
                capsys,
                "generate",
                "--out",
                tmp_path / f"{name}.csv.gz",
                "--cluster-out",
                tmp_path / f"{name}.json",
                *words,
            )
        a, b, c = ((tmp_path / f"{n}.csv.gz").read_bytes() for n in "abc")
        assert a == b != c
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()

    def test_like(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        run(capsys, "generate", "--out", tmp_path / "base.csv", "--nodes", "4xV100:8", "--jobs", 2000, "--days", 10)
        _, out, _ = run(capsys, "generate", "--out", tmp_path / "like.csv", "--like", tmp_path / "base.csv", "--json")
        value = json.loads(out)
        assert value["jobs"] == 2000
        assert value["distances"]["run_time"] < 0.05

    def test_jobs_alone_keep_the_pace(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        _, out, _ = run(capsys, "generate", "--out", tmp_path / "t.csv", "--jobs", 1200, "--json")
        assert json.loads(out)["days"] == pytest.approx(1.4, abs=0.1)  # a tenth of 12,000 jobs in 14 days
        _, out, _ = run(capsys, "generate", "--out", tmp_path / "t.csv", "--days", 7, "--json")
        assert json.loads(out)["jobs"] == 6000

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--regime", "base-x1-g2", "--like", "x.csv"), "exclude each other"),
            (("--regime", "base-x3-g2"), "unknown regime"),
            (("--jobs", "0"), "jobs: must be > 0"),
            (("--shape", "round"), "unknown arrival shape"),
        ],
    )
    def test_bad_options(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], message: str
    ) -> None:
        code, _, err = run(capsys, "generate", "--out", tmp_path / "t.csv", *words)
        assert code == 2
        assert message in err


class TestPerturb:
    def test_steps_and_outages(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        cluster = a_file(tmp_path, "c.json", '[{"count": 4, "gpu_type": "V100", "gpus": 4}]')
        trace = a_file(tmp_path, "t.csv", HEADER, *(f"{i},{i * 3600},60,,1,,,,,,,," for i in range(1, 49)))
        words = ("--apply", "duration=0.2", "--apply", "capacity-dip=0.5", "--cluster", cluster)
        code, _, _ = run(capsys, "perturb", trace, tmp_path / "p.csv", *words, "--outages-out", tmp_path / "o.csv")
        assert code == 0
        assert len((tmp_path / "o.csv").read_text().splitlines()) == 1 + 4 * 2 * 2  # four dips of two nodes
        assert read_trace(tmp_path / "p.csv").run_time.tolist() != [60] * 48

    def test_a_dip_needs_a_cluster(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        code, _, err = run(capsys, "perturb", a_trace(tmp_path), tmp_path / "p.csv", "--apply", "capacity-dip=0.5")
        assert (code, "go together" in err) == (2, True)


def test_from_slurm_needs_a_date(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "from-slurm", "--out", tmp_path / "t.csv", "--since", "yesterday")
    assert code == 2
    assert "--since: not a date: 'yesterday'" in err


@pytest.mark.parametrize("command", ["info", "convert", "generate", "perturb", "from-slurm"])
def test_help_has_examples(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"slurm-rl traces {command}" in out.split("Examples", 1)[1]
