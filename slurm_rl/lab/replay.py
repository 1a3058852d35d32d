"""Replays a trace on a real slurmctld: on a lab made for it, or on a named cluster."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from slurm_rl.domain.cluster import Cluster, node_classes
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.lab.cluster import lab_nodes, node_names, stand_ins
from slurm_rl.lab.lab import Lab, up
from slurm_rl.lab.observed import Observed, result_of_run
from slurm_rl.lab.patience import Patience, cpu_seconds
from slurm_rl.lab.spec import LabSpec, PluginMode
from slurm_rl.lab.submit import Manner
from slurm_rl.lab.watch import LabRun, WatchedSlurm, run_trace, site_of
from slurm_rl.policy.heuristics import DEFAULT_WEIGHTS
from slurm_rl.policy.registry import parse_policy
from slurm_rl.slurm.cli import CliClient
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import Prepared, Run

RULE, PLACEMENT = "sched/backfill", "cons_tres"  # what a real Slurm runs under, in place of a rule of ours
OWN_ORDERS = ("fcfs", "multifactor")  # Slurm's own: by submission, and by its weights
SCHEDULER = "bf_continue,bf_interval=30"
_TICK = 10.0  # seconds between two ticks, as shipped
_LEAST_TICK = 1.0  # real seconds that a tick has at least
_WEIGHTS = {
    "age": "PriorityWeightAge",
    "fairshare": "PriorityWeightFairshare",
    "job_size": "PriorityWeightJobSize",
    "partition": "PriorityWeightPartition",
    "qos": "PriorityWeightQOS",
}


@dataclass(frozen=True)
class RealRun:
    """One run on a real Slurm; `prepared` has the submit times and run lengths that were observed."""

    run: Run
    prepared: Prepared
    rows: list[Observed]
    refused: dict[str, str]
    late: float  # mean seconds by which submissions were late
    release: str
    clock: float
    tick: float | None = None  # seconds of the cluster's time between two ticks of the controller
    ticks: int = 0  # that it made
    updates: int = 0  # SiteFactors that it wrote after submission


@dataclass(frozen=True)
class Options:
    """How a lab is made and used for a replay."""

    clock: float = 60.0
    influence: float = 0.5
    weights: Mapping[str, float] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of slurm.conf
    commands: Mapping[str, str] = field(default_factory=dict)
    slurm: str = ""
    directory: Path | None = None


def tick_of(clock: float) -> float:
    """Real seconds between two ticks: as shipped in the lab's time, and at least a second."""
    return max(_TICK / clock, _LEAST_TICK)


def replay_on_lab(
    prepared: Prepared,
    policy: str,
    options: Options,
    on_progress: Callable[[str, float], None] | None = None,
) -> RealRun:
    """Starts a lab like the cluster, runs the trace under a policy, and always ends the lab."""
    own = policy in OWN_ORDERS
    if not own and not parse_policy(policy).reachable:
        raise InputError(f"{policy} knows true run times, which no live policy does", field="--policy")
    began = time.perf_counter()
    with _lab(prepared.cluster, policy, options) as lab:
        clock = lab.state.clock
        site = site_of(lab.slurm_conf, clock, lab=True)
        # Commands run under our own account: others may not be allowed to read what they need.
        accounts = stand_ins() if lab.state.accounting and not options.commands else ()
        if accounts:
            lab.run("sacctmgr", "-i", "add", "user", ",".join(accounts), "Account=lab")
        manner = Manner(
            partitions=prepared.cluster.partitions,
            typed=bool(prepared.cluster.gpu_types),
            commands=options.commands,
            accounts=accounts,
            options=("--chdir=/tmp",),  # exists everywhere, and jobs write nothing
        )
        if not own:
            _until_it_ticks(lab)
        outcome = _run(site, prepared, manner, f"{policy} on Slurm {lab.state.release}", on_progress)
        release, speed = lab.state.release, clock.speed if clock else 1.0
        ticks, updates = (0, 0) if own else _journal_of(lab)
    made = _as_run(
        prepared,
        outcome,
        node_names(prepared.cluster),
        policy,
        release,
        speed,
        time.perf_counter() - began,
        None if own else tick_of(options.clock) * speed,
    )
    return replace(made, ticks=ticks, updates=updates)


def _until_it_ticks(lab: Lab) -> None:
    """The controller has compiled and decided once before the first job comes."""
    service = lab.process("service")
    patience = Patience(lambda: cpu_seconds([service]))
    while _journal_of(lab)[0] == 0:
        if patience.over() or not service.alive():
            said = (lab.directory / "log" / "service.out").read_text(errors="replace")
            raise SlurmError(f"slurm-rl serve made no tick in {patience.waited:.0f} s: {said[-300:]}")
        time.sleep(0.2)


def _journal_of(lab: Lab) -> tuple[int, int]:
    """Ticks of the lab's controller, and SiteFactors it wrote."""
    path = lab.directory / "service" / "journal.sqlite"
    if not path.is_file():
        return 0, 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as journal:
        try:
            ticks = journal.execute("SELECT count(*) FROM tick WHERE mode = 'enforce'").fetchone()[0]
            updates = journal.execute("SELECT count(*) FROM change WHERE status = 'applied'").fetchone()[0]
        except sqlite3.OperationalError:  # its tables are being made
            return 0, 0
    return int(ticks), int(updates)


def _run(
    site: WatchedSlurm, prepared: Prepared, manner: Manner, label: str, on_progress: Callable[[str, float], None] | None
) -> LabRun:
    """Submits the trace and watches it to its end."""
    tell = None if on_progress is None else partial(on_progress, label)
    return run_trace(site, prepared.trace, manner, tell, skip=_never(prepared))


def _never(prepared: Prepared) -> frozenset[str]:
    """Jobs that no empty cluster could run: Slurm would refuse them, or keep them for ever."""
    return frozenset(str(prepared.trace.job_id[j]) for j in prepared.workload.rejected)


def _as_run(
    prepared: Prepared,
    outcome: LabRun,
    names: Sequence[str],
    policy: str,
    release: str,
    speed: float,
    seconds: float,
    tick: float | None,
) -> RealRun:
    refused = outcome.refused | {str(prepared.trace.job_id[j]): why for j, why in prepared.workload.rejected.items()}
    happened, result = result_of_run(prepared, outcome.rows, names, refused)
    run = Run(policy, RULE, PLACEMENT, metrics(result), seconds, len(prepared.trace) / max(seconds, 1e-9), 0.0, result)
    return RealRun(run, happened, outcome.rows, refused, outcome.late, release, speed, tick)


@contextlib.contextmanager
def _lab(cluster: Cluster, policy: str, options: Options) -> Iterator[Lab]:
    directory = options.directory or Path(tempfile.mkdtemp(prefix="srl-run-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # jobs of other users read the lab's clock there
    try:
        lab = up(_spec(cluster, policy, options, directory))
        try:
            yield lab
        finally:
            lab.down()
    finally:
        if options.directory is None:
            shutil.rmtree(directory, ignore_errors=True)


def _spec(cluster: Cluster, policy: str, options: Options, directory: Path) -> LabSpec:
    spec = LabSpec(
        directory=directory,
        nodes=lab_nodes(cluster),
        slurm=options.slurm,
        clock=options.clock,
        settings=tuple(({"SchedulerParameters": SCHEDULER} | dict(options.settings)).items()),
    )
    if policy == "fcfs":
        return replace(spec, settings=(*spec.settings, ("PriorityType", "priority/basic")))
    weights = dict(DEFAULT_WEIGHTS if options.weights is None else options.weights)
    settings = {name: f"{weights.get(key, 0.0):.0f}" for key, name in _WEIGHTS.items()}
    settings |= {"PriorityMaxAge": "7-0", "PriorityCalcPeriod": "1", "PriorityDecayHalfLife": "7-0"}
    spec = replace(spec, accounting=True, settings=tuple((settings | dict(spec.settings)).items()))
    if policy == "multifactor":
        return spec
    service = (("policy", policy), ("influence", options.influence), ("interval", tick_of(options.clock)))
    return replace(spec, plugin=PluginMode.ENFORCE, service=service)


def cluster_of_site(conf: Path) -> tuple[Cluster, list[str]]:
    """A live cluster as a cluster file would have it, and its nodes' names in that order."""
    state = CliClient(conf).snapshot()
    classes = node_classes(state.nodes)
    return Cluster(state.cluster, tuple(c for c, _ in classes)), [node.name for _, same in classes for node in same]


def replay_on_site(
    prepared: Prepared,
    names: Sequence[str],
    conf: Path,
    commands: Mapping[str, str],
    on_progress: Callable[[str, float], None] | None = None,
) -> RealRun:
    """Runs the trace on an existing cluster, in that cluster's own order, at natural speed."""
    began = time.perf_counter()
    site = site_of(conf)
    release = str(CliClient(conf).release())
    manner = Manner(partitions=prepared.cluster.partitions, typed=bool(prepared.cluster.gpu_types), commands=commands)
    outcome = _run(site, prepared, manner, f"Slurm {release}", on_progress)
    return _as_run(prepared, outcome, names, "site", release, 1.0, time.perf_counter() - began, None)
