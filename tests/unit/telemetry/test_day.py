"""A day of samples with kills, boots, faults and a clock that jumps: nothing is lost outside the faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from fake_nvml import LOST, NO_DRIVER
from fake_nvml.node import Node

from slurm_rl.telemetry.use import unpack

GPUS = 2
BACK = 6  # seconds: the longest pause between two attempts, and the sample that finds out


@pytest.mark.parametrize("hours", [2, pytest.param(24, marks=pytest.mark.soak)])
def test_hours_with_faults(node: Callable[..., Node], hours: int) -> None:
    day = hours * 3600
    n = node(GPUS, ring_mb=hours / 4)
    size = n.agent.samples.path.stat().st_size
    draw = random.Random(24)
    kills = set(draw.sample(range(100, day), 40))
    jumps = set(draw.sample(range(100, day), 20))
    driver_gone = spans(draw, day, 6, 120)  # the driver is unloaded and comes back with counters at 0
    lost = {g: spans(draw, day, 5, 100) for g in range(GPUS)}
    silent = spans(draw, day, 5, 100)  # slurmctld does not answer
    by_job: dict[int, float] = {}  # the true joules
    holder = dict.fromkeys(range(GPUS), 0)
    number, missed, good = 0, dict.fromkeys(range(GPUS), 0), 0
    until = dict.fromkeys(range(GPUS), 0)
    unwell = dict.fromkeys(range(GPUS), 0)  # no sample is asked of a GPU before this second
    for second in range(day):
        gone = second in driver_gone
        if not gone and second - 1 in driver_gone:
            n.world.restart_driver()
        n.world.state.init_error = NO_DRIVER if gone else 0
        n.slurm.down = second in silent
        if second in kills:
            n.start()
        if second in jumps:
            n.clock.jumped += draw.choice([-86_400.0, -3600.0, 3600.0, 5e6])
        for g, gpu in enumerate(n.world):
            if second >= until[g]:
                if holder[g]:
                    n.end(holder[g])
                    holder[g] = 0
                if not n.slurm.down:
                    number += 1
                    holder[g] = number
                    n.begin(number, g)
                    by_job[number] = 0.0
                until[g] = second + draw.randrange(100, 1000)
                gpu.util = draw.randrange(101)
            gpu.error = LOST if second in lost[g] else 0
            watts = 60 + 3 * gpu.util
            gpu.milliwatts = 1000 * watts
            if not gone:
                gpu.millijoules += 1000 * watts
            by_job[holder[g]] = by_job.get(holder[g], 0.0) + watts
            if gone or second in lost[g]:
                unwell[g] = second + BACK
        n.step()
        for reading in n.agent.view.readings:
            if reading.lost:
                missed[reading.index] += second > unwell[reading.index]
            else:
                good += 1
    assert missed == dict.fromkeys(range(GPUS), 0)  # outside the faults
    assert good > 0.8 * day * GPUS
    assert n.agent.samples.path.stat().st_size == size  # bounded
    assert n.agent.samples.lost == 0

    # Every sample that the ring still holds is whole and they are in one row, over all kills and jumps.
    ticks = list(unpack(payload for _, payload in n.agent.samples.after(0)))
    numbers = [t.number for t in ticks]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert len(numbers) >= n.agent.samples.slots // GPUS - 1
    assert all(b.mono - a.mono == 10**9 for a, b in itertools.pairwise(ticks))

    # Each job's energy is as it was, but for the seconds that a driver without its counter has forgotten.
    n.slurm.down = False
    for job in [j for j in holder.values() if j]:
        n.end(job)
    for _ in range(3):
        n.step()
    records = {r["job_id"]: r for r in n.records()}
    assert set(records) == {j for j in by_job if j}
    for job, r in records.items():
        unsure = 450.0 * (r["unmeasured_seconds"] + BACK)
        assert abs(r["energy_j"] - by_job[job]) <= 0.01 * by_job[job] + unsure, (job, r)
    whole = [j for j, r in records.items() if r["complete"] and r["unmeasured_seconds"] == 0]
    assert len(whole) > len(records) / 2
    measured = sum(records[j]["energy_j"] for j in whole)
    assert measured == pytest.approx(sum(by_job[j] for j in whole), rel=0.01)


def spans(draw: random.Random, day: int, count: int, longest: int) -> set[int]:
    """So many stretches of a day, of 5 seconds to the longest."""
    begins = draw.sample(range(100, day - 200), count)
    return {s for begin in begins for s in range(begin, begin + draw.randint(5, longest))}
