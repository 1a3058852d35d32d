"""GPUs through the real pynvml: what is read, and what happens when the driver or a GPU goes away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml import LOST, MIB, MISMATCH, NO_DRIVER, RESET_REQUIRED, World

from slurm_rl.telemetry.nvml import LONGEST_PAUSE, RESTART_EVERY, Nvml
from slurm_rl.telemetry.reading import GpuProcess


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_everything_a_gpu_tells_is_read(world: Callable[..., World]) -> None:
    w = world(16)
    gpu = w[5]
    gpu.util, gpu.memory_util, gpu.milliwatts, gpu.millijoules = 87, 40, 312_500, 9_000_000_000
    gpu.celsius, gpu.sm_clock, gpu.memory_clock, gpu.throttle = 71, 1410, 1593, 0x24
    gpu.used, gpu.corrected, gpu.uncorrected = 30_000 * MIB, 7, 1
    gpu.run(41, 42, mib=15_000)
    nvml = Nvml()
    readings = nvml.read()
    assert [r.index for r in readings] == list(range(16))
    r = readings[5]
    assert (r.util, r.memory_util, r.milliwatts, r.millijoules) == (87, 40, 312_500, 9_000_000_000)
    assert (r.celsius, r.sm_mhz, r.memory_mhz, r.throttle) == (71, 1410, 1593, 0x24)
    assert (r.used_mb, r.total_mb, r.ecc_corrected, r.ecc_uncorrected) == (30_000, 40_960, 7, 1)
    assert r.processes == (GpuProcess(41, 15_000), GpuProcess(42, 15_000))
    assert (r.uuid, r.model, r.bus_id) == ("GPU-00000005", "NVIDIA A100-SXM4-40GB", "00000000:06:00.0")
    assert nvml.problem == ""


def test_what_a_gpu_does_not_tell_is_asked_once(world: Callable[..., World]) -> None:
    w = world(1)
    w[0].no_energy = w[0].no_util = w[0].no_power = 1
    nvml = Nvml()
    assert nvml.read()[0].millijoules is None
    before = w.state.calls
    reading = nvml.read()[0]
    assert (reading.util, reading.millijoules, reading.milliwatts) == (None, None, None)
    assert w.state.calls - before == 7  # memory, two clocks, heat, throttle, processes, events


def test_mig_instances_are_read_each_with_its_memory(world: Callable[..., World]) -> None:
    w = world(2)
    w[1].split(1, 2, 4)
    w[1].instance[2].used = 3000 * MIB
    w[1].run(77, gi=9)
    whole, split = Nvml().read()
    assert not whole.mig
    assert [(i.gi, i.profile, i.slices, i.memory_mb) for i in split.instances] == [
        (7, "1g.5gb", 1, 0),
        (8, "2g.10gb", 2, 0),
        (9, "4g.20gb", 4, 3000),
    ]
    assert split.processes == (GpuProcess(77, 1000, 9),)
    assert split.util is None  # the driver tells none in MIG mode


def test_a_new_mig_layout_is_seen_within_ten_readings(world: Callable[..., World]) -> None:
    w = world(1)
    nvml = Nvml()
    assert not nvml.read()[0].mig
    w[0].split(3, 3)
    assert len([nvml.read() for _ in range(10)][-1][0].instances) == 2


def test_clients_of_mps_are_processes_too(world: Callable[..., World]) -> None:
    w = world(1)
    w[0].mps = 1
    w[0].run(5, 6)
    assert [p.pid for p in Nvml().read()[0].processes] == [5, 6]


def test_no_driver_is_said_and_tried_again(world: Callable[..., World]) -> None:
    w, clock = world(2), Clock()
    w.state.init_error = NO_DRIVER
    nvml = Nvml(clock)
    assert nvml.read() == []
    assert nvml.problem == "Driver Not Loaded"
    before = w.state.calls
    nvml.read()
    assert w.state.calls == before  # not before a second has passed
    w.state.init_error = 0
    clock.now = 1.0
    assert len(nvml.read()) == 2
    assert nvml.problem == ""


def test_no_gpu_is_said(world: Callable[..., World]) -> None:
    world(0)
    nvml = Nvml()
    assert nvml.read() == []
    assert nvml.problem == "the driver knows no GPU"


def test_no_library_is_said() -> None:
    """In a process of its own: here the stub is loaded."""
    program = "from slurm_rl.telemetry.nvml import Nvml; n = Nvml(); print(n.read(), n.problem)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] NVML Shared Library Not Found"


def test_a_restarted_driver_is_found_again(world: Callable[..., World]) -> None:
    w, clock = world(3), Clock()
    nvml = Nvml(clock)
    nvml.read()
    w.restart_driver()
    assert [r.lost for r in nvml.read()] == ["Uninitialized"] * 3
    clock.now += 1
    assert [r.lost for r in nvml.read()] == [""] * 3


@pytest.mark.parametrize("error", [LOST, RESET_REQUIRED])
def test_a_lost_gpu_leaves_the_others_alone_and_comes_back(world: Callable[..., World], error: int) -> None:
    w, clock = world(8), Clock()
    nvml = Nvml(clock)
    nvml.read()
    w[3].error = error
    for _ in range(100):
        clock.now += 1
        readings = nvml.read()
        assert [r.index for r in readings if r.lost] == [3]
    w[3].error = 0
    back = 0
    while nvml.read()[3].lost:
        clock.now += 1
        back += 1
    assert back <= LONGEST_PAUSE


def test_a_gpu_that_is_listed_no_more_keeps_its_place(world: Callable[..., World]) -> None:
    w, clock = world(4), Clock()
    nvml = Nvml(clock)
    nvml.read()
    w[1].hidden = 1  # the driver numbers the others anew
    w.restart_driver()
    nvml.read()
    clock.now += 1
    readings = nvml.read()
    assert [r.index for r in readings] == [0, 1, 2, 3]
    assert [bool(r.lost) for r in readings] == [False, True, False, False]
    assert readings[2].uuid == "GPU-00000002"
    w[1].hidden = 0
    seen = 0
    while nvml.read()[1].lost:
        clock.now += 1
        seen += 1
    assert seen <= RESTART_EVERY + LONGEST_PAUSE


def test_a_replaced_driver_asks_for_a_new_process(world: Callable[..., World]) -> None:
    w, clock = world(1), Clock()
    nvml = Nvml(clock)
    nvml.read()
    assert not nvml.stale_library
    w.state.init_error = MISMATCH
    assert "version mismatch" in nvml.read()[0].lost
    assert nvml.stale_library
    w.state.init_error, clock.now = 0, 10.0
    nvml.read()
    assert not nvml.stale_library


def test_xid_errors_are_counted(world: Callable[..., World]) -> None:
    w = world(2)
    nvml = Nvml()
    nvml.read()
    w.xid(1, 13)
    w.xid(1, 79)
    w[1].error = LOST  # as 79 says
    nvml.read()
    assert nvml.xids == {"GPU-00000001": (2, 79)}


def test_the_stub_is_what_pynvml_loaded(world: Callable[..., World], library: Path) -> None:
    import pynvml

    w = world(1)
    before = w.state.calls
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert w.state.calls > before
