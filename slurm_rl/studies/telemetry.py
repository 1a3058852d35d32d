"""The possible value of a measured figure of a job as a feature: the ablation of docs/telemetry.md.

slurm-rl study telemetry [REPLICATES]

No public trace tells how busy its jobs' GPUs were. What such a figure adds for the order of a queue is what it tells of
run times beyond the estimate, and that can be made to measure: a figure that correlates by R with the estimate's error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.outside import policy
from slurm_rl.policy.queue import Queue
from slurm_rl.studies.places import bundled
from slurm_rl.traces.read import read_trace
from slurm_rl_sim.replay import Prepared, find_cluster, parse_contenders, prepare, replay

CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_FROM, _WARM, _JOBS = (
    0.6,
    500,
    1_500,
)  # where stretches begin in the trace, and their jobs before and in the measured part
_DRAWS = 10_000


@dataclass
class ShortestFirst:
    """Shortest estimate first, the estimate corrected by a figure that tells its error so well (0: nothing, 1: all).

    The correction is the best linear one for that correlation; the rest of the figure is noise. `errors` collects the
    logarithm of run time over estimate of the jobs that it was asked about.
    """

    log_run: Array
    noise: Array  # as wide as the errors are
    correlation: float
    errors: dict[int, float] = field(default_factory=dict)

    def __call__(self, queue: Queue) -> Array:
        expected = np.log(queue.estimate)
        error = self.log_run[queue.jobs] - expected
        self.errors |= dict(zip(queue.jobs.tolist(), error.tolist(), strict=True))
        rest = self.correlation * np.sqrt(1.0 - self.correlation**2) * self.noise[queue.jobs]
        found: Array = -(expected + self.correlation**2 * error + rest)
        return found


def one(prepared: Prepared, seed: int) -> list[float]:
    """Mean bounded slowdown of a stretch under each correlation; the first has none."""
    noise = np.random.default_rng(seed).normal(size=len(prepared.trace))
    log_run = np.log(np.maximum(prepared.trace.run_time, 1.0))
    found, spread = [], 1.0
    for correlation in CORRELATIONS:
        rule = ShortestFirst(log_run, spread * noise, correlation)
        policy("told")(rule)
        run = replay(prepared, parse_contenders(["told"], "easy"))[0]
        found.append(float(run.metrics["mean_bsld"] or 1.0))
        spread = float(np.std(list(rule.errors.values())))
    return found


def stretches(count: int) -> Iterator[Prepared]:
    """Parts of the bundled sample's last 40%, each on a cluster that the jobs before have filled."""
    path = bundled() / "hetero.csv.gz"
    trace = read_trace(path)
    cluster = find_cluster(trace, path, None)
    dice = np.random.default_rng(0)
    for begin in dice.integers(int(_FROM * len(trace)), len(trace) - _JOBS, count).tolist():
        part = trace.take(np.arange(begin - _WARM, begin + _JOBS))
        yield prepare(part, cluster, window=(int(trace.submit_time[begin]), int(part.submit_time[-1]) + 1))


def main(replicates: str = "12") -> None:
    """Prints the slowdown under each correlation, as a ratio to none at all."""
    logs = np.log(np.array([one(prepared, seed) for seed, prepared in enumerate(stretches(int(replicates)))]))
    gains = logs - logs[:, :1]
    draws = np.random.default_rng(1).integers(0, len(gains), (_DRAWS, len(gains)))
    print(f"correlation with the estimate's error, mean BSLD to none, over {len(gains)} stretches of {_JOBS} jobs")
    for k, correlation in enumerate(CORRELATIONS):
        low, high = np.exp(np.percentile(gains[draws, k].mean(axis=1), (2.5, 97.5)))
        print(f"{correlation:4.1f}  {np.exp(gains[:, k].mean()):.3f} [{low:.3f}, {high:.3f}]")
