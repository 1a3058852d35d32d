"""The doctor's facts and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from slurm_rl.slurm.model import Health, PriorityWeights, SlurmNode, SlurmPartition
from slurm_rl.slurm.release import Release
from slurm_rl.slurm.scontrol import setting


class Severity(IntEnum):
    """How bad a finding is; the worst one gives the exit code."""

    OK = 0
    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def exit_code(self) -> int:
        return {Severity.WARNING: 1, Severity.ERROR: 2}.get(self, 0)


@dataclass(frozen=True)
class Finding:
    """One thing found: what it is, why it matters, and the line to write (or the command to run)."""

    code: str
    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class LuaPlugin:
    """Slurm's job_submit/lua plugin on this machine."""

    plugin_dir_readable: bool = True
    plugin_found: bool = True
    version: str = ""  # of the Lua library it links; "" if that cannot be told
    has_socket: bool = False


@dataclass(frozen=True)
class SocketFile:
    """The service's unix socket and its directory."""

    path: str
    exists: bool = False
    is_socket: bool = True
    mode: int = 0o666
    directory_mode: int = 0o755
    reserved_mode: int | None = None  # of the socket for root and SlurmUser beside it


@dataclass(frozen=True)
class SiteFacts:
    """What a Slurm site says about itself, and who we are there."""

    release: Release
    config: Mapping[str, str]
    weights: PriorityWeights
    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]
    health: Health
    user: str = "root"
    admin_level: str = ""  # from accounting: None, Operator, Administrator; "" if there is none
    lua: LuaPlugin = field(default_factory=LuaPlugin)

    def get(self, name: str) -> str:
        return setting(self.config, name)

    def options(self, name: str) -> list[str]:
        return [o for o in self.get(name).split(",") if o]

    @property
    def superuser(self) -> bool:
        return self.user in ("root", self.get("SlurmUser").partition("(")[0])


def worst(findings: list[Finding]) -> Severity:
    return max((f.severity for f in findings), default=Severity.OK)
