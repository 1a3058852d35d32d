"""Runs AccaSim on an SWF file and prints what it took as JSON; executed by the python of AccaSim's own environment.

python peer_run.py WORKLOAD.swf SYSTEM.json FirstInFirstOut|EASYBackfilling
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import io
import json
import sys
import time

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]  # AccaSim looks where Python < 3.10 kept it


def main(workload: str, system: str, dispatcher: str) -> None:
    from accasim.base import allocator_class, scheduler_class  # type: ignore[import-not-found]
    from accasim.base.simulator_class import Simulator  # type: ignore[import-not-found]

    scheduler = getattr(scheduler_class, dispatcher)(allocator_class.FirstFit())
    started: dict[str, int] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        simulator = Simulator(workload, system, scheduler, scheduling_output=False, statistics_output=False)
        dispatch = simulator.mapper.dispatch_event

        def note(job, *more):  # type: ignore[no-untyped-def]  # as AccaSim calls it
            result = dispatch(job, *more)
            started[str(job.id)] = int(job.start_time)
            return result

        simulator.mapper.dispatch_event = note
        wall, cpu = time.perf_counter(), time.process_time()
        simulator.start_simulation()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"started": started, "wall": wall, "cpu": cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])
