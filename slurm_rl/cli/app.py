"""Finds the command, runs it, and turns errors into one line (or one JSON value) and an exit code."""

from __future__ import annotations

import importlib
import json
import os
import sys

from slurm_rl import __version__
from slurm_rl.errors import SlurmRlError, unknown_name

# Name -> (module with a Typer `app`, what it does in one line). A module is imported only when its command runs,
# so `slurm-rl --help` stays quick however heavy the commands are.
COMMANDS: dict[str, tuple[str, str]] = {
    "replay": ("slurm_rl.cli.replay", "replay a trace under several policies and compare them"),
    "fidelity": ("slurm_rl.cli.fidelity", "compare the simulator with a real slurmctld, job by job"),
    "forecast-report": ("slurm_rl.cli.forecast_report", "score forecasts of start times on history"),
    "train": ("slurm_rl.cli.train", "learn a policy from traces and generated workloads"),
    "evaluate": ("slurm_rl.cli.evaluate", "compare policies in pairs, with replicates and confidence intervals"),
    "auto": ("slurm_rl.cli.auto", "choose the policy of each partition by replays of its past"),
    "advise-mig": ("slurm_rl.cli.advise_mig", "say which MIG layout would have served a trace's jobs best"),
    "retrain": ("slurm_rl.cli.retrain", "learn from the site's own history and write a candidate model"),
    "grow": ("slurm_rl.cli.grow", "study networks that grow while they train, and run a script under a time budget"),
    "study": ("slurm_rl.cli.study", "make the tables of the guides from public traces"),
    "bench": ("slurm_rl.cli.bench", "compare schedulers, agents and placements in suites of paired runs"),
    "traces": ("slurm_rl.cli.traces", "inspect, convert, generate and perturb traces"),
    "lab": ("slurm_rl.cli.lab", "start a private, real Slurm with fake GPUs on this machine"),
    "doctor": ("slurm_rl.cli.doctor", "check a Slurm site and say what to change, and why"),
    "serve": ("slurm_rl.cli.serve", "run the service and the controller that reorders the pending queue"),
    "explain": ("slurm_rl.cli.explain", "say where a pending job stands, why, and what would move it"),
    "when": ("slurm_rl.cli.when", "say when a job would start before it is submitted, and what would change that"),
    "node-agent": ("slurm_rl.cli.node_agent", "sample this node's GPUs and attribute them to jobs"),
    "undo": ("slurm_rl.cli.undo", "take back every SiteFactor that was written"),
    "shadow-report": ("slurm_rl.cli.shadow_report", "replay the shadow period both ways and say what would change"),
    "models": ("slurm_rl.cli.models", "list, show, promote and roll back learned policies"),
    "show-conf": ("slurm_rl.cli.show_conf", "print every setting and where it comes from"),
    "install-plugin": ("slurm_rl.cli.install_plugin", "put the job_submit.lua shim beside slurm.conf, or take it away"),
    "completion": ("slurm_rl.cli.completion", "complete commands, options and names in bash, zsh and fish"),
    "version": ("slurm_rl.cli.version", "say which slurm-rl, Python and Slurm these are"),
}

_EXAMPLES = """\
Examples:
  slurm-rl replay traces/hetero.csv.gz                 compare the usual policies on a bundled trace
  slurm-rl replay my.swf --policy fcfs,sjf@user --json machine-readable comparison
  slurm-rl COMMAND --help                              every command has its own examples"""


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return f"Usage: slurm-rl COMMAND [OPTIONS]\n\nCommands:\n{rows}\n\n{_EXAMPLES}\n"


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `slurm-rl` program; always ends in SystemExit."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        raise SystemExit(0)
    if args[0] == "--version":
        sys.stdout.write(f"slurm-rl {__version__}\n")
        raise SystemExit(0)
    wants_json = "--json" in args
    try:
        if args[0] not in COMMANDS:
            raise unknown_name("command", args[0], COMMANDS)
        raise SystemExit(_run(args[0], args[1:], wants_json))
    except SlurmRlError as error:
        _report(error.as_dict(), str(error), wants_json)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except KeyboardInterrupt:
        _report({"type": "Interrupted", "message": "interrupted"}, "interrupted", wants_json)
        raise SystemExit(130) from None


def _run(name: str, args: list[str], wants_json: bool) -> int:
    module = importlib.import_module(COMMANDS[name][0])
    if hasattr(module, "run"):  # a command that does without typer, which takes longer to load than undo may
        return int(module.run(args))

    import typer

    app: typer.Typer = module.app
    app.rich_markup_mode = None  # one plain style of help for all commands, which pipes and narrow terminals can take
    try:
        result = app(args=args, prog_name=f"slurm-rl {name}", standalone_mode=False)
    except typer.TyperException as error:  # a wrong option or argument
        told = error.format_message()  # names the option
        _report({"type": "UsageError", "message": told}, f"{told} (see slurm-rl {name} --help)", wants_json)
        return 2
    return result if isinstance(result, int) else 0


def _report(value: dict[str, object], text: str, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"error": value}) + "\n")
    else:
        sys.stderr.write(f"slurm-rl: {text}\n")
