"""The shell completes commands, options and names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.cli import main
from slurm_rl.cli.completion import candidates


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["rep"], ["replay"]),
        (["traces", "con"], ["convert"]),
        (["replay", "--back"], ["--backfill"]),
        (["replay", "t.csv", "--backfill", "con"], ["conservative"]),
        (["replay", "t.csv", "--policy", "fcfs,sjf@"], ["fcfs,sjf@limit", "fcfs,sjf@user"]),
        (["lab", "up", "--acc"], ["--accounting"]),
        (["replay", "t"], []),
        (["nonsense", "x"], []),
    ],
)
def test_what_can_stand_there(line: list[str], expected: list[str]) -> None:
    assert [word for word in candidates(line) if word in expected or expected == []] == expected


def test_bash_completes_with_the_installed_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real bash, with the script as it was installed and `slurm-rl` on its PATH."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["completion", "install", "--shell", "bash"])
    assert stop.value.code == 0
    script = Path(capsys.readouterr().out.partition(":")[0])
    assert script.is_file()
    program = tmp_path / "slurm-rl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slurm_rl "$@"\n')
    program.chmod(0o755)
    asked = f"""PATH={tmp_path}:$PATH; source {script}
COMP_WORDS=(slurm-rl traces gen); COMP_CWORD=2; _slurm_rl; echo "${{COMPREPLY[@]}}"
"""
    said = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["generate"]


def test_an_unknown_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "show", "--shell", "tcsh"])
    assert stop.value.code != 0
    assert "unknown shell 'tcsh'" in capsys.readouterr().err
