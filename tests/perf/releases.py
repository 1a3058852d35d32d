"""Measures each release of Slurm in a lab: `python tests/perf/releases.py [RELEASE …]`, as in docs/releases.md.

Snapshots of 10,000 jobs on 200 nodes, and of 2,000 jobs beside an array of 10,000 tasks; a batch of 1,000 SiteFactors.
Each is the best of several, because others may share the machine. Needs root and `lab fetch`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slurm_rl.lab.lab import Lab, up
from slurm_rl.lab.spec import LabSpec, parse_nodes
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate

TIMES = 7


def submit(lab: Lab, count: int, *options: str, apart: bool = True) -> None:
    """An array, and its tasks separated one by one into records of their own."""
    common = ("--parsable", "--output=/dev/null", "--gpus=a100:8", "--nodes=1", "--mem=1G", *options)
    array = int(lab.run("sbatch", *common, f"--array=0-{count - 1}", "--wrap=true"))
    if apart:
        lines = "".join(f"update JobId={array}_{i} Nice={i % 10}\n" for i in range(count))
        lab.run("scontrol", stdin=lines, timeout=600)


def best(work: Callable[[int], object]) -> float:
    seconds = []
    for attempt in range(TIMES):
        began = time.perf_counter()
        work(attempt)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measure(slurm: str) -> tuple[str, float, float, float]:
    """The release, and seconds of a snapshot, of one beside a large array, and of 1,000 updates."""
    directory = Path(tempfile.mkdtemp(prefix="srl-lab-"))
    directory.chmod(0o755)
    lab = up(LabSpec(directory=directory, nodes=parse_nodes("a100:8*100,t4:4*100"), run_nodes=False, slurm=slurm))
    client = CliClient(lab.slurm_conf, timeout=60)
    try:
        submit(lab, 2000)
        submit(lab, 10_000, apart=False)
        with_array = best(lambda _: client.snapshot())
        lab.run("scancel", "--user=root")
        while lab.run("squeue", "-h").strip():
            time.sleep(0.2)
        submit(lab, 10_000)
        jobs = [j for j in client.snapshot().jobs if j.pending][:1000]

        def write(attempt: int) -> None:
            results = client.update([JobUpdate.of(j, site_factor=attempt + 1) for j in jobs])
            if not all(r.applied for r in results):
                raise SystemExit("an update was not applied")

        snapshot, updates = best(lambda _: client.snapshot()), best(write)
        return str(lab.state.release), snapshot, with_array, updates
    finally:
        lab.down()
        shutil.rmtree(directory)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ("", "24.11", "26.05"):
        release, *seconds = measure("" if chosen == "22.05" else chosen)
        print(f"| {release} | {' | '.join(f'{s:.2f} s' for s in seconds)} |", flush=True)
