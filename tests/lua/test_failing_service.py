"""However the service fails, the job goes on unchanged, soon, and after three failures at once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from .shim import Service, answers, drips, hangs, http, install, run, serving

FACTOR = b'{"site_factor": 7}'
FAILING: dict[str, Service] = {
    "closes at once": answers(b""),
    "hangs": hangs,
    "drips": drips,
    "not HTTP": answers(b"220 mail.example.org ESMTP\r\n\r\n" + FACTOR),
    "HTTP/2": answers(b"HTTP/2 200\r\n\r\n" + FACTOR),
    "an endless head": answers(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000),
    "cut in its head": answers(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "cut in its body": answers(http(FACTOR[:-1], length=len(FACTOR))),
    "two lengths": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\nContent-Length: 17\r\n\r\n" + FACTOR),
    "chunked": answers(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n" + FACTOR + b"\r\n0\r\n\r\n"),
    "status 500": answers(http(FACTOR, "500 Internal Server Error")),
    "status 302": answers(http(FACTOR, "302 Found")),
    "one megabyte": answers(http(FACTOR + b" " * 1_000_000)),
    "one megabyte, announced less": answers(http(b" " * 1_000_000, length=10**12)),
    "deep JSON": answers(http(b'{"a":' * 10000 + b"1" + b"}" * 10000)),
    "NaN": answers(http(b'{"site_factor": NaN}')),
    "NUL bytes": answers(http(b"\0" * 100)),
    "NULs before HTTP": answers(b"\0" * 100 + http(FACTOR)),
    "random bytes": answers(bytes(range(256)) * 16),
}

# Ten jobs, one after another: whether any changed, and how long each took.
TEN_JOBS = """
load_shim()
for i = 1, 10 do
  local job, stored = a_job({ name = "job" .. i })
  local before = dump(stored)
  local took = milliseconds(function() assert(slurm_job_submit(job, {}, 0) == 0) end)
  print(dump(stored) == before, took)
end
for _, line in ipairs(harness.lines) do print(line) end
"""


def ten_jobs(lua: str, directory: Path) -> tuple[list[float], list[str]]:
    out = run(lua, directory, TEN_JOBS)
    results = [row.split("\t") for row in out[:10]]
    assert [unchanged for unchanged, _ in results] == ["true"] * 10
    return [float(took) for _, took in results], out[10:]


@pytest.mark.parametrize("how", FAILING)
def test_a_failing_service_changes_nothing_and_is_left_alone(lua: str, short_dir: Path, how: str) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s")
    with serving(short_dir / "s", FAILING[how]) as requests:
        took, log = ten_jobs(lua, directory)
    assert len(requests) <= 3
    # The deadline is 30 ms. A busy machine may lose time between two lines of ours, but never half a second.
    assert max(took) < 200
    assert sorted(took[3:])[3] < 1
    assert len(log) == 1
    assert log[0].startswith(f"info: slurm-rl: no advice from {short_dir}/s (")


@pytest.mark.parametrize("how", ["absent", "refusing", "a full backlog"])
def test_a_socket_nobody_serves_costs_nothing(lua: str, short_dir: Path, how: str) -> None:
    path = short_dir / "s"
    directory = install(short_dir / "etc", service=path)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        if how != "absent":
            listener.bind(str(path))
        if how == "a full backlog":
            listener.listen(0)
            waiting.connect(str(path))
        took, log = ten_jobs(lua, directory)
    assert max(took) < 100
    assert len(log) == 1


def test_a_refusal_is_an_answer_not_a_failure(lua: str, short_dir: Path) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s")
    with serving(short_dir / "s", answers(http(FACTOR, "422 Unprocessable Entity"))) as requests:
        _, log = ten_jobs(lua, directory)
    assert len(requests) == 10
    assert log == []


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
