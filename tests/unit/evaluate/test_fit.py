"""A model's style is chosen by replays of the past, and a fitted model is a model as any other."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass, write_cluster
from slurm_rl.errors import InputError, ModelError
from slurm_rl.evaluate.fit import AS_TRAINED, fit, save_fitted
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import MANIFEST, Model, load_model, save_model, unflatten
from slurm_rl.policy.features import JOB_FEATURES
from slurm_rl.policy.network import LAYOUT
from slurm_rl.policy.registry import PolicySpec, in_style, learned
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl.traces.native import write_native
from slurm_rl.train.recipe import BOOKING_SIZE, CAP, STYLES
from slurm_rl_sim.replay import Contender, prepare
from slurm_rl_sim.simulation import ReplayState
from tests.unit.evaluate.test_paired import ROOT, call

CLUSTER = Cluster("small", (NodeClass(6, "V100", 4, 16, 64.0, "gpu", 1.0),))
BUSY = generate(WorkloadSpec(jobs=400, days=2, load=1.2, median_run=1800, seed=3), CLUSTER)
IDLE = generate(WorkloadSpec(jobs=300, days=30, load=0.05, seed=3), CLUSTER)
ESTIMATE = JOB_FEATURES.index("estimate")


def by_estimate(path: Path, weight: float, **styles: dict[str, float]) -> Model:
    """A network that goes by the estimated run time alone: above 0 the longest go first, which is bad."""
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in LAYOUT.items()}
    tensors["job_scale"][:] = 1.0
    tensors["skip"][ESTIMATE] = weight
    manifest = {"algorithm": "by hand", "styles": styles} if styles else {"algorithm": "by hand"}
    return save_model(path, tensors, manifest, starve_drain=50.0, booking_size=-0.25)


def starts(policy: PolicySpec, backfill: str = "easy") -> Array:
    prepared = prepare(BUSY, CLUSTER)
    simulation = ReplayState(prepared.workload, prepared.trace.run_time, policy, backfill=backfill)
    simulation.run()
    found: Array = simulation.world["live"]["start"].copy()
    return found


def test_a_style_adds_to_weights_and_sets_the_cap(tmp_path: Path) -> None:
    policy = learned(by_estimate(tmp_path / "m", 1.0, short={"estimate": -3.0, "age": 0.5, "starve_drain": 2.0}))
    styled = in_style(policy, "short")
    assert styled.starve_drain == 2.0
    assert styled.booking_size == policy.booking_size
    assert policy.net is not None
    assert styled.net is not None
    before, after = unflatten(policy.net), unflatten(styled.net)
    changed = {f"{k}.{i}": v for k in before for i, v in enumerate((after[k] - before[k]).ravel().tolist()) if v}
    assert changed == {f"skip.{ESTIMATE}": -3.0, f"skip.{JOB_FEATURES.index('age')}": 0.5}


def test_the_style_that_does_best_on_the_past_is_chosen(tmp_path: Path) -> None:
    longest_first = by_estimate(tmp_path / "m", 1.0, short={"estimate": -2.0}, same={"estimate": 0.0})
    found = fit(learned(longest_first), BUSY, CLUSTER, backfill="easy", replicates=3)
    assert found.style == "short"
    assert found.ratios["short"] < 0.9
    assert found.ratios["same"] == found.ratios[AS_TRAINED] == 1.0
    assert np.array_equal(starts(found.policy), starts(in_style(learned(longest_first), "short")))


def test_no_style_is_taken_that_is_worse_or_of_which_the_past_says_nothing(tmp_path: Path) -> None:
    shortest_first = learned(by_estimate(tmp_path / "m", -1.0, long={"estimate": 2.0}))
    found = fit(shortest_first, BUSY, CLUSTER, backfill="slurm", replicates=3)
    assert found.style == AS_TRAINED
    assert found.ratios["long"] > 1.1
    assert found.policy is shortest_first
    longest_first = learned(by_estimate(tmp_path / "n", 1.0, short={"estimate": -2.0}))
    assert fit(longest_first, IDLE, CLUSTER, backfill="easy", replicates=3).style == AS_TRAINED


def test_of_equally_good_styles_the_one_with_the_shorter_longest_wait_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = learned(by_estimate(tmp_path / "m", -1.0, calm={"age": 0.5}, rash={"age": 0.25}, bad={"estimate": 3.0}))
    chaos = {name: itertools.cycle(by) for name, by in {"calm": (1.2, 1 / 1.2), "rash": (1.4, 1 / 1.4)}.items()}
    # Means, and the longest wait: `rash` is best by a hair, `calm` within its error, `bad` is calmest but far off.
    table = {"as trained": (10.0, 900.0), "calm": (9.7, 500.0), "rash": (9.6, 1000.0), "bad": (30.0, 100.0)}

    def play(case: object, contenders: list[Contender], placement: str) -> list[SimpleNamespace]:
        net = contenders[0].policy.net
        name = next(n for n in table if np.array_equal(net, (policy if n == "as trained" else in_style(policy, n)).net))
        bsld = table[name][0] * (next(chaos[name]) if name in chaos else 1.0)
        figures = {"mean_bsld": bsld, "mean_wait": 50.0, "p99_wait": 400.0, "max_wait": table[name][1]}
        return [SimpleNamespace(metrics=figures)]

    monkeypatch.setattr("slurm_rl.evaluate.fit.replay", play)
    monkeypatch.setattr("slurm_rl.evaluate.fit.GOALS", {"bsld": 1.0})
    monkeypatch.setattr("slurm_rl.evaluate.fit.price", lambda logs: logs["bsld"])
    assert fit(policy, BUSY, CLUSTER, backfill="easy", replicates=12).style == "calm"
    table["calm"] = (9.7, 850.0)  # hardly shorter: not worth it
    assert fit(policy, BUSY, CLUSTER, backfill="easy", replicates=12).style == AS_TRAINED
    table["calm"], table["rash"] = (10.1, 500.0), (11.0, 1000.0)  # as trained is best, by less than calm's error
    assert fit(policy, BUSY, CLUSTER, backfill="easy", replicates=12).style == "calm"
    table["calm"] = (12.0, 500.0)  # … by more
    assert fit(policy, BUSY, CLUSTER, backfill="easy", replicates=12).style == AS_TRAINED
    table["calm"] = (9.7, 850.0)
    chaos.clear()
    table["rash"] = (9.8, 1000.0)  # better beyond doubt, but by too little
    assert fit(policy, BUSY, CLUSTER, backfill="easy", replicates=12).style == AS_TRAINED
    table["rash"] = (9.0, 1000.0)
    assert fit(policy, BUSY, CLUSTER, backfill="easy", replicates=12).style == "rash"


def test_a_fitted_model_is_one_as_any_other(tmp_path: Path) -> None:
    model = by_estimate(tmp_path / "m", 1.0, short={"estimate": -2.0, "starve_drain": 20.0})
    found = fit(learned(model), BUSY, CLUSTER, backfill="slurm", replicates=2)
    fitted = save_fitted(model, found, tmp_path / "fitted")
    assert load_model(tmp_path / "fitted").digest == fitted.digest != model.digest
    assert not fitted.styles
    assert fitted.policy == {"starve_drain": 20.0, "booking_size": -0.25}
    assert fitted.manifest["fitted"]["style"] == "short"
    assert fitted.manifest["algorithm"] == "by hand"
    styled = in_style(learned(model), "short")
    assert np.array_equal(starts(learned(fitted), "slurm"), starts(styled, "slurm"))


@pytest.mark.parametrize(
    "style", ["estimat = 1.0", "size = nan", 'size = "much"', "starve_drain = 0.0", "starve_drain = inf"]
)
def test_a_style_with_an_unknown_feature_or_a_bad_number_is_refused(tmp_path: Path, style: str) -> None:
    model = by_estimate(tmp_path / "m", 1.0, odd={"size": 1.0})
    text = (model.path / MANIFEST).read_text()
    (model.path / MANIFEST).write_text(text.replace("[styles.odd]\nsize = 1.0", f"[styles.odd]\n{style}"))
    assert (model.path / MANIFEST).read_text() != text
    with pytest.raises(ModelError, match="has a bad one"):
        load_model(model.path)


def test_the_command_fits_to_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = by_estimate(tmp_path / "m", 1.0, short={"estimate": -2.0})
    write_native(BUSY, tmp_path / "past.csv")
    write_cluster(CLUSTER, tmp_path / "past.cluster.json")
    options = ["--trace", str(tmp_path / "past.csv"), "--backfill", "easy", "--out", str(tmp_path / "out")]
    code, value = call(capsys, "models", "fit", str(model.path), *options)
    assert code == 0
    assert isinstance(value, dict)
    assert value["style"] == "short"
    assert value["ratios"]["short"] < 1.0
    assert load_model(Path(value["model"])).manifest["fitted"]["style"] == "short"
    code, value = call(capsys, "models", "fit", str(tmp_path / "out"), *options)
    assert code == InputError.exit_code
    assert "no styles" in str(value)
    code, value = call(capsys, "models", "fit", str(model.path), "--out", str(tmp_path / "none"))
    assert code == InputError.exit_code
    assert "either --from-slurm or --trace" in str(value)
    assert not (tmp_path / "none").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    code, value = call(capsys, "models", "fit", str(model.path), *options[:-1], str(tmp_path / "thesis"))
    assert code == InputError.exit_code
    assert "is not a model" in str(value)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_evaluate_fits_models_on_what_is_before_the_window(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = by_estimate(tmp_path / "m", 1.0, short={"estimate": -2.0})
    plain = by_estimate(tmp_path / "plain", -1.0)
    write_native(BUSY, tmp_path / "t.csv")
    write_cluster(CLUSTER, tmp_path / "t.cluster.json")
    policies = f"rl:{model.path},rl:{plain.path}"
    options = ["--trace", str(tmp_path / "t.csv"), "--policy", policies, "--no-opponents", "--replicates", "1"]
    code, value = call(capsys, "evaluate", *options, "--window", "0.5:1")
    assert code == 0
    assert isinstance(value, dict)
    assert value["styles"] == {f"rl:{model.path}": "short"}
    _, fitted, short = value["standings"]
    assert fitted["mean"] == short["mean"]  # in that style it is the other one
    one = ["--trace", str(tmp_path / "t.csv"), "--no-opponents", "--replicates", "1", "--window", "0.5:1"]
    code, value = call(capsys, "evaluate", *one, "--policy", f"rl:{plain.path}", "--base", f"rl:{model.path}")
    assert isinstance(value, dict)
    assert value["styles"] == {f"rl:{model.path}": "short"}  # what ratios refer to is fitted as well
    assert [s["ratio"]["mean_bsld"] for s in value["standings"]] == [1.0, 1.0]
    code, value = call(capsys, "evaluate", *options, "--window", "0.5:1", "--no-tune")
    assert isinstance(value, dict)
    assert value["styles"] == {}
    assert value["standings"][1]["mean"]["mean_bsld"] > 1.2 * short["mean"]["mean_bsld"]


def test_the_shipped_model_has_styles_for_gangs_and_for_small_jobs() -> None:
    model = load_model(ROOT / "models" / "default")
    assert (model.styles, model.booking_size, model.starve_drain) == (STYLES, BOOKING_SIZE, CAP)
    assert model.styles["wide"]["size"] > 0 > model.styles["narrow"]["size"]
    policy = learned(model)
    assert math.isfinite(in_style(policy, "wide").starve_drain)
    assert replace(policy, styles={}) == policy  # two policies are the same whatever their styles
