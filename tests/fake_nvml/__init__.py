"""Scripted GPUs behind the real pynvml: a stub of NVIDIA's library, and the world it plays."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stub.c")
LIBRARY = "libnvidia-ml.so.1"
LOST, RESET_REQUIRED, NO_DRIVER, MISMATCH, UNINITIALIZED = 15, 16, 9, 18, 1
GPUS, PROCESSES, INSTANCES = 16, 32, 7
MIB = 1 << 20


class Process(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("pid", "sm", "gi", "ci")] + [("memory", ctypes.c_uint64)]


class Instance(ctypes.Structure):
    _fields_ = [
        *[(n, ctypes.c_uint32) for n in ("there", "gi", "slices", "memory_mb")],
        *[(n, ctypes.c_uint64) for n in ("total", "used")],
        ("uuid", ctypes.c_char * 80),
    ]


_WORDS = (
    "error hidden minor util memory_util milliwatts celsius sm_clock memory_clock mig xid xids no_util no_energy "
    "no_power mps processes unused"
).split()


class Gpu(ctypes.Structure):
    _fields_ = [
        *[(n, ctypes.c_uint32) for n in _WORDS],
        *[(n, ctypes.c_uint64) for n in "throttle millijoules total used corrected uncorrected".split()],
        ("uuid", ctypes.c_char * 80),
        ("name", ctypes.c_char * 64),
        ("bus", ctypes.c_char * 32),
        ("process", Process * PROCESSES),
        ("instance", Instance * INSTANCES),
    ]

    def run(self, *pids: int, mib: int = 1000, sm: int = 0, gi: int = 0xFFFFFFFF) -> None:
        """These processes compute here from now on."""
        for i, pid in enumerate(pids):
            self.process[i] = Process(pid, sm, gi, 0xFFFFFFFF, mib * MIB)
        self.processes = len(pids)

    def split(self, *slices: int) -> None:
        """MIG mode, with instances of so many compute slices."""
        self.mig = 1
        for i, count in enumerate(slices):
            uuid = f"MIG-{self.minor:04d}-{i}".encode()
            self.instance[i] = Instance(1, 7 + i, count, 5120 * count, 5120 * count * MIB, 0, uuid)


class _World(ctypes.Structure):
    _fields_ = [
        *[(n, ctypes.c_uint32) for n in ("init_error", "generation", "stale_error", "count")],
        ("calls", ctypes.c_uint64),
        ("gpu", Gpu * GPUS),
    ]


class World:
    """GPUs that every process sees whose NVML_WORLD names this file."""

    def __init__(self, path: Path, gpus: int, name: str = "NVIDIA A100-SXM4-40GB") -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_World)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = _World.from_buffer(self._map)
        self.state.generation, self.state.stale_error, self.state.count = 1, UNINITIALIZED, gpus
        for i, gpu in enumerate(self):
            gpu.minor, gpu.total, gpu.used = i, 40960 * MIB, 500 * MIB
            gpu.milliwatts, gpu.celsius, gpu.sm_clock, gpu.memory_clock = 50_000, 30, 210, 1215
            gpu.uuid, gpu.name = f"GPU-{i:08x}".encode(), name.encode()
            gpu.bus = f"00000000:{i + 1:02X}:00.0".encode()

    def __iter__(self):
        return iter(self.state.gpu[: self.state.count])

    def __getitem__(self, index: int) -> Gpu:
        return self.state.gpu[index]

    def restart_driver(self) -> None:
        """Counters begin anew and old handles are void."""
        self.state.generation += 1
        for gpu in self:
            gpu.millijoules = 0

    def xid(self, gpu: int, number: int) -> None:
        self[gpu].xid = number
        self[gpu].xids += 1

    def close(self) -> None:
        del self.state
        self._map.close()


def build(directory: Path) -> Path:
    """Compiles the stub; returns the directory that LD_LIBRARY_PATH must name.

    FAKE_NVML names a directory where it lies compiled, for roots without a compiler.
    """
    if made := os.environ.get("FAKE_NVML"):
        return Path(shutil.copy(Path(made) / LIBRARY, directory)).parent
    if shutil.which("gcc") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("needs gcc")
        pytest.skip("needs gcc")
    options = f"-shared -fPIC -O2 -Wall -Wextra -Werror -Wl,-soname,{LIBRARY}".split()
    subprocess.run(["gcc", *options, "-o", str(directory / LIBRARY), str(SOURCE)], check=True)
    return directory
