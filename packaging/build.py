"""Builds slurm-rl's .deb and .rpm: a private venv under /opt/slurm-rl, units, settings, manual pages, completion.

    python packaging/build.py --out dist              both; as root, on a machine with Debian 12's python3.11
    python packaging/build.py --out dist --only deb

The venv is made at its final path, in a mount namespace of its own, so that nothing in it has to be rewritten and the
kernels that are compiled here are valid there. Dependencies are pinned in packaging/requirements.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PYTHON = "/usr/bin/python3.11"
PREFIX = "/opt/slurm-rl"
SUMMARY = "learned batch-scheduler backend for Slurm clusters with mixed GPUs"
DESCRIPTION = (
    "A learned policy reorders the pending queue of a Slurm cluster, a mixed-integer programme maps jobs onto the GPU "
    "types where they run best, and a simulator replays the site's own history with the same policy code. "
    "Installing it changes nothing: the service is enabled by the admin, starts in shadow mode, and can be undone."
)
# What `pip` brings and no installed program needs.
_NOT_SHIPPED = "pip pip-* setuptools setuptools-* pkg_resources _distutils_hack distutils-precedence*".split()
_NOT_SHIPPED += ["numpy/distutils"]
_HIGHLIGHTED = {"__init__.py", "_mapping.py", "python.py", "special.py"}  # rich shows code of Python alone here
_FOR_COMPILERS = ("*.pyi", "*.pxd", "*.h", "*.c", "*.a")
_TOOLS = {"deb": ("dpkg-deb",), "rpm": ("rpmbuild",)}


def run(*words: str | Path, **settings: object) -> None:
    """Runs a command; a failure ends the build with the command's own words."""
    subprocess.run([str(word) for word in words], check=True, **settings)  # type: ignore[call-overload]


def version() -> str:
    """The version in pyproject.toml."""
    import tomllib

    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def check(kinds: Sequence[str]) -> None:
    """Names everything that is missing before minutes are spent."""
    missing = [tool for kind in kinds for tool in _TOOLS[kind] if shutil.which(tool) is None]
    if not Path(PYTHON).exists():
        missing.append(PYTHON)
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        sys.exit(f"packages need {', '.join(missing)}: as root, apt-get install dpkg rpm python3.11-venv")


def make_wheel(directory: Path) -> Path:
    """slurm-rl itself, from this tree."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT, stdout=subprocess.DEVNULL)
    (wheel,) = directory.glob("*.whl")
    return wheel


def fill_venv(wheel: Path, when: int) -> None:
    """Inside the namespace: the venv at its final path, with kernels compiled for it."""
    run(PYTHON, "-m", "venv", PREFIX)
    pip = [f"{PREFIX}/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    # mip asks for a solver of 600 MB that is not used here: highspy, of 12 MB, is what solves.
    run(*pip, "--no-deps", "-r", HERE / "requirements.txt", wheel)
    (packages,) = Path(PREFIX).glob("lib/python3*/site-packages")
    for pattern in _NOT_SHIPPED:
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    slim(packages)
    keep = {"slurm-rl", "python", "python3", "python3.11"}
    for path in (Path(PREFIX) / "bin").iterdir():
        if path.name not in keep:
            path.unlink()
    # Half of all that is installed; others were edited after they were linked, and strip would break them.
    run("strip", "--strip-unneeded", *packages.glob("llvmlite/binding/*.so"))
    for path in [*Path(PREFIX).rglob("*"), Path(PREFIX)]:
        # Archives keep whole seconds, and a kernel is valid only for a source of the same time.
        os.utime(path, (when, when), follow_symlinks=False)
    run(f"{PREFIX}/bin/python", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", packages)
    run(f"{PREFIX}/bin/python", HERE / "precompile.py")


def slim(packages: Path) -> None:
    """Leaves out what only developers of these packages need, and every library that is there under a second name."""
    for tests in [path for path in packages.rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests)
    for pattern in _FOR_COMPILERS:
        for path in packages.rglob(pattern):
            path.unlink()
    for path in packages.glob("pygments/lexers/*.py"):
        if path.name not in _HIGHLIGHTED:
            path.unlink()
    known: dict[bytes, Path] = {}
    for path in sorted(packages.rglob("*.so.*")):  # wheels hold no links: each name of a library is a copy
        first = known.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
        if first is not path and first.parent == path.parent:
            path.unlink()
            path.symlink_to(first.name)


def in_namespace(stage: Path, wheel: Path, when: int) -> None:
    """Fills STAGE/opt/slurm-rl as if it were /opt/slurm-rl; what the machine has there is not touched."""
    (stage / "opt/slurm-rl").mkdir(parents=True)
    made = not Path(PREFIX).exists()
    Path(PREFIX).mkdir(parents=True, exist_ok=True)  # something to mount on; nothing is written to it
    script = f'mount --make-rprivate / && mount --bind "$1" {PREFIX} && shift && exec "$@"'
    inside = [sys.executable, __file__, "--inside", str(wheel), "--when", str(when)]
    try:
        run("unshare", "--mount", "sh", "-c", script, "sh", stage / "opt/slurm-rl", *inside)
    finally:
        if made:
            Path(PREFIX).rmdir()


def add_system_files(stage: Path) -> None:
    """Units, settings, user, manual pages and completion, where a distribution wants them."""
    etc = ROOT / "etc"
    places = {
        etc / "systemd/slurm-rl.service": "usr/lib/systemd/system/slurm-rl.service",
        etc / "systemd/slurm-rl-node-agent.service": "usr/lib/systemd/system/slurm-rl-node-agent.service",
        etc / "slurm-rl.sysusers": "usr/lib/sysusers.d/slurm-rl.conf",
        etc / "slurm-rl.tmpfiles": "usr/lib/tmpfiles.d/slurm-rl.conf",
        etc / "slurm-rl.toml": "etc/slurm-rl/slurm-rl.toml",
        ROOT / "LICENSE": "usr/share/doc/slurm-rl/copyright",
    }
    for source, place in places.items():
        (stage / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, stage / place)
    (stage / "usr/bin").mkdir(parents=True)
    (stage / "usr/bin/slurm-rl").symlink_to(f"{PREFIX}/bin/slurm-rl")
    python = sys.executable
    run(python, HERE / "man.py", stage / "usr/share/man/man1", env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/sim"})
    completion = stage / "usr/share/bash-completion/completions/slurm-rl"
    completion.parent.mkdir(parents=True)
    with completion.open("w") as file:
        run(python, "-m", "slurm_rl", "completion", "show", "--shell", "bash", cwd=ROOT, stdout=file)


def build_deb(stage: Path, out: Path) -> Path:
    """The .deb from the staged tree."""
    control = stage / "DEBIAN"
    control.mkdir()
    size = sum(path.lstat().st_size for path in stage.rglob("*")) // 1024
    fields = {
        "Package": "slurm-rl",
        "Version": version(),
        "Architecture": "amd64",
        "Maintainer": "slurm-rl developers <slurm-rl@localhost>",
        "Installed-Size": size,
        "Depends": "python3.11, libc6 (>= 2.31), libstdc++6",
        "Recommends": "lua-socket, slurm-client, curl",
        "Section": "admin",
        "Priority": "optional",
        "Description": f"{SUMMARY}\n {DESCRIPTION}",
    }
    (control / "control").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    (control / "conffiles").write_text("/etc/slurm-rl/slurm-rl.toml\n")
    for script in ("postinst", "prerm", "postrm"):
        shutil.copyfile(HERE / script, control / script)
        (control / script).chmod(0o755)
    package = out / f"slurm-rl_{version()}_amd64.deb"
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", stage, package, stdout=subprocess.DEVNULL)
    shutil.rmtree(control)
    return package


_SPEC = """\
Name: slurm-rl
Version: {version}
Release: 1
Summary: {summary}
License: Apache-2.0
Requires: python3.11
AutoReqProv: no
%global __os_install_post %{{nil}}
%global _build_id_links none
%description
{description}
%install
cp -a {stage}/. %{{buildroot}}/
%files
/opt/slurm-rl
/usr/bin/slurm-rl
/usr/lib/systemd/system/*
/usr/lib/sysusers.d/*
/usr/lib/tmpfiles.d/*
/usr/share/man/man1/*
/usr/share/bash-completion/completions/slurm-rl
%doc /usr/share/doc/slurm-rl/copyright
%config(noreplace) /etc/slurm-rl/slurm-rl.toml
%post
{post}
%preun
{preun}
%postun
{postun}
"""


def build_rpm(stage: Path, out: Path) -> Path:
    """The .rpm from the same tree; its scripts get a count where Debian's get a word."""
    script = {name: (HERE / name).read_text() for name in ("postinst", "prerm", "postrm")}
    with tempfile.TemporaryDirectory() as top:
        spec = Path(top) / "slurm-rl.spec"
        text = _SPEC.format(
            version=version(),
            summary=SUMMARY,
            description=DESCRIPTION,
            stage=stage,
            post=script["postinst"],
            preun=script["prerm"],
            postun=script["postrm"],
        )
        spec.write_text(text)
        defines = ["--define", f"_topdir {top}", "--define", "_binary_payload w6.gzdio"]
        run("rpmbuild", "-bb", "--quiet", *defines, spec)
        (made,) = Path(top).glob("RPMS/*/*.rpm")
        return Path(shutil.copy(made, out / made.name))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=ROOT / "dist", help="where the packages go (dist)")
    options.add_argument("--only", choices=list(_TOOLS), help="one of them")
    options.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--when", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.inside:
        fill_venv(given.inside, given.when)
        return
    kinds = [given.only] if given.only else list(_TOOLS)
    check(kinds)
    given.out.mkdir(parents=True, exist_ok=True)
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or (ROOT / "pyproject.toml").stat().st_mtime)
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch) / "stage"
        stage.mkdir(mode=0o755)
        print("building the wheel and the venv, and compiling kernels: two to four minutes", flush=True)
        in_namespace(stage, make_wheel(Path(scratch)), when)
        add_system_files(stage)
        for kind in kinds:
            package = build_deb(stage, given.out) if kind == "deb" else build_rpm(stage, given.out)
            print(f"{package}  {package.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
