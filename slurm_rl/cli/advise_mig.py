"""`slurm-rl advise-mig`: which MIG layout would have served the jobs of a trace best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

_HELP = """Replay a trace with some GPUs cut into MIG slices, and say what would have changed.

A job of one GPU may go to a slice with the memory that it is known to have used
(column gpu_mem_gb, times --headroom), unless it would run into its time limit
there. A slice slows a job down as far as the job kept more of the GPU busy
(gpu_util) than the slice has. Node agents measure both: slurm-rl traces
from-slurm --telemetry writes such a trace of a live site.

Replicate 0 is the trace; in the others the gaps between submissions vary by a
tenth. A layout is worth it if mean JCT falls beyond chance and the 99th
percentile of waits does not rise so.

Examples:

  slurm-rl advise-mig month.csv.gz --cluster site.cluster.json

  slurm-rl advise-mig month.csv.gz --cluster site.cluster.json --replicates 5 --json
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=_HELP)
def advise_mig(
    trace: Annotated[Path, typer.Argument(help="Trace file with the column gpu_mem_gb.")],
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    policy: Annotated[str, typer.Option(help="Order of the queue.")] = "multifactor",
    backfill: Annotated[str, typer.Option(help="Backfill rule.")] = "easy",
    headroom: Annotated[float, typer.Option(min=1.0, help="Memory that a slice must have, over what was used.")] = 1.1,
    replicates: Annotated[int, typer.Option(min=2, help="How many.")] = 3,
    seed: Annotated[int, typer.Option(help="Of replicates and limits.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Replays and prints; `_HELP` is what users see."""
    from slurm_rl.cli.progress import progress
    from slurm_rl.evaluate.mig import COMPARED, advise
    from slurm_rl.traces.read import read_trace
    from slurm_rl_sim.replay import find_cluster, parse_contenders

    jobs = read_trace(trace)
    where = find_cluster(jobs, trace, cluster)
    (contender,) = parse_contenders(policy, backfill)[:1]
    with progress(as_json) as on_progress:
        now, found = advise(
            jobs, where, contender, replicates=replicates, headroom=headroom, seed=seed, on_progress=on_progress
        )
    if as_json:
        value = {"trace": str(trace), "replicates": replicates, "as_it_is": now}
        print(json.dumps(value | {"layouts": [a.as_value() for a in found]}))
        return
    print("as it is: " + ", ".join(f"{name} {now[name]:,.0f}" for name in COMPARED))
    for advice in found:
        print(f"{advice.layout.told}{'  <- worth it' if advice.worth_it else ''}")
        changes = (
            f"{name} {100 * (advice.ratio[name] - 1):+.1f}% "
            f"[{100 * (advice.low[name] - 1):+.1f}, {100 * (advice.high[name] - 1):+.1f}]"
            for name in COMPARED[:3]
        )
        print(f"   {', '.join(changes)}; {100 * advice.on_slices:.0f}% of the jobs of one GPU may use a slice")
    if not any(a.worth_it for a in found):
        print("No layout is ahead of the cluster as it is beyond chance.")
