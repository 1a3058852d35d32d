"""Writes the lab's configuration files for the installed Slurm release."""

from __future__ import annotations

import os
import random
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing
from slurm_rl.lab.spec import Auth, LabSpec, PluginMode
from slurm_rl.slurm.release import Release

# Below the kernel's range for outgoing connections, so nobody takes a port between choosing and binding it by chance.
_PORTS = range(10_000, 32_000)
_DATABASE = "slurm_acct"
DATABASE_FILE = "mariadb.sql"


@dataclass(frozen=True)
class Ports:
    """Loopback ports: one for slurmctld, one for slurmdbd, one per node in the order of the spec."""

    slurmctld: int
    slurmdbd: int
    nodes: tuple[int, ...]


def free_ports(nodes: int) -> Ports:
    """Ports nobody listens on now."""
    free = _free_ports()
    return Ports(next(free), next(free), tuple(next(free) for _ in range(nodes)))


def _free_ports() -> Iterator[int]:
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise EnvironmentMissing("no free port is left on 127.0.0.1 between 10000 and 32000")


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file under a temporary name and renames it, so no daemon reads half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.rename(path)


def write_all(spec: LabSpec, ports: Ports, release: Release, plugin_dir: Path | None = None) -> None:
    """Every file the daemons read, and the device files that stand for GPUs."""
    directory = spec.directory
    for name in ("log", "run", "spool", "state", "dev", "tmp"):
        (directory / name).mkdir(exist_ok=True)
    key = directory / ("munge.key" if spec.auth is Auth.MUNGE else "slurm.key")
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    for index in range(max(c.gpus for c in spec.nodes)):
        _make_device(directory / "dev" / f"nvidia{index}")
    text = with_settings(slurm_conf(spec, ports, socket.gethostname().split(".")[0], plugin_dir), _settings(spec))
    write(directory / "slurm.conf", text)
    write(directory / "gres.conf", gres_conf(spec))
    if spec.topology is not None:
        write(directory / "topology.conf", topology_conf(spec))
    if release.traits.cgroup_disabled:
        write(directory / "cgroup.conf", "CgroupPlugin=disabled\n")
    if spec.accounting:
        # slurmdbd 26.05 fails for good if its first connect finds no database.
        write(directory / DATABASE_FILE, f"CREATE DATABASE IF NOT EXISTS {_DATABASE};\n")
        write(
            directory / "slurmdbd.conf", slurmdbd_conf(spec, ports, plugin_dir), mode=0o600
        )  # slurmdbd refuses any other mode


def _make_device(path: Path) -> None:
    """A fake GPU: a twin of /dev/null, so that jobs get CUDA_VISIBLE_DEVICES; else, if forbidden, an empty file."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        path.touch()


def slurm_conf(spec: LabSpec, ports: Ports, host: str, plugin_dir: Path | None = None) -> str:
    """The lab's slurm.conf; it names no plugin that only some of 22.05–26.05 have."""
    d = spec.directory
    types = dict.fromkeys(f"gres/{name}" for c in spec.nodes for name, _ in c.kinds if name.startswith("gpu:"))
    gres_types = dict.fromkeys(["gpu", *(name.partition(":")[0] for c in spec.nodes for name, _ in c.kinds)])
    lines = [
        "ClusterName=lab",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports.slurmctld}",
        "SlurmUser=root",
        "SlurmdUser=root",
        *_auth(spec),
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",  # listen on loopback only
        f"StateSaveLocation={d}/state",
        f"SlurmdSpoolDir={d}/spool/%n",
        f"SlurmctldPidFile={d}/run/slurmctld.pid",
        f"SlurmdPidFile={d}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={d}/log/slurmctld.log",
        f"SlurmdLogFile={d}/log/slurmd-%n.log",
        "MailProg=/bin/true",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "ReturnToService=2",
        "SlurmdTimeout=300",
        "KillWait=2",
        "PropagateResourceLimits=NONE",
        "SlurmdParameters=config_overrides",  # a node may claim more CPUs and memory than this machine has
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1024",  # else a job without --mem takes the whole node's memory
        "MaxArraySize=20001",
        "MaxJobCount=50000",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_continue,bf_interval=5,sched_min_interval=200000",
        "PriorityType=priority/multifactor",
        "PriorityCalcPeriod=1",
        "PriorityMaxAge=1-0",
        "PriorityWeightAge=1000",
        "PriorityWeightFairshare=1000",
        "PriorityWeightJobSize=500",
        "PriorityWeightPartition=500",
        "PriorityWeightQOS=500",
        f"GresTypes={','.join(gres_types)}",
    ]
    if spec.auth is Auth.SLURM:
        lines.append("CredType=cred/slurm")
    if spec.topology is not None:
        lines.append(f"TopologyPlugin=topology/{spec.topology.kind}")
    if plugin_dir is not None:
        lines.append(f"PluginDir={plugin_dir}")
    if spec.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={ports.slurmdbd}",
            *([f"AccountingStoragePass={d}/run/munge.socket"] if spec.auth is Auth.MUNGE else []),
            *([f"AccountingStorageTRES=gres/gpu,{','.join(types)}"] if types else []),  # refused without slurmdbd
        ]
    if spec.plugin is not PluginMode.OFF:
        lines.append("JobSubmitPlugins=lua")
    remaining = iter(ports.nodes)
    for c in spec.nodes:
        gres = f"Gres={','.join(f'{name}:{n}' for name, n in c.kinds)} " if c.kinds else ""
        words = ",".join((c.gpu_type, *c.features))
        lines += [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={next(remaining)} CPUs={c.cpus} "
            f"RealMemory={c.mem_mb} {gres}Features={words} State=UNKNOWN"
            for name in c.names()
        ]
    for number, partition in enumerate(dict.fromkeys(p for c in spec.nodes for p in c.partitions)):
        names = ",".join(name for c in spec.nodes if partition in c.partitions for name in c.names())
        default = "NO" if number else "YES"
        lines.append(
            f"PartitionName={partition} Nodes={names} Default={default} MaxTime=INFINITE DefaultTime=60 State=UP"
        )
    return "\n".join([*lines, *spec.extra_conf]) + "\n"


def _settings(spec: LabSpec) -> dict[str, str]:
    """What replaces the lab's own settings: what a fast clock needs, then what was asked for.

    Answers take real time, so what waits for them waits longer by the clock.
    """
    if spec.clock == 1.0:
        return dict(spec.settings)
    wait = round(10 * spec.clock)
    patient = dict.fromkeys(("MessageTimeout", "TCPTimeout", "BatchStartTimeout"), str(wait))
    # Slurm wants it five times as long as an answer may take. Jobs that ended stay to be asked for.
    patient |= {"UnkillableStepTimeout": str(5 * wait), "SlurmdTimeout": "0", "MinJobAge": "100000000"}
    return patient | dict(spec.settings)


def with_settings(text: str, settings: Mapping[str, str]) -> str:
    """slurm.conf's text with some settings in place of its own; Slurm complains of a name that stands there twice."""
    names = {name.lower() for name in settings}
    kept = [line for line in text.splitlines() if line.partition("=")[0].lower() not in names]
    return "\n".join([*(f"{name}={value}" for name, value in settings.items()), *kept]) + "\n"


def _auth(spec: LabSpec) -> list[str]:
    if spec.auth is Auth.SLURM:
        return ["AuthType=auth/slurm"]
    return ["AuthType=auth/munge", f"AuthInfo=socket={spec.directory}/run/munge.socket"]


def gres_conf(spec: LabSpec) -> str:
    """Fake GPUs: Slurm wants a device file for each; it deals shards out over the GPUs by itself."""
    lines = []
    for c in spec.nodes:
        first = 0
        for kind, count in c.kinds:
            name, _, of_type = kind.partition(":")
            more = f" Type={of_type}" if of_type else ""
            if name == "gpu":
                more += f" File={_devices(spec, first, count)}"
                first += count
            else:
                more += f" Count={count}"
            lines.append(f"NodeName={','.join(c.names())} Name={name}{more}\n")
    return "".join(lines)


def topology_conf(spec: LabSpec) -> str:
    """Leaf switches under one core, or blocks, of as many nodes as asked for, in the order of the spec."""
    if spec.topology is None:
        return ""
    names = [name for c in spec.nodes for name in c.names()]
    each = spec.topology.nodes
    groups = [names[i : i + each] for i in range(0, len(names), each)]
    word = "Switch" if spec.topology.kind == "tree" else "Block"
    lines = [f"{word}Name={word[0].lower()}{i} Nodes={','.join(group)}\n" for i, group in enumerate(groups, 1)]
    if spec.topology.kind == "tree":
        return "".join([*lines, f"SwitchName=core Switches={','.join(f's{i + 1}' for i in range(len(groups)))}\n"])
    return "".join([*lines, f"BlockSizes={each}\n"])


def _devices(spec: LabSpec, first: int, count: int) -> str:
    return f"{spec.directory}/dev/nvidia" + (str(first) if count == 1 else f"[{first}-{first + count - 1}]")


def slurmdbd_conf(spec: LabSpec, ports: Ports, plugin_dir: Path | None = None) -> str:
    """slurmdbd on loopback, speaking to the lab's own MariaDB through its socket."""
    d = spec.directory
    return "\n".join(
        [
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={ports.slurmdbd}",
            "SlurmUser=root",
            *_auth(spec),
            f"LogFile={d}/log/slurmdbd.log",
            f"PidFile={d}/run/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            f"StorageLoc={_DATABASE}",
            "CommitDelay=1",
            *([f"PluginDir={plugin_dir}"] if plugin_dir is not None else []),
            "",
        ]
    )
