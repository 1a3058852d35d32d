"""`slurm-rl models`: lists, shows, fits and promotes learned policies."""

from __future__ import annotations

import json
import os
import pwd
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slurm_rl.backfill.slurm_settings import SlurmSettings
    from slurm_rl.config import Config
    from slurm_rl.controller.promote import Promotions
    from slurm_rl.evaluate.keys import KeysWorth
    from slurm_rl.policy.registry import PolicySpec
    from slurm_rl_sim.replay import Prepared

app = typer.Typer(add_completion=False, no_args_is_help=True)

ConfigFile = Annotated[Path | None, typer.Option(help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


@app.command("list")
def list_models(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the models, whether they can be used, and the one in charge.

    Example: slurm-rl models list
    """
    from slurm_rl.controller.promote import Promotions
    from slurm_rl.errors import ModelError
    from slurm_rl.policy.checkpoint import MANIFEST, model_directories
    from slurm_rl.policy.meta import load_any

    promotions = Promotions(_state_dir(config))
    current, previous = promotions.names()
    rows: list[dict[str, Any]] = []
    for place in dict.fromkeys([*model_directories(), promotions.directory]):
        for path in sorted(p.parent for p in place.glob(f"*/{MANIFEST}") if not p.parent.name.startswith(".")):
            row: dict[str, Any] = {"name": path.name, "path": str(path), "hash": "", "problem": "", "role": ""}
            try:
                row["hash"] = load_any(path).digest
            except ModelError as error:
                row["problem"] = str(error)
            if place == promotions.directory:
                row["role"] = {current: "current", previous: "previous"}.get(path.name, "promoted before")
            rows.append(row)
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['name']:<32} {row['hash'][:12] or 'unusable':<14} {row['role']:<16} {row['problem'] or row['path']}"
        )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A model's name, or its directory.")], as_json: AsJson = False
) -> None:
    """Show a model's manifest: the command and data that made it, and its scores.

    Example: slurm-rl models show default
    """
    from slurm_rl.policy.checkpoint import MANIFEST, find_model
    from slurm_rl.policy.meta import load_any

    model = load_any(find_model(name))
    if as_json:
        head = {"name": model.path.name, "path": str(model.path), "hash": model.digest}
        print(json.dumps(head | dict(model.manifest)))
    else:
        print(f"# {model.path}\n" + (model.path / MANIFEST).read_text(encoding="utf-8"), end="")


_GATE = """Put a model in charge, if recent history replayed under it is no worse than under the present policy.

The gate's rules; a refusal names the rule:

- history: at least 100 jobs

- p95: the 95% wait is at most 1.05 times that of the policy in charge (and a second)

- longest: the longest wait is at most 1.2 times that of the policy in charge (and a second)

- completed: at least 0.995 of the jobs that complete under the policy in charge complete

Examples:

  slurm-rl models promote ./fitted

  slurm-rl models promote ./fitted --trace traces/hetero.csv.gz"""


@app.command(help=_GATE)
def promote(
    name: Annotated[
        str,
        typer.Argument(help="The model to put in charge, by name or directory; or a policy from outside."),
    ],
    days: Annotated[float, typer.Option(help="Days of accounting history for the replay gate.")] = 14.0,
    trace: Annotated[Path | None, typer.Option(help="Judge by this trace instead of the site's own history.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="The cluster of that trace.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Put a model in charge, if it passes the gate."""
    from slurm_rl.config import load
    from slurm_rl.controller.live_policy import load_policy
    from slurm_rl.controller.promote import CURRENT, Promotions
    from slurm_rl.errors import ModelError
    from slurm_rl.evaluate.promotion import REMEDY, judge
    from slurm_rl.obs.journal import Journal
    from slurm_rl.policy.checkpoint import find_model, load_model
    from slurm_rl.policy.registry import learned, parse_policy

    settings = load(config).config
    promotions = Promotions(Path(settings.state_dir))
    outsider = None if os.sep in name and ":" not in name else _from_outside(name)
    if outsider is not None:
        _permit(outsider, promotions, settings, days, trace, cluster, as_json)
        return
    model = load_model(find_model(name))
    present = promotions.current() if settings.policy == CURRENT else None
    if settings.policy != CURRENT:
        incumbent = load_policy(settings.policy, Path(settings.state_dir)).spec
    else:
        incumbent = learned(present) if present is not None else parse_policy("multifactor")
    prepared, weights, site = _history(settings, days, trace, cluster)
    verdict = judge(prepared, incumbent, learned(model), influence=settings.influence, weights=weights, slurm=site)
    found = json.dumps(verdict.as_dict())
    with Journal(settings.journal) as journal:
        if verdict.objections:
            journal.promotion(time.time(), "refused", model.name, model.digest, _who(), found)
            raise ModelError(f"{model.name} is not promoted: {'; '.join(verdict.objections)} ({REMEDY})")
        promoted = promotions.promote(model)
        journal.promotion(time.time(), "promote", promoted.name, promoted.digest, _who(), found)
    _tell("promoted", promoted.name, settings, as_json, verdict.as_dict())


def _from_outside(name: str) -> PolicySpec | None:
    """The policy from outside that a name stands for; None if it stands for a model."""
    from slurm_rl.policy import outside
    from slurm_rl.policy.registry import parse_policy

    if ":" not in name and name not in outside.names():
        return None
    policy = parse_policy(name)
    return None if policy.ours else policy


def _permit(
    policy: PolicySpec,
    promotions: Promotions,
    settings: Config,
    days: float,
    trace: Path | None,
    cluster: Path | None,
    as_json: bool,
) -> None:
    """Lets a policy from outside leave shadow mode, if it passes the gate that models pass."""
    from slurm_rl.errors import ModelError
    from slurm_rl.evaluate.promotion import REMEDY, judge
    from slurm_rl.obs.journal import Journal
    from slurm_rl.policy.registry import parse_policy

    prepared, weights, site = _history(settings, days, trace, cluster)
    now, share = parse_policy("multifactor"), settings.influence
    verdict = judge(prepared, now, policy, influence=share, weights=weights, slurm=site)
    found = json.dumps(verdict.as_dict())
    with Journal(settings.journal) as journal:
        if verdict.objections:
            journal.promotion(time.time(), "refused", policy.name, policy.digest, _who(), found)
            raise ModelError(f"{policy.name} is not promoted: {'; '.join(verdict.objections)} ({REMEDY})")
        promotions.permit(policy)
        journal.promotion(time.time(), "promote", policy.name, policy.digest, _who(), found)
    if as_json:
        print(json.dumps({"model": policy.name, "what": "promoted", "gate": verdict.as_dict()}))
        return
    print(f'{policy.name}: promoted: with mode = "enforce" it may now change the queue')


@app.command("fit")
def fit_model(
    name: Annotated[str, typer.Argument(help="The model to fit, by name or directory.")],
    out: Annotated[Path, typer.Option(help="Directory for the fitted model.")],
    from_slurm: Annotated[bool, typer.Option("--from-slurm", help="Take the history from Slurm's accounting.")] = False,
    trace: Annotated[Path | None, typer.Option(help="… or from a trace file.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    days: Annotated[float, typer.Option(min=0.01, help="Days of history to read.")] = 60.0,
    backfill: Annotated[str, typer.Option(help="The site's backfill rule.")] = "slurm",
    seed: Annotated[int, typer.Option(help="Seed of the replicates.")] = 0,
    keys: Annotated[str, typer.Option("--keys", help="With --from-slurm: keys to judge, as name,workdir,array.")] = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Choose the style of a model that suits a site best, by replays of its history, and write that model.

    A style changes a few weights and the starvation cap. It takes minutes, trains nothing, and switches nothing on.
    Where the history has keys, a table says what each would be worth to estimates and waits (estimate_keys).

    Example: slurm-rl models fit default --from-slurm --days 60 --out fitted && slurm-rl models promote ./fitted
    """
    from slurm_rl.cli.progress import progress
    from slurm_rl.cli.retrain import pull
    from slurm_rl.cli.train import read_sources
    from slurm_rl.config import load
    from slurm_rl.domain.keys import parse_keys
    from slurm_rl.errors import InputError
    from slurm_rl.evaluate.fit import fit, save_fitted
    from slurm_rl.evaluate.keys import worth_of_keys
    from slurm_rl.policy.checkpoint import check_place, find_model, load_model
    from slurm_rl.policy.registry import learned

    if from_slurm == (trace is not None):
        raise InputError("give either --from-slurm or --trace FILE")
    check_place(out)
    model = load_model(find_model(name))
    if not model.styles:
        raise InputError(f"{model.name} has no styles to choose from", remedy="fit another, or retrain it")
    if trace is None:
        conf = load(config).config.slurm_conf
        history, site = pull(days, Path(conf) if conf else None, parse_keys(keys))
    else:
        history, site = read_sources([trace], cluster)[0]
    with progress(as_json) as on_progress:
        found = fit(learned(model), history, site, backfill=backfill, seed=seed, on_progress=on_progress)
        told = (
            worth_of_keys(found.policy, history, site, backfill, seed=seed, on_progress=on_progress)
            if history.keys
            else []
        )
    written = save_fitted(model, found, out)
    if as_json:
        body = {"model": str(written.path), "style": found.style, "ratios": dict(found.ratios)}
        print(json.dumps(body | ({"keys": [asdict(row) for row in told]} if told else {})))
        return
    print(f"{len(history):,} jobs replayed under each style ({backfill}); slowdown, wait and tails together:")
    for style, ratio in found.ratios.items():
        print(f"  {style:<12} {ratio:.3f}{'  <- chosen' if style == found.style else ''}")
    if told:
        _print_keys(told)
    print(f"written: {written.path}  (switch it on with: slurm-rl models promote {written.path})")


def _print_keys(rows: list[KeysWorth]) -> None:
    """What each key is worth, as a table of 80 columns."""
    print("\nestimates with further groups (estimate_keys), ratios to none ± standard error:")
    print(f"  {'keys':<12}{'jobs with it':>13}{'rank correlation':>18}{'slowdown':>16}{'mean wait':>16}")
    for row in rows:
        ratios = [f"{r:.3f} ± {r * e:.3f}" for r, e in ((row.slowdown, row.slowdown_error), (row.wait, row.wait_error))]
        print(f"  {row.keys:<12}{row.jobs:>13,}{row.rank:>18.3f}{ratios[0]:>16}{ratios[1]:>16}")


@app.command()
def rollback(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Put the previous model in charge again.

    Example: slurm-rl models rollback
    """
    from slurm_rl.config import load
    from slurm_rl.controller.promote import Promotions
    from slurm_rl.obs.journal import Journal

    settings = load(config).config
    model = Promotions(Path(settings.state_dir)).rollback()
    with Journal(settings.journal) as journal:
        journal.promotion(time.time(), "rollback", model.name, model.digest, _who(), "")
    _tell("in charge again", model.name, settings, as_json, {})


def _state_dir(config: Path | None) -> Path:
    from slurm_rl.config import load

    return Path(load(config).config.state_dir)


def _history(
    settings: Config, days: float, trace: Path | None, cluster: Path | None
) -> tuple[Prepared, dict[str, float] | None, SlurmSettings | None]:
    """What the gate replays, the site's priority weights (None: the usual ones) and its scheduler's settings."""
    from slurm_rl.controller.site_past import past_of
    from slurm_rl_sim.replay import prepare

    past = past_of(settings, days, trace, cluster)
    return prepare(past.trace, past.cluster, limits=past.limits), past.weights, past.slurm


def _tell(what: str, name: str, settings: Config, as_json: bool, gate: dict[str, Any]) -> None:
    """Says what holds now; a running service is told too, and finds out by itself at its next tick if it is not."""
    from slurm_rl.controller.promote import CURRENT
    from slurm_rl.errors import SlurmRlError
    from slurm_rl.serve.ask import ask

    served = False
    with suppress(SlurmRlError):
        served = ask(Path(settings.socket), "POST", "/v1/reload")[0] == 200
    used = settings.policy == CURRENT
    if as_json:
        print(json.dumps({"model": name, "what": what, "in_use": used, "reloaded": served, "gate": gate}))
        return
    print(f"{name}: {what}")
    if gate:
        (old, new), (old_max, new_max) = gate["p95"], gate["longest"]
        waits = f"95% wait {old:.0f} → {new:.0f} s, longest {old_max:.0f} → {new_max:.0f} s"
        print(f"  replay of {gate['jobs']} jobs: {waits}")
    if not used:
        print(f'  it is not used yet: set policy = "{CURRENT}" in the configuration (now "{settings.policy}")')


def _who() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
