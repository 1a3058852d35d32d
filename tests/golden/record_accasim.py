"""Records the start times that AccaSim gives, for `test_golden_accasim.py`; not run by the tests.

    python -m venv acca && acca/bin/pip install accasim==1.1.3 'setuptools<81'
    acca/bin/python tests/golden/record_accasim.py

AccaSim 1.1.3 (MIT licence) imports an ABC from where Python kept it before 3.10: hence the shim in the first lines.
The workload is generated here, from a fixed seed: 500 jobs on one node of 64 cores, at a load that queues.
"""

from __future__ import annotations

import collections
import collections.abc
import csv
import json
import os
import random
import tempfile
from pathlib import Path

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]  # the shim

HERE = Path(__file__).resolve().parent
CORES = 64


def write_workload(path: Path) -> None:
    """500 jobs, dense with equal submit times and equal requested times."""
    rng = random.Random(20240501)
    lines = ["; Generated for tests/golden by record_accasim.py", f"; MaxProcs: {CORES}"]
    clock = 0
    for job in range(1, 501):
        clock += rng.choice((0, 0, 10, 30, 60, 120, 240))
        cores = rng.choice((1, 1, 2, 4, 8, 16, 24, 32, 64))
        asked = rng.choice((60, 300, 600, 900, 1800))
        run = asked if rng.random() < 0.2 else rng.randint(1, asked)
        user = rng.randint(1, 9)
        lines.append(f"{job} {clock} -1 {run} {cores} -1 -1 {cores} {asked} -1 1 {user} 1 -1 1 1 -1 -1")
    path.write_text("\n".join(lines) + "\n")


def simulate(workload: Path, dispatcher: str) -> dict[int, int]:
    """Start time of each job under a dispatcher, with first-fit allocation that stops at the first misfit."""
    from accasim.base import allocator_class, scheduler_class  # type: ignore[import-not-found]
    from accasim.base.simulator_class import Simulator  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("system.json").write_text(
            json.dumps(
                {
                    "system_name": "golden",
                    "start_time": 0,
                    "equivalence": {"processor": {"core": 1}},
                    "groups": {"node": {"core": CORES}},
                    "resources": {"node": 1},
                }
            )
        )
        allocator = allocator_class.FirstFit()
        scheduler = getattr(scheduler_class, dispatcher)(allocator)
        starts: dict[int, int] = {}
        simulator = Simulator(str(workload), "system.json", scheduler, scheduling_output=False, statistics_output=False)
        dispatch = simulator.mapper.dispatch_event

        def note(job, *more):  # type: ignore[no-untyped-def]  # as AccaSim calls it
            result = dispatch(job, *more)
            starts[int(job.id)] = int(job.start_time)
            return result

        simulator.mapper.dispatch_event = note
        simulator.start_simulation()
        os.chdir(HERE)
    return starts


if __name__ == "__main__":
    workload = HERE / "accasim.swf"
    write_workload(workload)
    fifo, sjf = simulate(workload, "FirstInFirstOut"), simulate(workload, "ShortestJobFirst")
    with (HERE / "accasim_starts.csv").open("w", newline="") as f:
        rows = csv.writer(f, lineterminator="\n")
        rows.writerow(("job_id", "fifo", "sjf"))
        rows.writerows((job, fifo[job], sjf[job]) for job in sorted(fifo))
