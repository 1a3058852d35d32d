"""`slurm-rl version` tells what a bug report needs."""

from __future__ import annotations

import json

import numba
import pytest

from slurm_rl import __version__
from slurm_rl.cli import main


def test_versions_as_one_json_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["version", "--json"])
    assert stop.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["slurm-rl"] == __version__
    assert said["numba"] == numba.__version__
    assert "slurm" in said
