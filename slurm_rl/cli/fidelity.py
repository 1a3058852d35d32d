"""`slurm-rl fidelity`: the same jobs on a real slurmctld and in the simulator, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slurm_rl.domain.cluster import Cluster
    from slurm_rl.evaluate.fidelity import Agreement, Fidelity, JobRun
    from slurm_rl.traces.trace import Trace

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_EPILOG = """Examples:

sudo slurm-rl fidelity trace.csv --cluster cluster.json --clock 120 --report out/fidelity.html

slurm-rl fidelity trace.csv --cluster cluster.json --recorded run1.csv --recorded run2.csv --json"""


@app.command(epilog=_EPILOG)
def fidelity(
    trace: Annotated[Path, typer.Argument(help="Trace file, in any format that `slurm-rl traces info` knows.")],
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    recorded: Annotated[
        list[Path] | None,
        typer.Option(help="A recorded real run (replay --record); repeat it to measure the noise between real runs."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Slurm's order: fcfs (priority/basic) or multifactor.")] = "fcfs",
    runs: Annotated[int, typer.Option(help="Real runs to make without --recorded.")] = 2,
    slurm_conf: Annotated[
        Path | None, typer.Option(help="The slurm.conf of the recorded runs, or for the lab.")
    ] = None,
    slurm_option: Annotated[
        list[str] | None, typer.Option(help="One setting of it, NAME=VALUE, e.g. bf_interval=5; may be repeated.")
    ] = None,
    clock: Annotated[float, typer.Option(help="Speed-up of the lab's time.")] = 60.0,
    release: Annotated[str, typer.Option(help="A release of Slurm from lab fetch.")] = "",
    record: Annotated[Path | None, typer.Option(help="Keep the real runs in this directory.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with both Gantt charts.")] = None,
    first: Annotated[int, typer.Option(help="Number of divergences to list.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Compare the simulator with a real slurmctld: two real runs and one simulated, by starts and waits.

    Without --recorded the trace runs on a lab made for it, as sleep jobs with their real requests.
    """
    from slurm_rl.backfill.slurm_settings import SITE, read_slurm_conf, with_options
    from slurm_rl.cli.progress import progress
    from slurm_rl.errors import InputError
    from slurm_rl.evaluate.fidelity import fidelity as compare
    from slurm_rl.lab.observed import read_observed, write_observed
    from slurm_rl.lab.replay import OWN_ORDERS, Options, replay_on_lab
    from slurm_rl.traces.read import read_trace
    from slurm_rl_sim.replay import find_cluster, prepare
    from slurm_rl_sim.workload import sorted_by_id

    if policy not in OWN_ORDERS:
        raise InputError(f"must be {' or '.join(OWN_ORDERS)}, got {policy!r}", field="--policy")
    if runs < 1:
        raise InputError(f"must be at least 1, got {runs}", field="--runs")
    site = with_options(read_slurm_conf(slurm_conf) if slurm_conf else SITE, slurm_option or [])
    jobs = sorted_by_id(read_trace(trace))
    where = find_cluster(jobs, trace, cluster)
    if recorded:
        real = [read_observed(path) for path in recorded]
    else:
        prepared = prepare(jobs, where)
        told = {"SchedulerParameters": f"bf_continue,{site.scheduler_parameters}"} if slurm_conf or slurm_option else {}
        options = Options(clock=clock, slurm=release, settings=told)
        with progress(as_json) as on_progress:
            real = [replay_on_lab(prepared, policy, options, on_progress).rows for _ in range(runs)]
        if record is not None:
            for number, rows in enumerate(real, 1):
                write_observed(record / f"{jobs.name}.run{number}.csv", rows)
    made, schedules = compare(jobs, where, real, policy, max(first, 10 if as_json or report else first), site)
    if report is not None:
        _write_page(report, jobs, where, made, schedules[0])
    if as_json:
        print(json.dumps({"trace": str(trace), "cluster": where.name, "policy": policy} | made.as_value()))
    else:
        _show(jobs, where, made, first)
        if report is not None:
            print(f"\nreport: {report}")


def _rows(made: Fidelity) -> list[tuple[str, Agreement]]:
    """The table's rows: each comparison by itself."""
    several = made.runs > 1
    named = [
        *((f"simulated{f', run {i}' if several else ''}", a) for i, a in enumerate(made.simulated, 1)),
        *((f"same lengths{f', run {i}' if several else ''}", a) for i, a in enumerate(made.lengths, 1)),
    ]
    return [*named, *((f"real against real, {i}", a) for i, a in enumerate(made.floor, 1))]


COLUMNS = ("", "tau", "wait", "p99", "start p5", "p50", "p95", "nodes")  # 80 characters wide at most


def _cells(name: str, a: Agreement) -> list[str]:
    gap = a.differences
    return [
        name,
        f"{a.tau:.3f}",
        f"×{a.mean_wait_ratio:.2f}",
        f"×{a.p99_wait_ratio:.2f}",
        *(f"{gap[q]:+.0f} s" for q in ("p5", "p50", "p95")),
        f"{100 * a.same_nodes:.0f}%",
    ]


def _show(jobs: Trace, cluster: Cluster, made: Fidelity, first: int) -> None:
    print(f"{jobs.name}: {len(jobs):,} jobs on {cluster.name} ({cluster.nodes} nodes, {cluster.gpus} GPUs)")
    print(f"Real jobs held their nodes {made.overhead:.0f} s longer than asked (median).\n")
    rows = [list(COLUMNS), *(_cells(name, a) for name, a in _rows(made))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
    print("\nwait, p99: ratios of the mean wait and its 99th percentile; start: differences;")
    print("nodes: jobs on the same nodes; same lengths: with the run lengths seen.")
    if not made.floor:
        print("\nOne real run alone says nothing of the noise between real runs: give several.")
    if made.divergences and first:
        print("\nFirst jobs to start elsewhen (real, simulated, by):")
        for d in made.divergences[:first]:
            print(f"  job {d.job}: {d.real:.0f} s, {d.simulated:.0f} s, {d.by or 'unknown'}")
            print(f"    {d.cause}")


def _write_page(
    path: Path, jobs: Trace, cluster: Cluster, made: Fidelity, pair: tuple[dict[str, JobRun], dict[str, JobRun]]
) -> None:
    from slurm_rl.evaluate.fidelity import TOLERANCE
    from slurm_rl.lab.cluster import lab_nodes
    from slurm_rl.report.gantt import JobBar, ReportTable, gantt_svg, rounded, write_page

    real, simulated = pair
    capacity = {name: max(c.gpus, 1) for c in lab_nodes(cluster) for name in c.names()}
    asked = dict(zip(map(str, jobs.job_id.tolist()), jobs.num_gpus.tolist(), strict=True))
    span = max((ran.end for schedule in pair for ran in schedule.values()), default=1.0)

    def bars(schedule: dict[str, JobRun]) -> list[JobBar]:
        found = []
        for job, ran in schedule.items():
            gap = simulated[job].wait - real[job].wait if job in real and job in simulated else 0.0
            kind = "same" if abs(gap) <= TOLERANCE else "early" if gap < 0 else "late"
            for node in ran.nodes:
                gpus = rounded(asked.get(job, 1) / max(len(ran.nodes), 1))
                tip = f"job {job}: {ran.start:.0f}–{ran.end:.0f} s, waited {ran.wait:.0f} s {ran.by}".strip()
                found.append(JobBar(job, node, ran.start, ran.end, gpus, kind, tip))
        return found

    told = [
        [d.job, f"{d.real:.0f} s", f"{d.simulated:.0f} s", d.real_nodes, d.simulated_nodes, d.by, d.cause]
        for d in made.divergences
    ]
    columns = ("job", "real start", "simulated", "real nodes", "simulated nodes", "started by", "cause")
    write_page(
        path,
        f"{jobs.name}: a real slurmctld and the simulator",
        f"{len(jobs)} jobs on {cluster.nodes} nodes. Ratios and differences are the simulator's to the real run's; "
        f"“same lengths” replays the run lengths that were seen. Real jobs held their nodes {made.overhead:.0f} s "
        "longer than asked.",
        [
            ("Real, run 1", gantt_svg(bars(real), capacity, span, "real schedule")),
            ("Simulated, same lengths", gantt_svg(bars(simulated), capacity, span, "simulated schedule")),
        ],
        [
            ReportTable("How far they agree", COLUMNS, [_cells(name, a) for name, a in _rows(made)]),
            ReportTable("First divergences", columns, told),
        ],
    )
