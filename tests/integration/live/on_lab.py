"""What tests on a lab share: jobs as users submit them, and the order in which Slurm would try them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmJob


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.2)


def fill(lab: Lab, nodes: int = 20) -> None:
    """Occupies every node, so that what is submitted next waits."""
    options = ("--output=/dev/null", "--job-name=fill", f"--nodes={nodes}", "--exclusive")
    lab.run("sbatch", *options, "--wrap=exec sleep 900")
    until(lambda: "RUNNING" in lab.run("squeue", "-h", "-n", "fill", "-o", "%T"), "the nodes are taken")


def submit_mixed(lab: Lab, count: int) -> None:
    """Jobs of all sizes and limits, submitted as users do, several at a time."""
    rows = []
    for i in range(count):
        gpus, nodes = (1, 2, 4, 8)[i % 4], 1 + (i % 5 == 0)
        kind = ("", "a100:", "v100:")[i % 3]
        rows.append(
            f"sbatch --output=/dev/null --nodes={nodes} --gpus-per-node={kind}{gpus} --mem=1G "
            f"--time={1 + (i * 7919) % 3000} --job-name=j{i % 17} --wrap='exec sleep 300' >/dev/null"
        )
    lab.run("xargs", "-P", "4", "-d", "\n", "-I", "{}", "sh", "-c", "{}", stdin="\n".join(rows) + "\n", timeout=120)


def waiting(lab: Lab) -> list[SlurmJob]:
    """Eligible jobs."""
    jobs = CliClient(lab.slurm_conf).snapshot().jobs
    return [j for j in jobs if j.pending and j.eligible(time.time()) and j.factors]


def kendall(first: Sequence[int], second: Sequence[int]) -> float:
    """1: the same order, -1: the reverse."""
    place = {job: i for i, job in enumerate(second)}
    ranks = [place[job] for job in first]
    pairs = list(itertools.combinations(ranks, 2))
    return 1 - 2 * sum(a > b for a, b in pairs) / len(pairs)


def by_slurm(jobs: Sequence[SlurmJob]) -> list[int]:
    return [j.job_id for j in sorted(jobs, key=lambda j: (-j.priority, j.job_id))]


def by_limit(jobs: Sequence[SlurmJob]) -> list[int]:
    return [j.job_id for j in sorted(jobs, key=lambda j: (j.time_limit or 0, j.submit_time or 0, j.job_id))]
