"""Finds the programs a lab needs, or says in one error which packages bring them."""

from __future__ import annotations

import os
import shutil
import subprocess

from slurm_rl.errors import EnvironmentMissing
from slurm_rl.slurm.release import Release, parse_release

# Daemons live in sbin, which is not on every user's PATH.
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/slurm/bin", "/opt/slurm/sbin")

# Program -> Debian package.
_ALWAYS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "squeue": "slurm-client",
    "sprio": "slurm-client",
}
_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}


def search_path() -> str:
    """PATH with the directories daemons live in."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *_SBIN))


def find(program: str) -> str | None:
    """The program's path, also where PATH lacks the sbin directories."""
    return shutil.which(program, path=search_path())


def missing(accounting: bool) -> list[str]:
    """Packages without which a lab cannot start."""
    needed = _ALWAYS | (_ACCOUNTING if accounting else {})
    return sorted({package for program, package in needed.items() if find(program) is None})


def check(accounting: bool) -> dict[str, str]:
    """Paths of all programs needed; raises one error that names what is missing and how to get it."""
    packages = missing(accounting)
    if packages:
        raise EnvironmentMissing(
            f"the lab needs the packages {', '.join(packages)}: as root, apt-get install {' '.join(packages)}"
        )
    if os.geteuid() != 0:
        raise EnvironmentMissing("the lab needs root (slurmd starts jobs under their users): sudo slurm-rl lab up")
    needed = _ALWAYS | (_ACCOUNTING if accounting else {})
    return {program: path for program in needed if (path := find(program)) is not None}


def installed_release(slurmctld: str) -> Release:
    """The release of the installed slurmctld."""
    said = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=10, check=False)
    return parse_release(said.stdout or said.stderr)
