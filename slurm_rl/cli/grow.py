"""`slurm-rl grow`: studies networks that grow while they train, and runs a script under a time budget."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.errors import EnvironmentMissing, InputError, unknown_name

if TYPE_CHECKING:
    from slurm_rl.grow.table import Trainings

app = typer.Typer(
    help="Networks that grow while they train, under a time budget (docs/grow.md).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_POLICIES = "never,always-widen,always-deepen,at-plateau,random"
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
Tables = Annotated[Path, typer.Option(help="Directory of outcome tables, from simulate.")]
Tasks = Annotated[str, typer.Option(help="Tasks, separated by commas: names or FILE.py; learn, held-out or all.")]
Budgets = Annotated[str, typer.Option(help="Budgets in epochs of the first network, separated by commas.")]
Policies = Annotated[str, typer.Option("--policy", help="Policies, separated by commas: names or FILE.safetensors.")]


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Directory for the tables; existing ones are kept.")],
    tasks: Tasks = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each plan.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    moments: Annotated[str, typer.Option(help="Moments of growth, in epochs of the first network.")] = "4,10",
    longest: Annotated[float, typer.Option(min=1, help="The longest budget.")] = 32,
    executor: Annotated[str, typer.Option(help="local, or slurm: a job array with one task per table.")] = "local",
    slurm: Annotated[list[str] | None, typer.Option(help="KEY=VALUE: any sbatch option by its long name.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the jobs.")] = False,
    as_json: Json = False,
) -> None:
    """Train every plan of growth and write outcome tables; resumes a stopped study.

    Example: slurm-rl grow simulate --out tables --tasks digits,spirals-2 --seeds 3
    """
    _need_torch()
    import torch

    from slurm_rl.grow.table import StudySettings, cell_file, cells_to_make, is_done, save_cell, simulate_cell

    if executor not in ("local", "slurm"):
        raise unknown_name("executor", executor, ("local", "slurm"))
    settings = StudySettings(moments=tuple(_numbers(moments, "--moments")), longest=longest)
    if any(a >= b for a, b in zip(settings.moments, (*settings.moments[1:], longest), strict=True)):
        raise InputError("must rise, and end before --longest", field="--moments")
    names = _tasks(tasks)
    cells = list(cells_to_make(names, range(first_seed, first_seed + seeds)))
    missing = [(task, seed) for task, seed in cells if not is_done(cell_file(out, task, seed), settings)]
    if executor == "slurm":
        same = ["--moments", moments, "--longest", str(longest)]
        _in_array(missing, len(cells), out, same, slurm or [], wait=wait, as_json=as_json)
        return
    torch.set_num_threads(1)  # networks of this size are slower with more
    for i, (task, seed) in enumerate(missing):
        save_cell(cell_file(out, task, seed), simulate_cell(task, seed, settings), settings)
        if not as_json:
            print(f"{task}, seed {seed}: done, {len(missing) - i - 1} to go", flush=True)
    _say(
        {"out": str(out), "tables": len(cells), "made": len(missing)},
        f"{len(cells)} tables in {out}, {len(missing)} of them new",
        as_json,
    )


def _in_array(
    missing: list[tuple[str, int]],
    count: int,
    out: Path,
    same: list[str],
    pairs: list[str],
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """One task of a job array for each table that is missing."""
    from slurm_rl.cli.train import slurm_options
    from slurm_rl.errors import SlurmError
    from slurm_rl.train.submit import submit_array, wait_for

    words = [sys.executable, "-m", "slurm_rl", "grow", "simulate", "--out", str(out.resolve()), *same]
    commands = {
        f"{task}, seed {seed}": [*words, "--tasks", _absolute(task), "--first-seed", str(seed), "--seeds", "1"]
        for task, seed in missing
    }
    if not commands:
        _say({"out": str(out), "tables": count, "jobs": []}, f"{count} tables in {out}, none is missing", as_json)
        return
    jobs = submit_array(commands, out / "slurm", slurm_options(pairs), "slurm-rl-grow")
    told = {"out": str(out), "tables": count, "jobs": [{"table": j.called, "job": j.job, "log": j.log} for j in jobs]}
    if wait:
        failed = wait_for(jobs, (lambda text: None) if as_json else print)
        if failed:
            raise SlurmError(f"{len(failed)} of {len(jobs)} tables failed, the first is {failed[0].called}; "
                             f"see {failed[0].log}")  # fmt: skip
    _say(told, f"submitted {len(jobs)} tables as job array {jobs[0].job.partition('_')[0]}", as_json)


@app.command()
def learn(
    tables: Tables,
    out: Annotated[Path, typer.Option(help="File for the policy, NAME.safetensors.")],
    tasks: Tasks = "learn",
    budgets: Budgets = "8,16,28",
    validation: Annotated[str, typer.Option(help="Tasks among these that choose the best network.")] = (
        "blobs-3,spirals-2,teacher-16"
    ),
    iterations: Annotated[int, typer.Option(min=1)] = 400,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Learn a policy from outcome tables by REINFORCE.

    Example: slurm-rl grow learn --tables tables --out policy.safetensors
    """
    _need_torch()
    from slurm_rl.cli.progress import progress
    from slurm_rl.grow.learned import save_policy
    from slurm_rl.grow.reinforce import Lesson, learn

    held = [t for t in validation.split(",") if t]
    limits = _numbers(budgets, "--budgets")
    all_cells = _cells(tables, tasks)
    chosen = [c for c in all_cells if c.task not in held]
    judges = [c for c in all_cells if c.task in held]
    if not chosen:
        raise InputError("all tasks are for validation", field="--validation")
    with progress(as_json) as bar:

        def report(done: int, of: int, gain: float) -> None:
            if bar is not None:
                bar("learning", done / of)

        net, course = learn(chosen, limits, judges, Lesson(iterations=iterations), seed, report)
    gain = max(course)
    about = {
        "tasks": sorted({c.task for c in chosen}),
        "validation": sorted({c.task for c in judges}),
        "budgets": limits,
        "seed": seed,
        "validation_gain_percent": round(gain, 3) if judges else None,
    }
    save_policy(out, net, about)
    said = f", {gain:+.2f} points of accuracy over never on {', '.join(about['validation'])}" if judges else ""  # type: ignore[arg-type]
    _say(about | {"policy": str(out), "course": [round(g, 3) for g in course]}, f"policy: {out}{said}", as_json)


@app.command()
def evaluate(
    tables: Tables,
    policy: Policies = _POLICIES,
    tasks: Tasks = "held-out",
    budgets: Budgets = "6,12,22,32",
    as_json: Json = False,
) -> None:
    """Rank policies on outcome tables, with 95% intervals of the difference to never growing.

    Example: slurm-rl grow evaluate --tables tables --policy never,at-plateau,policy.safetensors
    """
    _need_torch()
    limits = _numbers(budgets, "--budgets")
    cells = _cells(tables, tasks)
    standings = _ranked(cells, policy, limits)
    if as_json:
        value = {
            "tasks": sorted({c.task for c in cells}),
            "seeds": sorted({c.seed for c in cells}),
            "budgets": limits,
            "standings": [
                {
                    "policy": s.policy,
                    "mean": s.mean,
                    "gain": s.gain,
                    "low": s.low,
                    "high": s.high,
                    "grew": s.grew,
                    "beats_never": s.beats_never,
                    "by_budget": {f"{b:g}": v for b, v in s.by_budget.items()},
                }
                for s in standings
            ],
        }
        print(json.dumps(value))
        return
    count = len({c.task for c in cells})
    print(f"mean final accuracy over {count} tasks, {len(cells)} tables and budgets {budgets}")
    print(f"{'policy':<28} {'accuracy':>8} {'vs never':>9} {'95% interval':>18} {'steps':>6}")
    for s in standings:
        row = f"{s.policy:<28.28} {s.mean:>8.4f} {s.gain:>+9.4f} {f'{s.low:+.4f} … {s.high:+.4f}':>18} {s.grew:>6.2f}"
        print(f"{row}{'  beats never' if s.beats_never and not s.policy.startswith('best ') else ''}")
    print("steps: of growth a training; best: one plan for each task and budget, chosen by what came out")


@app.command()
def plot(
    tables: Tables,
    out: Annotated[Path, typer.Option(help="Directory for accuracy.svg and regret.svg.")],
    policy: Policies = _POLICIES,
    tasks: Tasks = "held-out",
    budgets: Budgets = "6,8,12,16,22,28,32",
    as_json: Json = False,
) -> None:
    """Draw accuracy and regret over budgets.

    Example: slurm-rl grow plot --tables tables --out figures
    """
    _need_torch()
    from slurm_rl.grow.plot import draw

    limits = _numbers(budgets, "--budgets")
    files = draw(_ranked(_cells(tables, tasks), policy, limits), limits, out)
    _say({"files": [str(f) for f in files]}, "\n".join(map(str, files)), as_json)


@app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_under_budget(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that uses slurm_rl.grow; its arguments follow.")],
    budget: Annotated[float, typer.Option(min=0.1, help="Time limit of the script in seconds.")] = 60,
    warn: Annotated[
        float, typer.Option(min=0, help="Seconds between the warning by SIGUSR1 and the end; 0: no warning.")
    ] = 5,
    policy: Annotated[str, typer.Option(help="Policy for a Grower that names none.")] = "at-plateau",
    as_json: Json = False,
) -> None:
    """Run a script as Slurm would under a time limit, and show how its network grew.

    Example: slurm-rl grow run examples/grow_digits.py --budget 20
    """
    from slurm_rl.cli.script import run_script

    if not script.is_file():
        raise InputError("no such script", file=str(script))
    said = run_script(script, context.args, budget, warn, policy, quiet=as_json)
    if as_json:
        print(json.dumps(said))
    else:
        for event in said["events"]:
            facts = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("event", "at"))
            print(f"{event['at']:>7.1f} s  {event['event']:<9} {facts}")
        print(f"ended after {said['seconds']:.1f} of {budget:g} s with exit code {said['exit_code']}")
    raise typer.Exit(1 if said["exit_code"] else 0)


def _need_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise EnvironmentMissing("growing needs torch: pip install 'slurm-rl[grow]'")


def _absolute(task: str) -> str:
    return str(Path(task).resolve()) if task.endswith(".py") else task


def _tasks(text: str) -> list[str]:
    from slurm_rl.grow.tasks import HELD_OUT, LEARN, NAMES, task_of

    groups = {"all": NAMES, "learn": LEARN, "held-out": HELD_OUT}
    names = [name for part in text.split(",") if part for name in groups.get(part, (part,))]
    if not names:
        raise InputError("names no task", field="--tasks")
    for name in names:
        task_of(name)
    return list(dict.fromkeys(names))


def _cells(tables: Path, tasks: str) -> list[Trainings]:
    from slurm_rl.grow.table import load_cells

    wanted = {Path(t).stem for t in _tasks(tasks)}
    cells = [c for c in load_cells(tables) if Path(c.task).stem in wanted]
    if not cells:
        raise InputError(f"has no table of {tasks}", file=str(tables), remedy="slurm-rl grow simulate --tasks …")
    return cells


def _ranked(cells: list[Trainings], policy: str, budgets: list[float]) -> list[Any]:
    from slurm_rl.grow.policies import policy_of
    from slurm_rl.grow.ranking import rank

    return rank(cells, [policy_of(name) for name in policy.split(",") if name], budgets)


def _numbers(text: str, field: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0:
        raise InputError(f"must be positive numbers, separated by commas, got {text!r}", field=field)
    return numbers


def _say(value: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(value) if as_json else text)
