"""Who has which part of a GPU, by hand."""

from __future__ import annotations

import pytest

from slurm_rl.telemetry.attribute import attribute, places_of
from slurm_rl.telemetry.reading import WHOLE, GpuProcess, Instance, Reading


def a_gpu(index: int = 0, *processes: GpuProcess, **values: object) -> Reading:
    told = {"util": 60, "used_mb": 9000, "milliwatts": 200_000} | values
    return Reading(index, f"GPU-{index}", "A100", processes=processes, **told)  # type: ignore[arg-type]


def instances(*slices: int) -> tuple[Instance, ...]:
    return tuple(Instance(7 + i, f"MIG-{i}", f"{s}g", s, 100 * s, 5000) for i, s in enumerate(slices))


def uses(readings, held=None, owners=None, busy=None):
    given = attribute(readings, held or {}, (owners or {}).get if owners else lambda pid: 0, lambda u: busy or {})
    return {(u.gpu, u.instance, u.job): u for u in given}


def test_a_job_has_the_gpus_it_was_given_even_if_it_does_not_use_them() -> None:
    found = uses([a_gpu(0), a_gpu(1, util=0)], {(0, WHOLE): {5: 1.0}, (1, WHOLE): {5: 1.0}})
    assert set(found) == {(0, WHOLE, 5), (1, WHOLE, 5)}
    assert found[0, WHOLE, 5].share == 1.0
    assert not found[1, WHOLE, 5].processes


def test_nobodys_gpu_is_nobodys() -> None:
    assert set(uses([a_gpu()])) == {(0, WHOLE, 0)}


def test_a_process_has_part_in_a_gpu_that_nobody_was_given() -> None:
    found = uses([a_gpu(0, GpuProcess(50, 700))], owners={50: 5})
    assert found[0, WHOLE, 5].memory_mb == 700


def test_sharers_split_by_the_time_of_their_kernels() -> None:
    gpu = a_gpu(0, GpuProcess(50, 100), GpuProcess(51, 200), GpuProcess(60, 300))
    found = uses([gpu], owners={50: 5, 51: 5, 60: 6}, busy={50: 10, 51: 20, 60: 10, 99: 50})
    assert found[0, WHOLE, 5].share == pytest.approx(0.75)
    assert (found[0, WHOLE, 5].util, found[0, WHOLE, 6].util) == (30, 10)
    assert (found[0, WHOLE, 5].memory_mb, found[0, WHOLE, 6].memory_mb) == (300, 300)
    assert found[0, WHOLE, 5].shared


def test_sharers_split_evenly_where_the_driver_tells_nothing() -> None:
    found = uses([a_gpu(0, GpuProcess(50), GpuProcess(60))], {(0, WHOLE): {5: 1.0, 6: 3.0, 7: 4.0}}, {50: 5, 60: 6})
    assert [found[0, WHOLE, j].share for j in (5, 6, 7)] == [0.5, 0.5, 0.0]


def test_holders_without_processes_split_as_they_hold_it() -> None:
    found = uses([a_gpu()], {(0, WHOLE): {5: 1.0, 6: 3.0}})
    assert [found[0, WHOLE, j].share for j in (5, 6)] == [0.25, 0.75]


def test_a_mig_gpus_energy_goes_by_slices_to_the_instances_at_work() -> None:
    gpu = a_gpu(0, GpuProcess(50, 40, 7), GpuProcess(60, 60, 9), mig=True, instances=instances(1, 2, 3), util=None)
    held = {(0, 7): {5: 1.0}, (0, 8): {8: 1.0}, (0, 9): {6: 1.0}}
    found = uses([gpu], held, {50: 5, 60: 6})
    assert [found[k].share for k in ((0, 7, 5), (0, 8, 8), (0, 9, 6))] == [0.25, 0.0, 0.75]
    idle = uses([a_gpu(0, mig=True, instances=instances(1, 3), util=None)], held)
    assert [idle[k].share for k in ((0, 7, 5), (0, 8, 8))] == [0.25, 0.75]


def test_positions_in_gres_count_instances_in_place_of_their_gpu() -> None:
    readings = [a_gpu(0), a_gpu(1, mig=True, instances=instances(3, 3)), a_gpu(2)]
    assert places_of(readings) == [(0, WHOLE), (1, 7), (1, 8), (2, WHOLE)]


def test_a_lost_gpu_is_still_its_holders() -> None:
    found = uses([Reading(0, "GPU-0", "A100", lost="GPU is lost")], {(0, WHOLE): {5: 1.0}})
    use = found[0, WHOLE, 5]
    assert use.lost
    assert use.memory_mb is None


@pytest.mark.parametrize("memory", [None, 300])
def test_memory_is_the_jobs_own_where_the_driver_tells_it(memory: int | None) -> None:
    found = uses([a_gpu(0, GpuProcess(50, memory))], {(0, WHOLE): {5: 1.0}}, {50: 5})
    assert found[0, WHOLE, 5].memory_mb == (9000 if memory is None else 300)
