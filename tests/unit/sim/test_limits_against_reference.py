"""Limits and licences: the compiled engine agrees with the plain simulator, `decide` with the engine (L1 to L5)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders import a_simulation, replay
from reference.cases import BACKFILLS, PLACEMENTS, POLICIES, Case, a_case
from reference.compare import compare

from slurm_rl.decide import decide
from slurm_rl.domain.limits import Limits, limits_from
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim.validate import check_state

ROUNDS = 60


def some_limits(seed: int) -> Limits:
    """Limits of a seed: each kind now and then, small enough to hold somebody back."""
    rng = random.Random(seed)

    def few(most: int) -> int:
        return rng.randint(1, most)

    def tres() -> str:
        said = [f"cpu={few(6)}", f"node={few(4)}", f"gres/gpu={few(5)}", f"gres/gpu:a={few(3)}", f"mem={few(6)}G"]
        return ",".join(rng.sample([*said, f"license/x={few(3)}"], rng.randint(1, 3)))

    def some(makers: dict[str, object], share: float) -> dict[str, object]:
        return {name: make() for name, make in makers.items() if rng.random() < share}  # type: ignore[operator]

    qos = {
        "GrpTRES": tres,
        "MaxTRESPU": tres,
        "MaxTRESPA": tres,
        "GrpJobs": lambda: few(4),
        "MaxJobsPU": lambda: few(3),
        "MaxJobsPA": lambda: few(3),
        "GrpSubmit": lambda: few(8),
        "MaxSubmitPU": lambda: few(5),
        "MaxTRESPJ": tres,
        "MaxWall": lambda: rng.choice(("0:20", "1:00:00")),
        "Flags": lambda: "OverPartQOS",
        "Priority": lambda: few(9),
    }
    association = {
        "GrpTRES": tres,
        "GrpJobs": lambda: few(4),
        "MaxJobs": lambda: few(3),
        "MaxSubmit": lambda: few(6),
        "GrpSubmit": lambda: few(9),
        "MaxTRESPJ": tres,
    }
    value: dict[str, object] = {
        "qos": {name: some(qos, 0.25) for name in ("a", "b")},
        "account": {
            "g": some(association, 0.25) | {"Parent": "top"},
            "top": some(association, 0.25),
        },
        "user": some({"u": lambda: some(association, 0.3), "*": lambda: some(association, 0.2)}, 0.7),
        "partition": some({"p": lambda: {"QOS": "b", "MaxNodes": few(3)}, "q": lambda: {"MaxTime": "10:00"}}, 0.4),
        "licenses": {"x": few(4), "y": 1},
    }
    for name in "pqr":
        ranks = some({"PriorityTier": lambda: few(3), "PriorityJobFactor": lambda: few(9)}, 0.3)
        value["partition"].setdefault(name, {}).update(ranks)  # type: ignore[attr-defined]  # a table
    if rng.random() < 0.5:
        value["default_qos"] = "a"
    return limits_from(value)


def a_limited_case(seed: int, **more: bool) -> tuple[Case, Limits]:
    """A case of the reference, its jobs with QOS and licences, and limits."""
    rng = random.Random(seed)
    case = a_case(seed, **more)
    jobs = [
        replace(
            job,
            qos=rng.choice(("", "a", "a", "b", "none")),
            licenses=rng.choice(("", "", "", "x", "x:2", "x:1,y", "z")),
        )
        for job in case.jobs
    ]
    return replace(case, jobs=jobs), some_limits(seed)


@pytest.mark.parametrize("backfill", BACKFILLS)
@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_every_rule(backfill: str, many: bool) -> None:
    base = 80_000_000 + 100_000 * BACKFILLS.index(backfill) + 50_000 * many
    changed = 0
    for number in range(ROUNDS):
        case, limits = a_limited_case(base + number, many=many, failures=number % 5 == 0)
        policy, placement = POLICIES[number % len(POLICIES)], PLACEMENTS[number % 6]
        difference = compare(case, policy, backfill, placement, limits=limits)
        assert not difference, f"seed {base + number}: {difference}"
        free = replay(case.cluster, case.jobs, policy, backfill, placement, events=case.events)
        changed += free != replay(
            case.cluster, case.jobs, policy, backfill, placement, events=case.events, limits=limits
        )
    assert changed > ROUNDS // 3, "limits that hold nobody back prove nothing"


@pytest.mark.parametrize("part", range(2))
def test_slurm_with_settings_of_a_site(part: int) -> None:
    """L3: bf_max_job_test and bf_max_job_user count jobs that are held back as Slurm does."""
    base = 81_000_000 + 100_000 * part
    for number in range(100):
        rng = random.Random(base + number)
        case, limits = a_limited_case(base + number, many=True)
        settings = {
            "bf_interval": rng.choice((1, 30)),
            "bf_resolution": rng.choice((1, 60)),
            "bf_max_job_test": rng.choice((1, 2, 3, 5, 500)),
            "bf_max_job_user": rng.choice((0, 1, 2)),
            "bf_max_job_part": rng.choice((0, 0, 3)),
            "default_queue_depth": rng.choice((1, 3, 100)),
            "sched_interval": rng.choice((0, 60)),
        }
        difference = compare(case, POLICIES[number % len(POLICIES)], "slurm", "slurm", limits=limits, **settings)
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_decide_starts_what_the_engine_starts(backfill: str) -> None:
    """Pass by pass on the snapshots of that moment; the state holds at each."""
    base = 82_000_000 + 100_000 * BACKFILLS.index(backfill)
    compared = 0
    for number in range(25):
        case, limits = a_limited_case(base + number, many=number % 2 == 0)
        policy, placement = POLICIES[number % len(POLICIES)], PLACEMENTS[number % 6]
        jobs = [replace(j, run=max(j.run, 1)) for j in case.jobs]  # one of no length would make room for another pass
        simulation, _ = a_simulation(case.cluster, jobs, policy, backfill, placement, limits=limits)
        while simulation.to_next_pass():
            snapshot = simulation.snapshot()
            plan = decide(snapshot, parse_policy(policy), backfill=backfill, placement=placement)
            simulation.finish_pass()
            check_state(simulation)
            live = simulation.world["live"]
            started = {j for j in snapshot.pending.tolist() if live["start"][j] == snapshot.now}
            assert {s.job for s in plan.starts} == started, f"seed {base + number} at {snapshot.now}"
            compared += len(started)
    assert compared
