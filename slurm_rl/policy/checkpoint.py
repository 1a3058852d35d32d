"""Model directories: `policy.safetensors` and `manifest.toml`, checked in every respect before a weight is used."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from slurm_rl.errors import InputError, ModelError
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.contract import contract, difference
from slurm_rl.policy.features import JOB_FEATURES
from slurm_rl.policy.network import LAYOUT, unbounded

WEIGHTS, MANIFEST = "policy.safetensors", "manifest.toml"
STARVE_DRAIN = "starve_drain"  # the cap, by its name in a manifest
_LARGEST = 16 << 20  # bytes: nothing that we made is larger


@dataclass(frozen=True, slots=True)
class Model:
    """A checked model: its weights in the order of LAYOUT, and what is known of its making."""

    path: Path
    manifest: Mapping[str, Any]
    net: Array = field(repr=False)
    digest: str  # sha256 of the weights

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def starve_drain(self) -> float:
        """After how many times the pool's backlog a waiting job goes first: part of the policy."""
        return float(self.manifest["policy"]["starve_drain"])

    @property
    def booking_size(self) -> float:
        """What is added to the weight of a job's size under backfill rules that book nodes for many jobs."""
        return float(self.manifest["policy"].get("booking_size", 0.0))

    @property
    def policy(self) -> dict[str, float]:
        """What a manifest says of the policy beside the weights, as `save_model` takes it."""
        return {STARVE_DRAIN: self.starve_drain, "booking_size": self.booking_size}

    @property
    def styles(self) -> dict[str, dict[str, float]]:
        """What may suit a site better: by name, changes of the linear path's weights of features, and a cap."""
        return {name: dict(style) for name, style in self.manifest.get("styles", {}).items()}


def model_directories() -> list[Path]:
    """Where models are looked for: the site's own, then those that came with the package."""
    package = Path(__file__).resolve().parents[1]
    site = os.environ.get("SLURM_RL_MODELS")
    return [*([Path(site)] if site else []), package / "_data" / "models", package.parent / "models"]


def find_model(name: str, kind: str = "rl") -> Path:
    """The directory of a model, by its name or its path; `kind` is how users write it."""
    if os.sep in name:
        return Path(name)
    places = model_directories()
    for place in places:
        if (place / name / MANIFEST).is_file():
            return place / name
    known = sorted({p.parent.name for place in places for p in place.glob(f"*/{MANIFEST}")})
    raise ModelError(f"no model {name!r} (there are: {', '.join(known) or 'none'}; or give a directory: {kind}:./DIR)")


def load_model(path: Path) -> Model:
    """Reads a model and refuses it, with the reason, unless all of it is as it should be."""
    path = Path(path).resolve()
    manifest = _manifest(path / MANIFEST)
    raw, found = read_weights(path, manifest["weights"]["sha256"])
    why = difference(manifest["features"])
    if why:
        raise ModelError(f"{path}: {why}: retrain it")
    tensors = flat_tensors(path / WEIGHTS, raw, LAYOUT, otherwise=unbounded())
    if not (tensors["size_low"] <= tensors["size_high"]).all():
        raise ModelError(f"{path / WEIGHTS}: size_low is above size_high")
    return Model(path, manifest, flatten(tensors), found)


def read_weights(path: Path, sha256: str) -> tuple[bytes, str]:
    """The file of a model's weights and its digest, which must be the manifest's."""
    try:
        if (path / WEIGHTS).stat().st_size > _LARGEST:
            raise ModelError(f"{path / WEIGHTS}: larger than any model of ours")
        raw = (path / WEIGHTS).read_bytes()
    except OSError as error:
        raise ModelError(f"{path / WEIGHTS}: cannot be read: {error.strerror}") from None
    found = hashlib.sha256(raw).hexdigest()
    if found != sha256:
        raise ModelError(f"{path / WEIGHTS}: its sha256 is {found[:12]}…, the manifest says otherwise: not used")
    return raw, found


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        if "meta" in manifest:
            name = path.parent.name
            raise ModelError(f"{path.parent}: chooses a policy, it does not order jobs itself: write meta:{name}")
        drain, booking = manifest["policy"]["starve_drain"], manifest["policy"].get("booking_size", 0.0)
        complete = (
            isinstance(manifest["weights"]["sha256"], str)
            and isinstance(manifest["features"]["version"], int)
            and all(isinstance(v, int | float) for v in manifest["features"]["values"].values())
            and isinstance(drain, int | float)
            and drain > 0
            and isinstance(booking, int | float)
            and math.isfinite(booking)
            and all(_is_style(style) for style in manifest.get("styles", {}).values())
        )
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelError(f"{path}: no TOML: {error}") from None
    except (KeyError, TypeError, AttributeError):
        complete = False
    if not complete:
        raise ModelError(
            f"{path}: lacks weights.sha256, features.version, features.values or policy.starve_drain, or has a bad one"
        )
    return manifest


def _is_style(style: Mapping[str, Any]) -> bool:
    numbers = all(isinstance(v, int | float) and math.isfinite(v) for v in style.values())
    return numbers and style.keys() <= {STARVE_DRAIN, *JOB_FEATURES} and style.get(STARVE_DRAIN, 1.0) > 0


def flat_tensors(
    path: Path,
    raw: bytes,
    layout: Mapping[str, tuple[int, ...]],
    why: Mapping[str, str] | None = None,
    otherwise: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """The tensors of a file, each as the layout wants it and finite.

    `why`: what to say if one is not; `otherwise`: those that files of earlier releases lack.
    """
    try:
        tensors = load_tensors(raw)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: no safetensors file: {error}") from None
    for name, shape in layout.items():
        tensor = tensors.pop(name, (otherwise or {}).get(name))
        if tensor is None or tensor.shape != shape or tensor.dtype != np.float32:
            got = "is missing" if tensor is None else f"is {tensor.dtype} {list(tensor.shape)}"
            said = (why or {}).get(name) if tensor is not None else None
            raise ModelError(said or f"{path}: tensor {name} {got}, want float32 {list(shape)}")
        if not np.isfinite(tensor).all():
            raise ModelError(f"{path}: tensor {name} holds values that are not finite")
        tensors[name] = tensor
    unknown = sorted(set(tensors) - set(layout))
    if unknown:
        raise ModelError(f"{path}: unknown tensor {unknown[0]}")
    return dict(tensors)


def flatten(tensors: Mapping[str, Array], layout: Mapping[str, tuple[int, ...]] = LAYOUT) -> Array:
    """Tensors by name as the one array that kernels read."""
    return np.concatenate([np.asarray(tensors[name], dtype=np.float32).ravel() for name in layout])


def unflatten(net: Array) -> dict[str, Array]:
    """Tensors by name from the one array that kernels read."""
    tensors, at = {}, 0
    for name, shape in LAYOUT.items():
        size = math.prod(shape)
        tensors[name] = net[at : at + size].reshape(shape)
        at += size
    return tensors


def check_place(path: Path) -> None:
    """Refuses to put a model where something else lies: what is there would be lost."""
    if path.exists() and not (path / MANIFEST).is_file():
        raise InputError("exists and is not a model", file=str(path), remedy="give another directory")


def save_model(
    path: Path,
    tensors: Mapping[str, Array],
    manifest: Mapping[str, Any],
    *,
    starve_drain: float = math.inf,
    booking_size: float = 0.0,
) -> Model:
    """Writes a model beside its place, checks it, and only then puts it there; an older one is replaced whole."""
    full = dict(manifest) | {
        "policy": {"starve_drain": float(starve_drain), "booking_size": float(booking_size)},
        "features": contract(),
    }
    put_model(path, {name: tensors[name] for name in LAYOUT}, full, load_model)
    return load_model(path)


def put_model(
    path: Path, tensors: Mapping[str, Array], manifest: Mapping[str, Any], check: Callable[[Path], object]
) -> None:
    """Writes weights and a manifest beside their place, checks them, and moves them there; an older one goes whole."""
    path = Path(path)
    check_place(path)
    raw = save_tensors({name: np.ascontiguousarray(table, dtype=np.float32) for name, table in tensors.items()})
    full: dict[str, Any] = {k: v for k, v in manifest.items() if not isinstance(v, Mapping)}
    full |= {k: v for k, v in manifest.items() if isinstance(v, Mapping)}
    full["weights"] = {"file": WEIGHTS, "sha256": hashlib.sha256(raw).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        (fresh / WEIGHTS).write_bytes(raw)
        (fresh / MANIFEST).write_text(to_toml(full), encoding="utf-8")
        check(fresh)
        fresh.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.rename(old / "model")
            fresh.rename(path)
            shutil.rmtree(old)
        else:
            fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Plain values, lists of them, and tables of these, as TOML."""
    lines = [f"{_toml_key(k)} = {_toml_value(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    for name, table in values.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{prefix}{_toml_key(name)}]", to_toml(table, f"{prefix}{_toml_key(name)}.").rstrip("\n")]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)  # inf and nan are TOML too
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)
