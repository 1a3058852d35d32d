"""One reading of a GPU; None stands for values that the driver does not provide."""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = -1  # in place of a MIG instance: the GPU as a whole


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU."""

    pid: int
    memory_mb: int | None = None
    instance: int = WHOLE


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: a part of a GPU that Slurm gives away like a GPU of its own."""

    gi: int
    uuid: str
    profile: str
    slices: int
    memory_mb: int
    total_mb: int


@dataclass(slots=True)
class Reading:
    """One GPU at one moment. A lost one is still listed: Slurm counts it, and its jobs hold it."""

    index: int  # as the device file is numbered: /dev/nvidia0 is 0
    uuid: str
    model: str
    bus_id: str = ""
    lost: str = ""  # why it cannot be read; "": it can
    util: int | None = None  # percent of the last second in which a kernel ran
    memory_util: int | None = None
    used_mb: int | None = None
    total_mb: int | None = None
    milliwatts: int | None = None
    millijoules: int | None = None  # since the driver was loaded
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    celsius: int | None = None
    throttle: int | None = None  # NVML's bits of why clocks are held down
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    mig: bool = False
    instances: tuple[Instance, ...] = ()

    def places(self) -> tuple[int, ...]:
        """What of this GPU can be held: its instances in MIG mode, else the whole of it."""
        return tuple(i.gi for i in self.instances) if self.mig else (WHOLE,)
