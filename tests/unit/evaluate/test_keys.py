"""Keys: further groups of the estimator, the same in replay, live and plain Python, and what they are worth."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from reference.score import History

from slurm_rl.cli.app import main
from slurm_rl.controller.estimates import Finished, RunTimes, predict_all
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.keys import parse_keys
from slurm_rl.errors import InputError
from slurm_rl.evaluate.keys import worth_of_keys
from slurm_rl.kernel.build import build
from slurm_rl.kernel.world import bare_world
from slurm_rl.policy.estimate import finish, predict
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Labels, Trace, make_trace
from slurm_rl_sim.workload import requests_of

CLUSTER = Cluster("c", (NodeClass(4, cpus=8),))


def a_past(jobs: int = 300, seed: int = 3) -> Trace:
    """Users whose jobs all have one name and one limit; only their directory tells how long they run."""
    rng = random.Random(seed)
    where = [rng.randrange(6) for _ in range(jobs)]
    run = [round(30 * 3**d * rng.uniform(0.9, 1.1)) for d in where]
    array = [f"{i // 10}" if (i // 10) % 3 == 0 else "" for i in range(jobs)]
    return make_trace(
        "past",
        [40 * i for i in range(jobs)],
        run_time=run,
        time_limit=[36_000] * jobs,
        cpus=[4.0] * jobs,
        user=[f"u{rng.randrange(2)}" for _ in range(jobs)],
        job_name=["run.sh"] * jobs,
        keys={"workdir": Labels.of([f"/home/{d}" if d else "" for d in where]), "array": Labels.of(array)},
    )


def test_replay_live_and_plain_python_estimate_alike() -> None:
    past = a_past(60)
    workload = build(requests_of(past), CLUSTER)
    world = bare_world(len(past), {}, groups=np.zeros(workload.groups + 1, dtype=RunTimes().table().dtype))
    world["jobs"]["limit"], world["jobs"]["group"] = workload.jobs["limit"], workload.jobs["group"]
    live, plain = RunTimes(["workdir", "array"]), History()
    users, size = past.user.strings(), workload.requests["volume"][workload.jobs["request"]]
    told = [
        {name: labels.names[labels.codes[j]] for name, labels in past.keys.items() if labels.codes[j] >= 0}
        for j in range(len(past))
    ]
    for j in range(len(past)):
        keys = plain.keys(users[j], "run.sh", float(size[j]), False, 36_000)
        keys += [(name, users[j], value, round(float(size[j]) * 1000)) for name, value in told[j].items()]
        expected, _, spread = plain.predict(keys, 36_000)
        predict(world.record[0], j)
        assert math.isclose(world["live"]["expected"][j], expected, rel_tol=1e-9)
        assert math.isclose(world["live"]["spread"][j], spread, rel_tol=1e-6)
        mine = bare_world(1, {}, groups=live.table())
        mine["jobs"]["limit"] = 36_000
        mine["jobs"]["group"] = live.groups_of(users[j], "run.sh", float(size[j]), False, 36_000, told[j])
        mine["groups"] = live.table()
        predict_all(mine.record, np.arange(1))
        assert math.isclose(mine["live"]["expected"][0], expected, rel_tol=1e-9)
        ran = float(past.run_time[j])
        finish(world.record[0], j, ran)
        plain.finish(keys, 36_000, ran)
        live.learn([Finished(users[j], "run.sh", float(size[j]), False, 36_000, ran, told[j])])


def test_a_key_that_tells_run_times_is_worth_something() -> None:
    rows = {row.keys: row for row in worth_of_keys(parse_policy("sjf@user"), a_past(), CLUSTER, "easy", replicates=2)}
    assert list(rows) == ["none", "workdir", "array", "all"]
    assert rows["none"].slowdown == rows["none"].wait == 1.0
    assert rows["workdir"].rank > rows["none"].rank + 0.2
    assert rows["workdir"].slowdown < 0.9
    assert 0 < rows["workdir"].jobs < 300


def test_a_trace_keeps_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    write_native(a_past(), path)
    for cached in (False, True, True):
        back = read_trace(path, cache=cached)
        assert {n: k.strings() for n, k in back.keys.items()} == {n: k.strings() for n, k in a_past().keys.items()}
    assert list(read_trace(path).with_keys(["array"]).keys) == ["array"]


def test_replay_uses_the_keys_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cluster = tmp_path / "keys.csv", tmp_path / "keys.cluster.json"
    write_native(a_past(), path)
    cluster.write_text(json.dumps([{"count": 4, "cpus": 8}]))

    def slowdown(*options: str) -> float:
        with pytest.raises(SystemExit) as ended:
            main(["replay", str(path), "--policy", "sjf@user", "--json", *options])
        said = json.loads(capsys.readouterr().out)
        assert ended.value.code == 0, said
        return float(said["runs"][0]["metrics"]["mean_bsld"])

    assert slowdown("--keys", "workdir") < slowdown("--keys", "none")
    assert slowdown() != slowdown("--keys", "none")
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(path), "--policy", "sjf@user", "--json", "--keys", "container"])
    assert ended.value.code != 0
    assert "the trace has no column 'container'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [("colour", "unknown key: 'colour'"), ("name,workdir,container,array", "4 keys")],
)
def test_bad_keys_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_keys(text)


def test_names_of_keys() -> None:
    assert [k.name for k in parse_keys("array,name")] == ["stem", "array"]
    assert parse_keys("none") == parse_keys("") == ()
    stem, array = parse_keys("name,array")
    assert stem.value(" seed-12 of 40") == "seed-# of #"
    assert (array.value("12_3"), array.value("12_[4-9]"), array.value("12")) == ("12", "12", "")
