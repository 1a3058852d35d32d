"""The commands around the service: what they print, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_rl.cli import main
from slurm_rl.cli.explain import _text, span
from slurm_rl.cli.shadow_report import _text as report_text
from slurm_rl.obs.journal import Journal

EXPLAINED = {
    "job": {"job_id": 7, "name": "train", "user": "ann", "partition": "batch", "wait": 5400, "time_limit": 7200},
    "ordered": True,
    "rank": 2,
    "of": 9,
    "promoted": False,
    "why": "2 of 9: sjf@user score -1800",
    "policy": {"name": "sjf@user", "score": -1800.0},
    "features": [
        {"feature": "run time", "value": 1800.0, "usual": 3600.0, "score": 1800.0, "places": 3},
        {"feature": "size", "value": 8.0, "usual": 1.0, "score": -0.1, "places": 0},
    ],
    "estimate": {"seconds": 1800.0, "range": [900.0, 3600.0]},
    "expected_start": {"time": 1000.0, "range": [500.0, 4000.0], "by_slurm": None},
    "slurm_reason": {"code": "Resources", "meaning": "It is next.", "remedy": "Wait."},
    "slurm": {"age": 10, "fairshare": 400, "qos": 0, "site": 120, "priority": 530},
    "site_factor": {"now": 120, "wanted": 130, "bound": 500},
    "mode": "enforce",
    "what_would_move_it": [{"what": "a time limit of 60 min instead of 120", "rank": 1, "from": 2}],
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0), capsys.readouterr().out


def test_explain_reads_well() -> None:
    text = _text(EXPLAINED)
    assert "job 7 (train) of ann in batch, waiting 1.5 h" in text
    assert "Slurm    Resources: It is next. Wait." in text
    assert "place    2 of 9" in text
    assert "run time 30 min (usual 60 min): up 3" in text
    assert "size 8 (usual 1): no place" in text
    assert "about 30 min (15 min to 1 h)" not in text, "one hour is below one and a half: told in minutes"
    assert "about 30 min (15 min to 60 min), limit 2 h" in text
    assert "priority 530 = age 10 + fairshare 400 + site 120" in text
    assert "with a time limit of 60 min instead of 120: place 1 instead of 2" in text


def test_a_job_that_is_left_alone_says_why() -> None:
    assert "left to Slurm: held" in _text(EXPLAINED | {"ordered": False, "why": "held"})


@pytest.mark.parametrize(
    ("seconds", "said"), [(5, "5 s"), (89, "89 s"), (120, "2 min"), (5400, "1.5 h"), (1e6, "11.6 d")]
)
def test_durations(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_explain_without_a_service_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, "explain", "1", "--socket", str(tmp_path / "none.sock"), "--json")
    assert code == 4
    assert "is slurm-rl serve running?" in json.loads(said)["error"]["message"]


def test_undo_without_a_journal_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RL_STATE_DIR", str(tmp_path))
    code, said = run(capsys, "undo", "--json")
    assert (code, json.loads(said)["touched"]) == (0, 0)


def test_a_shadow_report_needs_a_shadow_period(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RL_STATE_DIR", str(tmp_path))
    code, said = run(capsys, "shadow-report", "--json")
    assert code == 2
    assert "shadow mode first" in json.loads(said)["error"]["message"]
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.tick(1000.0, "shadow", "fcfs", "", 0, 0, "")
    code, said = run(capsys, "shadow-report", "--json")
    assert (code, "one tick in shadow mode" in json.loads(said)["error"]["message"]) == (2, True)


def test_a_report_shows_both_sides_and_the_change() -> None:
    sides = {"slurm": {"mean_wait": 200.0, "max_wait": 0.0}, "slurm_rl": {"mean_wait": 150.0, "max_wait": 0.0}}
    head = {"from": 0.0, "to": 7200.0, "ticks": 720, "updates": 31, "policy": "sjf@user", "jobs": 12}
    none, some = {"deferrals": 0, "deferred_jobs": 0}, {"deferrals": 5, "deferred_jobs": 2}
    assert "2 jobs would have been deferred, 5 times in all" in report_text(head | sides | some)
    text = report_text(head | sides | none)
    assert "deferred" not in text
    assert "720 ticks in shadow mode over 2.0 h; 31 updates would have been made" in text
    assert any(row.split()[-3:] == ["200.00", "150.00", "-25.0%"] for row in text.splitlines())


def test_serve_refuses_a_policy_that_knows_the_future(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RL_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_RL_CLIENT", "cli")
    for policy, expected in (("sjf@oracle", 2), ("rl:current", 2), ("rl:none", 3), ("best", 2)):
        monkeypatch.setenv("SLURM_RL_POLICY", policy)
        code, said = run(capsys, "serve", "--once", "--json")
        assert code == expected
        assert policy.removeprefix("rl:") in json.loads(said)["error"]["message"]
