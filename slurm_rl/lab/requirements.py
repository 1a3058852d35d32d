"""Finds the programs a lab needs, or says in one error which packages bring them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing, InputError
from slurm_rl.lab.spec import Auth
from slurm_rl.slurm.release import Release, parse_release

# Daemons live in sbin, which is not on every user's PATH.
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/slurm/bin", "/opt/slurm/sbin")


# Program -> Debian package.
_ALWAYS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "squeue": "slurm-client",
    "sprio": "slurm-client",
}
_MUNGE = {"munged": "munge"}
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


def missing(accounting: bool, auth: Auth = Auth.MUNGE) -> list[str]:
    """Packages without which a lab of the installed Slurm cannot start."""
    return sorted({package for program, package in _needed(accounting, auth).items() if find(program) is None})


def _needed(accounting: bool, auth: Auth) -> dict[str, str]:
    return _ALWAYS | (_MUNGE if auth is Auth.MUNGE else {}) | (_ACCOUNTING if accounting else {})


def check(accounting: bool, auth: Auth = Auth.MUNGE) -> dict[str, str]:
    """Paths of all programs needed; raises one error that names what is missing and how to get it."""
    packages = missing(accounting, auth)
    if packages:
        raise EnvironmentMissing(
            f"the lab needs the packages {', '.join(packages)}: as root, apt-get install {' '.join(packages)}"
        )
    check_root()
    return {program: path for program in _needed(accounting, auth) if (path := find(program)) is not None}


def check_commands(accounting: bool, auth: Auth, directory: Path) -> dict[str, str]:
    """The same in a lab with commands of its own, which are scripts below its directory."""
    check_root()
    found = {path.name: str(path) for folder in ("bin", "sbin") for path in (directory / folder).glob("*")}
    return {program: found[program] for program in _needed(accounting, auth)}


def check_root() -> None:
    if os.geteuid() != 0:
        raise EnvironmentMissing("the lab needs root (slurmd starts jobs under their users): sudo slurm-rl lab up")


def check_auth(auth: Auth, release: Release) -> None:
    """Refuses auth/slurm where Slurm lacks it."""
    if auth is Auth.SLURM and not release.traits.auth_slurm:
        raise InputError(
            f"Slurm {release} has no auth/slurm, which came with 23.11",
            field="--auth",
            remedy="--auth munge, or a newer release: slurm-rl lab fetch 24.11, lab up --slurm 24.11",
        )


def installed_release(slurmctld: str) -> Release:
    """The release of the installed slurmctld."""
    said = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=10, check=False)
    return parse_release(said.stdout or said.stderr)
