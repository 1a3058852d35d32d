"""Reservations: the compiled engine agrees with the plain simulator, `decide` with the engine (V1 to V9)."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from builders import a_simulation, replay
from reference.cases import BACKFILLS, PLACEMENTS, POLICIES, Case, a_case, a_gres_case
from reference.compare import compare

from slurm_rl.decide import decide
from slurm_rl.domain.reservations import Reservation, reservations_from
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim.validate import check_state

ROUNDS = 60


def some_reservations(rng: random.Random, nodes: int, span: int) -> tuple[Reservation, ...]:
    """Reservations of some nodes now and then, with and without users, accounts and flags."""
    value = {}
    for i in range(rng.randint(1, 4)):
        start = rng.randint(0, span)
        row: dict[str, object] = {"StartTime": start, "EndTime": start + rng.randint(1, max(span // 2, 2))}
        chosen = rng.sample(range(nodes), rng.randint(1, nodes))
        row["Nodes"] = rng.choice(("ALL", *[",".join(map(str, chosen))] * 4))
        for key, names in (("Users", ("u", "u,v", "-w")), ("Accounts", ("g", "-h"))):
            if rng.random() < 0.2:
                row[key] = rng.choice(names)
        row["Flags"] = ",".join(f for f in ("MAINT", "OVERLAP", "FLEX", "IGNORE_JOBS") if rng.random() < 0.25)
        value[f"r{i}"] = row
    return reservations_from({"reservation": value}, nodes)


def a_reserved_case(seed: int, *, gres: bool = False, **more: bool) -> tuple[Case, tuple[Reservation, ...]]:
    """A case of the reference, with reservations, and some jobs that are for one."""
    rng = random.Random(seed)
    case = a_gres_case(seed, **more) if gres else a_case(seed, **more)
    names = ("", "", "", "", "r0", "r0", "r1", "r2", "none")
    jobs = [replace(job, reservation=rng.choice(names)) for job in case.jobs]
    span = max(j.submit + 2 * j.run for j in jobs) + 2
    return replace(case, jobs=jobs), some_reservations(rng, case.cluster.nodes, span)


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_the_engine_keeps_to_reservations_as_the_reference_does(backfill: str) -> None:
    wrong, changed = [], 0
    for seed in range(ROUNDS):
        rng = random.Random(1000 + seed)
        more_jobs = {"gres": True} if seed % 4 == 1 else {"many": seed % 2 == 0}
        case, reservations = a_reserved_case(5000 + seed, failures=seed % 3 == 0, **more_jobs)
        place = "slurm" if backfill == "slurm" and seed % 2 else rng.choice(PLACEMENTS)
        policy = rng.choice([p for p in POLICIES if not p.startswith("srpt")])
        more: dict[str, object] = {"reservations": reservations}
        if backfill == "slurm":
            more |= {"bf_interval": rng.choice((1, 5, 30)), "bf_resolution": rng.choice((1, 10, 60))}
            more |= {"default_queue_depth": rng.choice((2, 100)), "bf_max_job_test": rng.choice((2, 4, 500))}
            more |= {"resv_over_run": rng.choice((0, 60)), "sched_interval": rng.choice((1, 60))}
        if difference := compare(case, policy, backfill, place, **more):
            wrong.append(f"seed {5000 + seed}: {reservations}\n{difference}")
        free = replay(case.cluster, case.jobs, policy, backfill, place, events=case.events)
        changed += free != replay(
            case.cluster, case.jobs, policy, backfill, place, events=case.events, reservations=reservations
        )
    assert not wrong, f"{len(wrong)} of {ROUNDS}\n" + "\n".join(wrong[:3])
    assert changed > ROUNDS // 2, "reservations that keep nobody off prove nothing"


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_no_job_runs_on_nodes_that_are_reserved_from_it(backfill: str) -> None:
    """V1, V2: whatever the rule, by the times at which jobs may run: no limit reaches into a reservation."""
    ran_inside = 0
    for seed in range(ROUNDS):
        case, reservations = a_reserved_case(7000 + seed, many=True)
        kept = {r.name: r for r in reservations}
        ran = replay(case.cluster, case.jobs, "sjf", backfill, "best-fit", reservations=reservations)
        for job in case.jobs:
            got, own = ran[job.id], kept.get(job.reservation)
            if got.start < 0:
                continue
            nodes = {str(n) for n, _ in got.nodes}
            if own is not None and "FLEX" not in own.flags:
                assert nodes <= set(own.nodes)
                assert own.start <= got.start < own.end
                assert got.end <= own.end
                ran_inside += 1
            for r in reservations:
                if r is own or (own is not None and own.flags & {"MAINT", "OVERLAP"}):
                    continue
                reaches = got.start < r.end and got.start + job.limit > r.start
                assert not (reaches and nodes & set(r.nodes)), f"seed {7000 + seed}, job {job.id}: {got}, {r}"
    assert ran_inside > 20


def test_decide_keeps_to_reservations_as_the_engine_does() -> None:
    """Pass by pass: what `decide` starts from a snapshot is what the engine starts from that state."""
    compared = 0
    for seed in range(30):
        case, reservations = a_reserved_case(9000 + seed, many=True)
        backfill = BACKFILLS[seed % len(BACKFILLS)]
        jobs = [replace(j, run=max(j.run, 1)) for j in case.jobs]  # one of no length would make room for another pass
        simulation, _ = a_simulation(case.cluster, jobs, "fcfs", backfill, "best-fit", reservations=reservations)
        policy = parse_policy("fcfs")
        while simulation.to_next_pass():
            plan = decide(simulation.snapshot(), policy, backfill=backfill, placement="best-fit")
            before = simulation.world["live"]["start"].copy()
            simulation.finish_pass()
            check_state(simulation)
            started = np.flatnonzero(before != simulation.world["live"]["start"])
            assert sorted(s.job for s in plan.starts) == started.tolist(), f"seed {9000 + seed}"
            compared += len(started)
    assert compared > 100
