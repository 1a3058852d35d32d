"""Every command of docs/admin.md, as printed, where /opt, /usr/local/bin, /run/slurm-rl and such are private."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..conftest import LabFactory

pytestmark = [pytest.mark.slurm, pytest.mark.releases("installed")]

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "admin.md").read_text()

# What a test cannot do as printed, and what it does instead.
INSTEAD = {
    # This Python. Nothing is fetched: pip finds our wheel (PIP_FIND_LINKS), and all others as if they were installed.
    "python3 -m venv /opt/slurm-rl": "make_venv",
    "apt install python3-venv lua-socket": "dpkg-query -W lua-socket",
    # No systemd runs here: the unit's own command is started, with the unit's own environment.
    "systemctl daemon-reload": "verify_unit",
    "systemctl start slurm-rl": "start_unit",
    "systemctl enable slurm-rl": "SYSTEMD_OFFLINE=1 systemctl enable slurm-rl",
}
PRELUDE = r"""
set -e
mount -t tmpfs -o mode=755 tmpfs /mnt
cp -a /etc/. /mnt/
mount --move /mnt /etc
for d in /opt /usr/local/bin /usr/lib/sysusers.d /run/slurm-rl /var/lib/slurm-rl; do
  mount -t tmpfs -o mode=755 tmpfs $d
done
export PATH=/usr/local/bin:$PATH
make_venv() {
  "$PYTHON" -m venv /opt/slurm-rl
  echo "$PACKAGES" > "$(echo /opt/slurm-rl/lib/python3*/site-packages)/packages.pth"
}
verify_unit() { systemd-analyze verify --man=no --recursive-errors=no /etc/systemd/system/slurm-rl.service; }
start_unit() {
  /opt/slurm-rl/bin/python -c 'import sys; assert not {"torch", "mip"} & set(sys.modules)'
  cmd=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/slurm-rl.service)
  $cmd > /run/slurm-rl/log 2>&1 &
  echo $! > /run/slurm-rl/service.pid
  for _ in $(seq 600); do
    curl --silent --fail --unix-socket /run/slurm-rl/slurm-rl.sock http://x/healthz && return
    kill -0 $(cat /run/slurm-rl/service.pid) || { cat /run/slurm-rl/log; return 1; }
    sleep 0.5
  done
  cat /run/slurm-rl/log; return 1
}
end() {
  pid=$(cat /run/slurm-rl/service.pid 2>/dev/null) || return 0
  kill $pid; wait $pid || true
}
trap end EXIT
"""


def commands() -> list[str]:
    """The indented lines that are commands: every block whose first word is a program."""
    found = []
    for block in re.findall(r"(?:^    .*\n)+", GUIDE, re.MULTILINE):
        rows = [re.sub(r"\s{2,}#.*", "", row[4:]) for row in block.splitlines()]
        if re.match(r"(apt|cd|slurm-rl|install|python3|curl|openssl|systemctl) ", rows[0]):
            found += rows
    return found


@contextmanager
def mount_points(*paths: str) -> Iterator[None]:
    """Directories that must be there; those that were not are gone afterwards."""
    made = [path for path in map(Path, paths) if not path.exists()]
    for path in made:
        path.mkdir()
    try:
        yield
    finally:
        for path in made:
            path.rmdir()


def test_every_command_is_found() -> None:
    assert len(commands()) >= 25
    assert {"slurm-rl undo", "slurm-rl shadow-report"} <= set(commands())
    assert set(INSTEAD) <= set(commands())


def build_wheel(directory: Path) -> None:
    """Of this source, as it is published."""
    words = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={directory}"]
    subprocess.run([sys.executable, "-m", "pip", *words, str(ROOT)], check=True, capture_output=True)


def link_packages(directory: Path) -> None:
    """All packages of this Python but our own, which pip would take for installed."""
    directory.mkdir()
    for folder in (Path(p) for p in sys.path if Path(p).name == "site-packages"):
        for entry in folder.iterdir():
            link = directory / entry.name
            if not entry.name.startswith(("slurm_rl", "_slurm_rl")) and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)


def test_the_guide_works_as_printed(start_lab: LabFactory) -> None:
    if shutil.which("unshare") is None:
        pytest.fail("needs unshare (util-linux)")
    lab = start_lab("t4:1*1", accounting=True)
    with mount_points("/run/slurm-rl", "/var/lib/slurm-rl"), tempfile.TemporaryDirectory(prefix="srl-") as name:
        wheels, packages = Path(name) / "wheels", Path(name) / "packages"
        build_wheel(wheels)
        link_packages(packages)
        skipped = ("slurm-rl models", "slurm-rl shadow-report")  # they need weeks of history: their own tests run them
        rows = [INSTEAD.get(row, row) for row in commands() if not row.startswith(skipped)]
        script = PRELUDE + "".join(f"echo + {shlex.quote(row)}\n{row}\n" for row in rows)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", script],
            env=lab.env()
            | {"PACKAGES": str(packages), "PYTHON": sys.executable, "HOME": "/root"}
            | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
            | {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path(name) / "cache"))},
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
