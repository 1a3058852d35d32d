"""`slurm-rl shadow-report`: replays the shadow period in the simulator in both orders and compares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slurm_rl.policy.registry import PolicySpec

app = typer.Typer(add_completion=False)

_SHOWN = {
    "mean_wait": "mean wait",
    "p95_wait": "95% wait at most",
    "max_wait": "longest wait",
    "mean_bsld": "mean bounded slowdown",
    "user_bsld": "… averaged by user",
    "utilization": "utilization",
}


@app.command()
def shadow_report(
    config: Annotated[Path | None, typer.Option(help="The configuration file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Replay the jobs of the shadow period under Slurm's own order and under the policy's, and compare.

    Example: slurm-rl shadow-report
    """
    from contextlib import suppress

    from slurm_rl.config import load
    from slurm_rl.controller.live import SHADOW_REPORT
    from slurm_rl.controller.live_policy import load_policy
    from slurm_rl.controller.site_past import slurm_client
    from slurm_rl.errors import InputError
    from slurm_rl.obs.journal import Journal

    settings = load(config).config
    if not settings.journal.exists():
        raise InputError(
            "no journal here", file=str(settings.journal), remedy="run slurm-rl serve in shadow mode first"
        )
    with Journal(settings.journal) as journal:
        period = journal.shadow_period()
        shadowed = journal.last_policy() or settings.policy
        deferrals, deferred = journal.shadow_deferred()
    if period is None:
        raise InputError("records no tick in shadow mode", file=str(settings.journal))
    first, last, ticks, updates = period
    if first >= last:
        raise InputError(
            "records one tick in shadow mode, which is no period", file=str(settings.journal), remedy="wait for more"
        )
    policy = load_policy(_that_ruled(shadowed, settings.policy), Path(settings.state_dir))
    compared = compare(slurm_client(settings), first, last, policy.spec, settings.influence)
    report = {"from": first, "to": last, "ticks": ticks, "updates": updates, "policy": policy.name}
    report |= {"deferrals": deferrals, "deferred_jobs": deferred} | compared
    with suppress(OSError):  # for the dashboard; whoever may not write there still gets an answer
        path = Path(settings.state_dir) / SHADOW_REPORT
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(report), encoding="utf-8")
        beside.replace(path)
    print(json.dumps(report) if as_json else _text(report))


def _that_ruled(shadowed: str, configured: str) -> str:
    """The policy of the shadow period: from the journal, not from today's configuration.

    A promoted model, and what auto chose of several, have names of their own there: these are found by the
    configuration's.
    """
    from slurm_rl.errors import InputError
    from slurm_rl.policy.registry import parse_policy

    try:
        return configured if shadowed.startswith("rl:") else parse_policy(shadowed).name
    except InputError:
        return configured


def compare(client: Any, first: float, last: float, policy: PolicySpec, influence: float) -> dict[str, Any]:
    """The metrics of both replays over the jobs that ended in the period, on the cluster and with the limits of now."""
    from slurm_rl.controller.site_past import read_past
    from slurm_rl.report.fairness import as_value, fairness, told
    from slurm_rl_sim.replay import Contender, parse_contenders, prepare, replay

    past = read_past(client, first, last)
    prepared, weights, site = prepare(past.trace, past.cluster, limits=past.limits), past.weights, past.slurm
    (now,) = replay(prepared, parse_contenders("multifactor", "slurm"), weights=weights, slurm=site)
    (then,) = replay(prepared, [Contender(policy, "slurm")], influence=influence, weights=weights, slurm=site)
    found = fairness(prepared.trace, prepared.workload, prepared.measured, now.result, then.result)
    shown = as_value(found) | {"told": told(found)}
    return {"jobs": len(prepared.trace), "slurm": now.metrics, "slurm_rl": then.metrics, "fairness": shown}


def _text(report: dict[str, Any]) -> str:
    hours = (report["to"] - report["from"]) / 3600
    lines = [
        f"{report['ticks']} ticks in shadow mode over {hours:.1f} h; {report['updates']} updates would have been made",
        f"{report['jobs']} jobs of that time, replayed both ways (policy {report['policy']}):",
        "",
        f"{'':<24}{'Slurm alone':>14}{'with slurm-rl':>16}{'change':>10}",
    ]
    if report["deferrals"]:
        said = f"{report['deferred_jobs']} jobs would have been deferred, {report['deferrals']} times in all"
        lines.insert(1, said + " (placement_defer; not part of the replay below)")
    for key, label in _SHOWN.items():
        a, b = report["slurm"].get(key), report["slurm_rl"].get(key)
        if a is None or b is None:
            continue
        change = f"{100 * (b / a - 1):+.1f}%" if a else ""
        lines.append(f"{label:<24}{a:>14.2f}{b:>16.2f}{change:>10}")
    if "fairness" in report:
        lines += ["", report["fairness"]["told"]]
    lines += ["", "A replay is a model: jobs start as backfill would start them, with the run times they had."]
    return "\n".join(lines)
