"""An error raised inside any function of the shim, at any of its calls, leaves the job as it is without the shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from .shim import answers, hangs, http, install, run, serving

# A hook raises on the Nth call of anything made while the shim works on a job: its own functions and the C functions
# it calls. Left out is only slurm_job_submit itself, the function slurmctld enters: nothing of ours is around it.
INJECT = r"""
load_shim()
local function submit_with_error_at(target)
  local job, stored = a_job({ tres_per_node = "gres:gpu:2", name = "a\233" })
  local before, calls, fired, where = dump(stored), 0, false, nil
  local function hook()
    local info = debug.getinfo(2, "Snf")
    local shim = debug.getinfo(3, "S")
    local ours = info.source:find("slurm_rl_", 1, true)
    local from_ours = info.what == "C" and shim and shim.source:find("slurm_rl_", 1, true)
    if not (ours or from_ours) or info.func == debug.sethook then return end
    calls = calls + 1
    if calls == target then
      fired, where = true, ("%s:%d %s"):format(info.short_src:match("[^/]*$"), info.linedefined, tostring(info.name))
      error("injected")
    end
  end
  debug.sethook(hook, "c")
  local ok, code = pcall(slurm_job_submit, job, {}, 0)
  debug.sethook()
  assert(ok and code == 0, "the error came through at " .. tostring(where))
  return fired, where, dump(stored) == before, job.site_factor == 77 and stored.prefer == "a"
end

local target, names, count = 0, {}, 0
while true do
  target = target + 1
  local fired, where, unchanged, complete = submit_with_error_at(target)
  if not fired then
    print(target - 1, count, complete)
    break
  end
  assert(unchanged, "the job changed although there was an error at " .. where)
  if not names[where] then names[where], count = true, count + 1 end
end
"""

# Every function of the shim fails at its first call for a job, whichever it is.
FUNCTIONS = r"""
load_shim()
local function ours_called(act)
  local seen = {}
  debug.sethook(function()
    local info = debug.getinfo(2, "S")
    if info.source:find("slurm_rl_", 1, true) then seen[info.short_src .. ":" .. info.linedefined] = true end
  end, "c")
  act()
  debug.sethook()
  return seen
end
local every = ours_called(function() for _ = 1, 4 do slurm_job_submit(a_job({ tres_per_job = "gpu" }), {}, 0) end end)
local count, unchanged = 0, 0
for place in pairs(every) do
  local job, stored = a_job({ tres_per_job = "gpu" })
  local before = dump(stored)
  debug.sethook(function()
    local info = debug.getinfo(2, "S")
    if info.short_src .. ":" .. info.linedefined == place then error("injected") end
  end, "c")
  local ok, code = pcall(slurm_job_submit, job, {}, 0)
  debug.sethook()
  assert(ok and code == 0, place)
  count = count + 1
  if dump(stored) == before then unchanged = unchanged + 1 else print("changed", place) end
end
print(count, unchanged)
"""


def test_an_error_at_any_call_writes_nothing(lua: str, short_dir: Path) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s", breaker_failures=1000)
    reply = http(b'{"site_factor": 77, "prefer": "a", "reason": "\\n"}')
    with serving(short_dir / "s", answers(reply)):
        calls, places, complete = run(lua, directory, INJECT)[0].split()
    assert int(calls) > 150
    assert int(places) > 30
    assert complete == "true"  # without an error the advice is applied


@pytest.mark.parametrize("healthy", [True, False])
def test_a_function_that_always_fails_leaves_every_job_as_it_was(lua: str, short_dir: Path, healthy: bool) -> None:
    settings = {"breaker_failures": 1000 if healthy else 3, "breaker_seconds": 1, "deadline_ms": 20}
    directory = install(short_dir / "etc", service=short_dir / "s", **settings)
    reply = http(b'{"site_factor": 77, "prefer": "(a|b)", "x": [null, "\\u0041"]}')
    with serving(short_dir / "s", answers(reply) if healthy else hangs):
        out = run(lua, directory, FUNCTIONS)
    count, unchanged = map(int, out[-1].split())
    assert count > 15
    # Undoing is only entered after a failed write, so it is not among the functions of this run.
    assert unchanged == count, out


@pytest.mark.parametrize("field", ["prefer", "features", "site_factor"])
def test_a_write_slurm_refuses_takes_back_the_others(lua: str, short_dir: Path, field: str) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s")
    scenario = """
    load_shim()
    local job, stored = a_job()
    local before, meta = dump(stored), getmetatable(job)
    local write = meta.__newindex
    meta.__newindex = function(_, name, value)
      if name == arg[1] then error("refused") end
      write(_, name, value)
    end
    print(slurm_job_submit(job, {}, 0), dump(stored) == before)
    """
    with serving(short_dir / "s", answers(http(b'{"site_factor": 77, "prefer": "a", "features": "b"}'))):
        assert run(lua, directory, scenario, field) == ["0\ttrue"]
