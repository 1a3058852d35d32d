"""`slurm-rl lab fetch`: a root is whole or not there, and holds the release it is called by.

The real fetch is run by `make system`, which these tests come after; here mmdebstrap is real where it is killed, and
stands in for itself, with a copy of a fetched root, where a mirror would have to misbehave.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.cli import main
from slurm_rl.errors import EnvironmentMissing, InputError, SlurmRlError
from slurm_rl.lab import fetch, roots

from .conftest import wait_until
from .test_lab_lifecycle import processes_with

pytestmark = [pytest.mark.slurm, pytest.mark.releases("24.11")]
# What apt says, recorded from Debian 13's.
EXPIRED = (
    "E: Release file for http://mirror/debian/dists/forky/InRelease is expired (invalid since 11d 12h 48min 2s). "
    "Updates for this repository will not be applied."
)
Mirror = Callable[[str], Path]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """Puts a shell script in mmdebstrap's place; returns where it may take notes. $root is where it is to build."""

    def behaves(script: str) -> Path:
        notes = tmp_path / "notes"
        program = tmp_path / "bin" / "mmdebstrap"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nfor root; do :; done\necho "$@" >> {notes}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return notes

    return behaves


def copy_of(release: str) -> str:
    """Hard links: a root in no time."""
    return f'cp -al {roots.directory_of(release)} "$root"'


def test_what_is_there_is_not_fetched_again(slurm_release: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "fetch", slurm_release, "--json"])
    value = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert (value["fetched"], value["release"][:5]) == (False, slurm_release)
    assert value["root"] == str(roots.directory_of(slurm_release))
    assert value["megabytes"] < 800


def test_an_index_that_has_expired_is_taken_after_a_first_try_without(
    slurm_release: str, mirror: Mirror, tmp_path: Path
) -> None:
    notes = mirror(f'case "$*" in *Check-Valid-Until*) {copy_of("24.11")};; *) echo "{EXPIRED}" >&2; exit 1;; esac')
    done = fetch.fetch("24.11", tmp_path / "roots")
    assert (done.fresh, str(done.release)[:5]) == (True, "24.11")
    assert "expired" in done.notes[0]
    first, second = notes.read_text().splitlines()
    assert "Check-Valid-Until" not in first
    assert "Check-Valid-Until" in second
    assert [p.name for p in (tmp_path / "roots").iterdir() if p.is_dir()] == ["24.11"]


def test_another_failure_is_reported_with_apts_words_and_leaves_nothing(
    slurm_release: str, mirror: Mirror, tmp_path: Path
) -> None:
    notes = mirror('mkdir "$root"; echo "E: Unable to locate package slurmctld" >&2; exit 1')
    with pytest.raises(SlurmRlError, match="mmdebstrap trixie failed: E: Unable to locate package slurmctld"):
        fetch.fetch("24.11", tmp_path / "roots")
    assert len(notes.read_text().splitlines()) == 1
    assert [p for p in (tmp_path / "roots").iterdir() if p.is_dir()] == []


def test_a_debian_that_has_moved_on_is_refused(slurm_release: str, mirror: Mirror, tmp_path: Path) -> None:
    """The slurmctld that was fetched is asked; here it is one of 26.05."""
    mirror(copy_of("26.05"))
    with pytest.raises(SlurmRlError, match=r"Debian trixie has Slurm 26\.05\.\d+ now, not 24\.11"):
        fetch.fetch("24.11", tmp_path / "roots")
    assert [p for p in (tmp_path / "roots").iterdir() if p.is_dir()] == []


def test_again_replaces_the_root_only_by_a_whole_one(slurm_release: str, mirror: Mirror, tmp_path: Path) -> None:
    mirror(f'[ ! -e {tmp_path}/broken ] || exit 1; {copy_of("24.11")}; touch "$root/$(date +%N)"')
    place = tmp_path / "roots"
    first = set(fetch.fetch("24.11", place).root.path.iterdir())
    assert not fetch.fetch("24.11", place).fresh
    assert fetch.fetch("24.11", place, again=True).fresh
    second = set((place / "24.11").iterdir())
    assert first != second
    (tmp_path / "broken").touch()
    with pytest.raises(SlurmRlError):
        fetch.fetch("24.11", place, again=True)
    assert set((place / "24.11").iterdir()) == second


def test_kill_9_leaves_no_process_and_the_next_fetch_no_trace(
    slurm_release: str, mirror: Mirror, tmp_path: Path
) -> None:
    """The real mmdebstrap, killed while it works."""
    place = tmp_path / "roots"
    program = [sys.executable, "-c", "from slurm_rl.cli import main; main()", "lab", "fetch", "24.11"]
    with subprocess.Popen([*program, "--dir", str(place)], stdout=subprocess.DEVNULL) as fetching:
        half = place / ".24.11.new"
        wait_until(lambda: (half / "var" / "lib").is_dir() or fetching.poll() is not None, "it has begun")
        assert fetching.poll() is None
        os.kill(fetching.pid, signal.SIGKILL)
    wait_until(lambda: processes_with(str(half)) == [], "what it started is gone")
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert not (place / "24.11").exists()
    mirror(f'[ ! -e "$root" ] && {copy_of("24.11")}')
    assert fetch.fetch("24.11", place).fresh
    assert [p.name for p in place.iterdir() if p.is_dir()] == ["24.11"]


def test_wrong_releases_and_missing_parts_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown Slurm release '23\.02'"):
        fetch.fetch("23.02")
    with pytest.raises(EnvironmentMissing, match=r"the root of Slurm 24.11: sudo slurm-rl lab fetch 24.11"):
        roots.find("24.11", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentMissing, match="apt-get install mmdebstrap"):
        fetch.fetch("24.11", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EnvironmentMissing, match="needs root"):
        fetch.fetch("24.11", tmp_path)


def test_roots_lie_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(roots.ENVIRONMENT, str(tmp_path))
    assert roots.directory_of("24.11") == tmp_path / "24.11"
    assert roots.directory_of("24.11", Path("/elsewhere")) == Path("/elsewhere/24.11")
    with pytest.raises(InputError, match="characters"):
        roots.directory_of("24.11", Path("/a b"))
