"""`slurm-rl doctor`: checks a Slurm site and names the changes it needs, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slurm_rl.slurm.findings import Finding, SiteFacts

app = typer.Typer(add_completion=False)

_CONFIG = "/etc/slurm-rl/slurm-rl.toml"


@app.command()
def doctor(
    config: Annotated[Path, typer.Option(help="The service's configuration.", envvar="SLURM_RL_CONFIG")] = Path(
        _CONFIG
    ),
    slurm_conf: Annotated[Path | None, typer.Option(help="The cluster's slurm.conf, instead of SLURM_CONF.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for Slurm.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Check a Slurm site and say what to change, and why.

    The exit code is 0 if all is well, 1 if something should be changed, 2 if something must be.

    Examples:

      slurm-rl doctor

      slurm-rl doctor --slurm-conf /etc/slurm/slurm.conf --json
    """
    from slurm_rl.errors import SlurmRlError
    from slurm_rl.slurm import inspect
    from slurm_rl.slurm.cli import CliClient
    from slurm_rl.slurm.doctor import examine, too_old, unreachable
    from slurm_rl.slurm.findings import worst
    from slurm_rl.slurm.installation import examine_installation
    from slurm_rl.slurm.release import ReleaseTooOld

    try:
        site = inspect.site(CliClient(slurm_conf, timeout))
        findings = [*examine(site), *_lever(site, config)]
    except ReleaseTooOld as error:
        findings = [too_old(str(error))]
    except SlurmRlError as error:
        findings = [unreachable(str(error))]
    findings += examine_installation(config)
    findings.sort(key=lambda f: -f.severity)
    severity = worst(findings)
    if as_json:
        rows = [
            {"code": f.code, "severity": f.severity.name.lower(), "what": f.what, "why": f.why, "remedy": f.remedy}
            for f in findings
        ]
        print(json.dumps({"worst": severity.name.lower(), "findings": rows}))
    else:
        colour = sys.stdout.isatty()
        for f in findings:
            print(_text(f.severity.name, f.what, f.why, f.remedy, colour))
    raise typer.Exit(severity.exit_code)


def _lever(site: SiteFacts, config: Path) -> list[Finding]:
    """Findings about the placement lever that the configuration names; a broken file is told of elsewhere."""
    from slurm_rl.config import load
    from slurm_rl.errors import InputError
    from slurm_rl.slurm.gpufeatures import examine_lever

    try:
        settings = load(config if config.exists() else None).config
    except InputError:
        return []
    return list(examine_lever(site, settings.placement_lever, settings.gpu_features))


def _text(severity: str, what: str, why: str, remedy: str, colour: bool) -> str:
    codes = {"ERROR": "31", "WARNING": "33", "INFO": "36", "OK": "32"}
    label = f"{severity.lower():<8}"
    lines = [(f"\033[{codes[severity]}m{label}\033[0m" if colour else label) + what]
    if why:
        lines.append(" " * 8 + f"why: {why}")
    lines += [" " * 8 + ("do:  " if i == 0 else "     ") + line for i, line in enumerate(remedy.splitlines())]
    return "\n".join(lines)
