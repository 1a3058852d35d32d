"""What is shipped in etc/ for the node agent fits the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml.node import Node

from slurm_rl.telemetry.page import page

ETC = Path(__file__).parents[3] / "etc"
UNIT = ETC / "systemd" / "slurm-rl-node-agent.service"


def test_every_metric_of_the_panels_exists(node: Callable[..., Node]) -> None:
    n = node(2)
    n.begin(5, 0)
    n.world[0].util = 50
    for _ in range(3):
        n.step()
    known = {line.split()[2] for line in page(n.agent, True).splitlines() if line.startswith("# TYPE")}
    dashboard = json.loads((ETC / "grafana/slurm-rl-gpus.json").read_text())
    asked = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    asked.append(dashboard["templating"]["list"][1]["query"])
    used = {name for expr in asked for name in re.findall(r"\b(?:slurmrl_|DCGM_FI_|process_)\w+", expr)}
    assert len(used) >= 15
    assert used <= known


def test_systemd_finds_nothing_wrong_and_rates_the_unit_as_confined(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/bin/slurm-rl", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [row for row in done.stderr.splitlines() if UNIT.name in row] == []
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_unit_is_not_root_and_names_real_options() -> None:
    text = UNIT.read_text()
    assert "User=slurm-rl" in text
    assert "\nCapabilityBoundingSet=\n" in text
    from slurm_rl.cli import node_agent

    source = Path(node_agent.__file__).read_text()
    for option in re.findall(r"--([a-z-]+)", text):
        assert f'"--{option}"' in source or f"    {option.replace('-', '_')}: " in source, option
