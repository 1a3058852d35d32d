"""Digests of schedules, plans and trained weights: a change of structure must leave every one of them as it is.

    python tests/golden/digests.py             compares everything with what was recorded
    python tests/golden/digests.py --record    records everything anew, after a change of rules that is meant

The normal suite compares the sections in `QUICK`; the others need minutes, or recorded traces, which are not in the
repository: they are looked for in ../shared/traces, or where `SHARED_TRACES` says.
"""
# ruff: noqa: E402  # run as a script, it has to find the tests' own modules first

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "unit")]

import msgspec
import numpy as np
from builders import a_simulation
from live.fake_slurm import NOW, FakeSlurm, a_job, a_running_job
from reference.cases import BACKFILLS, POLICIES, a_case

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import finished_jobs, observe
from slurm_rl.decide import Guardrails, decide
from slurm_rl.domain.snapshot import Plan
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.policy.registry import parse_policy
from slurm_rl.slurm.model import HistoryJob, SlurmNode, SlurmPartition
from slurm_rl.traces.read import read_trace
from slurm_rl_sim.replay import find_cluster, prepare
from slurm_rl_sim.simulation import ReplayState

ROOT = TESTS.parent
SHARED = Path(os.environ.get("SHARED_TRACES") or ROOT.parent / "shared" / "traces")
RECORDED = Path(__file__).with_name("digests.json")
PLACEMENTS = ("first-fit", "best-fit", "spread", "round-robin", "tier", "greedy", "mip")
PATIENT = PlannerSettings(seconds=120.0)  # a solver that runs out of time would answer as the machine's load has it
SEVERAL = ("fcfs", "sjf", "sjf@user", "wfp3", "multifactor", "rl:default")

Digests = dict[str, str]


class Digest:
    """Numbers and texts in, 12 hexadecimal digits out."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, value: Any) -> None:
        data = value.astype("<i8").tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        self._hash.update(data)

    def __str__(self) -> str:
        return self._hash.hexdigest()[:12]


def add_schedule(digest: Digest, simulation: ReplayState) -> None:
    """When each job started and ended, in which state, and on which nodes."""
    live, log = simulation.world["live"], simulation.world["log"]
    for field in ("start", "end", "state", "log_first", "log_count"):
        digest.add(live[field])
    used = log[: int(simulation.world["logged"])]
    digest.add(used["node"])
    digest.add(used["units"])


def add_plan(digest: Digest, plan: Plan) -> None:
    """The order, the factors, the promoted, the starts with their nodes, and the deferred."""
    digest.add((plan.order, plan.site_factor, [(r.rank, r.promoted, r.fallback) for r in plan.reasons]))
    digest.add([(s.job, s.nodes) for s in plan.starts])
    digest.add([(d.job, d.until, d.awaits) for d in plan.deferrals])


def planner_for(placement: str) -> Planner | None:
    return Planner(PATIENT) if placement == "mip" else None


def small_cases() -> Iterator[tuple[str, str]]:
    """Every policy × backfill rule × placement on small random clusters and jobs, some with failing nodes."""
    cases = [a_case(seed, many=True, failures=seed % 3 == 0) for seed in (2, 3, 5, 8, 11, 14)]
    for policy in (*POLICIES, "rl:default"):
        for backfill in BACKFILLS:
            for placement in PLACEMENTS:
                digest = Digest()
                for case in cases if placement != "mip" else cases[1:2]:
                    simulation, _ = a_simulation(
                        case.cluster, case.jobs, policy, backfill, placement, events=case.events
                    )
                    simulation.planner = planner_for(placement)
                    simulation.run()
                    add_schedule(digest, simulation)
                yield f"{policy} {backfill} {placement}", str(digest)


def small_options() -> Iterator[tuple[str, str]]:
    """Preemption and bounded influence on small cases."""
    cases = [a_case(seed, many=True) for seed in range(30, 36)]
    for backfill in BACKFILLS:
        for policy in ("srpt", "srpt@user", "static-priority"):
            digest = Digest()
            for case in cases:
                simulation, _ = a_simulation(case.cluster, case.jobs, policy, backfill, "best-fit", preempt=True)
                simulation.run()
                add_schedule(digest, simulation)
            yield f"preempt {policy} {backfill}", str(digest)
        for policy in SEVERAL:
            digest = Digest()
            for case in cases:
                simulation, _ = a_simulation(case.cluster, case.jobs, policy, backfill, "best-fit", influence=0.4)
                simulation.run()
                add_schedule(digest, simulation)
            yield f"influence {policy} {backfill}", str(digest)


def plans() -> Iterator[tuple[str, str]]:
    """`decide` on the snapshots of replays, at every fourth pass."""
    cases = [a_case(seed, many=True) for seed in (3, 5, 7)]
    for policy in SEVERAL:
        for backfill in BACKFILLS:
            for placement in ("best-fit", "tier", "greedy", "mip"):
                digest = Digest()
                for case in cases:
                    simulation, _ = a_simulation(case.cluster, case.jobs, policy, backfill, "best-fit")
                    passes = 0
                    while simulation.to_next_pass():
                        if passes % 4 == 0:
                            snapshot = simulation.snapshot()
                            for guard in (None, Guardrails(influence=0.5, starve_age=20.0, starve_factor=1.0)):
                                plan = decide(
                                    snapshot,
                                    parse_policy(policy),
                                    backfill=backfill,
                                    placement=placement,
                                    guardrails=guard,
                                    planner=planner_for(placement),
                                )
                                add_plan(digest, plan)
                        passes += 1
                        simulation.finish_pass()
                yield f"{policy} {backfill} {placement}", str(digest)


def _live_slurm() -> FakeSlurm:
    """Two partitions without common nodes, GPUs of two types and CPUs, running, waiting and finished jobs."""
    slurm = FakeSlurm(
        *(
            a_job(
                i,
                limit=600 * (1 + i % 7),
                gpus=(0, 1, 2, 4, 8)[i % 5],
                waited=37 * (i % 11),
                own=400 + 13 * (i % 9),
                partition="cpu" if i % 5 == 0 else "batch",
                user=f"u{i % 4}",
                name=f"n{i % 6}",
            )
            for i in range(1, 41)
        ),
        a_running_job(90, "n1", gpus=6, began=300),
        a_running_job(91, "n2", gpus=2, began=900),
    )
    slurm.nodes = (
        *(
            msgspec.structs.replace(n, gpus={kind: 8}, gpus_allocated={kind: taken})
            for n, kind, taken in zip(slurm.nodes, ("a100", "t4"), (6, 2), strict=True)
        ),
        *(SlurmNode(name=f"c{i}", state="IDLE", cpus=16, mem_mb=64_000, partitions=("cpu",)) for i in range(2)),
    )
    slurm.partitions = (*slurm.partitions, SlurmPartition(name="cpu", state="UP", default_time=3600))
    slurm.past = [
        HistoryJob(
            job_id=1000 + i,
            display_id=str(1000 + i),
            user=f"u{i % 4}",
            account="lab",
            partition="cpu" if i % 5 == 0 else "batch",
            qos="normal",
            state="COMPLETED",
            submit_time=int(NOW) - 90_000 + 60 * i,
            eligible_time=int(NOW) - 90_000 + 60 * i,
            start_time=int(NOW) - 80_000 + 60 * i,
            end_time=int(NOW) - 80_000 + 60 * i + 40 + 17 * (i % 23),
            elapsed=40 + 17 * (i % 23),
            time_limit=600 * (1 + i % 7),
            gpus_requested={"": (0, 1, 2, 4, 8)[i % 5]} if i % 5 else {},
            gpus_allocated={},
            cpus=4,
            mem_mb=1024,
            nodes=1,
            name=f"n{i % 6}",
            node_list=(),
            priority=1,
            exit_code=0,
        )
        for i in range(200)
    ]
    return slurm


def live_plans() -> Iterator[tuple[str, str]]:
    """What the controller plans on a recorded state of Slurm with a recorded history."""
    slurm = _live_slurm()
    run_times = RunTimes()
    run_times.learn(finished_jobs(slurm.past, slurm.nodes))
    for name in ("fcfs", "sjf@limit", "sjf@user", "sjf-age@user", "saf@user", "smith", "multifactor", "rl:default"):
        policy = load_policy(name)
        view = observe(slurm.snapshot(), run_times, policy.spec)
        for placement in ("best-fit", "greedy", "mip"):
            digest = Digest()
            for influence in (0.5, 1.0):
                plan = policy.plan(
                    view.snapshot, Guardrails(influence), dict(view.weights), placement, planner_for(placement)
                )
                add_plan(digest, plan)
            yield f"{name} {placement}", str(digest)


def _replayed(path: Path, jobs: int | None, policy: str, backfill: str, placement: str) -> str:
    trace = read_trace(path)
    cluster = find_cluster(trace, path, None)
    if jobs is not None:
        trace = trace.take(np.arange(min(jobs, len(trace))))
    prepared = prepare(trace, cluster)
    simulation = ReplayState(
        prepared.workload,
        prepared.trace.run_time,
        parse_policy(policy),
        backfill=backfill,
        placement=placement,
        planner=planner_for(placement),
    )
    simulation.run()
    digest = Digest()
    add_schedule(digest, simulation)
    return str(digest)


def samples() -> Iterator[tuple[str, str]]:
    """The bundled traces: the first jobs under every rule and placement, and all of them under a few."""
    for name in ("small.swf.gz", "hetero.csv.gz"):
        path = ROOT / "traces" / name
        for policy in ("fcfs", "sjf-age@user", "rl:default"):
            for backfill in BACKFILLS:
                for placement in PLACEMENTS[:-1]:
                    yield f"{name} {policy} {backfill} {placement}", _replayed(path, 600, policy, backfill, placement)
        for policy in ("fcfs", "multifactor", "rl:default"):
            yield f"{name} {policy} easy best-fit, all", _replayed(path, None, policy, "easy", "best-fit")


def shared_traces() -> Iterator[tuple[str, str]]:
    """Two recorded traces: one of many partitions, one of shared GPUs."""
    for name in ("helios_venus_sept2020", "alibaba_openb_v2023_gpuspec33"):
        path = SHARED / f"{name}.csv.gz"
        if not path.is_file():
            continue
        for policy in SEVERAL:
            for backfill in BACKFILLS:
                for placement in PLACEMENTS[:-1]:
                    if policy in ("fcfs", "rl:default") or placement in ("best-fit", "greedy"):
                        yield (
                            f"{name} {policy} {backfill} {placement}",
                            _replayed(path, 3000, policy, backfill, placement),
                        )
            yield f"{name} {policy} easy best-fit, all", _replayed(path, None, policy, "easy", "best-fit")
        yield f"{name} sjf@user easy mip", _replayed(path, 400, "sjf@user", "easy", "mip")


def training() -> Iterator[tuple[str, str]]:
    """Weights after a short training; they depend on the processor and on torch's release, which the key names."""
    import torch

    from slurm_rl.train.recipe import train_model
    from slurm_rl.train.settings import SearchSettings
    from slurm_rl.train.settings import Settings as Recipe

    recipe = Recipe(
        iterations=2, scenes=3, jobs=300, validation=3, lessons=6, search=SearchSettings(generations=1, pairs=1)
    )
    with tempfile.TemporaryDirectory() as folder:
        model = train_model(recipe, [], Path(folder))
    where = f"torch {torch.__version__}, {_processor()}, {torch.backends.cpu.get_cpu_capability()}"
    yield f"ppo, 2 iterations, {where}", hashlib.sha256(model.net.tobytes()).hexdigest()[:12]


def _processor() -> str:
    """Vendor, family and model: mathematical libraries take other paths, with other last bits, on others."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = [re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE) for name in ("vendor_id", "cpu family", "model")]
    return " ".join(m[1] for m in found if m) or platform.machine()


QUICK: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "small cases": small_cases,
    "options": small_options,
    "plans": plans,
    "live plans": live_plans,
}
SECTIONS = QUICK | {"samples": samples, "shared traces": shared_traces, "training": training}


def recorded() -> dict[str, Digests]:
    """The digests as committed, by section."""
    found: dict[str, Digests] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Compares, or records; the number of sections that differ."""
    record, wanted = "--record" in sys.argv, [a for a in sys.argv[1:] if not a.startswith("--")] or list(SECTIONS)
    known = recorded() if RECORDED.is_file() else {}
    wrong = 0
    for name in wanted:
        found = dict(SECTIONS[name]())
        if record:
            known[name] = (known.get(name, {}) if name == "training" else {}) | found
            RECORDED.write_text(json.dumps(known, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
        if name == "training" and not found.keys() & known[name].keys():
            print(f"{name}: not recorded on such a processor: compare {found} with an earlier commit by hand")
            continue
        differ = [key for key, value in found.items() if known[name].get(key) != value]
        print(f"{name}: {len(found)} digests, {len(differ)} differ", *differ[:10], sep="\n  ")
        wrong += bool(differ)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
