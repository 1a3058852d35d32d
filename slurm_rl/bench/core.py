"""`bench core`: all schedulers on the 56 regimes, in pairs: the same jobs, information and rules for each."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_rl.bench import standings
from slurm_rl.bench.schedulers import runs
from slurm_rl.bench.suite import Findings, Row, Settings, Unit
from slurm_rl.traces.generate import generate
from slurm_rl.traces.regimes import REGIMES, regime
from slurm_rl_sim.replay import prepare


def plan(settings: Settings) -> list[Unit]:
    """A regime under one seed: a workload that all schedulers meet."""
    seeds = range(settings["seeds"])
    return [Unit(f"{name}/{seed}", {"regime": name, "seed": seed}) for name in REGIMES for seed in seeds]


def run(unit: Unit, settings: Settings) -> list[Row]:
    """One row a scheduler."""
    name, seed = unit.what["regime"], unit.what["seed"]
    shape, intensity, gpus = REGIMES[name]
    workload, cluster = regime(name, jobs=settings["jobs"], seed=seed)
    prepared = prepare(generate(workload, cluster), cluster, seed=seed)
    first = {"workload_shape": shape, "intensity": intensity, "gpu_count": gpus, "regime": name, "seed": seed}
    return [first | row for row in runs(prepared, settings["policy"])]


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """Who wins, by how much, and where nobody does."""
    return standings.find(rows, settings)
