"""Debian roots with other releases of Slurm; labs share them and never write to them."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing, InputError, SlurmError, unknown_name
from slurm_rl.slurm.release import Release, parse_release

SUITES = {"24.11": "trixie", "26.05": "forky"}  # Slurm's major release -> the Debian that has it
DEFAULT_ROOTS = Path("/var/cache/slurm-rl/roots")
ENVIRONMENT = "SLURM_RL_ROOTS"


@dataclass(frozen=True)
class Root:
    """One root, and how its programs are run."""

    path: Path

    @property
    def plugin_dir(self) -> Path:
        """Where its Slurm has its plugins: the path compiled into it is the installed Slurm's."""
        return self._one("usr/lib/*/slurm-wlm")

    def release(self) -> Release:
        """The release of its slurmctld, as that says itself."""
        command = ["/bin/sh", "-c", f"exec {self.in_namespace('slurmctld')} -V"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise SlurmError(f"{self.path}: slurmctld does not run: {done.stderr.strip()[-300:]}")
        return parse_release(done.stdout)

    def in_namespace(self, name: str) -> str:
        """A shell command that runs a program with the root's /usr in place of the machine's, as root."""
        mounts = " && ".join(
            f"mount --bind -o ro {self.path}/{part} /{part}"
            for part in ("etc/alternatives", "etc/ld.so.cache", "usr")  # /usr last: it covers `mount`
        )
        # Not resolved: Debian's alternatives are links into /etc, which lead elsewhere from outside.
        folder = "sbin" if os.path.lexists(self.path / "usr/sbin" / name) else "bin"
        return f"unshare --mount --propagation private /bin/sh -c '{mounts} && exec \"$@\"' sh /usr/{folder}/{name}"

    def by_loader(self, name: str) -> str:
        """A shell command that runs a program with the root's libraries on the machine as it is, as any user."""
        loader = self._one("usr/lib*/ld-linux*.so.*")
        return f"{loader} --library-path {self.plugin_dir.parent}:{self.plugin_dir} {self.path}/usr/bin/{name}"

    def _one(self, pattern: str) -> Path:
        found = sorted(self.path.glob(pattern))
        if not found:
            raise InputError(f"{self.path} has no {pattern}", remedy="slurm-rl lab fetch RELEASE --again")
        return found[0]


def directory_of(release: str, directory: Path | None = None) -> Path:
    """Where the root of a release lies, or is to lie."""
    if release not in SUITES:
        raise unknown_name("Slurm release", release, SUITES)
    base = directory or Path(os.environ.get(ENVIRONMENT) or DEFAULT_ROOTS)
    path = base.absolute() / release
    if re.search(r"[^\w./-]", str(path)):
        raise InputError(f"{path} holds characters Slurm's configuration cannot carry", field="--dir")
    return path


def find(release: str, directory: Path | None = None) -> Root:
    """The fetched root of a release."""
    path = directory_of(release, directory)
    if not path.is_dir():
        raise EnvironmentMissing(f"{path} is not there, the root of Slurm {release}: sudo slurm-rl lab fetch {release}")
    if not all(Path(link).is_symlink() for link in ("/bin", "/sbin", "/lib")):
        raise EnvironmentMissing("a lab of another release needs a machine whose /bin, /sbin and /lib are in /usr")
    return Root(path)
