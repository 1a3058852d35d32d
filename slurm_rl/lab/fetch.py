"""Builds the Debian root of a Slurm release with mmdebstrap, and renames it into place when complete."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing, SlurmRlError
from slurm_rl.lab.roots import SUITES, Root, directory_of
from slurm_rl.slurm.release import Release

PACKAGES = (
    *("slurmctld", "slurmd", "slurmdbd", "slurm-client", "munge", "mariadb-server", "mariadb-client"),
    *("lua5.1", "lua5.3", "lua5.4", "lua-socket", "lua-posix", "python3-venv", "tzdata"),
)
_LEFT_OUT = ("man", "doc", "info", "locale", "lintian", "bug", "groff")  # of /usr/share
_EXPIRED = 'Acquire::Check-Valid-Until "false"'


@dataclass(frozen=True)
class Fetched:
    """A root that is there now; `fresh` if this call made it, `notes` are for the user."""

    root: Root
    release: Release
    fresh: bool
    seconds: float
    notes: tuple[str, ...] = ()

    def megabytes(self) -> int:
        done = subprocess.run(["du", "-sm", self.root.path], capture_output=True, text=True, check=True)
        return int(done.stdout.split()[0])


def fetch(release: str, directory: Path | None = None, again: bool = False) -> Fetched:
    """Makes the root of a release unless it is there; `again` replaces it.

    A root in use by running labs may be replaced: their daemons keep the old files open.
    """
    path = directory_of(release, directory)
    began = time.monotonic()
    _check_tools()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        if path.is_dir() and not again:
            root = Root(path)
            return Fetched(root, root.release(), False, time.monotonic() - began)
        building, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
        for leftover in (building, old):  # of a fetch that was killed
            _remove(leftover)
        try:
            notes = _build(SUITES[release], building)
            made = Root(building).release()
            if made.major != _major(release):
                raise SlurmRlError(
                    f"Debian {SUITES[release]} has Slurm {made} now, not {release}: "
                    "this version of slurm-rl knows no other Debian that has it"
                )
            if path.is_dir():
                path.rename(old)
            building.rename(path)
        finally:
            _remove(building)
            _remove(old)
    return Fetched(Root(path), made, True, time.monotonic() - began, tuple(notes))


def _major(release: str) -> tuple[int, int]:
    year, month = release.split(".")
    return int(year), int(month)


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise EnvironmentMissing("lab fetch needs root: sudo slurm-rl lab fetch …")
    if shutil.which("mmdebstrap") is None:
        raise EnvironmentMissing("lab fetch needs mmdebstrap: as root, apt-get install mmdebstrap")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One fetch at a time per root; a second one waits, and then finds it there."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(suite: str, target: Path) -> list[str]:
    said = _mmdebstrap(suite, target)
    if said is None:
        return []
    if not re.search(r"Release file for .* is expired", said):
        raise SlurmRlError(f"mmdebstrap {suite} failed: {_last_words(said)}")
    # A mirror that stands still serves an index whose date has passed; its signature still holds.
    _remove(target)
    said = _mmdebstrap(suite, target, f"--aptopt={_EXPIRED}")
    if said is not None:
        raise SlurmRlError(f"mmdebstrap {suite} failed: {_last_words(said)}")
    return [f"the mirror's index of Debian {suite} has expired; it is used anyway, because its signature is valid"]


def _mmdebstrap(suite: str, target: Path, *options: str) -> str | None:
    """None if it went well, else everything it said."""
    command = [
        # Whatever it starts and mounts ends with us, also by kill -9: its namespaces end with their first process.
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"),
        "mmdebstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT),
        # Made by the packages, and of no use here: every lab has a database of its own.
        '--customize-hook=rm -rf "$1/var/lib/mysql"',
        *options,
        suite,
        str(target),
    ]
    lines = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as done:
        assert done.stderr is not None  # noqa: S101 (for mypy: it is a pipe)
        for line in done.stderr:
            lines.append(line)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\033[K{line.strip()[:100]}")
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    return None if done.returncode == 0 else "".join(lines)


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("E:")]
    return " / ".join((telling or lines)[-3:])


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
