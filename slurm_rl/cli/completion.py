"""`slurm-rl completion`: shell completion of commands, options and names, from the commands themselves."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_rl.errors import InputError, unknown_name

app = typer.Typer(
    help="Complete commands, options and names in bash, zsh and fish.", no_args_is_help=True, add_completion=False
)

# Where the shell looks for a user's own completions, and the script it finds there. Each asks `completion words`, so a
# new command or option needs no new script; an empty answer means file names.
_SCRIPTS = {
    "bash": (
        ".local/share/bash-completion/completions/slurm-rl",
        """_slurm_rl() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(slurm-rl completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" \\
        -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _slurm_rl slurm-rl
""",
    ),
    "zsh": (
        ".zfunc/_slurm-rl",
        """#compdef slurm-rl
local -a found
found=(${(f)"$(slurm-rl completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
if (( $#found )); then compadd -a found; else _files; fi
""",
    ),
    "fish": (
        ".config/fish/completions/slurm-rl.fish",
        """complete -c slurm-rl -a \
    '(slurm-rl completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
    ),
}
_ZSH_HINT = "zsh looks there if ~/.zshrc has: fpath+=~/.zfunc; autoload -Uz compinit; compinit"

Shell = Annotated[str, typer.Option(help=f"{', '.join(_SCRIPTS)}; default: the one in $SHELL.")]


@app.command()
def install(shell: Shell = "") -> None:
    """Write the completion script where the shell looks for it; new shells use it.

    Examples:

      slurm-rl completion install

      slurm-rl completion install --shell zsh
    """
    name = _known(shell)
    place, script = _SCRIPTS[name]
    path = Path.home() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    print(f"{path}: open a new {name} to use it")
    if name == "zsh":
        print(_ZSH_HINT)


@app.command()
def show(shell: Shell = "") -> None:
    """Print the completion script, for a place of your own.

    Example: slurm-rl completion show --shell bash
    """
    print(_SCRIPTS[_known(shell)][1], end="")


@app.command(context_settings={"ignore_unknown_options": True})
def words(
    line: Annotated[list[str] | None, typer.Argument(help="The line so far, with its last word unfinished.")],
) -> None:
    """Print what can stand in place of the last word, one a line; the scripts call this.

    Example: slurm-rl completion words -- replay --back
    """
    print("\n".join(candidates(line or [""])))


def candidates(line: list[str]) -> list[str]:
    """What can stand in place of the last word; nothing where a file name or free text belongs."""
    from slurm_rl.cli.app import COMMANDS

    *before, last = line
    if not before:
        return _starting(last, COMMANDS)
    if before[0] not in COMMANDS:
        return []
    module = importlib.import_module(COMMANDS[before[0]][0])
    if not hasattr(module, "app"):  # undo goes without typer
        return []
    command: Any = typer.main.get_command(module.app)
    while hasattr(command, "commands"):
        inner = [word for word in before[1:] if word in command.commands]
        if not inner:
            return _starting(last, command.commands)
        command, before = command.commands[inner[0]], before[before.index(inner[0]) :]
    if before[-1] in _VALUES:
        done, _, part = last.rpartition(",")  # several are separated by commas
        return [f"{done},{name}" if done else name for name in _starting(part, _VALUES[before[-1]]())]
    if not last.startswith("-"):
        return []
    return _starting(last, [option for parameter in command.params for option in parameter.opts if option[0] == "-"])


def _policies() -> list[str]:
    from slurm_rl.policy.catalogue import POLICIES

    rows = [row for row in POLICIES if row.by_name]
    return [row.name for row in rows] + [f"{r.name}@{s}" for r in rows if r.uses_estimate for s in ("limit", "user")]


def _backfills() -> list[str]:
    from slurm_rl.backfill.catalogue import RULES

    return [row.name for row in RULES]


def _placements() -> list[str]:
    from slurm_rl.place.catalogue import PLACEMENTS

    return [row.name for row in PLACEMENTS]


_VALUES: dict[str, Callable[[], list[str]]] = {
    "--policy": _policies,
    "--backfill": _backfills,
    "--placement": _placements,
    "--shell": lambda: list(_SCRIPTS),
}


def _starting(part: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(part))


def _known(shell: str) -> str:
    name = shell or Path(os.environ.get("SHELL", "")).name
    if not name:
        raise InputError("$SHELL does not say which shell this is", field="--shell", remedy="--shell bash, for example")
    if name not in _SCRIPTS:
        raise unknown_name("shell", name, _SCRIPTS)
    return name
