"""The generated workloads of the benchmark, from fixed seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perf.reference import Jobs
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import Prepared, prepare

CORES = 2048
COUNTS = Cluster("2048 cores", (NodeClass(1, cpus=CORES),))
NODES = Cluster("256 nodes of 8 cores", (NodeClass(256, cpus=8),))
USERS = 50


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs as arrays: sizes are powers of two up to 128 cores, run times log-normal (median 7 min, mean 21 min),
    limits one to nine times the run time, arrivals uniform over the span that gives the wanted load."""

    submit: np.ndarray
    run: np.ndarray
    limit: np.ndarray
    cores: np.ndarray
    user: np.ndarray

    def prepared(self, cluster: Cluster) -> Prepared:
        """Ready for the engine."""
        trace = make_trace(
            "generated",
            self.submit,
            run_time=self.run,
            time_limit=self.limit,
            cpus=self.cores.astype(float),
            user=[f"u{u}" for u in self.user.tolist()],
        )
        return prepare(trace, cluster)

    def lists(self) -> Jobs:
        """Ready for the plain Python reference."""
        return Jobs(self.submit.tolist(), self.run.tolist(), self.limit.tolist(), self.cores.tolist())

    def write_swf(self, path: Path) -> Path:
        """As an SWF file."""
        columns = (
            self.submit.tolist(),
            self.run.tolist(),
            self.cores.tolist(),
            self.limit.tolist(),
            self.user.tolist(),
        )
        rows = zip(*columns, strict=True)
        lines = [
            f"{i} {s} -1 {r} {c} -1 -1 {c} {m} -1 1 {u} 1 -1 1 1 -1 -1" for i, (s, r, c, m, u) in enumerate(rows, 1)
        ]
        path.write_text(f"; MaxProcs: {CORES}\n; MaxNodes: 256\n" + "\n".join(lines) + "\n")
        return path


def generate(jobs: int, load: float = 0.85, seed: int = 1) -> Load:
    """A workload that keeps `load` of the cores busy if they could all be used."""
    rng = np.random.default_rng(seed)
    cores = 2 ** rng.integers(0, 8, jobs)
    run = np.exp(rng.normal(6.0, 1.5, jobs)).astype(np.int64) + 1
    limit = run * rng.integers(1, 10, jobs)
    span = float((cores * run).sum()) / CORES / load
    submit = np.sort((rng.random(jobs) * span).astype(np.int64))
    return Load(submit, run, limit, cores, rng.integers(0, USERS, jobs))
