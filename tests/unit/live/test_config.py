"""The configuration: defaults, origins, clear refusals, and a shipped file that is current."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from slurm_rl.cli import main
from slurm_rl.config import Config, load, read_token, template
from slurm_rl.errors import InputError

ETC = Path(__file__).parents[3] / "etc"


def a_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "slurm-rl.toml"
    path.write_text(text)
    return path


def test_the_shipped_file_is_the_definitions_own() -> None:
    assert (ETC / "slurm-rl.toml").read_text() == template()


def test_the_shipped_file_changes_nothing_and_uncommented_it_gives_the_defaults(tmp_path: Path) -> None:
    assert load(a_file(tmp_path, template()), {}).config == Config()
    rows = [row.removeprefix("#") for row in template().splitlines() if row.startswith("#") and row[1:2].isalpha()]
    assert len(rows) == len(Config.__dataclass_fields__)
    assert load(a_file(tmp_path, "\n".join(rows)), {}).config == Config()
    assert tomllib.loads("\n".join(rows))["mode"] == "shadow"


def test_the_environment_overrides_the_file_and_every_origin_is_known(tmp_path: Path) -> None:
    file = a_file(tmp_path, 'mode = "off"\ninterval = 5\nwrite_uids = [1, 2]\n')
    loaded = load(file, {"SLURM_RL_MODE": "enforce", "SLURM_RL_TOP_JOBS": "7", "SLURM_RL_WRITE_UIDS": "3,4"})
    assert (loaded.config.mode, loaded.config.interval, loaded.config.top_jobs) == ("enforce", 5.0, 7)
    assert loaded.config.write_uids == (3, 4)
    origins = loaded.origins
    assert [origins[n] for n in ("mode", "interval", "policy")] == ["environment", "file", "default"]


def test_a_variable_names_the_file(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("interval = 7.0\n")
    loaded = load(environment={"SLURM_RL_CONFIG": str(other)})
    assert (loaded.config.interval, loaded.file) == (7.0, other)
    given = tmp_path / "given.toml"
    given.write_text("interval = 8.0\n")
    assert load(given, {"SLURM_RL_CONFIG": str(other)}).config.interval == 8.0
    with pytest.raises(InputError, match="no such file"):
        load(environment={"SLURM_RL_CONFIG": str(tmp_path / "missing.toml")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('mode = "on"', "mode: must be one of off, shadow, enforce, got 'on'"),
        ("interval = 0", "interval: must be from 0.2 to 3600, got 0"),
        ("interval = true", "interval: must be a number, got True"),
        ("top_jobs = 1.5", "top_jobs: must be a whole number, got 1.5"),
        ("write_uids = [-1]", "write_uids: must be a list of user ids, got [-1]"),
        ("modus = 1", "unknown setting 'modus' (did you mean 'mode'?)"),
        ("mode = ", "not readable as TOML"),
        ('socket = "here.sock"', "socket: must be an absolute path, got 'here.sock'"),
        ('tcp = "localhost:80"', "tcp: needs token_file"),
        ('tcp = "localhost"', "tcp: must be HOST:PORT, got 'localhost'"),
        ("interval = 100", "lease_seconds: must be at least three intervals (300 s), got 60"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load(a_file(tmp_path, text), {})
    assert said in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "slurm-rl.toml"))


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(InputError, match="SLURM_RL_INTERVAL: interval: must be a number, got 'soon'"):
        load(None, {"SLURM_RL_INTERVAL": "soon"})


def test_a_token_others_can_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o644)
    with pytest.raises(InputError, match="others may read it"):
        read_token(token)
    token.chmod(0o600)
    assert read_token(token) == "x" * 32
    token.write_text("short")
    with pytest.raises(InputError, match="fewer than 32"):
        read_token(token)


def test_show_conf_prints_one_json_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path, "top_jobs = 3\n")
    with pytest.raises(SystemExit) as ended:
        main(["show-conf", "--config", str(file), "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["settings"]["top_jobs"] == {"value": 3, "origin": "file"}
    assert said["settings"]["mode"]["origin"] in ("default", "environment")
