"""Orders queues given in requests, one JSON line each: `… -m slurm_rl.controller.ranking POLICY STATE_DIR`.

The service runs it as a process of its own, and kills it when it takes too long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

_COMPILED = ("rl:", "meta:", "bandit:")
_AT_MOST = 30  # seconds for a request, should the service no longer be there to end it


def rank(request: Mapping[str, Any], policy_name: str, state_dir: Path) -> dict[str, Any]:
    """Orders a queue that is described in the request; raises InputError for one that makes no sense."""
    from slurm_rl.controller.estimates import RunTimes
    from slurm_rl.controller.live import described
    from slurm_rl.controller.live_policy import load_policy
    from slurm_rl.controller.slurm_snapshot import observe
    from slurm_rl.decide import Guardrails
    from slurm_rl.errors import InputError

    named = request["policy"]
    if "/" in named or (":" in named and not named.startswith(_COMPILED)):
        raise InputError("name a model here, not a path; no code is imported", field="policy")
    policy = load_policy(named or policy_name, state_dir)
    state = described(request)
    if len({j.job_id for j in state.jobs}) != len(state.jobs):
        raise InputError("two jobs have the same id", field="jobs")
    queue = observe(state, RunTimes(), policy.spec)
    plan = policy.plan(queue.snapshot, Guardrails(), dict(queue.weights))
    order = [
        {"id": queue.jobs[j].job_id, "score": _finite(reason.score), "why": str(reason)}
        for j, reason in zip(plan.order, plan.reasons, strict=True)
    ]
    starts = [queue.jobs[s.job].job_id for s in plan.starts]
    left = [{"id": job_id, "why": why} for job_id, why in queue.left_alone.items()]
    return {"policy": policy.name, "order": order, "can_start_now": starts, "not_ordered": left}


def _finite(value: float) -> float:
    return value if abs(value) < 1e300 else (1e300 if value > 0 else -1e300)


def main() -> None:
    """Answers lines from stdin until it ends; the first line out says that all is ready."""
    from slurm_rl.errors import SlurmRlError

    with contextlib.suppress(OSError):  # work for strangers comes last, and goes first when memory is short
        os.nice(10)
        Path("/proc/self/oom_score_adj").write_text("1000")
    from slurm_rl.controller.live import SAMPLE

    policy, state_dir = sys.argv[1], Path(sys.argv[2])
    rank(SAMPLE | {"policy": ""}, policy, state_dir)  # loads the kernels before somebody waits for them
    out = sys.stdout.buffer
    out.write(b'"ready"\n')
    out.flush()
    for line in sys.stdin.buffer:
        asked = msgspec.json.decode(line)
        signal.alarm(_AT_MOST)  # ends the process, whatever it is doing
        try:
            said: dict[str, Any] = {"ranked": rank(asked, policy, state_dir)}
        except SlurmRlError as error:
            said = {"error": str(error)}
        signal.alarm(0)
        out.write(msgspec.json.encode(said) + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
