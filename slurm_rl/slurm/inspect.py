"""Collects the facts about a site that the doctor judges: from Slurm, and from this machine's files."""

from __future__ import annotations

import getpass
import os
import stat
from pathlib import Path

from slurm_rl.errors import SlurmRlError
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.findings import LuaPlugin, SiteFacts, SocketFile
from slurm_rl.slurm.lua import linked_version
from slurm_rl.slurm.scontrol import setting
from slurm_rl.slurm.sockets import reserved_path

_LUA_DIRECTORIES = ("/usr/lib/*/lua", "/usr/lib/lua", "/usr/lib64/lua", "/usr/local/lib/lua", "/usr/local/lib64/lua")


def site(client: CliClient) -> SiteFacts:
    """Asks Slurm; raises SlurmError if it does not answer."""
    state = client.snapshot()
    user = client.commands.user or getpass.getuser()
    return SiteFacts(
        release=state.release,
        config=state.config,
        weights=state.weights,
        nodes=state.nodes,
        partitions=state.partitions,
        health=client.health(),
        user=user,
        admin_level=_admin_level(client, user),
        lua=lua_plugin(Path(setting(state.config, "PluginDir").partition(":")[0])),
    )


def _admin_level(client: CliClient, user: str) -> str:
    try:
        said = client.commands.run("sacctmgr", "-n", "-P", "show", "user", user, "format=AdminLevel")
    except SlurmRlError:
        return ""  # no accounting: then only root and SlurmUser have rights
    return said.strip().partition("\n")[0]


def lua_plugin(plugin_dir: Path, directories: tuple[str, ...] = _LUA_DIRECTORIES) -> LuaPlugin:
    """Which Lua the plugin links, and whether luasocket is installed for it."""
    if not plugin_dir.is_dir() or not os.access(plugin_dir, os.R_OK):
        return LuaPlugin(plugin_dir_readable=False, plugin_found=False)
    plugin = plugin_dir / "job_submit_lua.so"
    if not plugin.is_file():
        return LuaPlugin(plugin_found=False)
    version = linked_version(plugin)
    if version is None:
        return LuaPlugin()
    roots = [Path("/").glob(d.lstrip("/")) for d in directories]
    found = any((root / version / "socket" / "unix.so").is_file() for paths in roots for root in paths)
    return LuaPlugin(version=version, has_socket=found)


def socket_file(path: Path) -> SocketFile:
    """The permissions of the service's socket and of its directory."""
    try:
        mode = path.stat().st_mode
        directory = path.parent.stat().st_mode
    except OSError:
        return SocketFile(str(path))
    try:
        reserved = stat.S_IMODE(reserved_path(path).stat().st_mode)
    except OSError:
        reserved = None
    return SocketFile(str(path), True, stat.S_ISSOCK(mode), stat.S_IMODE(mode), stat.S_IMODE(directory), reserved)
