"""The possible value of a measured figure of a job as a feature: the ablation of docs/telemetry.md.

slurm-rl study telemetry [STRETCHES]

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
_WARM, _JOBS = 500, 1_000  # jobs of a stretch before its measured part, and in it
_DRAWS = 10_000


@dataclass
class ShortestFirst:
    """Shortest estimate first, the estimate corrected by a figure that tells its error so well (0: nothing, 1: all).

    The correction is the best linear one for that correlation; the rest of the figure is noise. Without `tells` all of
    it is: a correction of the same size that knows nothing. `errors` collects the logarithm of run time over estimate
    of the jobs that it was asked about.
    """

    log_run: Array
    noise: Array  # as wide as the errors are
    correlation: float
    tells: bool = True
    errors: dict[int, float] = field(default_factory=dict)

    def __call__(self, queue: Queue) -> Array:
        expected = np.log(queue.estimate)
        error = self.log_run[queue.jobs] - expected
        self.errors |= dict(zip(queue.jobs.tolist(), error.tolist(), strict=True))
        told = self.correlation**2 if self.tells else 0.0
        rest = np.sqrt(self.correlation**2 - told**2) * self.noise[queue.jobs]
        found: Array = -(expected + told * error + rest)
        return found


def one(prepared: Prepared, seed: int) -> Array:
    """Mean bounded slowdown of a stretch, a row a correlation: under the figure, and under noise of the same size."""
    noise = np.random.default_rng(seed).normal(size=len(prepared.trace))
    log_run = np.log(np.maximum(prepared.trace.run_time, 1.0))
    found, spread = np.ones((len(CORRELATIONS), 2)), 1.0
    for k, correlation in enumerate(CORRELATIONS):
        for tells in (True, False):
            rule = ShortestFirst(log_run, spread * noise, correlation, tells)
            policy("told")(rule)
            run = replay(prepared, parse_contenders(["told"], "easy"))[0]
            found[k, int(not tells)] = float(run.metrics["mean_bsld"] or 1.0)
            spread = float(np.std(list(rule.errors.values()))) if tells else spread
    return found


def stretches(count: int) -> Iterator[Prepared]:
    """Parts of the bundled sample, evenly spaced, each on a cluster that the jobs before have filled.

    Up to eleven do not overlap, so that the interval over them can be believed.
    """
    path = bundled() / "hetero.csv.gz"
    trace = read_trace(path)
    cluster = find_cluster(trace, path, None)
    for begin in np.linspace(_WARM, len(trace) - _JOBS, count).astype(int).tolist():
        part = trace.take(np.arange(begin - _WARM, begin + _JOBS))
        yield prepare(part, cluster, window=(int(trace.submit_time[begin]), int(part.submit_time[-1]) + 1))


def main(count: str = "11") -> None:
    """Prints the slowdown under each correlation, as a ratio to none at all and to noise of the same size."""
    logs = np.log(np.array([one(prepared, seed) for seed, prepared in enumerate(stretches(int(count)))]))
    draws = np.random.default_rng(1).integers(0, len(logs), (_DRAWS, len(logs)))
    print(f"correlation with the estimate's error, mean BSLD, over {len(logs)} stretches of {_JOBS} jobs")
    print("      to none               noise alone, to none  to noise alone")
    for k, correlation in enumerate(CORRELATIONS):
        figure, noise, none = logs[:, k, 0], logs[:, k, 1], logs[:, 0, 0]
        row = [_ratio(gains, draws) for gains in (figure - none, noise - none, figure - noise)]
        print(f"{correlation:4.1f}  {'  '.join(row)}")


def _ratio(gains: Array, draws: Array) -> str:
    """A geometric mean with its 95% interval."""
    low, high = np.exp(np.percentile(gains[draws].mean(axis=1), (2.5, 97.5)))
    return f"{np.exp(gains.mean()):.3f} [{low:.3f}, {high:.3f}]"
