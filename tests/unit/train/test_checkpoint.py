"""A model is used only if everything about it is as it should be."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slurm_rl.controller.live_policy import load_policy
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import ModelError
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import (
    MANIFEST,
    WEIGHTS,
    find_model,
    flatten,
    load_model,
    save_model,
    to_toml,
    unflatten,
)
from slurm_rl.policy.contract import contract
from slurm_rl.policy.features import JOB_FEATURES
from slurm_rl.policy.network import LAYOUT
from slurm_rl.policy.registry import PolicySpec, booked, parse_policy
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl_sim.replay import Prepared, prepare
from slurm_rl_sim.simulation import ReplayState

CLUSTER = Cluster("small", (NodeClass(6, "V100", 4, 16, 64.0, "gpu", 1.0),))


def some_tensors() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in LAYOUT.items()}
    return tensors | {"size_low": -abs(tensors["size_low"]), "size_high": abs(tensors["size_high"])}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    save_model(path, some_tensors(), {"algorithm": "ppo", "scores": {"mean_bsld": 3.5}}, starve_drain=4.0)
    return path


def resign(path: Path) -> None:
    """Makes the manifest vouch for the weights as they are."""
    import hashlib

    text = (path / MANIFEST).read_text().splitlines()
    found = hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest()
    lines = [f'sha256 = "{found}"' if line.startswith("sha256") else line for line in text]
    (path / MANIFEST).write_text("\n".join(lines))


def test_a_saved_model_comes_back(model: Path) -> None:
    loaded = load_model(model)
    assert np.array_equal(loaded.net, flatten(some_tensors()))
    assert loaded.manifest["scores"]["mean_bsld"] == 3.5
    assert loaded.starve_drain == 4.0
    policy = parse_policy(f"rl:{model}")
    assert policy.name == f"rl:{model}"
    assert policy.digest == loaded.digest
    assert policy.starve_drain == 4.0


def test_saving_again_replaces_the_model_whole(model: Path) -> None:
    other = {name: tensor + 1 for name, tensor in some_tensors().items()}
    save_model(model, other, {"algorithm": "ppo"})
    assert np.array_equal(load_model(model).net, flatten(other))
    assert [p.name for p in model.parent.iterdir()] == ["mine"]


def test_a_model_with_nan_is_never_written(model: Path) -> None:
    before = load_model(model).digest
    with pytest.raises(ModelError, match="not finite"):
        save_model(model, some_tensors() | {"out": np.full(LAYOUT["out"], np.nan)}, {})
    assert load_model(model).digest == before
    assert [p.name for p in model.parent.iterdir()] == ["mine"]


def test_changed_weights_are_refused(model: Path) -> None:
    raw = bytearray((model / WEIGHTS).read_bytes())
    raw[-1] ^= 1
    (model / WEIGHTS).write_bytes(raw)
    with pytest.raises(ModelError, match="sha256"):
        load_model(model)


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("out", np.full(LAYOUT["out"], np.nan, dtype=np.float32), "not finite"),
        ("out", np.zeros(3, dtype=np.float32), r"is float32 \[3\]"),
        ("out", np.zeros(LAYOUT["out"], dtype=np.float64), "is float64"),
        ("out", None, "is missing"),
        ("extra", np.zeros(3, dtype=np.float32), "unknown tensor extra"),
    ],
)
def test_poisoned_tensors_are_refused(model: Path, name: str, tensor: Array | None, reason: str) -> None:
    tensors = some_tensors() | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del tensors[name]
    save_file(tensors, model / WEIGHTS)
    resign(model)
    with pytest.raises(ModelError, match=reason):
        load_model(model)


def test_a_model_from_before_there_were_bounds_sees_every_size(model: Path) -> None:
    tensors = some_tensors()
    del tensors["size_low"], tensors["size_high"]
    save_file(tensors, model / WEIGHTS)
    resign(model)
    found = unflatten(load_model(model).net)
    assert (found["size_low"] < -1e30).all()
    assert (found["size_high"] > 1e30).all()


def test_bounds_the_wrong_way_round_are_refused(model: Path) -> None:
    tensors = some_tensors()
    save_file(tensors | {"size_low": tensors["size_high"] + 1}, model / WEIGHTS)
    resign(model)
    with pytest.raises(ModelError, match="size_low is above size_high"):
        load_model(model)


def test_a_pickle_is_refused_and_not_opened(model: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    (model / WEIGHTS).write_bytes(pickle.dumps(Trap()))
    resign(model)
    with pytest.raises(ModelError, match="no safetensors file"):
        load_model(model)
    assert not (tmp_path / "sprung").exists()


def test_other_features_are_refused(model: Path) -> None:
    text = (model / MANIFEST).read_text()
    (model / MANIFEST).write_text(text.replace("version = 1", "version = 99"))
    with pytest.raises(ModelError, match="made for features of version 99, this release has 1: retrain it"):
        load_model(model)


def test_features_of_other_values_or_names_are_refused_by_name(model: Path) -> None:
    text = (model / MANIFEST).read_text()
    spread = contract()["values"]["spread"]
    (model / MANIFEST).write_text(text.replace(f"spread = {spread!r}", f"spread = {1.01 * spread!r}", 1))
    with pytest.raises(ModelError, match=r"made for other features: spread is .* here and was"):
        load_model(model)
    (model / MANIFEST).write_text(text.replace("spread = ", "dispersion = ", 1))
    with pytest.raises(ModelError, match="dispersion is known to it alone"):
        load_model(model)


def test_the_last_bits_of_another_machine_are_no_reason_to_refuse(model: Path) -> None:
    text = (model / MANIFEST).read_text()
    estimate = contract()["values"]["estimate"]
    other = text.replace(f"estimate = {estimate!r}", f"estimate = {estimate * (1 + 1e-5)!r}", 1)
    assert other != text
    (model / MANIFEST).write_text(other)
    load_model(model)


def test_every_feature_is_put_to_the_test() -> None:
    assert all(value != 0.0 for value in contract()["values"].values())


@pytest.mark.parametrize(
    ("file", "before", "after", "says"),
    [
        ("policy/features.py", "log_estimate", "log_of_the_estimate", ""),
        ("policy/estimate.py", "_KEEP = 0.92", "_KEEP = 0.5", "made for other features"),
    ],
    ids=["a local variable is renamed", "the estimator forgets sooner"],
)
def test_what_counts_is_what_features_are_not_how_they_are_written(
    tmp_path: Path, file: str, before: str, after: str, says: str
) -> None:
    root = Path(__file__).resolve().parents[3]
    shutil.copytree(root / "slurm_rl", tmp_path / "slurm_rl", ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / "slurm_rl" / file
    source = changed.read_text()
    assert before in source
    changed.write_text(source.replace(before, after))
    code = (
        "import sys; from pathlib import Path; from slurm_rl.policy.checkpoint import load_model\n"
        "try: load_model(Path(sys.argv[1]))\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root / "models" / "default")],
        cwd=tmp_path,  # where -c looks first
        env=os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert says in done.stdout if says else done.stdout == ""


@pytest.mark.parametrize("text", ["", "not toml [", '[weights]\nsha256 = "x"\n', "weights = 3\n"])
def test_a_broken_manifest_is_refused(model: Path, text: str) -> None:
    (model / MANIFEST).write_text(text)
    with pytest.raises(ModelError, match=MANIFEST):
        load_model(model)


def test_an_unknown_model_names_those_there_are(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RL_MODELS", str(model.parent))
    assert find_model("mine") == model
    with pytest.raises(ModelError, match=r"no model 'nobody' \(there are: .*mine"):
        find_model("nobody")


def test_manifests_are_toml() -> None:
    import tomllib

    values = {"a": 1, "b": [1.5, True], "c": 'quo"te', "t": {"x": float("inf"), "odd key": {"y": "z", "two words": 2}}}
    assert tomllib.loads(to_toml(values)) == values


def test_where_nodes_are_booked_and_where_there_are_no_gpus_a_jobs_size_counts_for_more(tmp_path: Path) -> None:
    """`slurm` and `conservative` play the same network with another weight of the size; `easy`, on CPUs alone."""
    path = tmp_path / "mine"
    save_model(path, some_tensors(), {"algorithm": "ppo"}, booking_size=-20.0)
    policy = parse_policy(f"rl:{path}")
    tensors = some_tensors()
    tensors["skip"][JOB_FEATURES.index("size")] -= 20.0
    by_hand = replace(policy, net=flatten(tensors), booking_size=0.0)
    on_gpus = prepare(generate(WorkloadSpec(jobs=300, days=1, load=1.3, seed=1), CLUSTER), CLUSTER)
    cpus = Cluster("cpus", (NodeClass(8, cpus=32, mem_gb=128.0),))
    without = prepare(generate(WorkloadSpec(jobs=300, days=1, load=1.3, seed=1), cpus), cpus)

    def starts(spec: PolicySpec, backfill: str, prepared: Prepared = on_gpus) -> Array:
        simulation = ReplayState(prepared.workload, prepared.trace.run_time, spec, backfill=backfill)
        simulation.run()
        found: Array = simulation.world["live"]["start"].copy()
        return found

    for backfill in ("slurm", "conservative"):
        assert np.array_equal(starts(policy, backfill), starts(by_hand, backfill))
    assert np.array_equal(starts(policy, "easy"), starts(replace(policy, booking_size=0.0), "easy"))
    assert not np.array_equal(starts(policy, "easy"), starts(by_hand, "easy"))
    plain = starts(replace(policy, booking_size=0.0), "easy", without)
    assert np.array_equal(starts(policy, "easy", without), starts(by_hand, "easy", without))
    assert not np.array_equal(starts(policy, "easy", without), plain)


def test_a_live_policy_goes_by_slurms_own_backfill(tmp_path: Path) -> None:
    save_model(tmp_path / "mine", some_tensors(), {"algorithm": "ppo"}, booking_size=-0.75)
    policy = parse_policy(f"rl:{tmp_path / 'mine'}")
    live = load_policy(f"rl:{tmp_path / 'mine'}").spec
    assert live.net is not None
    assert booked(policy).net is not None
    assert np.array_equal(live.net, booked(policy).net)  # type: ignore[arg-type]
    assert not np.array_equal(live.net, policy.net)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["nan", '"much"', "inf"])
def test_a_bad_weight_in_the_manifest_is_refused(model: Path, value: str) -> None:
    text = (model / MANIFEST).read_text()
    (model / MANIFEST).write_text(text.replace("booking_size = 0.0", f"booking_size = {value}"))
    with pytest.raises(ModelError, match="has a bad one"):
        load_model(model)
