"""A case in the engine and in the reference simulator, and what differs."""

from __future__ import annotations

from builders import replay

from reference.cases import Case
from reference.kernel import checked_tier
from reference.simulator import Reference


def compare(case: Case, policy: str, backfill: str, placement: str, **more: object) -> str:
    """What differs, or nothing."""
    expected = Reference(
        case.cluster,
        case.jobs,
        policy,
        backfill,
        placement,
        events=case.events,
        choose_tier=checked_tier,
        **more,  # type: ignore[arg-type]  # each option by its name
    ).run()
    got = replay(case.cluster, case.jobs, policy, backfill, placement, events=case.events, **more)
    wrong = [f"job {j}: want {expected[j]}, got {got[j]}" for j in sorted(expected) if expected[j] != got[j]]
    return "\n".join([f"{policy} {backfill} {placement} {more}", *wrong]) if wrong else ""
