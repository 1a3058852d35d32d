"""The live side's configuration: one definition that validates, documents and writes itself."""

from __future__ import annotations

import ipaddress
import os
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slurm_rl.domain.keys import parse_keys
from slurm_rl.domain.optout import LeaveAlone
from slurm_rl.domain.pairs import parse_texts
from slurm_rl.domain.promise import DEFAULT as DEFAULT_PROMISE
from slurm_rl.domain.promise import parse_promise
from slurm_rl.errors import InputError
from slurm_rl.place.catalogue import PLACEMENTS

DEFAULT_FILE = Path("/etc/slurm-rl/slurm-rl.toml")
ENVIRONMENT_PREFIX = "SLURM_RL_"
FILE_VARIABLE = "SLURM_RL_CONFIG"  # names another file than DEFAULT_FILE
MODES = ("off", "shadow", "enforce")

Value = str | int | float | bool | tuple[int, ...] | tuple[str, ...]


def _option(default: Any, section: str, doc: str, **bounds: Any) -> Any:
    return field(default=default, metadata={"section": section, "doc": doc, **bounds})


_SLURM, _POLICY = "Slurm", "What is decided, and how far it may go"
_ALONE = "What is left alone"
_TICK, _HTTP, _RECORDS = "The tick, and how much it may write", "The service", "Records"
_TELEMETRY = "What jobs used, from the node agents"


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting, with its default; a field's metadata carries what the file and the checks need."""

    mode: str = _option(
        "shadow",
        _POLICY,
        "off: nothing is decided. shadow: decisions are recorded, nothing is written to Slurm. enforce: the pending "
        "queue is reordered.",
        choices=MODES,
    )
    policy: str = _option(
        "auto",
        _POLICY,
        "The policy that orders the queue. auto: the choice of `slurm-rl auto` for each partition, and "
        "Slurm's own order before the first choice. rl:default: the shipped model. rl:current: the model "
        "promoted by `slurm-rl models promote`. rl:NAME: any other model. Or a heuristic such as sjf@user, "
        "sjf-age@user, wfp3.",
    )
    promise: str = _option(
        "",
        _POLICY,
        "Bound on the loss of any partition (or account): influence is lowered before it is broken, and policy auto "
        f"chooses nothing that breaks it; e.g. {DEFAULT_PROMISE}. Figures: mean, p95, p99, longest. Empty: no promise.",
    )
    auto_days: float = _option(
        7.0, _POLICY, "With policy auto: days from one choice to the next; 0: only on demand.", low=0.0, high=366.0
    )
    influence: float = _option(
        0.5,
        _POLICY,
        "How far a SiteFactor may move a job, as a share of the summed PriorityWeight*. Fairshare, age and QOS keep "
        "the rest.",
        low=0.0,
        high=1.0,
    )
    starve_age: int = _option(
        172_800, _POLICY, "A job that has waited this many seconds goes first …", low=60, high=31_536_000
    )
    starve_factor: float = _option(
        10.0, _POLICY, "… if it has also waited this many times its estimated run time.", low=0.0, high=1e6
    )
    starvation: str = _option(
        "cap",
        _POLICY,
        "cap: as above, and a model's own cap. lane: instead of both, the oldest job that has waited two "
        "backlogs goes first, while such jobs have had less than lane_share of the work started. none: no job"
        " goes first.",
        choices=("cap", "lane", "none"),
    )
    lane_share: float = _option(0.2, _POLICY, "The lane's largest share of the work started.", low=0.01, high=1.0)
    placement: str = _option(
        "best-fit",
        _POLICY,
        "How the plan chooses nodes for jobs that can start; mip and greedy use the speeds of GPU types.",
        choices=PLACEMENTS.names,
    )
    placement_lever: str = _option(
        "off",
        _POLICY,
        "How a planned GPU type reaches Slurm. features: as a hard constraint of jobs that are planned to "
        "start now, name no type and have no constraint of their own. prefer: as a preference beside the "
        "user's constraint, where this release of Slurm keeps the two apart. off: not at all.",
        choices=("off", "prefer", "features"),
    )
    placement_ticks: int = _option(
        6, _POLICY, "A job that has not started after this many ticks gets its own constraint back.", low=1, high=1000
    )
    placement_defer: int = _option(
        0,
        _POLICY,
        "A job that fits may be deferred when a faster GPU type is due soon, by a StartTime that ends by "
        "itself: at most until this many seconds after its submission (placement mip); 0: never.",
        low=0,
        high=604_800,
    )
    placement_weights: str = _option(
        "",
        _POLICY,
        "Weights of placement mip in seconds, as NAME=SECONDS,…: blocked (each free GPU that the jobs in "
        "sight could not use), node (each node of a job beyond its first), energy (each kWh above idle); "
        "docs/placement.md.",
    )
    estimate_keys: str = _option(
        "",
        _POLICY,
        "What else groups jobs of one kind when run times are estimated, at most three of: name (without its numbers), "
        "workdir, container, submitline (accounting alone tells it), array; models fit says what each is worth.",
    )
    gpu_features: str = _option(
        "",
        _POLICY,
        "Node features of GPU types, as TYPE=FEATURE,…; a type that is not listed is its own feature.",
    )
    gpu_speeds: str = _option(
        "",
        _POLICY,
        "Relative speeds of GPU types, as TYPE=SPEED,…; learned: from jobs of the same user and name that ran"
        " on several types. Unknown types have the vendors' published speeds.",
    )
    leave_alone_partitions: tuple[str, ...] = _option(
        (), _ALONE, "Jobs of these partitions get no SiteFactor from us, at submission or later …", names=True
    )
    leave_alone_qos: tuple[str, ...] = _option((), _ALONE, "… nor jobs of these QOS …", names=True)
    leave_alone_accounts: tuple[str, ...] = _option((), _ALONE, "… nor jobs of these accounts …", names=True)
    leave_alone_users: tuple[str, ...] = _option((), _ALONE, "… nor jobs of these users.", names=True)
    users_may_opt_out: bool = _option(False, _ALONE, "Whether a user may exempt a job with --comment=slurm-rl:off.")
    slurm_conf: str = _option("", _SLURM, "The cluster's slurm.conf; empty: SLURM_CONF, or Slurm's own default.")
    client: str = _option(
        "auto",
        _SLURM,
        "How to write to Slurm: cli, through its own commands, or pyslurm (docs/service.md); auto means cli.",
        choices=("auto", "cli", "pyslurm"),
    )
    slurm_timeout: float = _option(10.0, _SLURM, "Seconds to wait for an answer of slurmctld.", low=0.5, high=300.0)
    write_unknown_release: bool = _option(
        False,
        _SLURM,
        "Whether to write to an unknown release of Slurm, as --force does.",
    )
    history_days: float = _option(
        14.0, _SLURM, "Days of accounting history for run-time estimates at start.", low=0.0, high=366.0
    )
    interval: float = _option(10.0, _TICK, "Seconds from one tick to the next.", low=0.2, high=3600.0)
    top_jobs: int = _option(
        1000,
        _TICK,
        "Jobs at the head of each queue that are ordered; the rest stays below them.",
        low=1,
        high=100_000,
    )
    updates_per_tick: int = _option(200, _TICK, "Maximum job updates per tick.", low=1, high=100_000)
    updates_per_second: float = _option(
        20.0,
        _TICK,
        "Maximum job updates per second. Both budgets halve while slurmctld is busy.",
        low=0.1,
        high=1e5,
    )
    mb_per_tick: float = _option(
        250.0,
        _TICK,
        "Megabytes of text that a tick may read from Slurm; after a longer answer the next tick comes later.",
        low=1.0,
        high=1e5,
    )
    busy_threads: int = _option(
        128, _TICK, "slurmctld is busy from this many server threads (sdiag) …", low=1, high=100_000
    )
    busy_agent_queue: int = _option(500, _TICK, "… or from this agent queue size …", low=1, high=1_000_000)
    busy_cycle_ms: int = _option(2000, _TICK, "… or from a main scheduling cycle this long.", low=1, high=1_000_000)
    lease_seconds: float = _option(
        60.0,
        _TICK,
        "Seconds of silence after which a controller loses the lead to another one.",
        low=2.0,
        high=3600.0,
    )
    advise_limits: bool = _option(
        False,
        _HTTP,
        "Whether sbatch prints a line if a user's own finished jobs took far less time than the requested "
        "limit (needs the job_submit plugin).",
    )
    socket: str = _option(
        "/run/slurm-rl/slurm-rl.sock", _HTTP, "The unix socket for the job_submit plugin and the commands."
    )
    write_uids: tuple[int, ...] = _option(
        (),
        _HTTP,
        "Further admins: they may change settings and see every job, as root, SlurmUser and the service's own"
        " user may.",
    )
    tcp: str = _option(
        "",
        _HTTP,
        "Also listen on HOST:PORT, for clients with a token or a munge credential; empty: unix sockets only.",
    )
    tls_cert: str = _option(
        "", _HTTP, "The certificate (PEM, with its chain) for tcp; without one, tcp is for loopback addresses only."
    )
    tls_key: str = _option("", _HTTP, "Its private key; empty: it is in the same file.")
    tcp_plain: bool = _option(
        False, _HTTP, "Whether tcp may work without TLS beyond loopback: tokens then cross the network in clear text."
    )
    token_file: str = _option(
        "", _HTTP, "The file that holds the admin token for tcp: one line of at least 32 characters, chmod 600."
    )
    operator_token_file: str = _option("", _HTTP, "… the operator token, for mode and reload …")
    read_token_file: str = _option("", _HTTP, "… and the read-only token, for Prometheus and dashboards.")
    munge: bool = _option(
        False,
        _HTTP,
        "Whether users may ask for their own jobs over tcp by a munge credential, as `slurm-rl explain` does on login "
        "nodes.",
    )
    munge_socket: str = _option("", _HTTP, "munged's socket; empty: munge's own default.")
    url: str = _option(
        "",
        _HTTP,
        "On login nodes: the service's address for `slurm-rl explain`, as https://HOST:PORT; empty: the unix socket.",
    )
    tls_ca: str = _option(
        "", _HTTP, "On login nodes: the certificates that url is checked against; empty: the system's."
    )
    max_connections: int = _option(128, _HTTP, "Maximum connections at a time; more are refused.", low=4, high=10_000)
    request_timeout_ms: int = _option(
        200, _HTTP, "Longest time of a request; a longer one is aborted.", low=10, high=10_000
    )
    state_dir: str = _option("/var/lib/slurm-rl", _RECORDS, "Where the journal is kept.")
    journal_days: float = _option(
        30.0, _RECORDS, "Records of ended jobs older than this are dropped.", low=1.0, high=3660.0
    )
    journal_mb: int = _option(
        200,
        _RECORDS,
        "Maximum MB of records in the journal: the oldest go first. Records that undo needs are always kept.",
        low=1,
        high=1_000_000,
    )
    telemetry_agents: str = _option(
        "",
        _TELEMETRY,
        "Node agents to pull job records from, as HOST:PORT or https://HOST:PORT with host lists: gpu[01-40]:9410.",
    )
    telemetry_token_file: str = _option("", _TELEMETRY, "The file that holds the agents' bearer token.")
    telemetry_ca_file: str = _option("", _TELEMETRY, "Certificates (PEM) that agents on https are checked against.")
    telemetry_dir: str = _option("", _TELEMETRY, "A shared directory that agents write job records to (--share-dir).")
    telemetry_interval: float = _option(
        60.0, _TELEMETRY, "Seconds between two rounds of collection.", low=1.0, high=86_400.0
    )
    telemetry_days: float = _option(
        365.0, _TELEMETRY, "Job records older than this are dropped.", low=1.0, high=36_600.0
    )
    log_level: str = _option(
        "info", _RECORDS, "Level of the log, which is JSON on stderr.", choices=("debug", "info", "warning", "error")
    )

    @property
    def journal(self) -> Path:
        return Path(self.state_dir) / "journal.sqlite"

    @property
    def leave_alone(self) -> LeaveAlone:
        return LeaveAlone(
            frozenset(self.leave_alone_partitions),
            frozenset(self.leave_alone_qos),
            frozenset(self.leave_alone_accounts),
            frozenset(self.leave_alone_users),
            self.users_may_opt_out,
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where each of its values comes from: `default`, `file` or `environment`."""

    config: Config
    origins: Mapping[str, str]
    file: Path | None


def load(file: Path | None = None, environment: Mapping[str, str] | None = None) -> Loaded:
    """Reads the file, then SLURM_RL_* from the environment.

    No file given: that of SLURM_RL_CONFIG, else /etc/slurm-rl/slurm-rl.toml, if it is there.
    """
    environment = os.environ if environment is None else environment
    if file is None and environment.get(FILE_VARIABLE):
        file = Path(environment[FILE_VARIABLE])
    path = file or DEFAULT_FILE
    values: dict[str, Any] = {}
    if file is not None or path.exists():
        values = _read(path)
    origins = dict.fromkeys(_FIELDS, "default") | dict.fromkeys(values, "file")
    checked: dict[str, Any] = {name: _checked(name, value, str(path)) for name, value in values.items()}
    for name in _FIELDS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            checked[name] = _checked(name, _from_text(name, environment[variable]), variable)
            origins[name] = "environment"
    config = Config(**checked)
    _check_together(config, str(path))
    return Loaded(config, origins, path if values or file is not None else None)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", file=str(path), remedy="slurm-rl show-conf --template writes one") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"not readable as TOML: {error}", file=str(path)) from None
    unknown = [name for name in values if name not in _FIELDS]
    if unknown:
        from slurm_rl.errors import unknown_name

        wrong = unknown_name("setting", unknown[0], _FIELDS)
        raise InputError(wrong.message, file=str(path), remedy=wrong.remedy)
    return values


def _from_text(name: str, text: str) -> Any:
    default = _FIELDS[name].default
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    parts = [p.strip() for p in text.split(",") if p.strip()] if isinstance(default, tuple) else [text.strip()]
    if _FIELDS[name].metadata.get("names"):
        return parts
    kind = float if isinstance(default, float) else int
    try:
        numbers = [kind(p) for p in parts]
    except ValueError:
        return text  # the check says what is wrong with it
    return numbers if isinstance(default, tuple) else numbers[0]


def _checked(name: str, value: Any, where: str) -> Value:
    definition = _FIELDS[name]
    default, rules = definition.default, definition.metadata

    def refuse(expected: str) -> InputError:
        return InputError(f"must be {expected}, got {value!r}", file=where, field=name)

    if rules.get("names"):
        if not isinstance(value, list | tuple) or not all(type(v) is str and v and v.isprintable() for v in value):
            raise refuse("a list of names")
        return tuple(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise refuse("true or false")
        return value
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(type(v) is int and 0 <= v < 2**32 for v in value):
            raise refuse("a list of user ids")
        return tuple(value)
    if isinstance(default, str):
        if not isinstance(value, str) or not value.isprintable():
            raise refuse("a text")
        if "choices" in rules and value not in rules["choices"]:
            raise refuse("one of " + ", ".join(rules["choices"]))
        return value
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise refuse("a whole number" if whole else "a number")
    if not rules["low"] <= value <= rules["high"]:
        raise refuse(f"from {rules['low']:g} to {rules['high']:g}")
    return value if whole else float(value)


def _check_together(config: Config, where: str) -> None:
    for name, parse in (("promise", parse_promise), ("estimate_keys", parse_keys), ("gpu_features", _features)):
        try:
            parse(getattr(config, name))
        except InputError as error:
            raise InputError(error.message, file=where, field=name, remedy=error.remedy) from None
    for name in ("socket", "state_dir"):
        if not Path(getattr(config, name)).is_absolute():
            raise InputError(f"must be an absolute path, got {getattr(config, name)!r}", file=where, field=name)
    if config.tcp:
        host, _, port = config.tcp.rpartition(":")
        if not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:
            raise InputError(f"must be HOST:PORT, got {config.tcp!r}", file=where, field="tcp")
        if not (any(getattr(config, name) for name in _TOKEN_FILES.values()) or config.munge):
            raise InputError(
                "needs token_file, operator_token_file, read_token_file or munge: TCP is never open to everybody",
                file=where,
                field="tcp",
            )
        if not (config.tls_cert or config.tcp_plain or _is_loopback(host.strip("[]"))):
            raise InputError(
                f"{host} is no loopback address: without TLS, tokens would cross the network in the clear",
                file=where,
                field="tcp",
                remedy="set tls_cert and tls_key, or tcp_plain = true",
            )
    if config.url and not re.fullmatch(r"https?://[^/\s]+:\d{1,5}", config.url):
        raise InputError(f"must be https://HOST:PORT, got {config.url!r}", file=where, field="url")
    if config.telemetry_agents and not config.telemetry_token_file:
        raise InputError("needs telemetry_token_file", file=where, field="telemetry_agents")
    if config.placement_defer and config.placement != "mip":
        raise InputError('needs placement = "mip"', file=where, field="placement_defer")
    if config.lease_seconds < 3 * config.interval:
        raise InputError(
            f"must be at least three intervals ({3 * config.interval:g} s), got {config.lease_seconds:g}",
            file=where,
            field="lease_seconds",
        )


def _features(text: str) -> None:
    parse_texts(text, "gpu_features", "TYPE=FEATURE,…")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_TOKEN_FILES = {"admin": "token_file", "operator": "operator_token_file", "reader": "read_token_file"}


def read_tokens(config: Config) -> dict[str, str]:
    """The bearer tokens by role: admin, operator, reader; none without tcp."""
    if not config.tcp:
        return {}
    found: dict[str, str] = {}
    for role, name in _TOKEN_FILES.items():
        path = getattr(config, name)
        if path:
            token = read_token(Path(path), name)
            if token in found.values():
                raise InputError("holds the token of another role", file=path, field=name)
            found[role] = token
    return found


def read_token(path: Path, field_name: str = "token_file") -> str:
    """A bearer token; a file that others can read holds no secret."""
    try:
        mode, token = path.stat().st_mode, path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path), field=field_name) from None
    if mode & 0o077:
        raise InputError("others may read it", file=str(path), field=field_name, remedy=f"chmod 600 {path}")
    if len(token) < 32:
        raise InputError("the token has fewer than 32 characters", file=str(path), remedy="openssl rand -hex 32")
    return token


def template() -> str:
    """The commented configuration file, every setting at its default."""
    lines = [
        "# The configuration of slurm-rl serve. Every line is optional: what stands here commented out is the default.",
        "# Each setting can also be given in the environment, as SLURM_RL_NAME. `slurm-rl show-conf` tells what holds.",
        "# SLURM_RL_CONFIG names another file.",
    ]
    section = ""
    for name, definition in sorted(_FIELDS.items(), key=lambda item: _SECTIONS.index(item[1].metadata["section"])):
        if definition.metadata["section"] != section:
            section = definition.metadata["section"]
            lines += ["", f"## {section}"]
        lines.append("")
        lines += [f"# {row}" for row in textwrap.wrap(definition.metadata["doc"], 116)]
        rules = definition.metadata
        if "choices" in rules:
            lines.append("# One of: " + ", ".join(rules["choices"]))
        elif "low" in rules:
            lines.append(f"# From {rules['low']:g} to {rules['high']:g}")
        lines.append(f"#{name} = {as_toml(definition.default)}")
    return "\n".join(lines) + "\n"


def as_toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(as_toml, value)) + "]" if isinstance(value, tuple) else str(value)


_FIELDS: dict[str, Any] = {f.name: f for f in fields(Config)}
_SECTIONS = [_POLICY, _ALONE, _SLURM, _TICK, _HTTP, _TELEMETRY, _RECORDS]
