"""`slurm-rl undo`: takes back every SiteFactor that was written."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from slurm_rl.errors import InputError, SlurmError

_ABOUT = """Return every job we touched or advised to SiteFactor 0, from the journal; a running service is put into
mode off. Slurm shows no factor of held, dependent, deferred and running jobs: those are written too, and slurmctld's
confirmation counts."""
_EXIT = """  The exit code is 0 if every job was seen at 0 or confirmed, and 1 if some job
  still has a factor ("left"), or if Slurm does not show it and its write was
  not confirmed ("unverified").

  Examples:

  slurm-rl undo          every job that the journal knows

  slurm-rl undo --all    every job that has a SiteFactor
"""


class _Parser(argparse.ArgumentParser):
    """argparse, for it is light, with help in the style of the other commands."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, remedy="slurm-rl undo --help")

    def format_help(self) -> str:
        about = textwrap.fill(_ABOUT, 80, initial_indent="  ", subsequent_indent="  ")
        rows = [(" ".join(a.option_strings) + f" {a.metavar or ''}".rstrip(), a.help or "") for a in self._actions]
        width = max(len(name) for name, _ in rows) + 4
        options = [
            textwrap.fill(text, 80, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
            for name, text in rows
        ]
        return "\n".join(["Usage: slurm-rl undo [OPTIONS]", "", about, "", "Options:", *options, "", _EXIT])


def run(args: list[str]) -> int:
    """Undoes, and returns the exit code. It imports no compiler, no arrays and no framework: it must always start."""
    parser = _Parser(prog="slurm-rl undo", add_help=False)
    parser.add_argument("--config", type=Path, metavar="<path>", help="The configuration file.")
    parser.add_argument(
        "--all",
        action="store_true",
        dest="everything",
        help="Reset the SiteFactor of every job, even of jobs unknown to the journal.",
    )
    parser.add_argument(
        "--after-stop", action="store_true", help="Do nothing if another controller leads: for systemd's ExecStopPost."
    )
    parser.add_argument("--force", action="store_true", help="Write to an unknown release of Slurm too.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="Print one JSON value.")
    parser.add_argument("--help", "-h", action="help", help="Show this message and exit.")
    given = parser.parse_args(args)
    return _undo(given.config, given.everything, given.after_stop, given.force, given.as_json)


def _undo(config: Path | None, everything: bool, after_stop: bool, force: bool, as_json: bool) -> int:
    from slurm_rl.config import load
    from slurm_rl.controller.undo import Undone
    from slurm_rl.controller.undo import undo as take_back
    from slurm_rl.obs.journal import JournalError
    from slurm_rl.obs.journal_copy import open_anyhow
    from slurm_rl.slurm.cli import CliClient

    settings = load(config).config
    began = time.monotonic()
    with ExitStack() as stack:
        done, leader, note = Undone(), None, ""
        if settings.journal.exists() or everything:
            try:
                journal, note = open_anyhow(settings.journal, stack, empty=everything)
                leader = journal.leader(time.time())
                if not (after_stop and leader is not None):
                    conf = Path(settings.slurm_conf) if settings.slurm_conf else None
                    # Slurm's own commands first: they are there wherever jobs are, and tell of restarts.
                    commands = CliClient(conf, settings.slurm_timeout)
                    commands.force = force or settings.write_unknown_release
                    try:
                        done = take_back(commands, journal, everything=everything)
                    except SlurmError:
                        if settings.client != "pyslurm":
                            raise
                        from slurm_rl.slurm.connect import connect

                        client = connect(conf, settings.client, settings.slurm_timeout, force=commands.force)
                        done = take_back(client, journal, everything=everything)
            except JournalError as error:
                raise JournalError(
                    f"{error}: what was written is not known; `slurm-rl undo --all` resets the SiteFactor of every job"
                ) from None
    result = dataclasses.asdict(done) | {
        "leader": leader,
        "skipped": bool(after_stop and leader),
        "note": note,
        "seconds": round(time.monotonic() - began, 2),
    }
    if as_json:
        print(json.dumps(result))
    else:
        _tell(result)
    return 0 if done.complete else 1


def _tell(result: dict[str, object]) -> None:
    if result["note"]:
        print(f"slurm-rl: {result['note']}", file=sys.stderr)
    if result["skipped"]:
        print(f"{result['leader']} leads: nothing is taken back (to do so, run slurm-rl undo by hand)")
        return
    print(f"{result['returned']} of {result['touched']} jobs returned to SiteFactor 0 in {result['seconds']:.1f} s")
    if result["acknowledged"]:
        print(f"{result['acknowledged']} of these are not shown by Slurm now: slurmctld confirmed the write of each")
    if result["gone"]:
        print(f"{result['gone']} ended meanwhile")
    if result["steered"]:
        print(f"{result['freed']} of {result['steered']} jobs have their own constraint again")
    if result["deferred"]:
        print(f"{result['lifted']} of {result['deferred']} jobs that were deferred may start again")
    if result["ended"]:
        print(
            f"{result['ended']} jobs have ended; one that is requeued while Slurm remembers it (MinJobAge) has again "
            "what was written: then run slurm-rl undo again (a running service does so by itself)"
        )
    if result["stopped_leader"]:
        print(f"{result['leader']} led: it was put into mode off")
    if result["left"]:
        print(f"still with a factor: {result['left']}")
    if result["unverified"]:
        print(f"not confirmed, and not shown by Slurm: {result['unverified']}; run slurm-rl undo again")
