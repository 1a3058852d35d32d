"""Examines our own installation for the doctor: the configuration, the socket and the model it names."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_rl.slurm.doctor import examine_socket
from slurm_rl.slurm.findings import Finding, Severity
from slurm_rl.slurm.inspect import socket_file
from slurm_rl.slurm.sockets import DEFAULT_SOCKET

MODES = ("off", "shadow", "enforce")


def examine_installation(config: Path) -> list[Finding]:
    """Findings about the configuration file and what it names."""
    values: dict[str, Any] = {}
    try:
        values = tomllib.loads(config.read_text())
    except FileNotFoundError:
        found = Finding(
            "config", Severity.INFO, f"{config} is not there", "the defaults hold: shadow mode", "slurm-rl show-conf"
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        found = Finding(
            "config",
            Severity.ERROR,
            f"{config} cannot be read: {error}",
            "the service does not start with it",
            f"correct {config}",
        )
    else:
        found = _mode(config, values.get("mode", "shadow"))
    socket = values.get("socket", DEFAULT_SOCKET)
    return [found, examine_socket(socket_file(Path(str(socket)))), *_model(values.get("model"))]


def _mode(config: Path, mode: object) -> Finding:
    if mode not in MODES:
        return Finding(
            "config",
            Severity.ERROR,
            f"{config}: mode is {mode!r}",
            "the service does not start with it",
            'mode = "shadow"',
        )
    return Finding("config", Severity.OK, f"{config} is readable, mode {mode}")


def _model(named: object) -> Iterator[Finding]:
    if not isinstance(named, str) or "/" not in named:
        return  # none, or one of the shipped ones by its name
    directory = Path(named)
    weights, manifest = directory / "policy.safetensors", directory / "manifest.toml"
    try:
        recorded = tomllib.loads(manifest.read_text())
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        yield Finding(
            "model",
            Severity.ERROR,
            f"the model {directory} cannot be read: {error}",
            "the service refuses it and keeps the last good one",
            "slurm-rl models list; slurm-rl models rollback",
        )
        return
    if digest in _strings(recorded):
        yield Finding("model", Severity.OK, f"the model {directory} matches its manifest")
        return
    yield Finding(
        "model",
        Severity.ERROR,
        f"{weights} is not the file its manifest describes (sha256 {digest[:12]}…)",
        "a changed or damaged model is refused",
        "copy the model directory again; slurm-rl models list",
    )


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value
