"""The node agent: each second it reads the GPUs, finds their jobs, keeps the sample and adds it up."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from slurm_rl.telemetry.account import Account
from slurm_rl.telemetry.allocation import Allocation
from slurm_rl.telemetry.attribute import attribute, places_of
from slurm_rl.telemetry.lookup import Found, Lookup
from slurm_rl.telemetry.nvml import Nvml
from slurm_rl.telemetry.presence import Environment, Presence
from slurm_rl.telemetry.reading import Reading
from slurm_rl.telemetry.ring import Ring
from slurm_rl.telemetry.use import SIZE, Tick, Use, pack, unpack

log = structlog.get_logger()

RECORD_BYTES, RECORDS = 4000, 2000  # of ended jobs: 8 MB
STATE_BYTES = 250_000
STATE_EVERY = 10  # ticks


class NodeClock(Protocol):
    """Time that only grows within a boot, time of day, and which boot it is."""

    def mono(self) -> int: ...
    def wall(self) -> float: ...
    def boot(self) -> str: ...


class RealClock:
    """The machine's own."""

    def mono(self) -> int:
        return time.monotonic_ns()

    def wall(self) -> float:
        return time.time()

    def boot(self) -> str:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class LastSample:
    """What the endpoint shows: the last sample."""

    wall: float = 0.0
    mono: float = 0.0
    readings: tuple[Reading, ...] = ()
    uses: tuple[Use, ...] = ()
    seconds: float = 0.0  # that the sample took


class Agent:
    """One node's sampling. `tick` takes one sample; everything it knows outlives a kill."""

    def __init__(
        self, node: str, directory: Path, presence: Presence, lookup: Lookup, clock: NodeClock, ring_mb: float = 64.0
    ) -> None:
        self.node, self.clock = node, clock
        self.presence, self.lookup = presence, lookup
        self.lock = threading.Lock()  # held while sums change, and while somebody else reads them
        slots = max(1000, int(ring_mb * 2**20) // (SIZE + 16))
        self.samples = Ring(directory / "samples.ring", SIZE, slots)
        self.records = Ring(directory / "jobs.ring", RECORD_BYTES, RECORDS)
        self._states = Ring(directory / "state.ring", STATE_BYTES, 2)
        self.boot = zlib.crc32(clock.boot().encode())
        self.account = Account()
        self.view = LastSample()
        self.ticks = 0
        self._seen: set[int] = set()  # jobs that had steps here since this agent was started
        self._said: dict[str, str] = {}
        self._gpus: list[tuple[int, str, str, str]] = []
        self._held: dict[int, Allocation] = {}
        self._unkept: list[bytes] = []
        known = self._recover()
        self.nvml = Nvml(lambda: clock.mono() / 1e9, known)

    def tick(self) -> Tick:
        """Takes one sample; reports what fails and goes on with the rest."""
        began = time.perf_counter()
        mono, wall = self.clock.mono(), self.clock.wall()
        readings = self.nvml.read()
        here = self.presence.jobs()
        found = self.lookup.watch(here, set(self.account.jobs))
        with self.lock:
            changed = self._open(here, found)
            uses = self._attribute(readings, here, found)
            tick = Tick(self.account.tick + 1, mono, wall, self.boot, uses)
            self._name_types(readings)
            self.account.feed(tick)
            if uses:
                self.samples.append(pack(tick))
            changed |= self._close(here, found)
            gpus = [(r.index, r.uuid, r.model, r.bus_id) for r in readings]
            held = {j: f.allocation for j, f in found.items() if f.allocation is not None}
            if changed or gpus != self._gpus or held != self._held or tick.number % STATE_EVERY == 0:
                self._gpus, self._held = gpus, held
                self._keep()
            self.ticks += 1
            self.view = LastSample(wall, mono / 1e9, tuple(readings), uses, time.perf_counter() - began)
        self._say(readings)
        return tick

    def running(self) -> list[dict[str, Any]]:
        """The records so far of the jobs that hold GPUs here now."""
        with self.lock:
            jobs = [j for j in self.account.jobs.values() if j.places]
            return [j.record(self.node, self.account.types, False) | {"running": True} for j in jobs]

    def ended(self, after: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """Records of ended jobs with a higher number than `after`, oldest first."""
        found: list[tuple[int, dict[str, Any]]] = []
        with self.lock:
            for number, payload in self.records.after(after):
                found.append((number, json.loads(payload)))
                if len(found) >= limit:
                    break
        return found

    def watts(self) -> dict[str, list[float]]:
        """By GPU type: seconds and joules held by jobs, then free."""
        with self.lock:
            watts = self.account.watts.items()
            return {k: [w.held_seconds, w.held_joules, w.free_seconds, w.free_joules] for k, w in watts}

    def close(self) -> None:
        """Keeps the last state; jobs stay open, for the next agent to go on with."""
        with self.lock:
            self._keep()
        self.nvml.close()
        for ring in (self.samples, self.records, self._states):
            ring.close()

    # Jobs.

    def _open(self, here: set[int], found: Mapping[int, Found]) -> bool:
        changed = False
        self._seen |= here
        for job in here:
            allocation = found[job].allocation
            known = self.account.jobs.get(job)
            if known is not None and allocation is not None and 0 < known.start < allocation.start:
                self._end(job)  # it was requeued, and is another run now
                known = None
            if known is None or (allocation is not None and not known.start and allocation.start):
                user, start = (allocation.user, allocation.start) if allocation is not None else ("", 0.0)
                self.account.open(job, user, start)
                changed = True
        return changed

    def _attribute(self, readings: list[Reading], here: set[int], found: Mapping[int, Found]) -> tuple[Use, ...]:
        # A job between two steps holds its GPUs, once slurmctld has said that it still runs.
        still = {j for j, f in found.items() if j in here or (f.goes_on and not f.ended)}
        owners = {j: a.uid if (a := found[j].allocation) is not None else None for j in still}
        return attribute(
            readings,
            holdings(readings, {j: found[j] for j in still}),
            lambda pid: self.presence.job_of(pid, owners),
            self.nvml.busy_by_pid,
        )

    def _close(self, here: set[int], found: Mapping[int, Found]) -> bool:
        gone = [j for j in self.account.jobs if j not in here and j in found and found[j].ended]
        for job in gone:
            self._end(job)
        return bool(gone)

    def _end(self, job: int) -> None:
        record = self.account.close(job, self.node, watched=job in self._seen)
        self._seen.discard(job)
        if record is not None:
            self._record(record)

    def _record(self, record: dict[str, Any]) -> None:
        payload = json.dumps(record, separators=(",", ":")).encode()
        if len(payload) > RECORD_BYTES:  # a job on very many MIG instances
            payload = json.dumps(record | {"places": {}}, separators=(",", ":")).encode()
        self._unkept = [*self._unkept, payload][-RECORDS:]
        self._keep_records()

    def _keep_records(self) -> None:
        """What could not be written waits in memory until it can."""
        if self._unkept and self.records.append(self._unkept):
            self._unkept = []

    def _name_types(self, readings: list[Reading]) -> None:
        """GPU types as Slurm calls them, by GRES index; as NVIDIA does where Slurm names none."""
        types = self.lookup.types
        named = {gpu: types[i] for i, (gpu, _) in enumerate(places_of(readings)) if i < len(types) and types[i]}
        for r in readings:
            self.account.types[r.index] = named.get(r.index) or self.account.types.get(r.index) or r.model

    # State.

    def _keep(self) -> None:
        held = [[a.job, a.user, a.uid, a.start, sorted(a.gpus.items())] for a in self._held.values()]
        kept = [self.samples.identity, self.samples.last]  # the samples up to here are in the sums
        state = {"boot": self.boot, "gpus": self._gpus, "held": held, "kept": kept, "account": self.account.dump()}
        packed = zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 1)
        if len(packed) <= STATE_BYTES:
            self._states.append([packed])

    def _recover(self) -> list[Reading]:
        """Goes on where the last agent was ended: its sums, and the samples it took after it kept them."""
        state: dict[str, Any] = {}
        for _, payload in self._states.after(0):
            state = json.loads(zlib.decompress(payload))
        known: list[Reading] = []
        ring, last = state.get("kept", ["", 0])
        if state:
            self.account = Account.load(state["account"])
            if state["boot"] == self.boot:
                known = [Reading(*gpu) for gpu in state["gpus"]]
                self.lookup.remember(
                    [Allocation(job, user, uid, start, dict(gpus)) for job, user, uid, start, gpus in state["held"]]
                )
        kept = self.account.tick
        for tick in unpack(payload for _, payload in self.samples.after(last if ring == self.samples.identity else 0)):
            if tick.number > kept:
                self.account.feed(tick)
        if self.account.boot != self.boot:  # no job outlives a boot
            already = {(r["job_id"], r["start"]) for _, r in self.ended(0, RECORDS)}
            for job in list(self.account.jobs):
                record = self.account.close(job, self.node, watched=False)
                if record is not None and (record["job_id"], record["start"]) not in already:
                    self._record(record)
        return known

    # Words.

    def _say(self, readings: list[Reading]) -> None:
        """Each trouble once when it comes, and once when it goes."""
        troubles = {f"GPU {r.index}": r.lost for r in readings} | {"NVML": self.nvml.problem}
        if self.nvml.problem:
            troubles = {"NVML": self.nvml.problem}
        troubles |= {"Slurm": self.lookup.problem}
        for ring in (self.samples, self.records, self._states):
            troubles[ring.path.name] = ring.problem
            if ring.problem and self.ticks % STATE_EVERY == 0:
                ring.open()
                self._keep_records()
        for what, trouble in troubles.items():
            if trouble != self._said.get(what, ""):
                log.warning("trouble" if trouble else "well again", what=what, why=trouble or self._said[what])
            self._said[what] = trouble


def holdings(readings: list[Reading], found: Mapping[int, Found]) -> dict[tuple[int, int], dict[int, float]]:
    """Which jobs hold each place. A job's own environment is believed only where slurmctld gave the place to nobody."""
    places = places_of(readings)
    held: dict[tuple[int, int], dict[int, float]] = {}
    for job, f in found.items():
        if f.allocation is not None:
            for index, weight in f.allocation.gpus.items():
                if index < len(places):
                    held.setdefault(places[index], {})[job] = weight
    told = set(held)
    for job, f in found.items():
        if f.allocation is None and f.environment is not None:
            for place in _named(readings, f.environment):
                if place not in told:
                    held.setdefault(place, {})[job] = 1.0
    return held


def _named(readings: list[Reading], said: Environment) -> list[tuple[int, int]]:
    places = []
    for r in readings:
        for gi in r.places():
            uuid = next((i.uuid for i in r.instances if i.gi == gi), r.uuid)
            if uuid in said.uuids or (not said.uuids and r.index in said.gpus):
                places.append((r.index, gi))
    return places
