"""`slurm-rl forecast-report`: replays a period, forecasts start times as it goes, and scores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slurm_rl.evaluate.forecasts import ForecastReport, Scores
    from slurm_rl.evaluate.limit_advice import AdviceWorth

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_EPILOG = """Examples:

slurm-rl forecast-report traces/hetero.csv.gz --forecasts 100

slurm-rl forecast-report site.csv --slurm-conf /etc/slurm/slurm.conf --report out/forecasts.html"""
COLUMNS = ("", "in range", "log error", "error", "bias")


@app.command("forecast-report", epilog=_EPILOG)
def forecast_report(
    trace: Annotated[Path, typer.Argument(help="Trace file, in any format that `slurm-rl traces info` knows.")],
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    policy: Annotated[str, typer.Option(help="The site's order.")] = "multifactor",
    backfill: Annotated[str, typer.Option(help="The site's backfill rule.")] = "easy",
    slurm_conf: Annotated[
        Path | None, typer.Option(help="A slurm.conf: use its backfill settings and weights, and backfill `slurm`.")
    ] = None,
    window: Annotated[str, typer.Option(help="A:B as in replay; the time before it is for calibration.")] = "0.5:1",
    forecasts: Annotated[int, typer.Option(help="Approximate number of forecasts in the window.")] = 400,
    draws: Annotated[int, typer.Option(help="Futures for each forecast.")] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the futures.")] = 0,
    advice: Annotated[
        bool, typer.Option("--advice", help="Also measure the value of advice on limits, by a replay with such limits.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page with a calibration plot.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Score forecasts of start times on history: how often the 80% range holds, and how far the median is off.

    Forecasts are made when a job is submitted and at full hours while it waits. They are compared with what backfill
    plans by time limits (squeue --start), and with the mean wait of the last jobs like it.
    """
    from slurm_rl.cli.progress import progress
    from slurm_rl.errors import InputError
    from slurm_rl.evaluate.forecasts import forecast_history, report_of, site_of
    from slurm_rl.evaluate.limit_advice import worth_of_advice
    from slurm_rl.traces.read import read_trace
    from slurm_rl_sim.replay import find_cluster, prepare, window_of

    if forecasts < 2 or draws < 2:
        raise InputError("must be at least 2", field="--forecasts" if forecasts < 2 else "--draws")
    jobs = read_trace(trace)
    where = find_cluster(jobs, trace, cluster)
    period = window_of(jobs, window) or (0, 0)
    prepared = prepare(jobs, where, window=period, seed=seed)
    site = site_of(policy, backfill, slurm_conf)
    with progress(as_json) as on_progress:
        told = None if on_progress is None else lambda share: on_progress("forecasts", share)
        rows, earlier = forecast_history(
            prepared, site, window=period, count=forecasts, draws=draws, seed=seed, on_progress=told
        )
    made = report_of(rows, earlier)
    worth = worth_of_advice(prepared, site) if advice else None
    name = f"{prepared.trace.name}, {site.policy.name} + {site.backfill}"
    if report is not None:
        _write(report, name, made)
    if as_json:
        head = {"trace": str(trace), "cluster": where.name, "policy": site.policy.name, "backfill": site.backfill}
        more = {"advice": worth.as_value()} if worth is not None else {}
        print(json.dumps(head | {"draws": draws} | made.as_value() | more))
        return
    print(f"{name}: {made.forecasts} forecasts, {made.at_submission} of them at submission")
    print(f"calibrated on {made.calibrated_on} forecasts of the time before, and on those that had come true\n")
    table = [list(COLUMNS), *(cells(m) for m in made.methods)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    for row in table:
        print("  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]))
    print("\nin range: starts within the 80% range. log error: median of |log((told + 1 min)/(came + 1 min))|,")
    print(f"{made.ratio:.2f} of that of backfill by limits. bias: above 0, jobs start later than told.")
    if worth is not None:
        print(f"\n{_worth(worth)}")
    if report is not None:
        print(f"report: {report}")


def _worth(worth: AdviceWorth) -> str:
    from slurm_rl.cli.explain import span

    share = 100 * worth.advised / max(worth.jobs, 1)
    lines = [
        f"Advice on limits: {worth.advised:,} of {worth.jobs:,} jobs ({share:.0f}%) would be told a shorter one;",
        f"{worth.killed_by_advice:,} of these would run longer than that and be killed.",
    ]
    for key, label in (("mean_wait", "mean wait"), ("wait_of_advised", "… of those advised"),
                       ("wait_of_others", "… of the others"), ("p95_wait", "95% wait at most")):  # fmt: skip
        before, after = worth.before[key], worth.after[key]
        change = f" ({100 * (after / before - 1):+.0f}%)" if before else ""
        lines.append(f"  {label:<20} {span(before):>9} -> {span(after):>9}{change}")
    return "\n".join(lines)


def cells(m: Scores) -> list[str]:
    """A method's row of the table."""
    from slurm_rl.cli.explain import span

    held = "" if m.coverage is None else f"{100 * m.coverage:.0f}%"
    return [m.method, held, f"{m.log_error:.2f}", span(m.error), f"{m.bias:+.2f}"]


def _write(path: Path, name: str, made: ForecastReport) -> None:
    from slurm_rl.report.forecast_page import calibration_svg, scatter_svg, write_forecast_page

    dots = [(r.ours.median, r.ours.low, r.ours.high, r.wait) for r in made.rows]
    write_forecast_page(
        path,
        f"Forecasts of start times: {name}",
        f"{made.forecasts} forecasts, {made.at_submission} of them at submission, {made.calibrated_on} earlier ones "
        "to calibrate on. Dots: the ends and the median of the ranges that were told; line: the futures as simulated.",
        COLUMNS,
        [cells(m) for m in made.methods],
        [("Calibration", calibration_svg(made.calibration, made.futures)), ("Told and came", scatter_svg(dots))],
    )
