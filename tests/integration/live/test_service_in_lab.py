"""The whole live side as `lab up --plugin enforce` starts it: plugin, service and controller around slurmctld."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from slurm_rl.cli import main
from slurm_rl.lab import service
from slurm_rl.lab.lab import Lab
from slurm_rl.lab.spec import PluginMode
from slurm_rl.serve.ask import ask
from slurm_rl.slurm.cli import CliClient

from ..conftest import LabFactory
from .on_lab import until

pytestmark = [pytest.mark.slurm, pytest.mark.releases]


def sbatch(lab: Lab, minutes: int) -> int:
    options = ("--parsable", "--output=/dev/null", "--exclusive", f"--time={minutes}")
    return int(lab.run("sbatch", *options, "--wrap=exec sleep 600").strip())


def factors(lab: Lab) -> dict[int, int]:
    return CliClient(lab.slurm_conf).site_factors()


def test_submit_order_explain_kill_and_undo(start_lab: LabFactory, capsys: pytest.CaptureFixture[str]) -> None:
    lab = start_lab("t4:1*1", plugin=PluginMode.ENFORCE)
    socket = service.socket_path(lab.directory)
    config = str(service.config_path(lab.directory))
    sbatch(lab, 60)
    until(lambda: ask(socket, "GET", "/readyz")[0] == 200, "the service is ready", 240)
    until(lambda: "RUNNING" in lab.run("squeue", "-h", "-o", "%T"), "the node is taken")
    slow, quick = sbatch(lab, 50), sbatch(lab, 5)
    until(lambda: factors(lab).get(quick, 0) > factors(lab).get(slow, 0), "the quick job goes first")

    # A job that comes now gets its factor while it is being submitted.
    def seen() -> set[int]:
        return {job["job_id"] for job in ask(socket, "GET", "/v1/queue")[1]["jobs"]}

    until(lambda: seen() == {slow, quick}, "a tick has seen both")
    advised = sbatch(lab, 4)
    assert factors(lab)[advised] > factors(lab)[slow]

    with pytest.raises(SystemExit) as ended:
        main(["explain", str(slow), "--config", config, "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rank"] == said["of"]
    assert said["job"]["user"] == "root"
    assert [f["feature"] for f in said["features"]][:1] == ["run time"], "it is the longest"
    low, high = said["expected_start"]["range"]
    assert time.time() - 60 < low <= said["expected_start"]["time"] <= high < time.time() + 4 * 3600
    with pytest.raises(SystemExit):
        main(["explain", str(slow), "--config", config])
    assert re.search(r"place    (\d) of \1", capsys.readouterr().out), "a tick may have seen the third job meanwhile"

    # The service dies: submissions go on as if it had never been, and undo needs no service.
    os.kill(lab.process("service").pid, signal.SIGKILL)
    began = time.monotonic()
    plain = sbatch(lab, 3)
    assert time.monotonic() - began < 5
    assert factors(lab)[plain] == 0
    with pytest.raises(SystemExit) as ended:
        main(["undo", "--config", config, "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["left"] == []
    assert set(factors(lab).values()) == {0}
