"""On a real slurmctld: the limit that binds with its numbers, a forecast that comes true, and a question beforehand."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive
from slurm_rl.controller.tick import Controller
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal
from slurm_rl.slurm.cli import CliClient

from ..conftest import LabFactory
from .on_lab import until

pytestmark = [pytest.mark.slurm, pytest.mark.releases]


def sbatch(lab: Lab, gpus: int, seconds: int, minutes: int = 60) -> int:
    options = ("--parsable", "--output=/dev/null", f"--gpus-per-node={gpus}", "--mem=100M", f"--time={minutes}")
    return int(lab.run("sbatch", *options, "--job-name=train", f"--wrap=exec sleep {seconds}").strip())


def set_back(lab: Lab, jobs: list[int]) -> None:
    """Makes finished jobs those of the last hours, one an hour: jobs of one moment share their fate."""
    columns = ("time_submit", "time_eligible", "time_start", "time_end")
    moved = ", ".join(f"{column} = {column} - 3600 * ({jobs[-1] + 1} - id_job)" for column in columns)
    statement = f"UPDATE lab_job_table SET {moved} WHERE id_job BETWEEN {jobs[0]} AND {jobs[-1]}"
    socket = lab.directory / "run" / "mariadb.socket"
    lab.run("mariadb", f"--socket={socket}", "-u", "root", "slurm_acct", "-e", statement)


def test_a_limit_a_forecast_and_what_held_a_job_back(start_lab: LabFactory, tmp_path: Path) -> None:
    lab = start_lab("t4:4*1", accounting=True, extra_conf=("AccountingStorageEnforce=limits,qos",))
    lab.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "GrpTRES=gres/gpu=2")
    done = [sbatch(lab, 1, 0) for _ in range(16)]
    until(lambda: not lab.run("squeue", "-h", "-t", "PD,R,CG"), "the short jobs are over")
    until(
        lambda: lab.run("sacct", "-X", "-n", "-P", "-o", "State").count("COMPLETED") >= len(done),
        "accounting knows of them",
    )
    set_back(lab, done)
    holder, waits = sbatch(lab, 2, 900), sbatch(lab, 1, 900)
    until(lambda: "QOSGrpGRES" in lab.run("squeue", "-h", "-j", str(waits), "-o", "%r"), "a limit holds it back")
    with Journal(tmp_path / "journal.sqlite") as journal:
        config = Config(mode="shadow", state_dir=str(tmp_path), policy="fcfs", advise_limits=True)
        controller = Controller(config, CliClient(lab.slurm_conf), journal)
        controller.start_forecasts.seconds = 600.0  # kernels may have to be compiled within it
        live = ControllerLive(controller, journal)
        controller.tick()

        around = live.around(waits)
        assert [limit["text"] for limit in around["limits"]] == ["QOS normal: 2 of 2 GPUs in use; this job asks for 1"]
        assert around["ahead"]["jobs"] == 0
        assert controller.start_forecasts.told[waits].made > 0

        # Before submitting: two GPUs are free, not for QOS normal; sixteen finished jobs took no time at all.
        said = live.when({"gpus": 1, "limit": 3600, "user": "root", "name": "train"})
        assert said["start"]["wait"] > 0
        assert live.when({"gpus": 1, "limit": 3600, "user": "root", "qos": "free"})["start"]["wait"] <= 60
        assert "QOS normal: GrpTRES of gres/gpu is 2" in live.when({"gpus": 3, "limit": 3600, "user": "root"})["never"]
        assert said["advice"]["runs"] == 16
        assert said["advice"]["limit"] == 300
        assert live.advise({"user_id": 0, "user_name": "root", "name": "train", "gpus": 1, "time_limit_min": 60})[
            "message"
        ].startswith("slurm-rl: 16 runs of 'train' ended within 1 min")
        assert live.when({"gpus": 5, "limit": 3600})["never"]

        # The limit goes away: the job starts, its forecast is scored, and what held it back is known.
        lab.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "GrpTRES=gres/gpu=-1")
        until(lambda: "RUNNING" in lab.run("squeue", "-h", "-j", str(waits), "-o", "%T"), "it runs", 120)
        time.sleep(0.1)
        controller.tick()
        assert controller.start_forecasts.skill.forecasts == 1
        told = live.forecasts_of(waits)[0]
        assert told["came"] is not None
        known = live.waited(waits)
        assert known is not None
        assert known[0] == "root"
        assert known[1].keys() == {"QOSGrpGRES"}
        lab.run("scancel", str(holder), str(waits))
        controller.forecasts.close()
