"""Judges a Slurm site from facts about it: each finding has a reason and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slurm_rl.slurm.findings import Finding, Severity, SiteFacts, SocketFile
from slurm_rl.slurm.quantities import seconds
from slurm_rl.slurm.release import Evidence, lacks, prefer_is_sound, sound_prefer

Check = Callable[[SiteFacts], Iterator[Finding]]


def examine(site: SiteFacts) -> list[Finding]:
    """All findings about a site that answers."""
    return [finding for check in CHECKS for finding in check(site)]


def _release(site: SiteFacts) -> Iterator[Finding]:
    if not site.release.known:
        yield Finding(
            "release",
            Severity.ERROR,
            site.release.not_known(),
            "its commands may mean something else by the same words",
            "update slurm-rl, or try --force on a cluster that does not matter",
        )
        return
    yield Finding("release", Severity.OK, f"Slurm {site.release}")
    yield from _evidence(site)
    if not prefer_is_sound(site.release):
        fixed = sound_prefer(site.release)
        yield Finding(
            "prefer",
            Severity.INFO,
            f"Prefer= has known faults before {fixed}",
            "soft placement hints may be ignored or replace a user's --constraint; hard ones (Features=) work",
            f"update Slurm to {fixed} or later",
        )


def _evidence(site: SiteFacts) -> Iterator[Finding]:
    """How well we know the release, what it lacks, and what it could tell."""
    traits = site.release.traits
    if traits.evidence is not Evidence.TRIED:
        known = f"what {traits.tried} printed" if traits.tried else "its source"
        yield Finding(
            "release-untried",
            Severity.INFO,
            f"slurm-rl knows this release by {known}, and was not run on it",
            "docs/releases.md lists the tests of each release",
            "begin in shadow mode, and compare slurm-rl explain with squeue and sprio",
        )
    for lack in lacks(traits):
        yield Finding("release-lacks", Severity.INFO, lack.what, f"instead: {lack.instead}")
    if traits.openmetrics and "openmetrics" not in site.get("MetricsType"):
        yield Finding(
            "openmetrics",
            Severity.INFO,
            "slurmctld could export its own metrics, and does not",
            "etc/grafana shows them beside ours",
            "MetricsType=metrics/openmetrics",
        )


def too_old(error: str) -> Finding:
    """The finding when Slurm is older than all that we know."""
    return Finding("release", Severity.ERROR, error, "its commands lack fields that we read", "update Slurm")


def _health(site: SiteFacts) -> Iterator[Finding]:
    h = site.health
    if h.agent_queue > 1000 or h.dbd_agent_queue > 10_000:
        yield Finding(
            "load",
            Severity.WARNING,
            f"slurmctld has {h.agent_queue} messages and {h.dbd_agent_queue} accounting records waiting",
            "it is overloaded; our updates would add to it",
            "sdiag; find the source of the requests",
        )
    if h.backfill_mean_cycle_us > 30_000_000:
        yield Finding(
            "backfill-slow",
            Severity.WARNING,
            f"a backfill cycle takes {h.backfill_mean_cycle_us / 1e6:.0f} s on average",
            "priorities we write take effect only in the next cycle",
            _extended(site, "bf_max_job_test=500"),
        )


def _priority(site: SiteFacts) -> Iterator[Finding]:
    kind = site.get("PriorityType")
    if kind != "priority/multifactor":
        yield Finding(
            "priority-type",
            Severity.ERROR,
            f"PriorityType is {kind or 'not set'}",
            "SiteFactor, through which slurm-rl acts, is a term of the multifactor plugin",
            "PriorityType=priority/multifactor",
        )
        return
    yield Finding("priority-type", Severity.OK, "PriorityType=priority/multifactor")
    if site.weights.total == 0:
        yield Finding(
            "weights",
            Severity.ERROR,
            "all priority weights are 0",
            "our influence is bounded by a share of their sum, and nothing else would keep jobs from starving",
            "PriorityWeightAge=1000\nPriorityWeightFairshare=10000\nPriorityWeightJobSize=1000",
        )
    elif site.weights.age == 0:
        ignored = site.get("PriorityWeightAge") not in ("", "0")
        yield Finding(
            "weight-age",
            Severity.WARNING,
            "PriorityWeightAge is ignored: no accounting database" if ignored else "PriorityWeightAge is 0",
            "Slurm's own ageing lifts old jobs when slurm-rl is not running",
            "AccountingStorageType=accounting_storage/slurmdbd" if ignored else "PriorityWeightAge=1000",
        )
    else:
        yield Finding("weights", Severity.OK, f"the priority weights sum up to {site.weights.total}")
    if site.get("PrioritySiteFactorPlugin"):
        yield Finding(
            "site-factor-plugin",
            Severity.ERROR,
            f"PrioritySiteFactorPlugin is {site.get('PrioritySiteFactorPlugin')}",
            "it writes the same SiteFactor and would overwrite ours at every recalculation",
            "remove the line PrioritySiteFactorPlugin=",
        )
    period = seconds(site.get("PriorityCalcPeriod"))
    if period is not None and period > 300:
        yield Finding(
            "calc-period",
            Severity.WARNING,
            f"PriorityCalcPeriod is {period // 60} minutes",
            "age and fairshare of jobs we did not touch lag behind, so the order drifts between recalculations",
            "PriorityCalcPeriod=5",
        )


def _extended(site: SiteFacts, option: str) -> str:
    """The whole SchedulerParameters line with one more option, because a second line would replace the first."""
    name = option.partition("=")[0]
    kept = [o for o in site.options("SchedulerParameters") if o.partition("=")[0] != name]
    return "SchedulerParameters=" + ",".join([*kept, option])


def _scheduler(site: SiteFacts) -> Iterator[Finding]:
    kind = site.get("SchedulerType")
    if kind != "sched/backfill":
        yield Finding(
            "scheduler-type",
            Severity.WARNING,
            f"SchedulerType is {kind or 'not set'}",
            "without backfill a large job at the head leaves its nodes idle while it waits",
            "SchedulerType=sched/backfill",
        )
    options = {o.partition("=")[0] for o in site.options("SchedulerParameters")}
    if kind == "sched/backfill" and "bf_continue" not in options:
        yield Finding(
            "bf-continue",
            Severity.WARNING,
            "SchedulerParameters lacks bf_continue",
            "any job update while backfill pauses makes it start over, and we update jobs all the time",
            _extended(site, "bf_continue"),
        )
    if not options & {"defer", "sched_min_interval", "batch_sched_delay"}:
        yield Finding(
            "defer",
            Severity.INFO,
            "SchedulerParameters has neither defer nor sched_min_interval",
            "each update queues a pass of the main scheduler; on a busy cluster that adds up",
            _extended(site, "sched_min_interval=2000000"),
        )
    tiers = sorted({p.priority_tier for p in site.partitions})
    if len(tiers) > 1:
        yield Finding(
            "tiers",
            Severity.INFO,
            f"partitions have the PriorityTiers {', '.join(map(str, tiers))}",
            "Slurm serves a higher tier first, whatever the priority; slurm-rl orders jobs within a tier only",
        )


def _submit_plugin(site: SiteFacts) -> Iterator[Finding]:
    if "lua" not in site.options("JobSubmitPlugins"):
        plugins = ",".join([*site.options("JobSubmitPlugins"), "lua"])
        yield Finding(
            "job-submit",
            Severity.INFO,
            "JobSubmitPlugins has no lua",
            "new jobs get their first SiteFactor only in the controller's next tick",
            f"slurm-rl install-plugin, then JobSubmitPlugins={plugins}",
        )
        return
    lua = site.lua
    if not lua.plugin_dir_readable:
        yield Finding(
            "lua",
            Severity.INFO,
            f"{site.get('PluginDir')} is not on this machine",
            "Lua can be checked only on slurmctld's host",
            "run slurm-rl doctor there",
        )
    elif not lua.plugin_found:
        yield Finding(
            "lua",
            Severity.ERROR,
            f"job_submit_lua.so is not in {site.get('PluginDir')}",
            "slurmctld does not start without a plugin that JobSubmitPlugins names",
            "install the package with Slurm's Lua plugin, or build Slurm with Lua's headers",
        )
    elif not lua.version:
        yield Finding(
            "lua",
            Severity.INFO,
            "the Lua that job_submit_lua.so links is unknown",
            "luasocket must be installed for that version",
        )
    elif not lua.has_socket:
        yield Finding(
            "luasocket",
            Severity.ERROR,
            f"no luasocket for Lua {lua.version}, which job_submit_lua.so links",
            "the plugin cannot reach the service, so it lets every job pass unadvised",
            "apt-get install lua-socket" if lua.version in ("5.1", "5.2", "5.3", "5.4") else "install luasocket",
        )
    else:
        yield Finding("lua", Severity.OK, f"job_submit/lua links Lua {lua.version}, and luasocket is there for it")


def _resources(site: SiteFacts) -> Iterator[Finding]:
    if site.get("SelectType") != "select/cons_tres":
        yield Finding(
            "select-type",
            Severity.ERROR,
            f"SelectType is {site.get('SelectType') or 'not set'}",
            "Slurm allocates GPUs as such only with cons_tres",
            "SelectType=select/cons_tres",
        )
    counts_memory = "MEMORY" in site.get("SelectTypeParameters").upper()
    has_default = any(site.get(key).isdecimal() for key in ("DefMemPerCPU", "DefMemPerNode"))
    bare = [p.name for p in site.partitions if not p.has_default_memory]
    if counts_memory and not has_default and bare:
        yield Finding(
            "default-memory",
            Severity.WARNING,
            f"no DefMemPerCPU or DefMemPerNode for {', '.join(bare)}",
            "a job that does not say --mem takes the whole node's memory and blocks its other GPUs",
            "DefMemPerCPU=4096",
        )
    yield from _gpus(site)


def _gpus(site: SiteFacts) -> Iterator[Finding]:
    with_gpus = [n for n in site.nodes if n.gpus]
    if not with_gpus:
        yield Finding(
            "gpus",
            Severity.WARNING,
            "no node has GPUs",
            "slurm-rl orders and places GPU jobs; without gres/gpu it can only order by time and CPUs",
            "GresTypes=gpu\nNodeName=… Gres=gpu:a100:8",
        )
        return
    untyped = [n.name for n in with_gpus if "" in n.gpus]
    if untyped:
        yield Finding(
            "gpu-types",
            Severity.WARNING,
            f"GPUs without a type on {_some(untyped)}",
            "speeds and placement go by GPU type",
            f"NodeName={untyped[0]} Gres=gpu:TYPE:{next(n for n in with_gpus if n.name == untyped[0]).gpus['']}",
        )
    types = sorted({kind for n in with_gpus for kind in n.gpus if kind})
    plain = [n for n in with_gpus if not {k for k in n.gpus if k} <= {f.lower() for f in n.features}]
    if len(types) > 1 and plain:
        kind = next(k for k in plain[0].gpus if k not in {f.lower() for f in plain[0].features})
        yield Finding(
            "gpu-features",
            Severity.WARNING,
            f"nodes without their GPU type as a feature: {_some([n.name for n in plain])}",
            "a job that takes any GPU is steered by Features= and Prefer=, which name features",
            f"NodeName={plain[0].name} Features={','.join([*plain[0].features, kind])}",
        )
    tracked = set(site.options("AccountingStorageTRES"))
    missing = [t for t in ["gres/gpu", *(f"gres/gpu:{kind}" for kind in types)] if t not in tracked]
    if site.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        yield Finding(
            "accounting",
            Severity.WARNING,
            "no accounting database",
            "without it Slurm has no fairshare, and slurm-rl no history to learn run times from",
            "AccountingStorageType=accounting_storage/slurmdbd",
        )
    elif missing:
        yield Finding(
            "accounting-tres",
            Severity.WARNING,
            f"AccountingStorageTRES lacks {', '.join(missing)}",
            "the history then does not say which GPUs a job had",
            f"AccountingStorageTRES={','.join(['gres/gpu', *(f'gres/gpu:{kind}' for kind in types)])}",
        )
    else:
        yield Finding("gpus", Severity.OK, f"{len(with_gpus)} nodes with GPUs of the types {', '.join(types)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _rights(site: SiteFacts) -> Iterator[Finding]:
    operator = site.admin_level in ("Operator", "Administrator", "Admin")
    if not site.superuser and not operator:
        yield Finding(
            "rights",
            Severity.ERROR,
            f"{site.user} is neither root, SlurmUser nor an operator",
            "only they may set SiteFactor; shadow mode needs no rights",
            f"sacctmgr modify user {site.user} set AdminLevel=Operator",
        )
    else:
        level = "superuser" if site.superuser else site.admin_level
        yield Finding("rights", Severity.OK, f"{site.user} may change jobs ({level})")
    hidden = [o for o in site.options("PrivateData") if o in ("jobs", "nodes", "partitions", "usage", "accounts")]
    if hidden and not site.superuser and not operator:
        yield Finding(
            "private-data",
            Severity.ERROR,
            f"PrivateData hides {', '.join(hidden)} from {site.user}",
            "slurm-rl cannot order jobs that it cannot see",
            f"sacctmgr modify user {site.user} set AdminLevel=Operator",
        )
    limits = [o for o in site.options("SlurmctldParameters") if o.startswith("rl_enable")]
    if limits and not site.superuser:
        yield Finding(
            "rate-limit",
            Severity.WARNING,
            "SlurmctldParameters has rl_enable",
            "each update is a request; operators are limited in them, root and SlurmUser are not",
            "run slurm-rl as SlurmUser",
        )


CHECKS: tuple[Check, ...] = (_release, _health, _priority, _scheduler, _submit_plugin, _resources, _rights)


def unreachable(error: str) -> Finding:
    """The finding when Slurm does not answer."""
    return Finding(
        "reachable",
        Severity.ERROR,
        f"Slurm does not answer: {error}",
        "nothing else about the site can be checked",
        "scontrol ping; check SLURM_CONF, munged and slurmctld",
    )


def examine_socket(socket: SocketFile) -> Finding:
    """The service's socket: whoever may write to it may ask, and whoever may write to its directory may replace it."""
    if not socket.exists:
        return Finding(
            "socket",
            Severity.INFO,
            f"{socket.path} is not there",
            "the service is not running, so submissions pass unadvised",
            "systemctl start slurm-rl",
        )
    if not socket.is_socket:
        return Finding(
            "socket",
            Severity.ERROR,
            f"{socket.path} is not a socket",
            "the service cannot listen there",
            f"rm {socket.path}; systemctl restart slurm-rl",
        )
    if socket.directory_mode & 0o022:
        return Finding(
            "socket",
            Severity.ERROR,
            f"others may write to the directory of {socket.path} (mode {socket.directory_mode:o})",
            "they could put their own socket there and answer slurmctld in our place",
            f"chmod 0755 {socket.path.rpartition('/')[0]}",
        )
    if socket.reserved_mode is not None and socket.reserved_mode & 0o002:
        return Finding(
            "socket",
            Severity.ERROR,
            f"anybody may write to {socket.path}.admin (mode {socket.reserved_mode:o})",
            "it is reserved for root and SlurmUser, so that no flood of users can keep slurmctld waiting",
            "systemctl restart slurm-rl",
        )
    if not socket.mode & 0o002:
        return Finding(
            "socket",
            Severity.WARNING,
            f"users may not write to {socket.path} (mode {socket.mode:o})",
            "explain and when do not work for them; the socket itself tells the service who asks",
            "systemctl restart slurm-rl",
        )
    return Finding("socket", Severity.OK, f"users may ask on {socket.path}, and nobody else's place can be taken")
