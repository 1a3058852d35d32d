"""Installs the job_submit shim beside a site's own script and removes it; job_submit.lua is valid at every moment."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.errors import InputError
from slurm_rl.slurm.lua import Lua

ENTRY = "job_submit.lua"
SITE = "job_submit.site.lua"
SETTINGS = "slurm_rl_settings.lua"
MODULES = ("slurm_rl_json.lua", "slurm_rl_client.lua")
MARK = b"-- slurm-rl: job_submit"
NOTHING = (
    MARK.decode()
    + """ does nothing any more, and stays only because slurm.conf still asks for a job_submit.lua.
-- Without one slurmctld does not start: take lua out of JobSubmitPlugins first, then delete this file.
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
)
DEFAULT_DIR = Path("/etc/slurm")
LONGEST_SOCKET_PATH = 107  # sun_path of a unix socket, less its final NUL
MAX_INCLUDES = 8


@dataclass
class PluginOutcome:
    """What was done (or, in a dry run, would be), and what is left for the admin."""

    directory: Path
    lua: str
    actions: list[str] = field(default_factory=list)
    slurm_conf: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dry_run: bool = False


def find_directory(given: Path | None) -> Path:
    """The directory of slurm.conf, where slurmctld looks for job_submit.lua."""
    conf = os.environ.get("SLURM_CONF")
    directory = given or (Path(conf).parent if conf else DEFAULT_DIR)
    if not (directory / "slurm.conf").is_file():
        raise InputError(
            "no slurm.conf here", file=str(directory), remedy="give its directory with --dir, or set SLURM_CONF"
        )
    return directory.resolve()


def slurm_conf_values(directory: Path, name: str) -> list[str]:
    """Every value slurm.conf and its includes give to a name, in order; Slurm takes the last."""
    rows = _conf_rows(directory, directory / "slurm.conf", 0)
    return [pair[1] for row in rows if (pair := re.match(rf"{name}\s*=\s*(\S*)", row, re.IGNORECASE))]


def node_features(directory: Path) -> list[str]:
    """The features slurm.conf gives to nodes: the names advice may use without Slurm refusing the job."""
    found: set[str] = set()
    for row in _conf_rows(directory, directory / "slurm.conf", 0):
        features = re.match(r"NodeName\s*=.*\sFeatures?\s*=\s*(\S+)", row, re.IGNORECASE)
        if features:
            found |= set(features[1].strip('"').split(","))
    return sorted(name for name in found if re.fullmatch(r"[A-Za-z0-9_.-]+", name))


def _conf_rows(directory: Path, path: Path, depth: int) -> Iterator[str]:
    """slurm.conf's rows without comments, continued and included ones put in place."""
    for row in re.sub(r"\\\n", "", path.read_text(errors="replace")).splitlines():
        text = row.split("#", 1)[0].strip()
        include = re.match(r"include\s+(\S+)", text, re.IGNORECASE)
        if include and depth < MAX_INCLUDES:
            for found in sorted(glob.glob(str(directory / include[1]))):
                yield from _conf_rows(directory, Path(found), depth + 1)
        elif text:
            yield text


def source_dir() -> Path:
    """Where this installation keeps the shim's Lua files: in the wheel, or in the source tree."""
    package = Path(__file__).parents[1]
    packed = package / "_data" / "plugin"
    return packed if packed.is_dir() else package.parent / "plugin"


def install(
    directory: Path, lua: Lua, *, socket: Path | None = None, deadline_ms: int | None = None, dry_run: bool = False
) -> PluginOutcome:
    """Checks everything first, then writes the modules, keeps the site's script, and last of all renames ours in."""
    outcome = PluginOutcome(directory, lua.name, notes=list(lua.notes), dry_run=dry_run)
    entry, site = directory / ENTRY, directory / SITE
    _refuse_two_site_scripts(entry, site)
    wanted = {name: (source_dir() / name).read_bytes() for name in (*MODULES, ENTRY)}
    wanted[SETTINGS] = _settings(directory, socket, deadline_ms)
    _check(lua, wanted, site if site.exists() else entry)
    lua.require_socket()

    changed = False
    for name in (*MODULES, SETTINGS):
        if _content(directory / name) != wanted[name]:
            changed = True
            outcome.actions.append(f"write {directory / name}")
            if not dry_run:
                _write(directory / name, wanted[name])
    if os.path.lexists(entry) and not is_ours(entry) and not os.path.lexists(site):
        outcome.actions.append(f"keep the site's script as {site}")
        if not dry_run:
            _keep(entry, site)
    # A changed module is read only when slurmctld sees a newer job_submit.lua.
    if changed or _content(entry) != wanted[ENTRY]:
        outcome.actions.append(f"write {entry}")
        if not dry_run:
            _write(entry, wanted[ENTRY], newer_than=_mtime(entry))
    outcome.slurm_conf = _advice(directory)
    return outcome


def uninstall(directory: Path, lua_name: str = "", *, dry_run: bool = False) -> PluginOutcome:
    """Gives the site its own script back, byte for byte, in one rename; then removes what is ours."""
    outcome = PluginOutcome(directory, lua_name, dry_run=dry_run)
    entry, site = directory / ENTRY, directory / SITE
    if is_ours(entry):
        if os.path.lexists(site):
            outcome.actions.append(f"restore the site's script as {entry}")
            if not dry_run:
                _restore(site, entry)
        elif _asks_for_lua(directory):
            _leave_nothing_script(entry, outcome)
        else:
            outcome.actions.append(f"remove {entry}")
            if not dry_run:
                entry.unlink()
    elif os.path.lexists(site):
        if _content(site) == _content(entry):  # an installation that was cut short
            outcome.actions.append(f"remove {site}, a second name of {entry}")
            if not dry_run:
                site.unlink()
        else:
            outcome.notes.append(f"{site} differs from {entry}, which is not ours: both are left as they are")
    for name in (*MODULES, SETTINGS):
        if os.path.lexists(directory / name):
            outcome.actions.append(f"remove {directory / name}")
            if not dry_run:
                (directory / name).unlink()
    return outcome


def is_ours(path: Path) -> bool:
    """Whether a file is the shim (or what its removal left behind), by its first line."""
    content = _content(path)
    return content is not None and content.startswith(MARK)


def _refuse_two_site_scripts(entry: Path, site: Path) -> None:
    if not os.path.lexists(site) or is_ours(entry) or _content(entry) in (None, _content(site)):
        return
    raise InputError(
        f"is not ours, and differs from {SITE}: which one is the site's script?",
        file=str(entry),
        remedy=f"keep the right one as {ENTRY}, remove {SITE}, and run this again",
    )


def _settings(directory: Path, socket: Path | None, deadline_ms: int | None) -> bytes:
    """The site's settings file, or the shipped one, with the given values and the nodes' features put in."""
    features = ", ".join(f'"{name}"' for name in node_features(directory))
    text = (_content(directory / SETTINGS) or (source_dir() / SETTINGS).read_bytes()).decode()
    if socket is not None:
        path = str(socket)
        if not socket.is_absolute() or len(os.fsencode(path)) > LONGEST_SOCKET_PATH or not path.isprintable():
            raise InputError(
                f"must be an absolute path of at most {LONGEST_SOCKET_PATH} bytes, got {path!r}", field="--socket"
            )
        quoted = path.replace("\\", "\\\\").replace('"', '\\"')
        text = _replaced(directory, text, "socket", f'"{quoted}"')
    if deadline_ms is not None:
        if not 1 <= deadline_ms <= 1000:
            raise InputError(f"must be from 1 to 1000, got {deadline_ms}", field="--deadline-ms")
        text = _replaced(directory, text, "deadline_ms", str(deadline_ms))
    if features:
        text = _replaced(directory, text, "features", f"{{ {features} }}")
    return text.encode()


def _replaced(directory: Path, text: str, name: str, literal: str) -> str:
    replaced, count = re.subn(rf"(?m)^(\s*{name}\s*=\s*).*?(,?)$", lambda row: row[1] + literal + row[2], text)
    if count != 1:
        raise InputError(
            f"expected one line `{name} = …,`", file=str(directory / SETTINGS), remedy="put it back, or remove the file"
        )
    return replaced


def _check(lua: Lua, wanted: dict[str, bytes], site_script: Path) -> None:
    """Loads the shim in a scratch directory, and parses the site's script, with slurmctld's Lua."""
    with tempfile.TemporaryDirectory(prefix="slurm-rl-") as scratch:
        for name, content in wanted.items():
            (Path(scratch) / name).write_bytes(content)
        lua.try_shim(Path(scratch) / ENTRY)
    if site_script.exists() and not is_ours(site_script):
        lua.check_syntax(site_script)


def _asks_for_lua(directory: Path) -> bool:
    values = slurm_conf_values(directory, "JobSubmitPlugins")
    return bool(values) and "lua" in re.split(r"[,\s]+", values[-1].replace("job_submit/", ""))


def _advice(directory: Path) -> list[str]:
    if _asks_for_lua(directory):
        return []
    values = slurm_conf_values(directory, "JobSubmitPlugins")
    return ["JobSubmitPlugins=" + ",".join([*(v for v in values[-1:] if v), "lua"])]


def _leave_nothing_script(entry: Path, outcome: PluginOutcome) -> None:
    outcome.notes.append(
        f"slurm.conf still lists lua in JobSubmitPlugins, and slurmctld does not start without {entry}: "
        "it stays as a script that does nothing. Take lua out, then run this again"
    )
    if _content(entry) != NOTHING.encode():
        outcome.actions.append(f"replace {entry} by a script that does nothing")
        if not outcome.dry_run:
            _write(entry, NOTHING.encode(), newer_than=_mtime(entry))


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _mtime(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _newer(mtime: float) -> float:
    """A time slurmctld takes for newer: it compares whole seconds."""
    return max(time.time(), int(mtime) + 1.0)


def _write(path: Path, content: bytes, newer_than: float = 0.0) -> None:
    """Writes a file under another name and renames it; a crash leaves the old or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
            file.flush()
            os.fsync(file.fileno())
        when = _newer(newer_than)
        os.utime(name, (when, when))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _keep(entry: Path, site: Path) -> None:
    """Gives the site's script a second name; the first stays until ours replaces it."""
    try:
        os.link(entry, site, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        _write(site, entry.read_bytes())  # a file system without hard links
    _sync_directory(site.parent)


def _restore(site: Path, entry: Path) -> None:
    when = _newer(_mtime(entry))  # or slurmctld would go on with the shim it has in memory
    os.utime(site, (when, when))
    os.replace(site, entry)
    _sync_directory(entry.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
