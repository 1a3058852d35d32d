"""`slurm-rl replay --backend slurm`: the same comparison, on a real slurmctld."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.errors import InputError, unknown_name

if TYPE_CHECKING:
    from slurm_rl.lab.replay import RealRun
    from slurm_rl.traces.trace import Trace
    from slurm_rl_sim.replay import Prepared, Run

DEFAULT_POLICY = "fcfs"
DEFAULT_CLOCK = 60.0
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class RealRunOptions:
    """The options of `replay` that a real run takes."""

    backend: str
    policy: str | None
    cluster: Path | None
    window: str | None
    seed: int
    clock: float | None
    on: Path | None
    confirm: bool
    release: str
    influence: float | None
    weights: Mapping[str, float] | None
    settings: Mapping[str, str] = field(default_factory=dict)  # of slurm.conf
    commands: bool = False  # real work, not sleeps


@dataclass(frozen=True)
class RealRuns:
    """Runs on a real Slurm, one a policy."""

    each: list[RealRun]

    @property
    def runs(self) -> list[Run]:
        return [r.run for r in self.each]

    def described(self) -> list[dict[str, Any]]:
        """What is told of them besides their metrics."""
        return [
            {
                "release": r.release,
                "clock": r.clock,
                "tick_seconds": r.tick,
                "ticks": r.ticks,
                "updates": r.updates,
                "submissions_late_seconds": r.late,
                "refused": r.refused,
            }
            for r in self.each
        ]

    def add_metrics(self, path: Path) -> None:
        """Adds a row a policy to a real_system_metrics.csv."""
        from slurm_rl.lab.real_metrics import append, real_metrics

        append(path, [real_metrics(r.prepared, r.run) for r in self.each])

    def record(self, path: Path) -> None:
        """Writes the runs; several of them under their policies' names."""
        from slurm_rl.lab.observed import write_observed

        for r in self.each:
            one = path if len(self.each) == 1 else path.with_name(f"{path.stem}.{r.run.policy}{path.suffix}")
            write_observed(one, r.rows)


def replay_real(
    path: Path, jobs: Trace, asked: RealRunOptions, on_progress: Progress | None
) -> tuple[Prepared, RealRuns]:
    """Runs the trace on labs, one a policy, or on a cluster that is named."""
    try:
        return _replay_real(path, jobs, asked, on_progress)
    except KeyboardInterrupt:
        print("slurm-rl: interrupted, and its jobs were cancelled", file=sys.stderr)
        raise


def _replay_real(
    path: Path, jobs: Trace, asked: RealRunOptions, on_progress: Progress | None
) -> tuple[Prepared, RealRuns]:
    from slurm_rl.lab.replay import Options, cluster_of_site, replay_on_lab, replay_on_site
    from slurm_rl.lab.workloads import commands_of
    from slurm_rl_sim.replay import find_cluster, prepare, window_of

    if asked.backend != "slurm":
        raise unknown_name("--backend", asked.backend, ("sim", "slurm"))
    _check(asked)
    window = window_of(jobs, asked.window)
    commands = commands_of(path, jobs) if asked.commands else {}
    if asked.on is not None:
        cluster, names = cluster_of_site(asked.on)
        prepared = prepare(jobs, cluster, window=window, seed=asked.seed)
        one = replay_on_site(prepared, names, asked.on, commands, on_progress)
        return one.prepared, RealRuns([one])
    prepared = prepare(jobs, find_cluster(jobs, path, asked.cluster), window=window, seed=asked.seed)
    options = Options(
        clock=_clock(asked),
        influence=0.5 if asked.influence is None else asked.influence,
        weights=asked.weights,
        settings=asked.settings,
        commands=commands,
        slurm=asked.release,
    )
    each = [replay_on_lab(prepared, policy, options, on_progress) for policy in policies_of(asked.policy)]
    return each[0].prepared, RealRuns(each)


def _clock(asked: RealRunOptions) -> float:
    """Real work takes real time."""
    if asked.clock is not None:
        return asked.clock
    return 1.0 if asked.commands else DEFAULT_CLOCK


def policies_of(text: str | None) -> list[str]:
    """Policies by name; Slurm's own backfill runs, so none may carry another."""
    names = [p.strip() for p in (text or DEFAULT_POLICY).split(",") if p.strip()]
    for name in names:
        if "+" in name:
            raise InputError(f"{name}: Slurm's own backfill runs here", field="--policy", remedy=name.partition("+")[0])
    return list(dict.fromkeys(names))


def _check(asked: RealRunOptions) -> None:
    """A real cluster is used only if it is named and meant."""
    if asked.on is None:
        if asked.confirm:
            raise InputError("names no cluster", field="--confirm", remedy="--on /etc/slurm/slurm.conf --confirm")
        return
    if asked.clock not in (None, 1.0):
        raise InputError("a real cluster runs at natural speed", field="--clock", remedy="leave it out")
    if asked.policy is not None:
        raise InputError(
            "a real cluster goes by its own order, and by slurm-rl serve where that runs",
            field="--policy",
            remedy="leave it out",
        )
    if asked.cluster is not None:
        raise InputError("the cluster of --on is asked for its nodes", field="--cluster", remedy="leave it out")
    if not asked.confirm:
        raise InputError(
            f"this would submit real jobs to the cluster of {asked.on}", field="--on", remedy="add --confirm"
        )
