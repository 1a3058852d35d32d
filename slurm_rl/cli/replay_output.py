"""What `slurm-rl replay` writes and prints: table, JSON, jobs, report."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.report.text import duration, number, ratio, share

if TYPE_CHECKING:
    from slurm_rl.evaluate.auto import Auto
    from slurm_rl_sim.replay import Prepared, Run


def tell(
    trace: Path,
    prepared: Prepared,
    runs: list[Run],
    jobs_out: Path | None,
    report: Path | None,
    figures: Path | None,
    as_json: bool,
    real: list[dict[str, Any]] | None = None,
    auto: Auto | None = None,
    kept: dict[str, Any] | None = None,
) -> None:
    """Writes what was asked for, and prints."""
    if jobs_out is not None:
        for run in runs:
            _write_jobs(run, jobs_out if len(runs) == 1 else _named(jobs_out, run))
    if report is not None:
        from slurm_rl.report.html import write_report

        write_report(prepared, runs, report)
    if figures is not None:
        from slurm_rl.report.figures import write_figures

        _, lacking = write_figures(prepared, runs, figures)
        if lacking:
            print(f"slurm-rl: {lacking}", file=sys.stderr)
    if as_json:
        value = _as_value(trace, prepared, runs)
        for run, about in zip(value["runs"], real or [], strict=False):
            run["real"] = about
        if auto is not None:
            value["auto"] = [choice.as_dict() for choice in auto.choices]
        if kept:
            value["promise"] = kept
        print(json.dumps(value))
    else:
        _show(prepared, runs)
        if auto is not None:
            from slurm_rl.cli.auto import told

            print("\n" + told(auto))
        if kept:
            from slurm_rl.cli.promise import told_promise

            print("\n" + told_promise(kept))
        if report is not None:
            print(f"\nreport: {report}")


def _as_value(path: Path, prepared: Prepared, runs: list[Run]) -> dict[str, Any]:
    """The JSON value of a replay."""
    return {
        "trace": str(path),
        "cluster": {"name": prepared.cluster.name, "nodes": prepared.cluster.nodes, "gpus": prepared.cluster.gpus},
        "notes": [str(note) for note in prepared.trace.notes],
        "rejected": _rejections(prepared, runs),
        "runs": [
            {
                "policy": run.policy,
                "backfill": run.backfill,
                "placement": run.placement,
                "metrics": run.metrics,
                "wall_seconds": run.wall_seconds,
                "jobs_per_second": run.jobs_per_second,
                "peak_rss_mb": run.peak_rss_mb,
            }
            | ({} if run.deferral is None else {"deferral": run.deferral})
            | ({} if run.outside is None else {"outside": run.outside})
            for run in runs
        ],
    }


def _rejections(prepared: Prepared, runs: list[Run]) -> list[dict[str, object]]:
    """Why jobs never ran, most frequent reason first, with one example each."""
    reasons: dict[str, list[int]] = {}
    for run in runs[:1]:
        for job, reason in run.result.rejected.items():
            reasons.setdefault(reason, []).append(job)
    ranked = sorted(reasons.items(), key=lambda item: -len(item[1]))
    return [{"reason": r, "jobs": len(js), "example": str(prepared.trace.job_id[js[0]])} for r, js in ranked]


def _named(path: Path, run: Run) -> Path:
    return path.with_name(f"{path.stem}.{run.policy}+{run.backfill}{path.suffix}")


def _write_jobs(run: Run, path: Path) -> None:
    """One row a job, `job_id,start_time,end_time,wait,nodes,gpus,gpu_type,state`; blank where a job never ran."""
    from slurm_rl_sim.frames import JOB_COLUMNS, jobs_frame

    frame = jobs_frame(run.result)
    frame["gpus"] = frame["gpus"].map(lambda gpus: f"{gpus:g}", na_action="ignore")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    frame.to_csv(temporary, columns=list(JOB_COLUMNS), index=False, lineterminator="\r\n")
    temporary.replace(path)


def _show(prepared: Prepared, runs: list[Run]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=80 if not sys.stdout.isatty() else None, highlight=False)
    cluster = prepared.cluster
    usual = Counter(run.backfill for run in runs).most_common(1)[0][0]
    console.print(
        f"{prepared.trace.name}: {len(prepared.trace):,} jobs on {cluster.name} "
        f"({cluster.nodes:,} nodes, {cluster.gpus:,} GPUs), backfill {usual}"
    )
    for note in prepared.trace.notes:
        console.print(f"note: {note}")
    for row in _rejections(prepared, runs)[:3]:
        console.print(f"never ran: {row['jobs']} jobs, e.g. {row['example']}: {row['reason']}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold")
    for column in ("wait", "×", "p99", "max", "BSLD", "×", "gm", "util"):
        table.add_column(column, justify="right", no_wrap=True)
    base = next((r for r in runs if r.policy == "multifactor"), runs[0])
    for run in runs:
        m = run.metrics
        table.add_row(
            _called(run, usual) + (" *" if "@oracle" in run.policy else ""),
            duration(m["mean_wait"]),
            _multiple(m["mean_wait"], base.metrics["mean_wait"]),
            duration(m["p99_wait"]),
            duration(m["max_wait"]),
            number(m["mean_bsld"]),
            _multiple(m["mean_bsld"], base.metrics["mean_bsld"]),
            number(m["geomean_bsld"]),
            share(m["utilization"]),
        )
    console.print(table)
    console.print(
        f"wait: mean, 99th percentile, longest; BSLD: bounded slowdown (10 s), mean and\n"
        f"geometric mean; ×: ratio to {_called(base, usual)}"
    )
    for run in runs:
        if run.deferral is not None and run.deferral["jobs"]:
            console.print(
                f"{_called(run, usual)}: {run.deferral['jobs']:,} jobs were deferred; "
                f"{run.deferral['allocation_rate']:.1%} of them started in time, "
                f"{run.deferral['success_rate']:.1%} on the GPU type they were deferred for"
            )
    for run in runs:
        if run.outside is not None:
            console.print(_asked(run.policy, run.outside), highlight=False)
    if any("@oracle" in r.policy for r in runs):
        console.print("*: knows true run times: a limit that no scheduler can reach")


def _called(run: Run, usual: str) -> str:
    """The policy, with its backfill rule where that is not the usual one of this table."""
    return run.policy if run.backfill == usual else f"{run.policy}+{run.backfill}"


def _asked(policy: str, told: dict[str, Any]) -> str:
    """How fast a policy that is Python was, and how often it failed."""
    text = f"{policy}: asked {told['calls']:,} times"
    if told["calls"]:
        text += f", {told['p50_ms']:.3g} ms each (p99 {told['p99_ms']:.3g} ms)"
    failed = sum(told["failures"].values())
    if failed:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in told["failures"].items())
        text += f"; {failed:,} answers were of no use ({kinds}), and Slurm's own order stood: {told['last_failure']}"
    return text


def _multiple(value: float | None, base: float | None) -> str:
    return ratio(value, base).removeprefix("×")
