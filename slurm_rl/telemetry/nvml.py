"""Reads GPUs through NVML, and survives the loss of the driver or of a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.telemetry.reading import WHOLE, GpuProcess, Instance, Reading

MIB = 1 << 20
SLOW = 10  # ECC counts, the MIG layout and MPS are looked at in every tenth reading
SEARCH = 5  # a GPU that is listed no more is looked for in every fifth
LONGEST_PAUSE = 5.0  # seconds between two attempts to reach a driver or a GPU
RESTART_EVERY = 60.0  # a GPU that was reset is seen again by a new start of NVML only


@dataclass(slots=True)
class Backoff:
    """When to try again: after 1, 2, 4 … seconds."""

    pause: float = 0.0
    due: float = 0.0

    def failed(self, now: float, longest: float) -> None:
        self.pause = min(max(2 * self.pause, 1.0), longest)
        self.due = now + self.pause


@dataclass(slots=True)
class _Device:
    """A GPU that was seen: its handle, what it lacks, and the slow part of its last reading."""

    reading: Reading  # its identity, and what is read seldom
    handle: Any = None
    unsupported: set[str] = field(default_factory=set)
    instances: list[tuple[Any, Instance]] = field(default_factory=list)
    mps: bool = False
    retry: Backoff = field(default_factory=Backoff)


class Nvml:
    """The GPUs of this machine. `read` never raises: `problem` and each reading's `lost` say what is wrong.

    A GPU that was seen once stays in the list, so that positions in Slurm's GRES keep their meaning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, known: list[Reading] | None = None) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {r.uuid: _Device(r) for r in known or []}
        self._retry = Backoff()
        self._events: Any = None
        self._count = 0
        self._started = 0.0
        self._ready = False
        self._nvml: Any = None  # the module, once it could be imported
        self.problem = "not started"
        self.stale_library = False  # the driver was replaced: only a new process can load its new library
        self.calls = 0
        self.errors = 0
        self.xids: dict[str, tuple[int, int]] = {}  # uuid -> (how many, the last one's number)

    def read(self) -> list[Reading]:
        """One reading of every known GPU, in the order of their device files."""
        now = self._clock()
        if not self._ready and now >= self._retry.due:
            self._start(now)
        if not self._ready:
            return [self._lost(d, self.problem) for d in self._ordered()]
        slow = self._count % SLOW == 0
        self._count += 1
        try:
            if slow or (self._count % SEARCH == 1 and any(d.handle is None for d in self._devices.values())):
                self._find_new()
            readings = [self._read_device(device, now, slow) for device in self._ordered()]
            self._take_events()
        except self._gone as error:
            self._end(now, str(error), error)
            return [self._lost(d, self.problem) for d in self._ordered()]
        if readings and all(r.lost for r in readings):
            self._end(now, f"every GPU is lost: {readings[0].lost}", None)
        elif any(r.lost for r in readings) and now - self._started >= RESTART_EVERY:
            self._end(now, "", None)
            self._retry = Backoff()  # at the next reading, so that none is lost
        return readings

    def busy_by_pid(self, uuid: str) -> dict[int, int]:
        """Percent of the GPU's time by process; {} where the driver does not tell."""
        device = self._devices.get(uuid)
        if not self._ready or device is None or device.handle is None:
            return {}
        said = self._ask(device, "nvmlDeviceGetProcessUtilization", 0)
        return {s.pid: s.smUtil for s in said or []}

    def close(self) -> None:
        if self._ready:
            self._end(self._clock(), "ended", None)

    # The driver.

    def _start(self, now: float) -> None:
        try:
            import pynvml
        except ImportError:
            self.problem = "nvidia-ml-py is not installed: pip install 'slurm-rl[gpu]'"
            self._retry.failed(now, LONGEST_PAUSE)
            return
        self._nvml = pynvml
        # After these, nothing works until NVML is started anew.
        self._gone = (
            pynvml.NVMLError_Uninitialized,
            pynvml.NVMLError_DriverNotLoaded,
            pynvml.NVMLError_LibRmVersionMismatch,
            pynvml.NVMLError_LibraryNotFound,
        )
        try:
            self._call("nvmlInitWithFlags", 1)  # no GPU is no error
            self._find_new(fresh=True)
            self._listen()
        except pynvml.NVMLError as error:
            self._end(now, str(error), error)
            return
        self._ready, self._retry, self._count, self._started = True, Backoff(), 0, now
        self.stale_library = False
        self.problem = "" if self._devices else "the driver knows no GPU"

    def _end(self, now: float, problem: str, error: Exception | None) -> None:
        self.problem, self._ready, self._events = problem, False, None
        self._retry.failed(now, LONGEST_PAUSE)
        for device in self._devices.values():
            device.handle = None
        if self._nvml is not None:
            self.stale_library = isinstance(error, self._nvml.NVMLError_LibRmVersionMismatch)
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _find_new(self, fresh: bool = False) -> None:
        """Takes up GPUs that have come, and marks those that are listed no more."""
        nvml = self._nvml
        count = self._call("nvmlDeviceGetCount")
        if not fresh and count == sum(d.handle is not None for d in self._devices.values()):
            return
        for device in self._devices.values():
            device.handle = None
        for index in range(count):
            try:
                handle = self._call("nvmlDeviceGetHandleByIndex", index)
                uuid = self._call("nvmlDeviceGetUUID", handle)
                known = self._devices.get(uuid)
                if known is None:
                    known = self._devices[uuid] = _Device(self._identity(handle, uuid, index))
                known.handle, known.unsupported, known.retry = handle, set(), Backoff()
            except self._gone:
                raise
            except nvml.NVMLError:
                self.errors += 1  # it is counted, and listed as lost if it was known

    def _identity(self, handle: Any, uuid: str, index: int) -> Reading:
        number = index
        with contextlib.suppress(self._nvml.NVMLError_NotSupported):
            number = self._call("nvmlDeviceGetMinorNumber", handle)
        model = self._call("nvmlDeviceGetName", handle)
        bus = self._call("nvmlDeviceGetPciInfo", handle).busId
        return Reading(number, uuid, model, bus.decode() if isinstance(bus, bytes) else bus)

    # Events.

    def _listen(self) -> None:
        nvml = self._nvml
        try:
            self._events = self._call("nvmlEventSetCreate")
        except nvml.NVMLError:
            self._events = None
            return
        for device in self._devices.values():
            if device.handle is not None:
                with contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_GpuIsLost):
                    wanted = nvml.nvmlEventTypeXidCriticalError
                    supported = self._call("nvmlDeviceGetSupportedEventTypes", device.handle)
                    if supported & wanted:
                        self._call("nvmlDeviceRegisterEvents", device.handle, supported & wanted, self._events)

    def _take_events(self) -> None:
        nvml = self._nvml
        for _ in range(64):  # a GPU in trouble may speak without end
            if self._events is None:
                return
            try:
                event = self._call("nvmlEventSetWait", self._events, 0)
            except nvml.NVMLError_Timeout:
                return
            except self._gone:
                raise
            except nvml.NVMLError:
                self.errors += 1
                return
            # A GPU that falls off the bus says so (Xid 79), and then cannot be asked for its name.
            at = _address(event.device)
            uuid = next((u for u, d in self._devices.items() if d.handle is not None and _address(d.handle) == at), "")
            self.xids[uuid] = (self.xids.get(uuid, (0, 0))[0] + 1, int(event.eventData))

    # One GPU.

    def _read_device(self, device: _Device, now: float, slow: bool) -> Reading:
        nvml = self._nvml
        if device.handle is None:
            return self._lost(device, device.reading.lost or "fallen off the bus")
        if device.retry.due > now:
            return self._lost(device, device.reading.lost)
        try:
            reading = self._values(device, slow)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            device.retry.failed(now, LONGEST_PAUSE)
            device.reading.lost = str(error)
            return self._lost(device, str(error))
        device.retry, device.reading.lost = Backoff(), ""
        return reading

    def _values(self, device: _Device, slow: bool) -> Reading:
        nvml = self._nvml
        kept, ask = device.reading, self._ask
        if slow:
            kept.ecc_corrected = ask(device, "nvmlDeviceGetTotalEccErrors", 0, 0)
            kept.ecc_uncorrected = ask(device, "nvmlDeviceGetTotalEccErrors", 1, 0)
            kept.mig = bool((ask(device, "nvmlDeviceGetMigMode") or [0])[0])
            device.instances = self._instances(device) if kept.mig else []
            device.mps = bool(ask(device, "nvmlDeviceGetMPSComputeRunningProcesses"))
        reading = Reading(kept.index, kept.uuid, kept.model, kept.bus_id)
        reading.ecc_corrected, reading.ecc_uncorrected, reading.mig = (
            kept.ecc_corrected,
            kept.ecc_uncorrected,
            kept.mig,
        )
        rates = ask(device, "nvmlDeviceGetUtilizationRates") if not kept.mig else None
        if rates is not None:
            reading.util, reading.memory_util = rates.gpu, rates.memory
        memory = ask(device, "nvmlDeviceGetMemoryInfo")
        if memory is not None:
            reading.used_mb, reading.total_mb = memory.used // MIB, memory.total // MIB
        reading.milliwatts = ask(device, "nvmlDeviceGetPowerUsage")
        reading.millijoules = ask(device, "nvmlDeviceGetTotalEnergyConsumption")
        reading.sm_mhz = ask(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        reading.memory_mhz = ask(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM)
        reading.celsius = ask(device, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        reading.throttle = ask(device, "nvmlDeviceGetCurrentClocksEventReasons")
        if reading.throttle is None:  # its name before driver 535
            reading.throttle = ask(device, "nvmlDeviceGetCurrentClocksThrottleReasons")
        running = ask(device, "nvmlDeviceGetComputeRunningProcesses") or []
        if device.mps:
            running = [*running, *(ask(device, "nvmlDeviceGetMPSComputeRunningProcesses") or [])]
        reading.processes = tuple([_process(p, kept.mig) for p in running])
        if kept.mig:
            reading.instances = tuple([self._instance(device, *pair) for pair in device.instances])
        return reading

    def _instances(self, device: _Device) -> list[tuple[Any, Instance]]:
        nvml = self._nvml
        found = []
        for index in range(self._ask(device, "nvmlDeviceGetMaxMigDeviceCount") or 0):
            try:
                handle = self._call("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, index)
            except nvml.NVMLError_NotFound:
                continue
            gi = self._call("nvmlDeviceGetGpuInstanceId", handle)
            size = self._call("nvmlDeviceGetAttributes", handle)
            profile = f"{size.gpuInstanceSliceCount}g.{round(size.memorySizeMB / 1024)}gb"
            uuid = self._call("nvmlDeviceGetUUID", handle)
            slices, total = size.gpuInstanceSliceCount, int(size.memorySizeMB)
            found.append((handle, Instance(gi, uuid, profile, slices, 0, total)))
        return found

    def _instance(self, device: _Device, handle: Any, instance: Instance) -> Instance:
        try:
            used = self._call("nvmlDeviceGetMemoryInfo", handle).used // MIB
        except (self._nvml.NVMLError_NotFound, self._nvml.NVMLError_InvalidArgument):
            used = 0  # the layout has changed since it was looked at
        return Instance(instance.gi, instance.uuid, instance.profile, instance.slices, used, instance.total_mb)

    def _ask(self, device: _Device, name: str, *arguments: Any) -> Any:
        """A value, or None where this GPU or driver does not tell it."""
        nvml = self._nvml
        if name in device.unsupported:
            return None
        self.calls += 1
        try:
            return getattr(nvml, name)(device.handle, *arguments)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired, *self._gone):
            raise
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
            device.unsupported.add(name)
        except nvml.NVMLError_NotFound:
            pass  # no process has run
        except nvml.NVMLError:
            self.errors += 1
        return None

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        return getattr(self._nvml, name)(*arguments)

    def _ordered(self) -> list[_Device]:
        return sorted(self._devices.values(), key=lambda d: d.reading.index)

    @staticmethod
    def _lost(device: _Device, why: str) -> Reading:
        kept = device.reading
        reading = Reading(kept.index, kept.uuid, kept.model, kept.bus_id, lost=why or "cannot be read")
        reading.mig, reading.instances = kept.mig, tuple([i for _, i in device.instances])
        return reading


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _process(p: Any, mig: bool) -> GpuProcess:
    memory = None if p.usedGpuMemory is None else p.usedGpuMemory // MIB
    return GpuProcess(p.pid, memory, p.gpuInstanceId if mig else WHOLE)
