"""The lab's state file, lab.json: its processes, so that any later run can use or end them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import InputError
from slurm_rl.lab.clock import LabClock
from slurm_rl.lab.conf import write
from slurm_rl.lab.processes import Process

FILE = "lab.json"
VERSION = 1


@dataclass(frozen=True)
class LabState:
    """A lab as recorded on disk; processes of an earlier boot are not ours any more."""

    directory: Path
    release: str
    nodes: tuple[str, ...]
    accounting: bool
    plugin: str
    boot_id: str
    root: str = ""  # the Debian root its Slurm lies in; "" is the installed one
    auth: str = "munge"
    processes: tuple[Process, ...] = ()
    up: bool = False  # True once every daemon answered
    clock: LabClock | None = None  # None: real time

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def bin(self) -> Path | None:
        """The lab's own commands, for the front of PATH; None if the installed ones do."""
        return self.directory / "bin" if self.root or self.auth != "munge" or self.clock else None

    def save(self) -> None:
        value = asdict(self) | {
            "version": VERSION,
            "directory": str(self.directory),
            "slurm_conf": str(self.slurm_conf),
        }
        write(self.directory / FILE, json.dumps(value, indent=1) + "\n")

    def own_processes(self) -> tuple[Process, ...]:
        """What we started and may end."""
        return self.processes if self.boot_id == boot_id() else ()


def boot_id() -> str:
    """Changes with every boot, when pids begin anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def load(directory: Path) -> LabState:
    """Reads the state of the lab in a directory."""
    path = directory / FILE
    try:
        value: dict[str, Any] = json.loads(path.read_text())
        if value["version"] != VERSION:
            raise InputError(
                f"written by another version ({value['version']})", file=str(path), remedy="lab down with that version"
            )
        return LabState(
            directory=Path(value["directory"]),
            release=value["release"],
            nodes=tuple(value["nodes"]),
            accounting=value["accounting"],
            plugin=value["plugin"],
            boot_id=value["boot_id"],
            root=value.get("root", ""),
            auth=value.get("auth", "munge"),
            processes=tuple(Process(**p) for p in value["processes"]),
            up=value["up"],
            clock=LabClock(**value["clock"]) if value.get("clock") else None,
        )
    except FileNotFoundError:
        raise InputError(f"no lab in {directory}", remedy="slurm-rl lab up, or give its --dir") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"not a lab's state: {error!r}", file=str(path)) from None
