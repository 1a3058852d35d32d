"""Writes the reference pages of the documentation site from the code: commands, settings, catalogues, metrics."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any
from unittest import mock


def on_files(files: Any, config: Any) -> Any:
    """mkdocs asks for the pages before it looks at the links between them."""
    from mkdocs.structure.files import File

    for name, page in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    return files


def pages() -> dict[str, str]:
    """Every reference page by name."""
    return {
        "commands": _commands(),
        "configuration": _configuration(),
        "catalogues": _catalogues(),
        "metrics": _metrics(),
        "service-metrics": _service_metrics(),
        "python": _python(),
    }


def command_lines() -> Iterator[tuple[str, ...]]:
    """Every command with its subcommands, as one types them."""
    import importlib

    import typer

    from slurm_rl.cli.app import COMMANDS

    for name, (module, _) in COMMANDS.items():
        app = getattr(importlib.import_module(module), "app", None)
        command: Any = None if app is None else typer.main.get_command(app)
        inner = getattr(command, "commands", None)
        yield from [(name,)] if inner is None else [(name, sub) for sub in inner]


def _commands() -> str:
    from slurm_rl.cli import main

    parts = ["# Commands", "", "What `--help` prints. `--json` prints exactly one JSON value.", ""]
    for words in command_lines():
        said = io.StringIO()
        wide = mock.patch.dict(os.environ, COLUMNS="80")
        with wide, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*words, "--help"])
        parts += [f"## slurm-rl {' '.join(words)}", "", "```text", said.getvalue().strip(), "```", ""]
    return "\n".join(parts)


def _configuration() -> str:
    from slurm_rl.config import Config, as_toml

    parts = [
        "# Configuration",
        "",
        "Settings of `slurm-rl serve`, in `/etc/slurm-rl/slurm-rl.toml` or as `SLURM_RL_NAME` in the environment. "
        "`slurm-rl show-conf` tells what holds and where it comes from.",
        "",
    ]
    section = ""
    for option in sorted(
        fields(Config), key=lambda f: [g.metadata["section"] for g in fields(Config)].index(f.metadata["section"])
    ):
        rules = option.metadata
        if rules["section"] != section:
            section = rules["section"]
            parts += [f"## {section}", ""]
        bounds = ""
        if "choices" in rules:
            bounds = f" One of {', '.join(rules['choices'])}."
        elif "low" in rules:
            bounds = f" From {rules['low']:,} to {rules['high']:,}."
        parts += [f"### {option.name}", "", f"Default: `{as_toml(option.default)}`.{bounds} {rules['doc']}", ""]
    return "\n".join(parts)


def _catalogues() -> str:
    from slurm_rl.backfill.catalogue import RULES
    from slurm_rl.place.catalogue import PLACEMENTS
    from slurm_rl.policy.catalogue import POLICIES

    parts = ["# Policies, backfill rules, placements", ""]
    policies = [row for row in POLICIES if row.by_name]
    for title, rows in (("Policies", policies), ("Backfill rules", RULES), ("Placements", PLACEMENTS)):
        parts += [f"## {title}", "", "| name | what it does |", "|---|---|"]
        parts += [
            f"| `{row.name}{'@…' if getattr(row, 'uses_estimate', False) else ''}` | {row.help} |" for row in rows
        ]
        parts.append("")
    return "\n".join(parts)


def _metrics() -> str:
    from slurm_rl_sim.metrics import as_markdown

    return f"# Metrics\n\nIn `replay --json`, the report and `evaluate`.\n\n{as_markdown()}\n"


def _service_metrics() -> str:
    from slurm_rl.obs.metrics import Metrics

    rows = [
        f"| `{m.name}{'_total' if m.type == 'counter' else ''}` | {m.type} | {m.documentation} |"
        for m in sorted(Metrics().registry.collect(), key=lambda m: m.name)
    ]
    head = [
        "# Metrics of the service",
        "",
        "What `/metrics` tells Prometheus.",
        "",
        "| name | type | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def _python() -> str:
    import inspect

    import slurm_rl

    parts = [
        "# The public Python names",
        "",
        "From the code; [the Python API](../api.md) shows how they go together.",
        "",
    ]
    for name in sorted(slurm_rl.__all__):
        thing = getattr(slurm_rl, name)
        about = inspect.getdoc(thing) if callable(thing) or inspect.ismodule(thing) else ""
        parts += [f"## {name}", ""]
        with contextlib.suppress(TypeError, ValueError):
            call = thing if not inspect.ismodule(thing) else getattr(thing, name, thing.__call__)
            parts += ["```python", f"{name}{inspect.signature(call)}", "```", ""]
        parts += [about or "A table of names and meanings.", ""]
        if inspect.isclass(thing):
            for member, value in sorted(vars(thing).items()):
                text = inspect.getdoc(value) if callable(value) or isinstance(value, property) else None
                if not member.startswith("_") and text:
                    parts.append(f"- `.{member}`: {text.splitlines()[0]}")
            parts.append("")
    return "\n".join(parts)
