"""Mixed nodes, slices, shards, MPS, features and several partitions on a real slurmctld: what is planned, starts.

`SLURM_RL_GRES_JOBS=200` submits as many jobs of every kind; the normal suite has fewer.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe
from slurm_rl.decide import decide
from slurm_rl.domain.gres import parse_request
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmJob

from ..conftest import LabFactory, empty_queue
from .on_lab import until
from .test_placement_on_slurm import _AT_WORK, _RESTING, jobs_of, rest, restart

pytestmark = [pytest.mark.slurm, pytest.mark.releases]

JOBS = int(os.environ.get("SLURM_RL_GRES_JOBS", "44"))
NODES = (
    "mix:0*2:cpus=64:mem=64:gres=gpu/a100/2+gpu/a100_3g.20gb/4+gpu/t4/2+fpga/2:features=ib+fast,"
    "cut:0*2:cpus=64:mem=64:gres=gpu/a100_1g.5gb/7+gpu/a100/1:features=ib,"
    "shared:0*2:cpus=64:mem=64:gres=gpu/v100/4+shard/16:features=fast,"
    "served:0*1:cpus=64:mem=64:gres=gpu/p100/2+mps/200,"
    "plain:6*2:cpus=64:mem=64:features=ib+big"
)
# Slurm's answer to each is known: these start where there is room …
PLANNED = (
    "--gres=gpu:a100_3g.20gb:1",
    "--gres=gpu:a100_1g.5gb:2",
    "--gres=gpu:a100:1",
    "--gres=gpu:t4:1,gpu:a100_3g.20gb:1",
    "--gres=gpu:1,fpga:1",
    "--gres=shard:1",
    "--gres=shard:3",
    "--gres=mps:50",
    "--gres=gpu:v100:1",
    "--gpus=plain:2 --cpus-per-gpu=2 --mem-per-gpu=100",
    "--gres=gpu:1 --constraint=ib&fast",
    "--gres=gpu:1 --constraint=(fast|big)&ib --exclude=mix-1",
    "--constraint=[fast|big] -N2",
    "--nodelist=plain-2 --gres=gpu:plain:1",
    "--prefer=big",
    "-p short,batch --gres=gpu:1",
    "--gpus-per-task=t4:1 -n1",
    "--gres=fpga:1",
)
# … and these are left alone.
LEFT_ALONE = {
    "--constraint=[fast*1&big*1] -N2": "counts of features",
    "--gpus-per-socket=1 --sockets-per-node=1": "by socket",
    "--gpus=a100:2,t4:2 -N2": "over several nodes",
}


@pytest.fixture(scope="module")
def gres_lab(session_labs: LabFactory) -> Lab:
    short = "PartitionName=short Nodes=plain-[1-2] PriorityTier=5 MaxTime=INFINITE DefaultTime=60 State=UP"
    return session_labs(NODES, extra_conf=(_RESTING, short))


@pytest.fixture
def lab(gres_lab: Lab) -> Iterator[Lab]:
    rest(gres_lab)
    yield gres_lab
    empty_queue(gres_lab)


def submit(lab: Lab, *options: str, minutes: int = 60) -> int:
    mem = () if any(o.startswith("--mem") for o in options) else ("--mem=100",)
    limit = ("-t", str(minutes))
    line = lab.run("sbatch", "--parsable", *mem, *limit, "-o", "/dev/null", *options, "--wrap", "sleep 600")
    return int(line.strip().partition(";")[0])


def see(lab: Lab) -> LiveQueue:
    return observe(CliClient(lab.slurm_conf).snapshot(), RunTimes(), load_policy("fcfs").spec)


def allocated(lab: Lab, job: int) -> Counter[str]:
    """GRES that Slurm gave a job, by kind, over its nodes."""
    found: Counter[str] = Counter()
    for text in re.findall(r" GRES=(\S+)\(", lab.run("scontrol", "-o", "-d", "show", "job", str(job)))[:1]:
        for name, kind, count in re.findall(r"(\w+):(?:([\w.]+):)?(\d+)\(", text + "("):
            found[f"{name}:{kind}" if kind else name] += int(count)
    return +found


def test_what_is_planned_starts_on_the_planned_gres(lab: Lab) -> None:
    # Limits fall, so that no job outlasts those before it: backfill's reservations of whole nodes then hold nobody
    # back, and Slurm starts what its GRES has room for.
    asks = [PLANNED[i % len(PLANNED)] for i in range(JOBS)]
    kinds = {submit(lab, *o.split(), minutes=2 * (JOBS + 30 - i)): o for i, o in enumerate(asks)}
    odd = {submit(lab, *options.split()): why for options, why in LEFT_ALONE.items()}
    view = see(lab)
    for job, why in odd.items():
        assert why in view.left_alone[job], view.left_alone.get(job)
    assert not set(kinds) & set(view.left_alone), {j: view.left_alone[j] for j in set(kinds) & set(view.left_alone)}
    plan = decide(view.snapshot, load_policy("fcfs").spec, backfill="firstfit", placement="slurm")
    planned = {view.jobs[s.job].job_id for s in plan.starts}
    assert len(planned) >= min(JOBS, len(PLANNED))
    assert sum(kinds[j] == "--gres=mps:50" for j in planned) == 2  # of two GPUs, one serves MPS at a time
    lab.run("scancel", *map(str, odd))  # the plan does not know of them
    restart(lab, _RESTING, _AT_WORK)

    def running() -> dict[int, SlurmJob]:
        return {j: job for j, job in jobs_of(lab).items() if job.running}

    until(lambda: len(planned & set(running())) >= 0.95 * len(planned), "95% of the planned starts have started", 120)
    started = running()
    hits = planned & set(started)
    print(f"{JOBS} jobs, {len(planned)} planned to start, {len(hits)} of them did, ", end="")
    print(f"{len(set(started) - planned)} others did; not started: {[kinds[j] for j in planned - hits]}")
    assert {j for j in started if kinds[j] == "--gres=mps:50"} == {j for j in planned if kinds[j] == "--gres=mps:50"}
    for job in hits:
        asked = next((o.removeprefix("--gres=") for o in kinds[job].split() if o.startswith("--gres=")), "")
        given = allocated(lab, job)
        for kind, count in parse_request(asked).types:
            assert given[f"gpu:{kind}"] == count, (kinds[job], given)
    # What Slurm gives out is what the next snapshot says is in use.
    again = see(lab)
    world, nodes = again.snapshot.world, {n.name: n for n in again.state.nodes}
    for n in range(len(world["nodes"])):
        assert (world["free"][0, n] >= 0).all()
    assert sum(sum(n.gpus_allocated.values()) for n in nodes.values()) > 0
