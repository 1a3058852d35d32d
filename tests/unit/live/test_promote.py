"""Models in charge: the replay gate, promotion and rollback, taking over while running, and poisoned ones refused."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from slurm_rl.cli import main
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.promote import Promotions
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import InputError, ModelError
from slurm_rl.evaluate.promotion import RULES, Verdict, judge
from slurm_rl.obs.journal import Journal
from slurm_rl.policy.checkpoint import MANIFEST, WEIGHTS, Model, load_model, save_model
from slurm_rl.policy.features import JOB_FEATURES
from slurm_rl.policy.network import LAYOUT
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import Prepared, prepare

from .conftest import MakeController
from .fake_slurm import FakeSlurm, a_job, a_running_job

TRACES = Path(__file__).parents[3] / "traces"


def a_model(path: Path, *, starve_drain: float = math.inf, **weights: float) -> Model:
    """A network that adds up features: `a_model(path, estimate=-1)` is shortest job first."""
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in LAYOUT.items()}
    tensors["job_scale"][:] = tensors["pool_scale"][:] = 1.0
    for name, weight in weights.items():
        tensors["skip"][JOB_FEATURES.index(name)] = weight
    return save_model(path, tensors, {"algorithm": "by hand"}, starve_drain=starve_drain)


def a_queue() -> FakeSlurm:
    """Jobs 1 … 6, the later the shorter, behind two that hold every GPU."""
    jobs = [a_job(i, limit=1000 * (7 - i), waited=1000 - i) for i in range(1, 7)]
    return FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"))


# The gate.


def a_history(jobs: int = 200) -> Prepared:
    """One node of 8 CPUs, and more work than it can do: short and long jobs in turn, a few of each a minute."""
    rng = np.random.default_rng(7)
    run = np.where(np.arange(jobs) % 4 == 0, 3000, 60) + rng.integers(0, 30, jobs)
    trace = make_trace(
        "history", np.arange(jobs) * 60, run_time=run, time_limit=2 * run, cpus=np.full(jobs, 4.0), user=["u"] * jobs
    )
    return prepare(trace, Cluster("one node", (NodeClass(1, cpus=8),)))


def test_a_policy_passes_the_gate_against_itself() -> None:
    verdict = judge(a_history(), parse_policy("fcfs"), parse_policy("fcfs"), influence=1.0)
    assert verdict.objections == []
    assert verdict.p95[0] == verdict.p95[1] > 0


def test_longest_first_is_refused_where_shortest_first_is_in_charge() -> None:
    verdict = judge(a_history(), parse_policy("sjf@limit"), parse_policy("ljf@limit"), influence=1.0)
    assert len(verdict.objections) == 1, "both let somebody wait to the end, but under ljf it is nearly everybody"
    assert verdict.objections[0].startswith("rule p95: 95% wait")


@pytest.mark.parametrize(
    ("p95", "longest", "objections"),
    [
        ((100, 105), (100, 120), 0),  # just within
        ((1000, 1052), (100, 100), 1),
        ((100, 100), (1000, 1202), 1),
        ((0, 1), (0, 1), 0),  # nobody waited: a second is nothing
        ((0, 60), (0, 60), 2),
        ((100, float("nan")), (100, 100), 1),
    ],
)
def test_what_the_gate_lets_through(p95: tuple[float, float], longest: tuple[float, float], objections: int) -> None:
    assert len(Verdict(500, "old", "new", p95, longest).objections) == objections


@pytest.mark.parametrize(
    ("completed", "refused"), [((1492, 1489), False), ((1492, 1485), False), ((1492, 1484), True), ((0, 0), False)]
)
def test_a_few_jobs_more_may_end_at_their_limit(completed: tuple[float, float], refused: bool) -> None:
    """Those that a policy puts on slower GPUs; 1489 of 1492 was a reason to refuse a better one once."""
    objections = Verdict(1500, "old", "new", (100, 90), (100, 90), completed).objections
    assert [o.partition(":")[0] for o in objections] == ["rule completed"] * refused


def test_every_rule_of_the_gate_is_told_with_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["models", "promote", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    guide = " ".join((Path(__file__).parents[3] / "docs" / "admin.md").read_text().split())
    for rule in RULES:
        assert rule in said
        assert rule.partition(": ")[2] in guide


def test_a_short_history_is_no_ground_to_judge_on() -> None:
    with pytest.raises(InputError, match="a history of 99 jobs tells nothing"):
        judge(a_history(99), parse_policy("fcfs"), parse_policy("fcfs"), influence=1.0)


# Promotion and rollback.


def test_promotion_copies_and_rollback_goes_back(tmp_path: Path) -> None:
    promotions = Promotions(tmp_path / "state")
    assert promotions.current() is None
    first, second = a_model(tmp_path / "one", estimate=-1), a_model(tmp_path / "two", position=-1)
    before = os.umask(0o077)  # as root may have it
    promotions.promote(first)
    os.umask(before)
    modes = {oct(p.stat().st_mode & 0o777) for p in promotions.directory.rglob("*") if p.is_file()}
    assert modes == {"0o644"}, "the service reads them as another user"
    promotions.promote(second)
    shutil.rmtree(tmp_path / "two")
    current = promotions.current()
    assert current is not None
    assert current.digest == second.digest, "what was promoted is kept, whatever becomes of the original"
    assert promotions.rollback().digest == first.digest
    assert promotions.rollback().digest == second.digest, "and forth"
    promotions.promote(second)
    assert promotions.rollback().digest == first.digest, "promoting what is in charge does not lose the one before"


def test_without_a_promotion_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no earlier model to roll back to"):
        Promotions(tmp_path).rollback()
    with pytest.raises(InputError, match="no model is in charge"):
        load_policy("rl:current", tmp_path)


# Poison.


def no_weights(model: Path) -> None:
    (model / WEIGHTS).unlink()


def pickled(model: Path) -> None:
    (model / WEIGHTS).write_bytes(pickle.dumps({"out": [1.0]}))


def pickled_with_its_hash(model: Path) -> None:
    pickled(model)
    rehash(model)


def with_a_nan(model: Path) -> None:
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in LAYOUT.items()}
    tensors["out"][3] = np.nan
    (model / WEIGHTS).write_bytes(save(tensors))
    rehash(model)


def of_another_shape(model: Path) -> None:
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in LAYOUT.items()}
    tensors["out"] = np.zeros(7, dtype=np.float32)
    (model / WEIGHTS).write_bytes(save(tensors))
    rehash(model)


def of_another_hash(model: Path) -> None:
    content = bytearray((model / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (model / WEIGHTS).write_bytes(content)


def for_other_features(model: Path) -> None:
    text = (model / MANIFEST).read_text()
    (model / MANIFEST).write_text(text.replace("urgency = ", "urgency = 1"))


def rehash(model: Path) -> None:
    import hashlib

    old = load_hash(model)
    new = hashlib.sha256((model / WEIGHTS).read_bytes()).hexdigest()
    (model / MANIFEST).write_text((model / MANIFEST).read_text().replace(old, new))


def load_hash(model: Path) -> str:
    import tomllib

    return str(tomllib.loads((model / MANIFEST).read_text())["weights"]["sha256"])


POISONS = [
    no_weights,
    pickled,
    pickled_with_its_hash,
    with_a_nan,
    of_another_shape,
    of_another_hash,
    for_other_features,
]


@pytest.mark.parametrize("poison", POISONS)
def test_a_poisoned_model_is_refused_and_the_last_good_one_stays(
    controller: MakeController, tmp_path: Path, poison: Callable[[Path], None]
) -> None:
    good = a_model(tmp_path / "good", estimate=-1)
    promotions = Promotions(tmp_path)
    promotions.promote(good)
    slurm = a_queue()
    c = controller(slurm, state_dir=str(tmp_path), policy=load_policy("rl:current", tmp_path))
    c.config = c.config.__class__(**(settings_of(c) | {"policy": "rl:current"}))
    c.tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]
    # Somebody spoils a promoted model's files and points at it.
    bad = promotions.promote(a_model(tmp_path / "bad", estimate=1))
    poison(bad.path)
    with pytest.raises(ModelError):
        load_model(bad.path)
    tick = c.tick()
    assert tick.outcome == "done"
    assert c.policy.model == good.digest
    assert slurm.order() == [6, 5, 4, 3, 2, 1]
    assert b"slurmrl_models_refused_total 1.0" in c.metrics.text()
    with pytest.raises(ModelError):
        c.reconfigure(c.config)
    assert c.policy.model == good.digest


def settings_of(c: object) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(c.config)  # type: ignore[attr-defined]


def test_a_promoted_model_is_taken_over_at_the_next_tick(
    controller: MakeController, tmp_path: Path, journal: Journal
) -> None:
    promotions = Promotions(tmp_path)
    promotions.promote(a_model(tmp_path / "short", estimate=-1))
    slurm = a_queue()
    c = controller(slurm, state_dir=str(tmp_path), policy=load_policy("rl:current", tmp_path))
    c.config = c.config.__class__(**(settings_of(c) | {"policy": "rl:current"}))
    c.tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]
    promoted = promotions.promote(a_model(tmp_path / "early", position=-1))
    c.tick()
    assert slurm.order() == [1, 2, 3, 4, 5, 6]
    with closing(sqlite3.connect(journal.path)) as db:
        rows = db.execute("SELECT DISTINCT policy, model FROM tick ORDER BY id").fetchall()
    assert rows[-1] == (f"rl:{promoted.name}", promoted.digest), "the journal names the model and its hash"
    promotions.rollback()
    c.tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]


def test_a_network_that_says_nothing_does_not_pass_the_output_gate(controller: MakeController, tmp_path: Path) -> None:
    slurm = a_queue()
    a_model(tmp_path / "dull", starve_drain=3.0)
    c = controller(slurm, policy=load_policy(f"rl:{tmp_path}/dull"))
    tick = c.tick()
    assert (tick.note, tick.applied) == ("fallback", 0)
    assert c.observed is not None
    assert not any(reason.promoted for reason in c.observed[1].reasons)


def test_a_networks_queue_can_be_explained_and_joined(controller: MakeController, tmp_path: Path) -> None:
    from slurm_rl.controller.advice import Submission
    from slurm_rl.controller.explain.place_in_queue import Ordered
    from slurm_rl.decide import Guardrails

    slurm = a_queue()
    a_model(tmp_path / "short", estimate=-1)
    c = controller(slurm, policy=load_policy(f"rl:{tmp_path}/short"))
    c.tick()
    assert c.observed is not None
    place = Ordered(*c.observed, c.policy, Guardrails(0.5)).place_of(1)
    assert place is not None
    (first, *_) = place.contributions()
    assert (first.feature, first.places < 0) == ("run time", True)
    assert c.advisor is not None
    quick = c.advisor.advise(Submission("ann", "", "batch", 1, 4, 900), slurm.now)
    slow = c.advisor.advise(Submission("ann", "", "batch", 1, 4, 90_000), slurm.now)
    assert quick is not None
    assert slow is not None
    assert quick.site_factor > slow.site_factor


# The commands.


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, object]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def test_models_are_promoted_by_a_replay_listed_and_rolled_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_model(tmp_path / "first", position=-1)
    a_model(tmp_path / "second", position=-2)
    a_model(tmp_path / "worst", estimate=1)
    config = tmp_path / "c.toml"
    rest = f'state_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/s"\ninfluence = 1.0\n'
    monkeypatch.setenv("SLURM_RL_MODELS", str(tmp_path))
    trace = ("--trace", str(TRACES / "small.swf.gz"), "--config", str(config))
    # The first stands against the configured heuristic, which it copies; the second against the first.
    for name, policy in (("first", "fcfs"), ("second", "rl:current")):
        config.write_text(f'policy = "{policy}"\n' + rest)
        code, said = run(capsys, "models", "promote", name, *trace)
        assert (code, said.get("in_use")) == (0, policy == "rl:current"), said  # type: ignore[attr-defined]
    code, said = run(capsys, "models", "promote", "worst", *trace)
    assert code == 3
    assert "worst is not promoted" in said["error"]["message"]  # type: ignore[index,call-overload]
    code, rows = run(capsys, "models", "list", "--config", str(config))
    roles = {row["name"].rpartition("-")[0]: row["role"] for row in rows if row["role"]}  # type: ignore[attr-defined]
    assert roles == {"first": "previous", "second": "current"}
    code, said = run(capsys, "models", "rollback", "--config", str(config))
    assert code == 0
    assert said["model"].startswith("first-")  # type: ignore[index]
    actions = [row[1] for row in Journal(tmp_path / "state" / "journal.sqlite").promotions()]
    assert actions == ["promote", "promote", "refused", "rollback"]
    code, said = run(capsys, "models", "show", "worst")
    assert said["algorithm"] == "by hand"  # type: ignore[index]
