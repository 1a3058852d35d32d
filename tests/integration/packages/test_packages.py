"""The packages in a fresh Debian 12: they install, run at once, keep settings over an upgrade, and go without a trace.

Builds them first, unless SLURM_RL_PACKAGES names a directory that has them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[3]
TRACE = "/opt/slurm-rl/lib/python3.11/site-packages/slurm_rl/_data/traces/hetero.csv.gz"
MOST_MB = 350


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("SLURM_RL_PACKAGES"):
        return Path(given)
    out = tmp_path_factory.mktemp("packages")
    subprocess.run([sys.executable, ROOT / "packaging" / "build.py", "--out", out], check=True)
    return out


class Machine:
    """A Debian 12 in a directory; commands run in it by chroot, in namespaces of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        inside = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside, str(self.root)]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        done = subprocess.run([*isolated, *words], check=False, env=environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def files(self) -> set[str]:
        found = self.run("find", "/", "-xdev", "-not", "-path", "/proc/*").stdout.splitlines()
        changing = ("/var/lib/dpkg", "/var/log", "/var/cache/debconf", "/tmp", "/root", "/var/lib/rpm")
        return {path for path in found if not path.startswith(changing)}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    root = tmp_path / "debian"
    bootstrap = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3.11,passwd", "bookworm", str(root)]
    isolated = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    subprocess.run([*isolated, *bootstrap], check=True)
    yield Machine(root)
    shutil.rmtree(root)


def newer(package: Path, directory: Path) -> Path:
    """The same package as a later version, with other default settings."""
    tree = directory / "newer"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9."))
    settings = tree / "etc/slurm-rl/slurm-rl.toml"
    settings.write_text(settings.read_text() + "# a new default\n")
    out = directory / "newer.deb"
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "-b", tree, out], check=True, stdout=subprocess.DEVNULL)
    return out


def test_the_deb_lives_and_dies_without_a_trace(built: Path, machine: Machine, tmp_path: Path) -> None:
    (package,) = built.glob("*.deb")
    before = machine.files()
    shutil.copy(package, machine.root / "slurm-rl.deb")
    machine.run("dpkg", "-i", "/slurm-rl.deb")
    (machine.root / "slurm-rl.deb").unlink()

    size = int(machine.run("du", "-sm", "/opt/slurm-rl").stdout.split()[0])
    assert size <= MOST_MB, f"{size} MB"
    assert machine.run("slurm-rl", "version").stdout.startswith("slurm-rl ")
    assert machine.run("id", "slurm-rl").returncode == 0
    assert (machine.root / "usr/share/man/man1/slurm-rl-undo.1.gz").exists()

    # The first replay compiles nothing: numba finds every kernel in what the package brought.
    replay = ["slurm-rl", "replay", TRACE, "--window", "0:0.2", "--json"]
    runs = json.loads(machine.run(*replay).stdout)["runs"]
    assert len(runs) > 3
    shipped = {p.name for p in machine.root.glob("opt/slurm-rl/lib/python3*/site-packages/**/kernels/*/**/*.nbc")}
    in_use = {p.name for p in (machine.root / "root/.cache/slurm-rl/kernels").glob("**/*.nbc")}
    assert shipped
    assert in_use == shipped

    # The admin's settings and the journal outlive an upgrade and a removal, and go with a purge.
    settings = machine.root / "etc/slurm-rl/slurm-rl.toml"
    settings.write_text(settings.read_text() + "interval = 12\n")
    journal = machine.root / "var/lib/slurm-rl/journal.sqlite"
    journal.parent.mkdir()
    journal.touch()
    shutil.copy(newer(package, tmp_path), machine.root / "newer.deb")
    machine.run("dpkg", "--force-confold", "-i", "/newer.deb")
    (machine.root / "newer.deb").unlink()
    assert "interval = 12" in settings.read_text()
    assert "12" in machine.run("slurm-rl", "show-conf", "--json").stdout
    assert journal.exists()
    machine.run("dpkg", "-r", "slurm-rl")
    assert not (machine.root / "opt/slurm-rl").exists()
    assert journal.exists()
    machine.run("dpkg", "-P", "slurm-rl")
    left = machine.files() - before
    # The user stays, as Debian has it: a later user must not get its number.
    assert left <= {f"/etc/{name}-" for name in "passwd group shadow gshadow subuid subgid".split()}, left


def test_the_rpm_installs_and_goes(built: Path, machine: Machine) -> None:
    (package,) = built.glob("*.rpm")
    rpm = ["rpm", "--root", str(machine.root), "--nodeps"]
    subprocess.run([*rpm, "-i", package], check=True)
    assert machine.run("slurm-rl", "version").stdout.startswith("slurm-rl ")
    owner = machine.run("stat", "-c", "%U", "/opt/slurm-rl/bin/slurm-rl").stdout
    assert owner == "root\n"
    subprocess.run([*rpm, "-e", "slurm-rl"], check=True)
    assert not (machine.root / "opt/slurm-rl/bin").exists()
    assert not (machine.root / "usr/bin/slurm-rl").exists()
