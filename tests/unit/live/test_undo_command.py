"""`slurm-rl undo` starts and reads its journal whatever the machine is like."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.tick import _planner
from slurm_rl.errors import EnvironmentMissing
from slurm_rl.obs.journal import Change, Journal
from slurm_rl.obs.lease_holder import own_name

HEAVY = ("numba", "numpy", "pandas", "torch", "scipy", "typer", "pydantic", "fastapi", "uvicorn", "mip", "pyslurm")
_RUN = """
import sys
from slurm_rl.cli import main
try:
    main(sys.argv[1:])
finally:
    print(sorted(sys.modules), file=sys.stderr)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration whose Slurm has a job 7 with our factor: squeue, sprio and scontrol are scripts."""
    state, bin_dir = tmp_path / "state", tmp_path / "bin"
    bin_dir.mkdir()
    (tmp_path / "factor").write_text("40\n")
    (tmp_path / "c.toml").write_text(f'state_dir = "{state}"\nslurm_conf = "{tmp_path}/slurm.conf"\n')
    (tmp_path / "slurm.conf").write_text("ClusterName=x\n")
    submitted = int(time.time()) - 100
    with Journal(state / "journal.sqlite") as journal:
        token = journal.acquire("gone/1/1", time.time() - 90, 60)
        assert token is not None
        numbers = journal.intend(1, token, time.time() - 80, [Change(7, submitted, 0, 40, "a tick")])
        journal.settle([(n, "applied") for n in numbers])
        journal.release(token)
    script = FAKE.format(python=sys.executable, here=tmp_path, submitted=submitted)
    for name in ("squeue", "sprio", "scontrol", "sshare"):
        (bin_dir / name).write_text(script)
        (bin_dir / name).chmod(0o755)
    return tmp_path


FAKE = """#!{python} -S
import pathlib, re, sys
factor, name, args = pathlib.Path("{here}/factor"), pathlib.Path(sys.argv[0]).name, sys.argv[1:]
if name == "scontrol" and not args:
    for line in sys.stdin:
        sys.stdout.write("scontrol: " + line)
        found = re.search(r"SiteFactor=(-?\\d+)", line)
        factor.write_text(found[1])
elif args[:2] == ["show", "config"]:
    print("SLURM_VERSION = 22.05.8\\nClusterName = x")
    print("PriorityType = priority/multifactor\\nPriorityWeightPartition = 9")
elif name == "squeue":
    values = dict(JobID="7", ArrayJobID="7", ArrayTaskID="N/A", SubmitTime="{submitted}", State="PENDING", Nice="0")
    values |= dict(UserName="ann", Partition="p", PriorityLong="49", NumNodes="1", NumCPUs="1", NumTasks="1")
    for field in args[-1].split(","):
        key, _, mark = field.partition(":")
        sys.stdout.write(values.get(key, "") + mark)
elif name == "sprio":
    mark = re.split("%[a-zA-Z]", args[-1])[1]
    terms = ["7", "49", "0", "0", "0", "0", "9", "0", factor.read_text().strip(), "", "0", "0.0"]
    sys.stdout.write("".join(t + mark for t in terms))
"""


def undo(site: Path, *options: str, prefix: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "SLURM_CONF")}
    environment |= {"PATH": f"{site}/bin:{os.environ['PATH']}", "HOME": "/nonexistent", **more}
    command = [*prefix, sys.executable, "-c", _RUN, "undo", "--config", f"{site}/c.toml", "--json", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def factor(site: Path) -> int:
    return int((site / "factor").read_text())


def test_it_needs_no_compiler_no_arrays_and_no_home(site: Path) -> None:
    done = undo(site)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["returned"] == 1
    assert factor(site) == 0
    loaded = {name.strip("'[] ").partition(".")[0] for name in done.stderr.splitlines()[-1].split(",")}
    assert loaded & set(HEAVY) == set()


def read_only(path: Path) -> tuple[str, ...]:
    """Runs a command in which a directory is on a read-only disk."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    mount = f"mount --bind '{path}' '{path}' && mount -o remount,ro,bind '{path}' && exec \"$@\""
    return ("unshare", "--mount", "sh", "-c", mount, "sh")


def test_a_read_only_disk_does_not_matter(site: Path) -> None:
    done = undo(site, prefix=read_only(site / "state"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["returned"] == 1
    assert factor(site) == 0


def test_what_was_not_yet_checkpointed_is_read_on_a_read_only_disk_too(site: Path) -> None:
    """A killed controller leaves its last writes in the write-ahead log, without the index beside it."""
    state = site / "state"
    with Journal(state / "journal.sqlite") as journal:
        saved = {name: (state / name).read_bytes() for name in ("journal.sqlite", "journal.sqlite-wal")}
        journal.forget([])
        token = journal.acquire("gone/1/1", time.time(), 1)
        assert token is not None
        row = Change(7, next(iter(journal.touched()))[1], 0, 41, "not checkpointed")
        journal.intend(2, token, time.time(), [row])
        saved["journal.sqlite-wal"] = (state / "journal.sqlite-wal").read_bytes()
    for path in state.iterdir():
        path.unlink()
    for name, content in saved.items():
        (state / name).write_bytes(content)
    done = undo(site, prefix=read_only(state))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["returned"] == 1
    assert factor(site) == 0


@pytest.mark.parametrize("content", [b"", b"not a database, whatever its name says" * 400])
def test_a_journal_that_cannot_be_read_leads_to_all(site: Path, content: bytes) -> None:
    journal = site / "state" / "journal.sqlite"
    for path in journal.parent.iterdir():
        path.unlink()
    journal.write_bytes(content)
    done = undo(site)
    said = json.loads(done.stdout)
    if content:
        assert done.returncode == 1
        assert "slurm-rl undo --all" in said["error"]["message"]
        assert "Traceback" not in done.stderr
    else:
        assert said["touched"] == 0, "an empty file is a journal of nothing"
    assert factor(site) == 40
    done = undo(site, "--all")
    assert (done.returncode, factor(site)) == (0, 0), done.stderr


def test_after_a_stop_nothing_is_taken_back_while_another_leads(site: Path) -> None:
    with Journal(site / "state" / "journal.sqlite") as journal:
        assert journal.acquire(own_name(), time.time(), 60)  # this process lives
        done = undo(site, "--after-stop")
        said = json.loads(done.stdout)
        assert (done.returncode, said["skipped"], said["leader"]) == (0, True, own_name())
        assert factor(site) == 40
        assert journal.last_command() is None, "and it goes on leading"
        done = undo(site)  # by hand, it is told
        said = json.loads(done.stdout)
        assert (said["stopped_leader"], said["leader"], factor(site)) == (True, own_name(), 0)
        assert (journal.last_command() or (0, ""))[1] == "off"


def test_after_a_stop_of_the_leader_itself_everything_is_taken_back(site: Path) -> None:
    with Journal(site / "state" / "journal.sqlite") as journal:
        ended = subprocess.run([sys.executable, "-c", _LEADS, str(journal.path)], check=True, capture_output=True)
        assert ended.stdout
        assert undo(site, "--after-stop").returncode == 0
        assert factor(site) == 0


_LEADS = """
import sys, time
from pathlib import Path
from slurm_rl.obs.journal import Journal
from slurm_rl.obs.lease_holder import own_name
with Journal(Path(sys.argv[1])) as journal:
    print(journal.acquire(own_name(), time.time(), 60))
"""


def test_commands_start_without_a_home_that_can_be_written(tmp_path: Path) -> None:
    """As Debian's user slurm has none; kernels are then compiled anew at every start."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    environment["HOME"] = "/proc/nowhere"
    code = (
        "from slurm_rl.kernel import jit\n"
        "@jit.kernel\ndef twice(x): return 2 * x\n"
        "@jit.inner\ndef three(x): return 3 * x\n"
        "@jit.kernel\ndef six(x): return 2 * three(x)\n"
        "print(twice(2), six(1), jit._CACHED)"
    )
    (tmp_path / "six.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "six.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["4", "6", "False"], done.stderr
    listed = [sys.executable, "-m", "slurm_rl", "models", "list"]
    done = subprocess.run(listed, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "default" in done.stdout) == (0, True), done.stderr


def test_a_placement_that_cannot_be_had_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentMissing, match="python-mip, which is not installed: pip install"):
        _planner(Config(placement="mip"))
    _planner(Config(placement="best-fit"))
