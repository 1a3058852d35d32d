"""A node with scripted GPUs, a clock that tests turn, and a Slurm that says what they put into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.errors import SlurmError
from slurm_rl.telemetry.agent import Agent
from slurm_rl.telemetry.allocation import Allocation
from slurm_rl.telemetry.lookup import Lookup, NodeSlurm
from slurm_rl.telemetry.presence import Presence

from . import World


@dataclass
class TurnedClock:
    """Time that stands until it is turned."""

    now: float = 1000.0
    jumped: float = 1.8e9
    boot_id: str = "first"

    def mono(self) -> int:
        return round(self.now * 1e9)

    def wall(self) -> float:
        return self.now + self.jumped

    def boot(self) -> str:
        return self.boot_id


class SaidSlurm(NodeSlurm):
    """Slurm's answers, as the test has them."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.jobs: dict[int, Allocation] = {}
        self.types: list[str] = []
        self.down = False
        self.asked = 0

    def job(self, job: int) -> Allocation | None:
        self._answer()
        return self.jobs.get(job)

    def gpu_types(self) -> list[str]:
        self._answer()
        return self.types

    def pids(self, job: int) -> list[int]:
        return []

    def _answer(self) -> None:
        self.asked += 1
        if self.down:
            raise SlurmError("scontrol: slurmctld does not answer: is it running?")


@dataclass
class Node:
    """A node whose jobs come and go as the test says."""

    directory: Path
    world: World
    clock: TurnedClock = field(default_factory=TurnedClock)
    ring_mb: float = 1.0
    name: str = "n1"

    def __post_init__(self) -> None:
        self.spool, self.proc = self.directory / "spool", self.directory / "proc"
        self.spool.mkdir()
        self.proc.mkdir()
        self.slurm = SaidSlurm(self.name)
        self.agent = self.start()

    def start(self) -> Agent:
        """A new agent on what the last one left behind, as after kill -9."""
        presence = Presence(self.name, self.spool, proc=self.proc, cgroups=self.directory / "cgroup")
        lookup = Lookup(self.slurm, presence, lambda: self.clock.now)
        self.agent = Agent(self.name, self.directory / "kept", presence, lookup, self.clock, self.ring_mb)
        return self.agent

    def begin(self, job: int, *gpus: int, user: str = "ann", start: float | None = None, weight: float = 1.0) -> None:
        began = self.clock.wall() if start is None else start
        self.slurm.jobs[job] = Allocation(job, user, 1000, began, dict.fromkeys(gpus, weight))
        (self.spool / f"{self.name}_{job}.4294967291").touch()

    def end(self, job: int) -> None:
        del self.slurm.jobs[job]
        (self.spool / f"{self.name}_{job}.4294967291").unlink()

    def process(self, pid: int, job: int, began: int = 1) -> int:
        """A process in the job's cgroup."""
        where = self.proc / str(pid)
        where.mkdir(exist_ok=True)
        (where / "stat").write_text(f"{pid} (python) S " + "0 " * 18 + f"{began} 0\n")
        (where / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n")
        return pid

    def step(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.agent.tick()
        self.agent.lookup.work()

    def records(self) -> list[dict]:
        return [record for _, record in self.agent.ended(0, 10_000)]
