"""The weights of the objective: how they are given, and what a weight for energy does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_rl.cli.app import main
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import InputError
from slurm_rl.place.plan import PlannerSettings
from slurm_rl.place.problem import Weights, parse_weights
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import parse_contenders, prepare, replay

ROOT = Path(__file__).resolve().parents[3]


def test_weights_are_given_by_name_and_the_others_stay() -> None:
    assert parse_weights("", "w") == Weights()
    assert parse_weights(" energy=1000, node=0", "w") == Weights(energy=1000.0, node=0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("enrgy=1", "w: unknown weight 'enrgy' (known: blocked, node, energy)"),
        ("energy=much", "w: must be NAME=SECONDS,… from 0 to 1e9, got 'energy=much'"),
        ("energy", "got 'energy'"),
        ("node=-1", "got 'node=-1'"),
        ("node=nan", "got 'node=nan'"),
    ],
)
def test_wrong_weights_are_named(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_weights(text, "w")
    assert said in str(caught.value)


def energy_and_run_time(energy: float) -> tuple[float, float]:
    """Of one job for an hour at speed 1, on an A100 of 400 W at speed 2 or a T4 of 70 W at speed 1, CPUs left out."""
    classes = tuple(
        NodeClass(1, kind, 1, partition="gpu", speed=speed, watts_idle=idle, watts_busy=busy)
        for kind, speed, idle, busy in (("A100", 2.0, 50.0, 400.0), ("T4", 1.0, 10.0, 70.0))
    )
    trace = make_trace("one job", [0], run_time=[3600], time_limit=[3600], num_gpus=[1.0])
    prepared = prepare(trace, Cluster("two nodes", classes))
    planning = PlannerSettings(weights=Weights(energy=energy))
    (run,) = replay(prepared, parse_contenders("sjf@oracle", "easy"), placement="mip", planning=planning)
    return float(run.metrics["energy_kwh"] or 0.0), float(run.metrics["mean_jct"] or 0.0)


def test_a_kwh_is_weighed_against_seconds() -> None:
    # 1,800 s at 350 W above idle are 0.175 kWh, 3,600 s at 60 W are 0.06: 0.115 kWh are saved in 1,800 s more.
    # At more than 1,800 / 0.115 = 15,652 s a kWh, or somewhat less as the queue prices the A100, the T4 is better.
    for weight, seconds in ((0.0, 1800.0), (5_000.0, 1800.0), (16_300.0, 3600.0)):
        kwh, took = energy_and_run_time(weight)
        assert took == seconds
        drawn = 350 * 1800 if took == 1800 else 60 * 3600
        assert kwh == pytest.approx((60 * took + drawn) / 3.6e6)


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, object]]:
    with pytest.raises(SystemExit) as done:
        main(["replay", str(ROOT / "traces/hetero.csv.gz"), "--policy", "fcfs", "--window", "0:0.02", "--json", *args])
    return int(done.value.code or 0), json.loads(capsys.readouterr().out)


def test_the_command_takes_weights(capsys: pytest.CaptureFixture[str]) -> None:
    frugal = ["--speeds", "T4=0.9", "--placement", "mip"]  # by its watts, the T4 does the same for less
    code, value = call(capsys, *frugal, "--placement-weights", "energy=1e6")
    assert code == 0
    _, plain = call(capsys, *frugal)
    slow, fast = (v["runs"][0]["metrics"]["mean_jct"] for v in (value, plain))  # type: ignore[index]
    assert slow > fast
    code, value = call(capsys, "--placement", "mip", "--placement-weights", "enrgy=1")
    assert code == InputError.exit_code
    assert "unknown weight 'enrgy'" in str(value["error"])
    code, value = call(capsys, "--placement", "greedy", "--placement-weights", "node=1")
    assert code == InputError.exit_code
    assert "needs --placement mip" in str(value["error"])
