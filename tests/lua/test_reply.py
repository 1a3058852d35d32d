"""What the shim writes: checked values only, never over a choice of the user or of the site, and last of all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .shim import PLUGIN, answers, http, install, run, serving

OFFSET = 2147483648
SUBMIT = "load_shim() local job, stored = a_job({job}) print(dump(stored)) print(slurm_job_submit(job, {{}}, 0)) "
SHOW = "print(stored.site_factor, stored.prefer, stored.features)"
UNTOUCHED = ("4294967294", "nil", "nil")


def written(lua: str, where: Path, body: bytes, job: str = "{}", **settings: object) -> tuple[str, ...]:
    directory = install(where / "etc", service=where / "s", **settings)
    with serving(where / "s", answers(http(body))):
        out = run(lua, directory, SUBMIT.format(job=job) + SHOW)
    assert out[1] == "0"
    return tuple(field.removesuffix(".0") for field in out[2].split("\t"))


@pytest.mark.parametrize(
    ("body", "factor"),
    [
        (b'{"site_factor": 1200}', 1200),
        (b'{"site_factor": -1200}', -1200),
        (b'{"site_factor": 1000000}', 1000000),
        (b'{"site_factor": -1000000}', -1000000),
        (b'{"site_factor": -0}', 0),
        (b' {"reason": "\\u00e9 \\ud83d\\ude00 \\" ", "x": {"y": [1, null, true]}, "site_factor": 3.0} \n', 3),
        (b'{"site_factor": 1, "site_factor": 2}', 2),
    ],
)
def test_a_good_site_factor_is_written(lua: str, short_dir: Path, body: bytes, factor: int) -> None:
    assert written(lua, short_dir, body) == (str(OFFSET + factor), "nil", "nil")


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"site_factor": null, "prefer": null, "features": null, "reason": "shadow"}',
        b'{"site_factor": 1000001}',
        b'{"site_factor": -1000001}',
        b'{"site_factor": 1e30}',
        b'{"site_factor": 1e999}',
        b'{"site_factor": 0.5}',
        b'{"site_factor": "12"}',
        b'{"site_factor": true}',
        b'{"site_factor": [12]}',
        b'{"site_factor": -2}',  # Slurm would read it as "no value"
        b'{"site_factor": NaN}',
        b'{"site_factor": -Infinity}',
        b'{"site_factor": 0x10}',
        b'{"site_factor": 7} {}',
        b'{"site_factor": 7',
        b'[{"site_factor": 7}]',
        b"7",
        b"",
        b'{"site_factor": 7, "x": ' + b"[" * 30000 + b"]" * 30000 + b"}",
        b'{"site_factor": 7, "x": [' + b"1," * 30000 + b"1]}",
        b'{"site_factor": 7, "x": "' + b"\\n" * 30000 + b'"}',
        b'{"site_factor": 7, "x": "\x00"}',
        b'{"site_factor"\x00: 7}',
        b'\x00{"site_factor": 7}',
    ],
)
def test_anything_else_leaves_the_job_alone(lua: str, short_dir: Path, body: bytes) -> None:
    assert written(lua, short_dir, body) == UNTOUCHED


def told(lua: str, where: Path, body: bytes, before: str = "") -> list[str]:
    """What sbatch would print."""
    directory = install(where / "etc", service=where / "s")
    show = "for _, line in ipairs(harness.lines) do print(line) end"
    with serving(where / "s", answers(http(body))):
        out = run(lua, directory, before + SUBMIT.format(job="{}") + show)
    assert out[1] == "0"
    return [line.removeprefix("user: ") for line in out[2:] if line.startswith("user: ")]


def test_a_line_for_the_user_is_printed_as_it_is(lua: str, short_dir: Path) -> None:
    said = b'{"message": "slurm-rl: 40 runs: 95% of them within 2 h, %s %d", "site_factor": 5}'
    assert told(lua, short_dir, said) == ["slurm-rl: 40 runs: 95% of them within 2 h, %s %d"]


@pytest.mark.parametrize(
    "message",
    [b"7", b"null", b'""', b'"a\\nb"', b'"\\u001b[31m"', b'"' + b"x" * 301 + b'"', b'"\xc3\xa9"', b'["a"]'],
)
def test_no_other_line_is(lua: str, short_dir: Path, message: bytes) -> None:
    """No control characters, nothing beyond ASCII, nothing longer than 300 bytes reaches a terminal."""
    assert told(lua, short_dir, b'{"message": ' + message + b"}") == []


def test_a_slurm_without_log_user_takes_the_job(lua: str, short_dir: Path) -> None:
    assert told(lua, short_dir, b'{"message": "hello"}', "slurm.log_user = nil ") == []


def test_the_limit_is_the_sites(lua: str, short_dir: Path) -> None:
    assert written(lua, short_dir, b'{"site_factor": 51}', site_factor_limit=50) == UNTOUCHED


@pytest.mark.parametrize("expression", ["a100", "a100|h100", "(a100|h100)&ib", "rack-1.b&nvme*2", "a" * 256])
def test_a_feature_expression_is_applied(lua: str, short_dir: Path, expression: str) -> None:
    body = f'{{"prefer": "{expression}", "features": "{expression}"}}'.encode()
    assert written(lua, short_dir, body) == ("4294967294", expression, expression)


BAD_EXPRESSIONS = ["", "a,b", "a b", "[a|b]", "a;b", "a\\u0000", "é", "a" * 257, "a&", "|a", "a&&b", "(a", "a)"]
BAD_EXPRESSIONS += ["((a))", "a(b)", "()", "a*", "a*0", "*2", "a*2*3", "(a|)&b", "%s", "\\n", "unknown", "a&unknown*2"]


@pytest.mark.parametrize("expression", BAD_EXPRESSIONS)
def test_a_bad_feature_expression_is_ignored(lua: str, short_dir: Path, expression: str) -> None:
    body = f'{{"prefer": "{expression}", "features": "{expression}"}}'.encode()
    assert written(lua, short_dir, body) == UNTOUCHED


def test_what_the_user_chose_stays(lua: str, short_dir: Path) -> None:
    body = b'{"site_factor": 5, "prefer": "ours", "features": "ours"}'
    job = f'{{ prefer = "mine", features = "theirs", site_factor = {OFFSET + 9} }}'
    assert written(lua, short_dir, body, job) == (str(OFFSET + 9), "mine", "theirs")


def test_the_shim_adds_only_the_two_functions_slurm_calls(lua: str, short_dir: Path) -> None:
    directory = install(short_dir / "etc", service=short_dir / "s")
    with serving(short_dir / "s", answers(http(b'{"site_factor": 5}'))):
        out = run(lua, directory, "load_shim() slurm_job_submit(a_job(), {}, 0) print(harness.new_globals())")
    assert out == ["slurm_job_modify,slurm_job_submit"]


# Valid replies cut, doubled and flipped; fragments of JSON in random order; numbers and names from the edges.
FUZZ = r"""
local json = dofile(arg[1] .. "/slurm_rl_json.lua")
local client = assert(loadfile(arg[1] .. "/slurm_rl_client.lua"))(json)
local seed, count, accepted, applied = tonumber(arg[2]), 10000, 0, 0
math.randomseed(seed)
local FRAGMENTS = { "{", "}", "[", "]", ":", ",", '"', "\\", "\\u0000", "\0", "null", "true", "NaN", "Infinity", "-",
  "1e30", "1e999", "-1e999", "0.5", "-2", "999999", "1000000", "1000001", "4294967294", "18446744073709551615", '"a&b"',
  '"prefer"', '"features"', '"site_factor"', '"reason"', '"(a"', '"\\u0061"', " ", "\n", "\255", '"a b"', '{"x":' }
local KNOWN = { a = true, b = true, c = true, gpu = true }
local function pick(list) return list[math.random(#list)] end
local function from_fragments()
  local parts = {}
  for i = 1, math.random(12) do parts[i] = pick(FRAGMENTS) end
  return table.concat(parts)
end
local function well_formed()
  local function value() return pick(FRAGMENTS) end
  return '{"site_factor":' .. value() .. ',"prefer":' .. value() .. ',"features":' .. value() .. "}"
end
local function mutated()
  local text = pick({ '{"site_factor":12345,"prefer":"(a|b)&c","features":"gpu","reason":"why"}', well_formed() })
  for _ = 1, math.random(4) do
    local at = math.random(#text)
    text = text:sub(1, at - 1) .. string.char(math.random(0, 255)) .. text:sub(at + math.random(0, 2))
  end
  return text
end
for i = 1, count do
  local body = pick({ from_fragments, well_formed, mutated })()
  local raw = "HTTP/1.1 200 OK\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
  if math.random(10) == 1 then raw = raw:sub(1, math.random(#raw)) end
  local job, stored = a_job()
  local before = dump(stored)
  local ok, advice = pcall(function()
    local status, text = client.parse_http(raw, true)
    return client.advice_in(status, text)
  end)
  local writes = ok and client.choose(advice, job, 1000000, KNOWN) or {}
  if ok then accepted = accepted + 1 end
  if #writes > 0 then applied = applied + 1 end
  for _, write in ipairs(writes) do job[write[1]] = write[2] end -- the fake refuses what C leaves undefined
  local factor = job.site_factor
  local untouched = factor == 4294967294
  if not untouched and not (factor >= -1000000 and factor <= 1000000 and factor == math.floor(factor)) then
    error(("reply %d: site_factor %s from %q"):format(i, tostring(factor), body))
  end
  for _, name in ipairs({ "prefer", "features" }) do
    local text = stored[name]
    if text and not (#text <= 256 and text:find("^[A-Za-z0-9_.&|()*-]+$")) then
      error(("reply %d: %s %q from %q"):format(i, name, text, body))
    end
  end
  stored.site_factor, stored.prefer, stored.features = 4294967294, nil, nil
  if dump(stored) ~= before then error(("reply %d: another field changed by %q"):format(i, body)) end
end
print(count, accepted, applied)
"""


def test_ten_thousand_random_replies_never_write_out_of_range(lua: str, short_dir: Path) -> None:
    seed = random.Random(lua).randrange(10**6)
    out = run(lua, install(short_dir, service=short_dir / "s"), FUZZ, str(PLUGIN), str(seed))
    count, accepted, applied = map(int, out[0].split())
    assert count == 10000
    assert 500 < applied < accepted < count  # the fuzz reaches both the writing and the refusing side
