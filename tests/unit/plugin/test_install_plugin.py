"""Installing the shim keeps the site's script, removing it gives the script back; a crash never leaves a broken one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.cli.app import main
from slurm_rl.errors import EnvironmentMissing, InputError
from slurm_rl.slurm import lua as lua_module
from slurm_rl.slurm import plugin
from slurm_rl.slurm.lua import Lua, find_lua, find_plugin, linked_version

LUA = next((name for name in ("lua5.1", "lua5.4", "lua5.3") if shutil.which(name)), "")
needs_lua = pytest.mark.skipif(not LUA, reason="no Lua interpreter is installed")
SITE = b"""-- the site's rules \xff
function slurm_job_submit(job) job.comment = "site" return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
OURS = ["job_submit.lua", "slurm_rl_client.lua", "slurm_rl_json.lua", "slurm_rl_settings.lua"]
# As slurmctld: loads the script, submits a job, and says what the site's rules did to it.
AS_SLURMCTLD = """
slurm = setmetatable({ SUCCESS = 0 }, { __index = function() return function() end end })
local result = dofile(arg[1])
assert(result == nil or result == 0)
local job = {}
assert(slurm_job_submit(job, {}, 0) == 0 and slurm_job_modify(job, {}, {}, 0) == 0)
io.write(tostring(job.comment))
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    return tmp_path


def lua() -> Lua:
    return Lua(LUA, LUA.removeprefix("lua"))


def install(etc: Path, **options: object) -> plugin.PluginOutcome:
    return plugin.install(etc, lua(), **options)  # type: ignore[arg-type]


def files(etc: Path) -> list[str]:
    return sorted(path.name for path in etc.iterdir() if path.name != "slurm.conf")


def submit(etc: Path) -> str:
    done = subprocess.run(
        [LUA, "-", str(etc / "job_submit.lua")], input=AS_SLURMCTLD, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_lua
def test_without_a_site_script_ours_is_alone(etc: Path) -> None:
    outcome = install(etc)
    assert files(etc) == OURS
    assert submit(etc) == "nil"
    assert outcome.slurm_conf == ["JobSubmitPlugins=lua"]
    plugin.uninstall(etc)
    assert files(etc) == []


@needs_lua
def test_the_sites_script_is_kept_and_comes_back_byte_for_byte(etc: Path) -> None:
    script = etc / "job_submit.lua"
    script.write_bytes(SITE)
    script.chmod(0o640)
    install(etc)
    assert files(etc) == ["job_submit.lua", "job_submit.site.lua", *OURS[1:]]
    assert (etc / "job_submit.site.lua").read_bytes() == SITE
    assert submit(etc) == "site"
    plugin.uninstall(etc)
    assert files(etc) == ["job_submit.lua"]
    assert script.read_bytes() == SITE
    assert script.stat().st_mode & 0o777 == 0o640


@needs_lua
def test_a_symlink_to_the_sites_script_comes_back_as_one(etc: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("git") / "rules.lua"
    target.write_bytes(SITE)
    (etc / "job_submit.lua").symlink_to(target)
    install(etc)
    assert submit(etc) == "site"
    plugin.uninstall(etc)
    assert (etc / "job_submit.lua").readlink() == target
    assert target.read_bytes() == SITE


@needs_lua
def test_a_second_installation_does_nothing(etc: Path) -> None:
    (etc / "job_submit.lua").write_bytes(SITE)
    install(etc, socket=Path("/run/x.sock"), deadline_ms=12)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in etc.iterdir()}
    assert install(etc).actions == []
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in etc.iterdir()} == before
    settings = (etc / "slurm_rl_settings.lua").read_text()
    assert 'socket = "/run/x.sock",' in settings
    assert "deadline_ms = 12," in settings


@needs_lua
def test_every_change_makes_a_newer_second_for_slurmctld(etc: Path) -> None:
    script = etc / "job_submit.lua"
    script.write_bytes(SITE)
    seconds = [int(script.stat().st_mtime)]
    for change in (
        lambda: install(etc),
        lambda: install(etc, deadline_ms=10),
        lambda: plugin.uninstall(etc),
    ):
        change()
        seconds.append(int(script.stat().st_mtime))
    assert seconds == sorted(set(seconds))


@needs_lua
def test_a_dry_run_writes_nothing(etc: Path) -> None:
    (etc / "job_submit.lua").write_bytes(SITE)
    assert len(install(etc, dry_run=True).actions) == 5
    assert files(etc) == ["job_submit.lua"]
    install(etc)
    before = files(etc)
    assert len(plugin.uninstall(etc, dry_run=True).actions) == 4
    assert files(etc) == before


@needs_lua
def test_slurmctld_keeps_a_script_as_long_as_slurm_conf_asks_for_one(etc: Path) -> None:
    (etc / "slurm.conf").write_text("jobsubmitplugins = all_partitions,lua # both\n")
    assert install(etc).slurm_conf == []
    outcome = plugin.uninstall(etc)
    assert files(etc) == ["job_submit.lua"]
    assert submit(etc) == "nil"
    assert "Take lua out" in outcome.notes[0]
    assert plugin.uninstall(etc).actions == []
    (etc / "slurm.conf").write_text("JobSubmitPlugins=all_partitions\n")
    plugin.uninstall(etc)
    assert files(etc) == []


@needs_lua
def test_two_different_site_scripts_are_not_guessed_between(etc: Path) -> None:
    (etc / "job_submit.lua").write_bytes(SITE)
    install(etc)
    (etc / "job_submit.lua").write_bytes(SITE + b"-- put back by configuration management\n")
    with pytest.raises(InputError, match="which one is the site's script"):
        install(etc)
    outcome = plugin.uninstall(etc)
    assert files(etc) == ["job_submit.lua", "job_submit.site.lua"]
    assert "both are left as they are" in outcome.notes[0]


@needs_lua
def test_a_site_script_this_lua_cannot_read_stops_the_installation(etc: Path) -> None:
    (etc / "job_submit.lua").write_text("function (")
    with pytest.raises(InputError, match="does not read it"):
        install(etc)
    assert files(etc) == ["job_submit.lua"]


@needs_lua
def test_settings_that_do_not_load_stop_the_installation(etc: Path) -> None:
    (etc / "slurm_rl_settings.lua").write_text("return { deadline_ms = 5 }\n")
    with pytest.raises(InputError, match="socket must be a path"):
        install(etc)
    with pytest.raises(InputError, match="expected one line"):
        install(etc, socket=Path("/run/x.sock"))
    assert files(etc) == ["slurm_rl_settings.lua"]


@needs_lua
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"socket": Path("relative.sock")}, "--socket: must be an absolute path"),
        ({"socket": Path("/" + "x" * 107)}, "at most 107 bytes"),
        ({"socket": Path("/run/a\nb")}, "absolute path"),
        ({"deadline_ms": 0}, "--deadline-ms: must be from 1 to 1000"),
    ],
)
def test_bad_options_are_named(etc: Path, option: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        install(etc, **option)
    assert files(etc) == []


def _killed_at(step: int, work: Callable[[], object], scratch: Path) -> bool:
    """Runs work in a child that kills itself before its Nth change of the file system; whether it came to that."""
    child = os.fork()
    if child == 0:
        tempfile.tempdir = str(scratch)  # whoever is killed cannot tidy up
        seen = 0

        def killing(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal seen
                seen += 1
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        for name in ("link", "replace", "fchmod", "fsync", "utime", "unlink"):
            setattr(os, name, killing(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@needs_lua
@pytest.mark.parametrize("site", [SITE, None])
def test_a_kill_at_any_step_leaves_a_valid_script_and_can_be_repeated(
    etc: Path, site: bytes | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    (etc / "slurm.conf").write_text("JobSubmitPlugins=lua\n" if site else "")
    steps = 0

    def fresh() -> None:
        for path in etc.iterdir():
            if path.name != "slurm.conf":
                path.unlink()
        if site is not None:
            (etc / "job_submit.lua").write_bytes(site)

    def works() -> None:
        if site is not None or (etc / "job_submit.lua").exists():
            assert submit(etc) == ("site" if site else "nil")

    for prepare, work in ((lambda: None, lambda: install(etc)), (lambda: install(etc), lambda: plugin.uninstall(etc))):
        step = 0
        while True:
            step += 1
            fresh()
            prepare()
            if not _killed_at(step, work, scratch):
                break
            works()
            work()
            works()
            assert (etc / "job_submit.lua").exists() or site is None
        steps += step - 1
        if site is not None and "uninstall" in work.__code__.co_names:
            assert (etc / "job_submit.lua").read_bytes() == site
    assert steps > 20


def test_the_directory_is_that_of_slurm_conf(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(etc / "slurm.conf"))
    assert plugin.find_directory(None) == etc
    with pytest.raises(InputError, match=r"no slurm\.conf here"):
        plugin.find_directory(etc / "elsewhere")


def test_values_are_read_through_includes_and_the_last_one_counts(etc: Path) -> None:
    (etc / "slurm.conf").write_text("PluginDir=/a\n#PluginDir=/no\nInclude more.conf\n")
    (etc / "more.conf").write_text("plugindir = /b:/c # here\n")
    assert plugin.slurm_conf_values(etc, "PluginDir") == ["/a", "/b:/c"]


@needs_lua
def test_advice_may_name_the_features_of_the_sites_nodes(etc: Path) -> None:
    (etc / "slurm.conf").write_text(
        "NodeName=a[1-2] CPUs=8 Features=a100,ib State=UNKNOWN\n"
        "nodename=b1 \\\n  Feature=t4,odd+name\n"
        "NodeSet=x Feature=notanode\n"
    )
    install(etc)
    assert 'features = { "a100", "ib", "t4" },' in (etc / "slurm_rl_settings.lua").read_text()
    assert install(etc).actions == []


@pytest.mark.parametrize(
    ("library", "version"),
    [
        ("liblua5.1.so.0 => /lib/x86_64-linux-gnu/liblua5.1.so.0", "5.1"),
        ("liblua-5.4.so => /lib64/liblua-5.4.so", "5.4"),
        ("liblua.so.5.3 => /usr/lib/liblua.so.5.3", "5.3"),
        ("libc.so.6 => /lib/libc.so.6", None),
    ],
)
def test_the_plugins_lua_is_read_from_ldd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, version: str | None
) -> None:
    ldd = tmp_path / "ldd"
    ldd.write_text(f"#!/bin/sh\necho '\t{library} (0x00007f)'\n")
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert linked_version(tmp_path / "job_submit_lua.so") == version


def test_the_plugin_is_looked_for_in_plugin_dir_first(tmp_path: Path) -> None:
    (tmp_path / "job_submit_lua.so").touch()
    assert find_plugin([f"/nowhere:{tmp_path}"]) == tmp_path / "job_submit_lua.so"


def test_another_lua_is_used_with_a_word_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lua_module, "find_plugin", lambda _: tmp_path / "job_submit_lua.so")
    monkeypatch.setattr(lua_module, "linked_version", lambda _: "5.3")
    monkeypatch.setattr(lua_module, "interpreter_version", lambda name: "5.4" if name == "lua5.4" else None)
    found = find_lua([])
    assert found.name == "lua5.4"
    assert found.notes == [
        f"{tmp_path}/job_submit_lua.so links to Lua 5.3, but there is no interpreter lua5.3 here: "
        "checked with Lua 5.4 instead"
    ]
    monkeypatch.setattr(lua_module, "interpreter_version", lambda _: None)
    with pytest.raises(EnvironmentMissing, match=r"install lua5\.3 and lua-socket"):
        find_lua([])


@needs_lua
def test_a_lua_without_luasocket_is_refused(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = LUA.removeprefix("lua").replace(".", "_")
    for name in ("LUA_CPATH", f"LUA_CPATH_{version}"):
        monkeypatch.setenv(name, "/nowhere/?.so")
    with pytest.raises(EnvironmentMissing, match="luasocket"):
        install(etc)
    assert files(etc) == []


@needs_lua
def test_the_command_prints_one_json_value(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["install-plugin", "--dir", str(etc), "--dry-run", "--json"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["dry_run"] is True
    assert printed["slurm_conf"] == ["JobSubmitPlugins=lua"]
    assert len(printed["actions"]) == 4


@needs_lua
def test_the_command_tells_an_admin_what_to_do(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["install-plugin", "--dir", str(etc)])
    assert "Put into slurm.conf, then restart slurmctld:\n  JobSubmitPlugins=lua\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["install-plugin", "--dir", str(etc / "no"), "--uninstall"])
    assert ended.value.code == 2
    assert "no slurm.conf here" in capsys.readouterr().err
