"""From traces to a model directory: shared by `slurm-rl train` and `slurm-rl retrain`."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl import __version__
from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.kernel.catalogue import find_kernel
from slurm_rl.policy.checkpoint import STARVE_DRAIN, Model, save_model, unflatten
from slurm_rl.policy.meta import Meta, MetaModel, save_meta
from slurm_rl.traces.trace import Trace
from slurm_rl.train.algorithms.catalogue import ALGORITHMS
from slurm_rl.train.meta_scenes import HELD_OUT, META_COSTS, META_GOALS
from slurm_rl.train.meta_trainer import MetaTrainer
from slurm_rl.train.scenes import SceneSource
from slurm_rl.train.settings import Settings
from slurm_rl.train.tracking import tracked
from slurm_rl.train.trainer import CURVE, STATE, Trainer

# What training does not find: it plays short workloads, and no feature tells the backfill rule or the kind of site. How
# these were chosen is in docs/learning.md; a model hands its own on to what is trained from it.
CAP = 8.0  # a job that waited so many times the backlog's time goes first
BOOKING_SIZE = -1.18  # added to the weight of the size where nodes are booked for many, and in pools without GPUs
STYLES = {"wide": {"size": 1.4, "age": 0.8, "starve_drain": 2.0}, "narrow": {"size": -0.8}}


def first_part(trace: Trace, share: float) -> Trace:
    """The jobs submitted in the first part of a trace's time."""
    first, last = trace.span()
    return trace.take(np.flatnonzero(trace.submit_time <= first + share * (last - first)))


def refuse_used(places: Iterable[Path], remedy: str) -> None:
    """Refuses directories in which a training, or its result, already lies: it would be lost."""
    for place in places:
        for name in (STATE, CURVE, "model"):
            if (place / name).exists():
                raise InputError("another training left this", field=f"--out: {place / name}", remedy=remedy)


def train_model(
    settings: Settings,
    sources: Sequence[tuple[Trace, Cluster]],
    out: Path,
    *,
    share: float = 0.6,
    resume: bool = False,
    start: Model | None = None,
    starve_drain: float | None = None,
    manifest: dict[str, Any] | None = None,
    report: Callable[[dict[str, float]], None] = lambda row: None,
    say: Callable[[str], None] = lambda text: None,
) -> Model | MetaModel:
    """Trains on the first part of each trace's time and writes the best network to `out`, with its manifest.

    `out` must not hold another training, unless that one is to be resumed.
    """
    if not resume:
        refuse_used([out], "give another directory")
    out.mkdir(parents=True, exist_ok=True)
    parts = [SceneSource(first_part(trace, share), cluster) for trace, cluster in sources]
    trainer = _trainer(settings)(settings, parts, out, start)
    if resume:
        at = trainer.restore()
        say(f"{out}: resuming after {at}" if at else f"{out}: nothing to resume, starting from the beginning")
    with tracked(out, settings, report, say) as told:
        net = trainer.run(told, say)
    made = {
        "algorithm": settings.algorithm,
        "made_by": f"slurm-rl {__version__}",
        "commit": commit(),
        "seed": settings.seed,
        "iterations": settings.iterations,
        "training": {
            "share_of_time": share,
            "generated": settings.generated,
            "reference": settings.reference,
            "goals": dict(settings.goals),
            "costs": dict(settings.costs),
            "generations": settings.search.generations,
        },
        "scores": {f"validation_{k}": round(v, 4) for k, v in trainer.best_ratios.items()},
        "traces": {t.name: {"jobs": len(t), "sha256": fingerprint(t)} for t, _ in sources},
    }
    if isinstance(trainer, MetaTrainer):
        return _save_choice(trainer, out / "model", made | (manifest or {}))
    styles, policy = STYLES, {STARVE_DRAIN: CAP, "booking_size": BOOKING_SIZE}
    if start is not None:
        styles, policy = start.styles, start.policy
    if styles:
        made["styles"] = styles
    if starve_drain is not None:
        policy = policy | {STARVE_DRAIN: starve_drain}
    return save_model(out / "model", unflatten(net), made | (manifest or {}), **policy)


def _trainer(settings: Settings) -> type[Trainer]:
    row = ALGORITHMS[settings.algorithm]
    found: type[Trainer] = find_kernel(row.trainer) if row.trainer else Trainer
    return found


def _save_choice(trainer: MetaTrainer, path: Path, manifest: dict[str, Any]) -> MetaModel:
    """Writes the best network of a training that learned to choose among policies."""
    if trainer.best_net is not None:
        net, at = trainer.meta_net.tensors(), 0
        for name, table in net.items():
            net[name] = trainer.best_net[at : at + table.size].reshape(table.shape)
            at += table.size
        trainer.meta_net.take(net)
    own = trainer.options
    meta = Meta(trainer.members, interval=own.interval, margin=own.margin, switches=own.switches)
    training = {
        "reference": trainer.settings.reference,
        "goals": dict(META_GOALS),
        "costs": dict(META_COSTS),
        "settings": asdict(own),
        "scenes": trainer.settings.scenes,
        "jobs": trainer.settings.jobs,
        "held_out": list(HELD_OUT),
    }
    return save_meta(path, trainer.meta_net.tensors(), manifest | {"training": training}, meta)


def fingerprint(trace: Trace) -> str:
    """A sha256 over what a trace's jobs are."""
    digest = hashlib.sha256()
    for column in (trace.submit_time, trace.run_time, trace.time_limit, trace.num_gpus, trace.num_nodes):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def commit() -> str:
    """The source's commit, where it is a checkout."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()
