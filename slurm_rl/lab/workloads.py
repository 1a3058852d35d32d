"""Real work for the jobs of a trace: a small CNN, a transformer's step loop, or an ETL task, in torch on the CPU.

A program of its own (`python -m slurm_rl.lab.workloads cnn --seconds 60`): it works until the time is over.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.errors import InputError

if TYPE_CHECKING:
    from slurm_rl.traces.trace import Trace

_BEGAN = time.monotonic()  # as early as the program can tell
_SHARE = 0.05  # of its time a job works, and rests for the others: a lab's jobs and daemons share one machine
_RATE = 0.1  # of learning
COLUMN = "command"  # of a trace: what the job runs


def cnn(torch: Any) -> Iterator[float]:
    """Trains a small convolutional network on random images; yields the loss of each step."""
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    yield from _train(torch, net, lambda: nn.functional.cross_entropy(net(images), labels))


def transformer(torch: Any) -> Iterator[float]:
    """Trains one encoder layer to copy random tokens; yields the loss of each step."""
    nn = torch.nn
    net = nn.Sequential(
        nn.Embedding(128, 64), nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), nn.Linear(64, 128)
    )
    tokens = torch.randint(0, 128, (16, 48))
    yield from _train(torch, net, lambda: nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()))


def _train(torch: Any, net: Any, loss_of: Callable[[], Any]) -> Iterator[float]:
    """Plain gradient steps: `torch.optim` would import the compiler, which takes longer than torch itself."""
    weights = list(net.parameters())
    while True:
        loss = loss_of()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=_RATE)
        yield float(loss.detach())


def etl(torch: Any) -> Iterator[float]:
    """Sorts, joins and aggregates random tables; yields a checksum of each round."""
    for seed in itertools.count():
        torch.manual_seed(seed)
        keys, values = torch.randint(0, 1000, (200_000,)), torch.rand(200_000)
        ordered, order = torch.sort(keys)
        sums = torch.zeros(1000).index_add_(0, ordered, values[order])
        yield float((sums / torch.bincount(ordered, minlength=1000).clamp(min=1)).mean())


WORKLOADS = {"cnn": cnn, "transformer": transformer, "etl": etl}


def commands_of(path: Path, trace: Trace) -> dict[str, str]:
    """What each job of a trace runs: its `command`, or built-in work as long as its run time.

    Jobs without GPUs get the ETL task; the others a network, the same for the same name.
    """
    given = _column(path)
    names = trace.job_name.strings()
    found = {}
    for i, job in enumerate(map(str, trace.job_id.tolist())):
        if given.get(job):
            found[job] = given[job]
            continue
        kind = "etl" if trace.num_gpus[i] <= 0 else ("cnn", "transformer")[sum((names[i] or job).encode()) % 2]
        program = (sys.executable, "-m", "slurm_rl.lab.workloads", kind, "--seconds", str(int(trace.run_time[i])))
        found[job] = "exec " + shlex.join(program)
    return found


def _column(path: Path) -> dict[str, str]:
    """The column `command` of a native trace; nothing of other formats."""
    if path.suffix != ".csv":
        return {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.DictReader(file)
        if COLUMN not in (rows.fieldnames or ()):
            return {}
        return {row["job_id"]: (row[COLUMN] or "").strip() for row in rows}


def work(kind: str, seconds: float, began: float) -> int:
    """Works until so long after its beginning, loading torch included; how many steps it made."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a job has its share of a machine, not all of it; before torch is loaded
    import torch

    if kind not in WORKLOADS:
        raise InputError(f"no such workload: {kind}", remedy=", ".join(WORKLOADS))
    deadline, steps, before = began + seconds, 0, time.monotonic()
    for _ in WORKLOADS[kind](torch):
        steps += 1
        now = time.monotonic()
        if now >= deadline:
            break
        time.sleep(min((now - before) * (1.0 / _SHARE - 1.0), deadline - now))
        before = time.monotonic()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(WORKLOADS))
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args()
    steps = work(asked.kind, asked.seconds, _BEGAN)
    sys.stdout.write(f"{asked.kind}: {steps} steps in {asked.seconds:g} s\n")
    sys.stdout.flush()
    os._exit(0)  # to take torch apart again would count as the job's time


if __name__ == "__main__":
    main()
