"""A case in the engine and in the reference simulator, and what differs."""

from __future__ import annotations

from builders import replay

from reference.cases import Case
from reference.kernel import checked_tier
from reference.sched_backfill import SlurmReference
from reference.simulator import Reference
from slurm_rl.backfill.slurm_settings import SlurmSettings


def compare(case: Case, policy: str, backfill: str, placement: str, **more: object) -> str:
    """What differs, or nothing."""
    reference = SlurmReference if backfill == "slurm" else Reference
    expected = reference(
        case.cluster,
        case.jobs,
        policy,
        backfill,
        placement,
        events=case.events,
        choose_tier=checked_tier,
        **more,  # type: ignore[arg-type]  # each option by its name
    ).run()
    own = {name: more.pop(name) for name in tuple(more) if name in SlurmSettings.__slots__}
    settings = SlurmSettings(**own) if own else None  # type: ignore[arg-type]  # each field by its name
    got = replay(case.cluster, case.jobs, policy, backfill, placement, events=case.events, slurm=settings, **more)
    wrong = [f"job {j}: want {expected[j]}, got {got[j]}" for j in sorted(expected) if expected[j] != got[j]]
    return "\n".join([f"{policy} {backfill} {placement} {more}", *wrong]) if wrong else ""
