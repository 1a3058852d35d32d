"""The site's own job_submit.lua runs first and behaves as it does without the shim."""

from __future__ import annotations

from pathlib import Path

from .shim import answers, http, install, run, serving

OURS = b'{"site_factor": 5, "prefer": "ours"}'
SUBMIT = """
local result = load_shim()
local job, stored = a_job({ name = arg[1] })
local ok, code = pcall(slurm_job_submit, job, { "parts" }, 42)
print(ok, code, job.site_factor, stored.prefer, stored.comment)
"""
SITE = """
local calls = 0
function slurm_job_submit(job, parts, uid)
  calls = calls + 1
  if job.name == "bad" then return slurm.ERROR end
  if job.name == "text" then return "2000" end
  if job.name == "none" then return end
  if job.name == "broken" then job.comment = "half"; error("site's own error") end
  if job.name == "chosen" then job.site_factor = 9; job.prefer = "site" end
  job.comment = parts[1] .. uid .. calls
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, parts, uid) return uid end
return slurm.SUCCESS
"""


def submitted(lua: str, where: Path, name: str, site: str | None = SITE) -> list[str]:
    directory = install(where / "etc", service=where / "s", site=site)
    with serving(where / "s", answers(http(OURS))):
        row = run(lua, directory, SUBMIT, name)[0]
    return [field.removesuffix(".0") for field in row.split("\t")]


def test_the_sites_changes_and_ours_are_both_made(lua: str, short_dir: Path) -> None:
    assert submitted(lua, short_dir, "good") == ["true", "0", "5", "ours", "parts421"]


def test_what_the_site_chose_is_not_overwritten(lua: str, short_dir: Path) -> None:
    assert submitted(lua, short_dir, "chosen") == ["true", "0", "9", "site", "parts421"]


def test_a_job_the_site_refuses_is_refused_with_its_code(lua: str, short_dir: Path) -> None:
    assert submitted(lua, short_dir, "bad") == ["true", "-1", "4294967294", "nil", "nil"]
    assert submitted(lua, short_dir, "text") == ["true", "2000", "4294967294", "nil", "nil"]


def test_a_site_that_returns_nothing_still_returns_nothing(lua: str, short_dir: Path) -> None:
    assert submitted(lua, short_dir, "none") == ["true", "nil", "5", "ours", "nil"]


def test_the_sites_error_reaches_slurm_as_it_was(lua: str, short_dir: Path) -> None:
    ok, message, *fields = submitted(lua, short_dir, "broken")
    assert ok == "false"
    assert message.endswith("job_submit.site.lua:8: site's own error")
    assert fields == ["4294967294", "nil", "half"]


def test_modify_is_the_sites_own_function(lua: str, short_dir: Path) -> None:
    with_site = install(short_dir / "a", service=short_dir / "s", site=SITE)
    assert run(lua, with_site, "load_shim() print(slurm_job_modify({}, {}, {}, 42))") == ["42"]
    without = install(short_dir / "b", service=short_dir / "s")
    # Neither argument may be touched: an index of nil would raise.
    assert run(lua, without, "load_shim() print(slurm_job_modify(nil, nil, nil, 42))") == ["0"]


def load_result(lua: str, where: Path, site: str) -> str:
    directory = install(where, service=where / "s", site=site)
    return run(lua, directory, "local ok, result = pcall(load_shim) print(ok, result)")[0]


def test_a_site_script_slurm_would_not_load_is_not_loaded(lua: str, short_dir: Path) -> None:
    assert load_result(lua, short_dir, SITE) == "true\t0"
    assert load_result(lua, short_dir, SITE.removesuffix("return slurm.SUCCESS\n") + "return 7") == "true\t7"
    assert load_result(lua, short_dir, "function (").startswith("false\t")
    assert load_result(lua, short_dir, "error('no')").startswith("false\t")
    no_modify = "function slurm_job_submit() end"
    assert load_result(lua, short_dir, no_modify).endswith("job_submit.site.lua: no function slurm_job_modify")


def test_the_sites_globals_are_the_real_ones(lua: str, short_dir: Path) -> None:
    # Helpers read by dofile share the script's globals, and may even define the entry points.
    short_dir.joinpath("helper.lua").write_text("""
        function greet() return prefix .. "!" end
        function slurm_job_modify() return 3 end
    """)
    site = f"""
    prefix = "hi"
    dofile({str(short_dir / "helper.lua")!r})
    function slurm_job_submit(job) job.comment = greet() .. _G.prefix .. tostring(prefix) return 0 end
    """
    assert submitted(lua, short_dir, "x", site) == ["true", "0", "5", "ours", "hi!hihi"]
    assert run(lua, short_dir / "etc", "load_shim() print(slurm_job_modify())") == ["3"]


def test_a_site_may_call_its_own_submit_from_modify(lua: str, short_dir: Path) -> None:
    site = """
    function slurm_job_submit(job) job.comment = "checked" return 0 end
    function slurm_job_modify(job, record, parts, uid) return slurm_job_submit(job, parts, uid) end
    """
    directory = install(short_dir / "etc", service=short_dir / "s", site=site)
    with serving(short_dir / "s", answers(http(OURS))) as requests:
        scenario = "load_shim() local job, stored = a_job() slurm_job_modify(job, {}, {}, 0) print(stored.comment)"
        assert run(lua, directory, scenario) == ["checked"]
    assert requests == []  # modify never speaks to the service


def test_a_site_that_forbids_new_globals_is_obeyed(lua: str, short_dir: Path) -> None:
    site = "setmetatable(_G, { __newindex = function(_, name) error('undeclared ' .. name, 2) end })\n" + SITE
    assert submitted(lua, short_dir, "good", site) == ["true", "0", "5", "ours", "parts421"]


def test_a_broken_part_of_ours_leaves_the_site_alone(lua: str, short_dir: Path) -> None:
    for part in ("slurm_rl_client.lua", "slurm_rl_json.lua", "slurm_rl_settings.lua"):
        for content in ("function (", "error('no')", "return 5", None):
            directory = install(short_dir / "etc", service=short_dir / "s", site=SITE)
            if content is None:
                (directory / part).unlink()
            else:
                (directory / part).write_text(content)
            out = run(lua, directory, SUBMIT + "print(harness.lines[1])", "good")
            assert out[0].split("\t")[:2] == ["true", "0"]
            assert out[0].endswith("parts421")
            if part != "slurm_rl_json.lua" or content != "return 5":  # found out only when it is used
                assert out[1].startswith("error: slurm-rl: not active, jobs go on without it: ")


def test_settings_out_of_range_are_named(lua: str, short_dir: Path) -> None:
    directory = install(short_dir, service=short_dir / "s", deadline_ms=5000)
    out = run(lua, directory, "load_shim() print(harness.lines[1]) print(slurm_job_submit(a_job(), {}, 0))")
    assert out[0].endswith("slurm_rl_settings.lua: deadline_ms must be from 1 to 1000")
    assert out[1] == "0"


def test_a_site_script_that_cannot_be_read_is_not_skipped(lua: str, short_dir: Path) -> None:
    directory = install(short_dir, service=short_dir / "s")
    (directory / "job_submit.site.lua").symlink_to("job_submit.site.lua")  # a loop: an error other than "not found"
    assert run(lua, directory, "print(pcall(load_shim))")[0].startswith("false\t")
