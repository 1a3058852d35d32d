"""However the service fails, the job goes on unchanged, soon, and after three failures at once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from .shim import FACTOR, FAILING, answers, http, install, run, serving

# Ten jobs, one after another: whether any changed.
TEN_JOBS = """
load_shim()
for i = 1, 10 do
  local job, stored = a_job({ name = "job" .. i })
  local before = dump(stored)
  assert(slurm_job_submit(job, {}, 0) == 0)
  print(dump(stored) == before)
end
for _, line in ipairs(harness.lines) do print(line) end
"""


def ten_jobs(lua: str, directory: Path) -> list[str]:
    """What was logged meanwhile."""
    out = run(lua, directory, TEN_JOBS)
    assert out[:10] == ["true"] * 10
    return out[10:]


@pytest.mark.parametrize("how", FAILING)
def test_a_failing_service_changes_nothing_and_is_left_alone(lua: str, short_dir: Path, how: str) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s", deadline_ms=30, breaker_seconds=86400)
    with serving(short_dir / "s", FAILING[how]) as requests:
        log = ten_jobs(lua, directory)
    assert len(requests) <= 3  # of one that gave up before it was accepted, nothing may be seen
    assert len(log) == 1
    assert log[0].startswith(f"info: slurm-rl: no advice from {short_dir}/s (")


@pytest.mark.parametrize("how", ["absent", "refusing", "a full backlog"])
def test_a_socket_nobody_serves_is_left_alone(lua: str, short_dir: Path, how: str) -> None:
    path = short_dir / "s"
    directory = install(short_dir / "etc", service=path, breaker_seconds=86400)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        if how != "absent":
            listener.bind(str(path))
        if how == "a full backlog":
            listener.listen(0)
            waiting.connect(str(path))
        log = ten_jobs(lua, directory)
    assert len(log) == 1


def test_a_refusal_is_an_answer_not_a_failure(lua: str, short_dir: Path) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s")
    with serving(short_dir / "s", answers(http(FACTOR, "422 Unprocessable Entity"))) as requests:
        log = ten_jobs(lua, directory)
    assert len(requests) == 10
    assert log == []


# The clock and the socket are replaced: every wait takes what it is granted or what the step says, whichever is less.
# A step is what a wait for one byte takes, in milliseconds; then that byte is there, and the connection stays open.
DEADLINE = """
local core = require("socket.core")
local now, waits = 1000, {}
core.gettime = function() return now end
local reply = 'HTTP/1.1 200 OK\\r\\nContent-Length: 18\\r\\n\\r\\n{"site_factor": 7}'
require("socket.unix").stream = function()
  local granted, at = nil, 0
  local function wait(needed)
    assert(granted and granted >= 0, "a wait without a limit")
    local took = math.min(needed, granted)
    if granted > 0 then waits[#waits + 1] = granted end
    now = now + took
    return needed <= granted
  end
  return {
    settimeout = function(_, seconds) granted = seconds end,
    close = function() end,
    connect = function() if wait(tonumber(arg[1]) / 1000) then return 1 end return nil, "timeout" end,
    send = function(_, request) if wait(tonumber(arg[2]) / 1000) then return #request end return nil, "timeout" end,
    receive = function(_, count)
      if granted == 0 then return nil, "timeout", "" end
      if not wait(tonumber(arg[3]) / 1000) then return nil, "timeout", "" end
      at = at + 1
      return reply:sub(at, at)
    end,
  }
end
load_shim()
local job, stored = a_job()
assert(slurm_job_submit(job, {}, 0) == 0)
for _, granted in ipairs(waits) do assert(granted <= 0.030 + 1e-9) end
print(string.format("%.0f", (now - 1000) * 1000), job.site_factor == 7)
"""


@pytest.mark.parametrize(
    ("connect", "send", "byte", "spent", "advised"),
    [
        (0, 0, 0.1, 6, True),  # 58 bytes
        (29, 0, 0, 29, True),
        (31, 0, 0, 30, False),  # what is left is granted, and no more
        (20, 20, 0, 30, False),
        (0, 0, 31, 30, False),
        (0, 0, 4, 30, False),  # dripping bytes do not extend it
        (10, 10, 4, 30, False),
        (1e9, 0, 0, 30, False),
    ],
)
def test_all_waits_together_end_at_the_deadline(
    lua: str, short_dir: Path, connect: float, send: float, byte: float, spent: int, advised: bool
) -> None:
    directory = install(short_dir, service=short_dir / "s", deadline_ms=30)
    out = run(lua, directory, DEADLINE, str(connect), str(send), str(byte))
    assert out == [f"{spent}\t{str(advised).lower()}"]


# The clock is replaced, so that half a minute passes at once. Each step: seconds to add, and the service's health.
BREAKER = """
local core = require("socket.core")
local now, healthy, asked = 1000, true, 0
core.gettime = function() return now end
require("socket.unix").stream = function()
  return {
    settimeout = function() end, close = function() end, connect = function() return 1 end,
    send = function(_, request) asked = asked + 1 return #request end,
    rest = "HTTP/1.1 200 OK\\r\\n\\r\\n{}",
    receive = function(self, count)
      if not healthy or self.rest == "" then return nil, "closed" end
      local taken = self.rest:sub(1, count)
      self.rest = self.rest:sub(count + 1)
      return taken
    end,
  }
end
load_shim()
for step in arg[1]:gmatch("%S+") do
  local wait, state = step:match("^([%d.-]+)(.)$")
  now, healthy = now + tonumber(wait), state == "+"
  asked = 0
  slurm_job_submit(a_job(), {}, 0)
  print(asked)
end
for _, line in ipairs(harness.lines) do print(line:match("no advice") or line:match("answers again")) end
"""


@pytest.mark.parametrize(
    ("steps", "asked", "log"),
    [
        # A success between failures starts the count anew.
        ("1- 1- 1+ 1- 1- 1+", "111111", []),
        # Three failures: silence for 30 s, then one try, and silence again if that fails.
        ("1- 1- 1- 1- 28+ 2- 1+ 28+", "11100100", ["no advice"]),
        # The service is back: all is as before, and a single failure does not open the breaker.
        ("1- 1- 1- 30+ 1- 1+", "111111", ["no advice", "answers again"]),
        # At most one line in five minutes, however often the breaker opens.
        ("1- 1- 1- 31- 31- 31- 31- 300-", "11111111", ["no advice", "no advice"]),
        # A clock set back an hour does not lengthen the pause.
        ("1- 1- 1- -3600+ 1+", "11111", ["no advice", "answers again"]),
    ],
)
def test_the_breaker(lua: str, short_dir: Path, steps: str, asked: str, log: list[str]) -> None:
    out = run(lua, install(short_dir, service=short_dir / "s"), BREAKER, steps)
    assert "".join(out[: len(asked)]) == asked
    assert out[len(asked) :] == log


def test_no_socket_stays_open(lua: str, short_dir: Path) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s", breaker_failures=1000, deadline_ms=2)
    count = """
    collectgarbage("stop")
    local function descriptors()
      local pipe = io.popen("ls /proc/$PPID/fd | wc -l")
      local count = pipe:read("*l")
      pipe:close()
      return count
    end
    load_shim()
    local before = descriptors()
    for _ = 1, 50 do slurm_job_submit(a_job(), {}, 0) end
    -- The pipe that counts may be counted itself; fifty sockets left open could not hide behind it.
    print(math.abs(descriptors() - before) < 10)
    """
    with serving(short_dir / "s", FAILING["status 500"]):
        assert run(lua, directory, count) == ["true"]
    with serving(short_dir / "s", FAILING["NaN"]):
        assert run(lua, directory, count) == ["true"]
