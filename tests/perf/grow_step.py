"""What `grower.step` costs an epoch in which nothing grows: `python -m perf.grow_step` from tests/."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from slurm_rl.grow import Budget, Grower
from slurm_rl.grow.learned import GrowthNet, LearnedGrowth


def main() -> None:
    torch.set_num_threads(1)
    for name, policy in (("never", "never"), ("at-plateau", "at-plateau"), ("learned", LearnedGrowth(GrowthNet()))):
        model = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 10))
        grower = Grower(model, torch.optim.Adam(model.parameters()), budget=Budget(1e6), policy=policy)
        times = []
        for i in range(2000):
            began = time.process_time()
            grower.step(1.0, {"accuracy": i / 100})
            times.append(time.process_time() - began)
        ms = sorted(1e3 * t for t in times[1:])
        first, p99 = 1e3 * times[0], ms[int(len(ms) * 0.99)]
        text = f"{name:<11} first {first:.2f} ms, then median {statistics.median(ms):.3f} ms, p99 {p99:.3f} ms"
        assert not grower.record.grown, "nothing may grow here"
        print(text)


if __name__ == "__main__":
    main()
