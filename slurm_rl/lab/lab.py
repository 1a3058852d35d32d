"""Starts, inspects and ends a private, real Slurm with fake GPUs below one directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slurm_rl.errors import InputError, SlurmError
from slurm_rl.lab import conf, processes, requirements, service, state
from slurm_rl.lab.spec import LabSpec, PluginMode, check_directory
from slurm_rl.slurm.command import not_installed

_START_SECONDS = 60.0


class Lab:
    """A running lab; `run` speaks to it as a user's shell would."""

    def __init__(self, recorded: state.LabState) -> None:
        self.state = recorded

    @property
    def directory(self) -> Path:
        return self.state.directory

    @property
    def slurm_conf(self) -> Path:
        return self.state.slurm_conf

    def env(self) -> dict[str, str]:
        """The environment in which Slurm's commands reach this lab."""
        return _clean_env() | {"SLURM_CONF": str(self.slurm_conf)}

    def run(self, *command: str, stdin: str | None = None, user: str | None = None, timeout: float = 60.0) -> str:
        """Runs one of Slurm's commands in the lab and returns what it printed."""
        try:
            done = subprocess.run(
                command,
                env=self.env(),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                user=user,
                cwd=self.directory,
            )
        except FileNotFoundError:
            raise not_installed(command[0]) from None
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{command[0]}: no answer within {timeout:g} s") from None
        if done.returncode != 0:
            raise SlurmError(f"{command[0]}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def process(self, name: str) -> processes.Process:
        """A daemon by its name, such as slurmctld, munged or slurmd-a100-1."""
        found = [p for p in self.state.processes if p.name == name]
        if not found:
            raise InputError(f"the lab has no {name}", remedy=", ".join(p.name for p in self.state.processes))
        return found[-1]

    def restart(self, name: str) -> processes.Process:
        """Starts a daemon again that died or was killed; its old process must be gone."""
        if self.process(name).alive():
            raise InputError(f"{name} is still running")
        starter = _Starter(self.state)
        starter.start(name)
        self.state = starter.state
        return self.process(name)

    def down(self) -> list[str]:
        """Ends exactly this lab's processes and returns the names of those that were alive."""
        with _locked(self.directory):
            self.state = state.load(self.directory)
            ended = processes.end(self.state.own_processes(), self.directory)
            self.state = replace(self.state, processes=(), up=False)
            self.state.save()
        return [p.name for p in ended]


def attach(directory: Path) -> Lab:
    """The lab that was started in a directory, running or not."""
    return Lab(state.load(check_directory(directory)))


def delete(directory: Path) -> None:
    """Removes the directory of a lab that is down."""
    recorded = state.load(check_directory(directory))
    if any(p.alive() for p in recorded.own_processes()):
        raise InputError(f"the lab in {directory} is running", remedy="slurm-rl lab down first")
    shutil.rmtree(directory)


def up(spec: LabSpec) -> Lab:
    """Starts a lab and returns when every node is idle; on failure nothing of it keeps running."""
    programs = requirements.check(spec.accounting)
    spec = replace(spec, directory=check_directory(spec.directory))
    release = requirements.installed_release(programs["slurmctld"])
    if spec.plugin is not PluginMode.OFF:
        service.check()
    _prepare(spec.directory)
    with _locked(spec.directory):
        ports = conf.free_ports(spec.node_count())
        conf.write_all(spec, ports, release)
        if spec.plugin is not PluginMode.OFF:
            service.configure(spec.directory, spec.plugin)
        recorded = state.LabState(
            directory=spec.directory,
            release=str(release),
            nodes=tuple(name for c in spec.nodes for name in c.names()) if spec.run_nodes else (),
            accounting=spec.accounting,
            plugin=spec.plugin.value,
            boot_id=state.boot_id(),
        )
        starter = _Starter(recorded)
        try:
            starter.start_all()
        except BaseException:
            processes.end(starter.state.processes, spec.directory)
            replace(starter.state, processes=(), up=False).save()
            raise
    return Lab(starter.state)


def _prepare(directory: Path) -> None:
    """An empty directory, or one that held a lab of ours that is down now."""
    if not directory.exists():
        directory.mkdir(parents=True, mode=0o755)
        return
    if directory.stat().st_uid != os.geteuid():
        raise InputError(f"{directory} belongs to another user", field="--dir", remedy="choose another one")
    left = [entry for entry in directory.iterdir() if entry.name != "lock"]
    if not left:
        return
    if not (directory / state.FILE).is_file():
        raise InputError(f"{directory} is not empty and holds no lab", field="--dir", remedy="choose another one")
    recorded = state.load(directory)
    if any(p.alive() for p in recorded.own_processes()):
        raise InputError(
            f"a lab is running in {directory}",
            field="--dir",
            remedy="use it (slurm-rl lab status) or end it (slurm-rl lab down)",
        )
    for entry in left:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time per directory."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another slurm-rl lab command is at work in {directory}", remedy="wait for it") from None
        yield


def _clean_env() -> dict[str, str]:
    """Our environment without anything that would steer Slurm's commands, in the C locale they are parsed in."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SQUEUE", "SINFO", "SACCT"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC", "PATH": requirements.search_path()}


class _Starter:
    """Starts daemons one after the other, recording each before waiting for it."""

    def __init__(self, recorded: state.LabState) -> None:
        self.state = recorded
        self.directory = recorded.directory
        self.programs = requirements.check(recorded.accounting)

    def start_all(self) -> None:
        self.state.save()
        self.start("munged")
        if self.state.accounting:
            self._install_database()
            self.start("mariadbd")
            self.start("slurmdbd")
        self.start("slurmctld")
        for node in self.state.nodes:
            self.start(f"slurmd-{node}")
        if self.state.plugin != PluginMode.OFF:
            self.start("service")
        if self.state.accounting:
            self._add_association()
        self._until("every node is idle", self._nodes_idle)
        self.state = replace(self.state, up=True)
        self.state.save()

    def start(self, name: str) -> None:
        """Starts one daemon and waits until it can be used (nodes are waited for together, at the end)."""
        command, ready = self._daemon(name)
        process = self._launch(name, command)
        if ready is not None:
            self._until(f"{name} answers", ready, process)

    def _launch(self, name: str, command: Sequence[str]) -> processes.Process:
        log = self.directory / "log" / f"{name}.out"
        env = _clean_env() | {
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "MYSQL_UNIX_PORT": str(self.directory / "run" / "mariadb.socket"),
        }
        if name.startswith("mariadb"):  # a server that starts clears its directory of others' temporary tables
            env["TMPDIR"] = str(self.directory / "tmp")
        process = processes.start(name, command, log, env)
        others = tuple(p for p in self.state.processes if p.name != name)
        self.state = replace(self.state, processes=(*others, process))
        self.state.save()
        return process

    def _daemon(self, name: str) -> tuple[Sequence[str], Callable[[], bool] | None]:
        d, programs = self.directory, self.programs
        slurm_conf = str(d / "slurm.conf")
        match name:
            case "munged":
                command = [
                    programs["munged"],
                    "--foreground",
                    "--force",  # it runs as root here, on files below our directory
                    f"--key-file={d}/munge.key",
                    f"--socket={d}/run/munge.socket",
                    f"--pid-file={d}/run/munged.pid",
                    f"--log-file={d}/log/munged.log",
                    f"--seed-file={d}/run/munged.seed",
                    "--num-threads=4",
                ]
                return command, (d / "run" / "munge.socket").is_socket
            case "mariadbd":
                return [programs["mariadbd"], *self._mariadb_options()], (d / "run" / "mariadb.socket").is_socket
            case "slurmdbd":
                return [programs["slurmdbd"], "-D"], self._slurmdbd_answers
            case "slurmctld":
                return [programs["slurmctld"], "-D", "-f", slurm_conf], self._slurmctld_answers
            case "service":
                return service.command(d), service.answers(d)
            case _:
                return [programs["slurmd"], "-D", "-N", name.removeprefix("slurmd-"), "-f", slurm_conf], None

    def _mariadb_options(self) -> list[str]:
        d = self.directory
        return [
            "--no-defaults",
            "--user=root",
            f"--datadir={d}/mariadb",
            f"--socket={d}/run/mariadb.socket",
            f"--pid-file={d}/run/mariadb.pid",
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--innodb-lock-wait-timeout=900",  # slurmdbd asks for it
            "--innodb-flush-log-at-trx-commit=2",
        ]

    def _install_database(self) -> None:
        name = "mariadb-install-db"
        process = self._launch(
            name,
            [
                self.programs[name],
                "--no-defaults",
                "--user=root",
                f"--datadir={self.directory}/mariadb",
                "--auth-root-authentication-method=socket",
                "--skip-test-db",
                "--skip-name-resolve",
            ],
        )
        code = processes.wait(process, _START_SECONDS)
        if code != 0:
            raise SlurmError(f"{name} ended with code {code}: {self._last_words(name)}")
        self.state = replace(self.state, processes=tuple(p for p in self.state.processes if p != process))

    def _add_association(self) -> None:
        """Gives root an account, so that fairshare has something to count."""
        self._try("sacctmgr", "-i", "add", "account", "lab", "Description=lab", "Organization=lab")
        self._try("sacctmgr", "-i", "add", "user", "root", "Account=lab")

    def _slurmdbd_answers(self) -> bool:
        return self._try("sacctmgr", "-n", "-P", "show", "cluster")

    def _slurmctld_answers(self) -> bool:
        try:
            return " UP" in self._output("scontrol", "ping")  # unlike other commands, it does not wait for a dead one
        except SlurmError:
            return False

    def _nodes_idle(self) -> bool:
        said = self._output("sinfo", "-h", "-N", "-o", "%N %T")
        ready = {line.split()[0] for line in said.splitlines() if line.split()[-1] in ("idle", "mixed", "allocated")}
        return ready >= set(self.state.nodes)

    def _try(self, *command: str) -> bool:
        try:
            self._output(*command)
        except SlurmError:
            return False
        return True

    def _output(self, *command: str) -> str:
        return Lab(self.state).run(*command, timeout=_START_SECONDS)

    def _until(self, what: str, ready: Callable[[], bool], process: processes.Process | None = None) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            watched = [process] if process else self.state.processes
            dead = [p.name for p in watched if not p.alive()]
            if dead:
                raise SlurmError(f"{dead[0]} ended while starting: {self._last_words(dead[0])}")
            if time.monotonic() > deadline:
                raise SlurmError(f"waited {_START_SECONDS:.0f} s in vain until {what}; see {self.directory}/log")
            time.sleep(0.05)

    def _last_words(self, name: str) -> str:
        logs = [self.directory / "log" / f"{name}{suffix}" for suffix in (".out", ".log")]
        lines = [line for log in logs if log.is_file() for line in log.read_text(errors="replace").splitlines()]
        telling = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
        return " / ".join((telling or lines)[-2:]) or f"see {self.directory}/log"
