"""Records what a real Slurm says about a queue of every odd kind: `python tests/record_fixtures.py [RELEASE …]`.

Starts a lab of each release (the installed one, 24.11, 26.05), submits the queue, and writes what its commands print to
tests/unit/slurm/fixtures/RELEASE, with the lab's paths and the host's name taken out. Needs root and `lab fetch`.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slurm_rl.lab.lab import Lab, up
from slurm_rl.lab.spec import LabSpec, parse_nodes, parse_topology
from slurm_rl.slurm import history, sprio, squeue, squeue_more
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.release import Release, name, parse_release

FIXTURES = Path(__file__).parent / "unit" / "slurm" / "fixtures"
MARK = "\x1fmarkx"
NODES = "a100:8*2,v100:8*2,t4:4*2"
ODD_NAME = "it's 'a' \"näme\" | with\nlines=1 JobId=1 Priority=9"
SQUARES = ",".join(str(i * i) for i in range(61))
WORDS_FOR_NOTHING = ("None", "N/A", "(null)", "Unknown", "none")


def submit_queue(lab: Lab) -> None:
    """Running jobs that fill the GPUs, and one waiting job of every kind that reads differently."""

    def sbatch(job_name: str, *options: str, wrap: str = "exec sleep 6000") -> int:
        said = lab.run(
            "sbatch", "--parsable", "--output=/dev/null", f"--job-name={job_name}", *options, f"--wrap={wrap}"
        )
        return int(said.strip())

    lab.run("sacctmgr", "-i", "add", "account", "none", "Description=none", "Organization=none")
    lab.run("sacctmgr", "-i", "add", "user", "root", "Account=none")
    for done, wrap in (("done", "true"), ("failed", "exit 3")):
        sbatch(done, "--gpus=v100:2", "--mem=1G", "--time=5", wrap=wrap)
    finished = [sbatch("tasks", "--array=1-2", "--gpus=t4:1", wrap="true"), sbatch("stopped", "--hold")]
    lab.run("scancel", str(finished[-1]))
    _until(lambda: not lab.run("squeue", "-h").strip(), "the first jobs ended")

    single = sbatch("single", "--gpus=a100:2", "--cpus-per-task=4", "--mem=1G", "--time=30", "--nodelist=a100-1")
    sbatch("fill", "--nodelist=a100-2", "--gpus-per-node=a100:8")
    sbatch("spread", "--nodes=2", "--gpus-per-node=v100:8", "--time=1-00:00:00")
    sbatch("exclusive", "--exclusive", "--nodes=2", "--gpus-per-node=t4:4", "--time=UNLIMITED")
    requeued = sbatch("requeued", "--gpus=a100:1", "--nodelist=a100-1")
    _until(lambda: len(lab.run("squeue", "-h", "-t", "RUNNING").splitlines()) == 5, "five jobs run")
    lab.run("scontrol", "requeuehold", str(requeued))
    _until(
        lambda: not lab.run("squeue", "-h", "-t", "COMPLETING,RUNNING", "-j", str(requeued)).strip(), "it is requeued"
    )

    big = "--gpus=a100:8"
    waiting = sbatch(
        *("waiting", "--nodes=2", "--gpus-per-node=8", "--constraint=a100|v100", "--prefer=a100"),
        *("--nice=50", "--time=120", "--comment=slurm-rl:off, please"),
    )
    sbatch("array", "--array=1-9:2%2", big)
    sbatch("stepped", "--array=1-400:3%7", big)
    sbatch("squares", f"--array={SQUARES}", big)
    split = sbatch("split", "--array=0-9", big)
    sbatch("held by user", "--hold", "--gpus=1")
    after = sbatch("after", f"--dependency=afterok:{single}", "--gpus-per-node=t4:1")
    sbatch("after", "--dependency=singleton", big)
    sbatch("later", "--begin=now+10hours", "--gpus=2")
    sbatch("het", big, ":", "--gpus=t4:1")
    sbatch("by task", "--ntasks=3", "--gpus-per-task=a100:3", "--deadline=now+2days")
    sbatch("cpuonly", "--nodes=6", "--ntasks-per-node=32")
    sbatch("shares", "--oversubscribe", "--nodes=2", "--gpus-per-node=a100:8")
    sbatch("waits alone", "--exclusive", "--nodes=2", "--gpus-per-node=a100:1")
    sbatch("by user", "--exclusive=user", "--nodes=2", "--gpus-per-node=a100:8")
    sbatch("chosen", "--hold", "--nodelist=t4-1", "--account=none", "--comment=None")
    sbatch(ODD_NAME, big, "--mem=3G", "--nice=70")
    for odd in WORDS_FOR_NOTHING:
        sbatch(odd, big, f"--comment={odd}")
    lines = [f"update JobId={split}_{task} Nice=5" for task in (4, 9)]
    lines += [f"update JobId={waiting} SiteFactor=-25", f"update JobId={after} SiteFactor=66"]
    lab.run("scontrol", stdin="\n".join(lines) + "\n")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain until {what}")
        time.sleep(0.2)


def answers(lab: Lab, release: Release, began: float) -> dict[str, str]:
    """What each command says, all of one state of the queue."""
    client = CliClient(lab.slurm_conf, timeout=60)
    traits = release.traits
    nodes = ("scontrol", "show", "nodes", "--json") if traits.scontrol_json else ("sinfo", "--json")
    asked = {
        "squeue.txt": squeue.command(traits, MARK),
        "arrays.txt": squeue.arrays_command(MARK),
        "squeue.json": ("squeue", "-a", "--json"),
        "sprio.txt": ("sprio", "-h", "-o", sprio.factor_format(MARK)),
        "nodes.txt": ("scontrol", "-o", "-d", "show", "node"),
        "nodes.json": nodes,
        "partitions.txt": ("scontrol", "-o", "-a", "show", "partition"),
        "config.txt": ("scontrol", "show", "config"),
        "sshare.txt": ("sshare", "-h", "-P", "-a", "-o", "Account,User,FairShare"),
        "sdiag.txt": ("sdiag",),
        "sacct.txt": tuple(history.command(began, began + 3600, MARK)),
    }
    if traits.exclusive_field:
        asked["exclusive.txt"] = squeue_more.squeue_exclusive(MARK)
    while True:
        said = {file: client.commands.run(*command, timeout=60) for file, command in asked.items()}
        if client.commands.run(*asked["squeue.txt"]) == said["squeue.txt"]:  # nothing moved meanwhile
            # As a user exports it: 22.05 fails if it is to write its times as Unix seconds.
            return said | {"sacct.json": lab.run("sacct", "-a", "-D", "-X", "--json")}
        time.sleep(1)


def topologies(slurm: str) -> dict[str, str]:
    """What `scontrol show topology` says of six nodes in leaf switches, and in blocks, of two."""
    said = {}
    for kind in ("tree", "block") if slurm else ("tree",):  # 22.05 has no blocks
        directory = Path(tempfile.mkdtemp(prefix="srl-lab-"))
        directory.chmod(0o755)
        spec = LabSpec(directory=directory, nodes=parse_nodes("a100:4*6"), slurm=slurm)
        lab = up(replace(spec, topology=parse_topology(f"{kind}:2")))
        try:
            said[f"topology-{kind}.txt"] = lab.run("scontrol", "show", "topology")
        finally:
            lab.down()
            shutil.rmtree(directory)
    return said


def record(slurm: str) -> None:
    directory = Path(tempfile.mkdtemp(prefix="srl-lab-"))
    directory.chmod(0o755)
    began = time.time() - 1
    lab = up(LabSpec(directory=directory, nodes=parse_nodes(NODES), accounting=True, slurm=slurm))
    try:
        release = parse_release(lab.state.release)
        submit_queue(lab)
        time.sleep(20)  # by then backfill has looked at every job, and accounting has heard of all
        said = answers(lab, release, began)
    finally:
        lab.down()
        shutil.rmtree(directory)
    said |= topologies(slurm)
    out = FIXTURES / name(release.major)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for file, answer in said.items():
        neutral = answer.replace(str(directory), "/lab").replace(socket.gethostname(), "head")
        if file.endswith(".json"):
            neutral = json.dumps(json.loads(neutral), separators=(",", ":"), ensure_ascii=False) + "\n"
        (out / file).write_text(neutral)
    print(f"{out}: {release}, {len(said)} answers")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ("", "24.11", "26.05"):
        record("" if chosen == "22.05" else chosen)
