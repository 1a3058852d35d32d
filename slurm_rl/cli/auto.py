"""`slurm-rl auto`: chooses the policy that suits each partition by replays of its past; and the same for `replay`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_rl.backfill.slurm_settings import SlurmSettings
    from slurm_rl.domain.limits import Limits
    from slurm_rl.domain.reservations import Reservation
    from slurm_rl.evaluate.auto import Auto
    from slurm_rl.traces.trace import Trace
    from slurm_rl_sim.replay import Prepared, Run

AUTO = "auto"

_HELP = """Choose the policy of each partition by replays of its past.

Candidates are Slurm's own order (also with tuned weights), sjf-age@user, saf@user, wfp3@user, and a model: as trained,
with a lane for its oldest jobs, and in its styles. The best that keeps the promise beyond chance is chosen; Slurm's own
order where none is better. The policy in charge stays unless another is clearly better. With policy = "auto" a running
service takes the choice over at its next tick. A change must pass the promotion gate first.

Examples:

  slurm-rl auto --from-slurm --days 28

  slurm-rl auto --trace site.csv.gz --dry-run --json
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def auto_run(
    jobs: Trace,
    prepared: Prepared,
    window: tuple[int, int] | None,
    backfill: str,
    placement: str,
    influence: float | None,
    weights: dict[str, float] | None,
    seed: int,
    *,
    limits: Limits | None = None,
    reservations: Sequence[Reservation] = (),
    slurm: SlurmSettings | None = None,
    quiet: bool,
) -> tuple[Auto, Run]:
    """What `auto` would have done in a window, chosen on the time before it alone."""
    from slurm_rl.cli.progress import progress
    from slurm_rl.evaluate.auto import auto, replay_auto
    from slurm_rl.evaluate.paired import before
    from slurm_rl.policy.registry import parse_policy

    past = before(jobs, window)
    if past is None:
        raise InputError(
            "auto chooses on the time before the window, and there is none",
            field="--policy",
            remedy="measure a part, as --window 0.3:1 (more than 100 jobs must come before it)",
        )
    bound = 1.0 if influence is None else influence
    options: dict[str, Any] = {"weights": weights, "influence": bound, "seed": seed, "limits": limits}
    options |= {"reservations": reservations, "slurm": slurm}
    with progress(quiet) as on_progress:
        model = parse_policy("rl:default")
        found = auto(past, prepared.cluster, backfill, placement, model=model, on_progress=on_progress, **options)
    return found, replay_auto(prepared, found, backfill, placement, bound, slurm)


def told(found: Auto) -> str:
    """The choices, and the table behind each, in lines of at most 80 characters."""
    lines = []
    for choice in found.choices:
        lines += [f"auto, {','.join(choice.partitions) or 'all jobs':.30}: {choice.chosen}", f"  {choice.why}"]
    for choice in found.choices[:3]:
        lines.append(f"{','.join(choice.partitions)[:22] or 'candidate':<22}  BSLD  wait   p99   max  goals  promise")
        for s in sorted(choice.table, key=lambda s: s.price):
            figures = "".join(f"{s.ratio[k]:6.2f}" for k in ("bsld", "wait", "p99", "max"))
            lines.append(f"{s.candidate:<22.22}{figures} {s.price:6.2f}  {'kept' if s.keeps else 'not kept'}")
    if found.choices:
        lines.append("the past, as ratios to Slurm's own order; goals: log, worse figures count 3×")
    return "\n".join(line[:80] for line in lines)


@app.command(help=_HELP)
def auto(
    from_slurm: Annotated[bool, typer.Option("--from-slurm", help="Take the past from Slurm's accounting.")] = False,
    trace: Annotated[Path | None, typer.Option(help="… or from a trace file.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    days: Annotated[float, typer.Option(min=0.1, help="Days of the past to replay.")] = 28.0,
    backfill: Annotated[str, typer.Option(help="The site's backfill rule.")] = "slurm",
    model: Annotated[str, typer.Option(help="The model among the candidates; empty: none.")] = "default",
    replicates: Annotated[int, typer.Option(min=1, help="Replays of the past under each candidate.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the replicates.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the choice, write nothing.")] = False,
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Chooses, writes the choice and says it; `_HELP` is what users see."""
    from slurm_rl.cli.progress import progress
    from slurm_rl.config import load
    from slurm_rl.controller.auto import AutoFile
    from slurm_rl.controller.site_past import past_of
    from slurm_rl.domain.promise import DEFAULT, parse_promise
    from slurm_rl.evaluate.auto import auto as choose_all
    from slurm_rl.evaluate.promotion import pass_gate
    from slurm_rl.policy.registry import parse_policy

    if from_slurm == (trace is not None):
        raise InputError("give either --from-slurm or --trace FILE")
    settings = load(config).config
    past = past_of(settings, days, trace, cluster)
    file = AutoFile(Path(settings.state_dir))
    before = file.read().chosen
    options: dict[str, Any] = {"weights": past.weights, "influence": settings.influence, "before": before, "seed": seed}
    with progress(as_json) as on_progress:
        found = choose_all(
            past.trace,
            past.cluster,
            backfill,
            model=parse_policy(f"rl:{model}") if model else None,
            promise=parse_promise(settings.promise or DEFAULT),
            replicates=replicates,
            slurm=past.slurm,
            limits=past.limits,
            on_progress=on_progress,
            **options,
        )
    # Shadow mode shows what enforce mode would do, so that a choice is never put in charge ungated by a change of mode.
    policies = {name: candidate.policy for name, candidate in found.candidates.items()}
    chosen, refused = pass_gate(found.chosen, before, policies, past, settings.influence)
    value: dict[str, Any] = {
        "time": time.time(),
        "jobs": len(past.trace),
        "model": model,
        "chosen": chosen,
        "refused": refused,
        "tuned_weights": dict(found.tuned),
        "choices": [choice.as_dict() for choice in found.choices],
    }
    if not dry_run:
        file.write(value, settings.journal)
    if as_json:
        print(json.dumps(value))
        return
    print(told(found))
    for line in refused:
        print(f"not taken: {line}")
    if not dry_run:
        print(f"written: {file.path}")
