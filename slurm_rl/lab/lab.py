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
from slurm_rl.lab import clock, conf, processes, programs, requirements, roots, service, state
from slurm_rl.lab.patience import LONGEST, STILL, Patience, cpu_seconds
from slurm_rl.lab.spec import Auth, LabSpec, PluginMode, check_directory
from slurm_rl.slurm.command import not_installed

_COMMAND_SECONDS = 60.0
_ATTEMPTS = 3
_ORPHANS = 30.0  # seconds that children of a killed lab command may keep its lock


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
        env = _clean_env() | {"SLURM_CONF": str(self.slurm_conf)}
        if self.state.bin:
            env["PATH"] = os.pathsep.join((str(self.state.bin), str(self.directory / "sbin"), env["PATH"]))
        return env

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
        with _locked(self.directory):
            self.state = state.load(self.directory)  # another run of ours may have restarted something meanwhile
            if self.process(name).alive():
                raise InputError(f"{name} is still running")
            starter = _Starter(self.state)
            try:
                starter.start(name)
            finally:
                self.state = starter.state
        return self.process(name)

    def down(self) -> list[str]:
        """Ends exactly this lab's processes and returns the names of those that were alive."""
        with _locked(self.directory):
            self.state = state.load(self.directory)
            ended = _end(self.state)
            self.state = replace(self.state, processes=(), up=False, clock=None)
            self.state.save()
        return [p.name for p in ended]


def attach(directory: Path) -> Lab:
    """The lab that was started in a directory, running or not."""
    return Lab(state.load(check_directory(directory)))


def delete(directory: Path) -> None:
    """Removes the directory of a lab that is down."""
    recorded = state.load(check_directory(directory))
    if _running(recorded):
        raise InputError(f"the lab in {directory} is running", remedy="slurm-rl lab down first")
    shutil.rmtree(directory)


def up(spec: LabSpec) -> Lab:
    """Starts a lab and returns when every node is idle; on failure nothing of it keeps running."""
    spec = replace(spec, directory=check_directory(spec.directory))
    root = roots.find(spec.slurm) if spec.slurm else None
    if root is None:
        release = requirements.installed_release(requirements.check(spec.accounting, spec.auth)["slurmctld"])
    else:
        requirements.check_root()
        release = root.release()
    requirements.check_auth(spec.auth, release)
    clock.check(spec.clock)
    plugin_dir = root.plugin_dir if root else None
    if spec.plugin is not PluginMode.OFF:
        service.check()
    spec.directory.mkdir(parents=True, mode=0o755, exist_ok=True)
    _check_owner(spec.directory)
    with _locked(spec.directory):
        _empty(spec.directory)
        recorded = state.LabState(
            directory=spec.directory,
            release=str(release),
            nodes=tuple(name for c in spec.nodes for name in c.names()) if spec.run_nodes else (),
            accounting=spec.accounting,
            plugin=spec.plugin.value,
            boot_id=state.boot_id(),
            root=str(root.path) if root else "",
            auth=spec.auth.value,
        )
        recorded.save()  # before anything else, so that a directory of a killed `up` is known as a lab's
        for attempt in range(_ATTEMPTS):
            if spec.clock != 1.0:
                holder, running = clock.launch(spec.directory, spec.clock)
                recorded = replace(recorded, processes=(holder,), clock=running)
                recorded.save()
            programs.write(spec.directory, root, spec.auth, recorded.clock)
            conf.write_all(spec, conf.free_ports(spec.node_count()), release, plugin_dir)
            if spec.plugin is not PluginMode.OFF:
                service.configure(spec.directory, spec.plugin, plugin_dir, recorded.clock, dict(spec.service))
            try:
                return Lab(_start(recorded))
            except SlurmError as error:
                # Nobody listened on the ports when they were chosen; another lab may have chosen them meanwhile.
                if "already in use" not in str(error) or attempt == _ATTEMPTS - 1:
                    raise
                _empty(spec.directory, keep=(state.FILE,))
    raise AssertionError("unreachable")


def _start(recorded: state.LabState) -> state.LabState:
    """Starts everything; on failure, nothing of it keeps running."""
    starter = _Starter(recorded)
    try:
        starter.start_all()
    except BaseException:
        _end(starter.state)
        replace(starter.state, processes=(), up=False, clock=None).save()
        raise
    return starter.state


def _end(recorded: state.LabState) -> list[processes.Process]:
    """Ends a lab's processes, and removes the shared memory of its clock."""
    ended = processes.end(recorded.own_processes(), recorded.directory)
    clock.forget(recorded.clock, ended)
    return ended


def _check_owner(directory: Path) -> None:
    if directory.stat().st_uid != os.geteuid():
        raise InputError(f"{directory} belongs to another user", field="--dir", remedy="choose another one")


def _empty(directory: Path, keep: Sequence[str] = ()) -> None:
    """Empties a directory that held a lab of ours that is down now."""
    left = [entry for entry in directory.iterdir() if entry.name != "lock"]
    if not left:
        return
    if not (directory / state.FILE).is_file():
        raise InputError(f"{directory} is not empty and holds no lab", field="--dir", remedy="choose another one")
    recorded = state.load(directory)
    if _running(recorded):
        raise InputError(
            f"a lab is running in {directory}",
            field="--dir",
            remedy="use it (slurm-rl lab status) or end it (slurm-rl lab down)",
        )
    clock.forget(recorded.clock)
    for entry in left:
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _running(recorded: state.LabState) -> bool:
    return any(p.alive() for p in recorded.own_processes()) or bool(processes.daemons_below(recorded.directory))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time per directory.

    The lock names its holder: a child of a killed one, not yet a program of its own, keeps the lock for a moment.
    """
    with (directory / "lock").open("a+") as lock:
        until = time.monotonic() + _ORPHANS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip()
                if not holder.isdecimal() or processes.runs(int(holder)) or time.monotonic() > until:
                    told = f"another slurm-rl lab command is at work in {directory}"
                    raise InputError(told, remedy="wait for it") from None
                time.sleep(0.05)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
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
        auth = Auth(recorded.auth)
        if recorded.bin:
            self.programs = requirements.check_commands(recorded.accounting, auth, recorded.directory)
        else:
            self.programs = requirements.check(recorded.accounting, auth)

    def start_all(self) -> None:
        self.state.save()
        if self.state.auth == Auth.MUNGE:
            self.start("munged")
        if self.state.accounting:
            self._install_database()
            self.start("mariadbd")
            self.start("slurmdbd")
        self.start("slurmctld")
        if self.state.nodes:
            self._check_several_slurmd()
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
        env = Lab(self.state).env() | {"MYSQL_UNIX_PORT": str(self.directory / "run" / "mariadb.socket")}
        if name.startswith("mariadb"):  # a server that starts clears its directory of others' temporary tables
            env["TMPDIR"] = str(self.directory / "tmp")
        if self.state.auth == Auth.SLURM and name.startswith("slurmd-"):  # each slurmd makes a socket of one name
            env[programs.OWN_RUN] = str(self.directory / "run" / name)
            (self.directory / "run" / name).mkdir(exist_ok=True)
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
                return service.command(d, self.state.clock), service.answers(d)
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
            "--loose-innodb-snapshot-isolation=OFF",  # MariaDB 11.6 and later: slurmdbd asks for it
            f"--init-file={d}/{conf.DATABASE_FILE}",
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
        code = processes.wait(process, LONGEST)
        if code != 0:
            raise SlurmError(f"{name} ended with code {code}: {self._last_words(name)}")
        self.state = replace(self.state, processes=tuple(p for p in self.state.processes if p != process))

    def _check_several_slurmd(self) -> None:
        """Without that build option nodes look idle, share one port, and every job ends in NODE_FAIL."""
        if "MULTIPLE_SLURMD" not in self._output("scontrol", "show", "config"):
            raise SlurmError(
                f"this Slurm {self.state.release} was built without --enable-multiple-slurmd, so one machine cannot "
                "run the lab's nodes: use a distribution's package, or slurm-rl lab fetch and lab up --slurm"
            )

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
        return Lab(self.state).run(*command, timeout=_COMMAND_SECONDS)

    def _until(self, what: str, ready: Callable[[], bool], process: processes.Process | None = None) -> None:
        watched = [process] if process else self.state.processes
        patience = Patience(lambda: cpu_seconds(watched), STILL)
        while not ready():
            dead = [p.name for p in watched if not p.alive()]
            if dead:
                raise SlurmError(f"{dead[0]} ended while starting: {self._last_words(dead[0])}")
            if patience.over():
                raise SlurmError(f"waited {patience.waited:.0f} s in vain until {what}; see {self.directory}/log")
            time.sleep(0.05)

    def _last_words(self, name: str) -> str:
        logs = [self.directory / "log" / f"{name}{suffix}" for suffix in (".out", ".log")]
        lines = [line for log in logs if log.is_file() for line in log.read_text(errors="replace").splitlines()]
        telling = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
        return " / ".join((telling or lines)[-2:]) or f"see {self.directory}/log"
