"""The table of `slurm-rl replay` fits 80 columns whatever is compared, and loses no figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.cli import main

ROOT = Path(__file__).parents[3]
POLICIES = "fcfs,static-priority+firstfit,sjf-age@user,multifactor,sjf@oracle"


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["replay", str(ROOT / "traces/small.swf.gz"), "--policy", POLICIES])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.lstrip().startswith(tuple(POLICIES.split(",")))]
    assert [row[0] for row in rows] == POLICIES.split(",")
    assert not any("…" in line for line in lines)
    assert "backfill easy" in lines[0]
