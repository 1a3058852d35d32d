"""Finds the Lua that slurmctld's job_submit/lua plugin was built with, and tries scripts with it."""

from __future__ import annotations

import glob
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing, InputError

VERSIONS = ("5.1", "5.2", "5.3", "5.4")
PLUGIN_DIRS = (
    "/usr/lib/*/slurm-wlm",
    "/usr/lib/*/slurm",
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/local/lib/slurm",
    "/opt/slurm/lib/slurm",
)

_PARSE = "local ok, why = loadfile(arg[1]) if not ok then io.stderr:write(why) os.exit(1) end"
# slurmctld as the shim sees it: a `slurm` table, a job without wishes, and no service.
_TRY = """
slurm = setmetatable({ SUCCESS = 0, ERROR = -1 }, { __index = function() return function() end end })
package.loaded["socket.unix"] = { stream = function() error("no service in a trial") end }
local problem
slurm.log_error = function(...) problem = string.format(...) end
assert(dofile(arg[1]) == 0, "did not load")
assert(not problem, problem)
assert(slurm_job_submit({ user_id = 0 }, {}, 0) == 0, "slurm_job_submit failed")
assert(slurm_job_modify({}, {}, {}, 0) == 0, "slurm_job_modify failed")
"""
_SOCKET = 'require("socket.core") require("socket.unix")'


@dataclass
class Lua:
    """An interpreter to try scripts with, and why it is the right one (or the nearest there is)."""

    name: str
    version: str
    notes: list[str] = field(default_factory=list)

    def check_syntax(self, script: Path) -> None:
        """Refuses a script this Lua cannot parse."""
        problem = self._run(_PARSE, str(script))
        if problem:
            raise InputError(f"Lua {self.version} does not read it: {problem}", file=str(script))

    def require_socket(self) -> None:
        """Refuses a machine on which this Lua has no luasocket."""
        problem = self._run(_SOCKET)
        if problem:
            raise EnvironmentMissing(
                f'Lua {self.version} cannot require "socket.unix" (luasocket): install lua-socket '
                f"(Debian, Ubuntu: apt install lua-socket; RHEL: dnf install lua-socket), then run this again"
            )

    def try_shim(self, script: Path) -> None:
        """Loads the installed-to-be shim and submits one job through it, with no service there."""
        self.require_socket()
        problem = self._run(_TRY, str(script))
        if problem:
            raise InputError(f"does not work with Lua {self.version}: {problem}", file=script.name)

    def _run(self, code: str, *args: str) -> str:
        done = subprocess.run(
            [self.name, "-", *args], input=code, capture_output=True, text=True, timeout=30, check=False
        )
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed silently"])[0]


def find_plugin(plugin_dirs: list[str]) -> Path | None:
    """job_submit_lua.so in slurm.conf's PluginDir, or where distributions put it."""
    beside_slurmctld = shutil.which("slurmctld")
    patterns = [directory for value in plugin_dirs for directory in value.split(":")] + list(PLUGIN_DIRS)
    if beside_slurmctld:
        patterns.append(str(Path(beside_slurmctld).resolve().parents[1] / "lib*" / "slurm"))
    for pattern in patterns:
        for found in sorted(glob.glob(f"{pattern}/job_submit_lua.so")):
            return Path(found)
    return None


def linked_version(plugin: Path) -> str | None:
    """The Lua version a plugin links to, from ldd: liblua5.1.so.0, liblua-5.4.so, liblua.so.5.3 alike."""
    done = subprocess.run(["ldd", str(plugin)], capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r"\bliblua-?(?:\.so\.)?(5\.\d)", done.stdout)
    return found[1] if found else None


def interpreter_version(name: str) -> str | None:
    """The Lua version an interpreter speaks, or None if it is not there."""
    if shutil.which(name) is None:
        return None
    done = subprocess.run([name, "-e", "io.write(_VERSION)"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.removeprefix("Lua ") if done.returncode == 0 else None


def find_lua(plugin_dirs: list[str]) -> Lua:
    """The interpreter of the plugin's Lua version; else the nearest, with a note that says so."""
    plugin = find_plugin(plugin_dirs)
    version = linked_version(plugin) if plugin else None
    for name in [f"lua{version}", f"lua-{version}", f"lua{(version or '').replace('.', '')}", "lua"]:
        if version and interpreter_version(name) == version:
            return Lua(name, version)
    if plugin is None:
        why = "slurmctld's job_submit_lua.so was not found on this machine (see PluginDir in slurm.conf)"
    elif version is None:
        why = f"ldd does not show which Lua {plugin} links to"
    else:
        why = f"{plugin} links to Lua {version}, but there is no interpreter lua{version} here"
    for name in (*(f"lua{v}" for v in VERSIONS), "lua"):
        nearest = interpreter_version(name)
        if nearest in VERSIONS:
            return Lua(name, nearest, [f"{why}: checked with Lua {nearest} instead"])
    wanted = f"lua{version or VERSIONS[0]}"
    raise EnvironmentMissing(f"{why}, and no Lua interpreter to check the script with: install {wanted} and lua-socket")
