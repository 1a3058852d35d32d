"""What is shipped in etc/ fits the code: metric names, paths, settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_rl.config import Config
from slurm_rl.obs.metrics import Metrics

ETC = Path(__file__).parents[3] / "etc"


def known_metrics() -> set[str]:
    names = set()
    for family in Metrics().registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


@pytest.mark.parametrize("file", ["prometheus/slurm-rl.rules.yml", "grafana/slurm-rl.json"])
def test_every_metric_that_is_asked_for_exists(file: str) -> None:
    used = set(re.findall(r"\bslurmrl_\w+", (ETC / file).read_text()))
    assert used
    assert used <= known_metrics()


def test_the_dashboard_is_json_with_panels() -> None:
    assert len(json.loads((ETC / "grafana/slurm-rl.json").read_text())["panels"]) >= 6


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "slurm-rl.service"
    # The programs need not be installed where this runs.
    unit.write_text(
        re.sub(
            r"(/opt/slurm-rl/bin/slurm-rl|/usr/bin/curl)", "/bin/true", (ETC / "systemd/slurm-rl.service").read_text()
        )
    )
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [row for row in done.stderr.splitlines() if "slurm-rl.service" in row]
    assert ours == []
    assert done.returncode == 0


def test_systemd_rates_the_unit_as_well_confined(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25"]
    unit = ETC / "systemd" / "slurm-rl.service"
    done = subprocess.run([*command, str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_unit_is_not_root_undoes_and_fits_the_settings() -> None:
    rows = [row.partition("=") for row in (ETC / "systemd/slurm-rl.service").read_text().splitlines() if "=" in row]
    unit = {key: value for key, _, value in rows if not key.startswith("#")}
    assert unit["User"] == "slurm-rl"
    assert "undo" in unit["ExecStopPost"]
    assert unit["Type"] == "notify"
    assert Config().socket == f"/run/{unit['RuntimeDirectory']}/slurm-rl.sock"
    assert Config().state_dir == f"/var/lib/{unit['StateDirectory']}"
    assert float(unit["WatchdogSec"]) > 5 * Config().interval
