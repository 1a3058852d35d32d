"""What a site or a user wants left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config import Config, load
from slurm_rl.domain.optout import LeaveAlone
from slurm_rl.errors import InputError


@pytest.mark.parametrize(
    ("rules", "alone"),
    [
        ({}, False),
        ({"leave_alone_partitions": ("urgent",)}, True),
        ({"leave_alone_partitions": ("batch",)}, True),
        ({"leave_alone_partitions": ("batc",)}, False),
        ({"leave_alone_qos": ("high",)}, True),
        ({"leave_alone_accounts": ("physics",)}, True),
        ({"leave_alone_users": ("ann",)}, True),
        ({"leave_alone_users": ("physics", "high", "batch")}, False),
        ({"users_may_opt_out": True}, True),
    ],
)
def test_any_rule_is_enough_and_none_is_none(rules: dict[str, object], alone: bool) -> None:
    predicate = Config(**rules).leave_alone  # type: ignore[arg-type]
    assert bool(predicate) == bool(rules)
    assert bool(predicate.why("batch,urgent", "high", "physics", "ann", "mine; slurm-rl:off")) == alone


@pytest.mark.parametrize("comment", ["", "slurm-rl:offline", "no slurm-rl", "SLURM-RL:OFF"])
def test_only_the_word_itself_opts_out(comment: str) -> None:
    assert LeaveAlone(by_comment=True).why("p", "q", "a", "u", comment) == ""


def test_names_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('leave_alone_qos = ["high", "low"]\nusers_may_opt_out = true\n')
    config = load(file, {"SLURM_RL_LEAVE_ALONE_USERS": "ann, bob", "SLURM_RL_USERS_MAY_OPT_OUT": "false"}).config
    assert (config.leave_alone_qos, config.leave_alone_users) == (("high", "low"), ("ann", "bob"))
    assert not config.users_may_opt_out


@pytest.mark.parametrize(
    "line", ['leave_alone_users = "ann"', "leave_alone_users = [1]", 'leave_alone_qos = [""]', "users_may_opt_out = 1"]
)
def test_wrong_values_are_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match="must be"):
        load(file, {})
