"""What good and random picks score in the environment: the table of docs/learning.md.

slurm-rl study windows [WINDOWS] [WARM_UP] [PART] [TRACE]

All ways to pick meet on the same windows. A gain is the logarithm of FCFS's figure over that of the picks, so that 0 is
FCFS, and 0.1 is a tenth less. Intervals (95%) come from drawing the windows again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import slurm_rl  # noqa: F401  (registers the environment)
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.features import JOB_FEATURES
from slurm_rl.studies.places import bundled

Scores = Callable[[Array, Array, Array], Array]  # of jobs, pool and mask
METRICS = ("user_bsld", "mean_bsld", "geomean_bsld", "mean_wait")
_SLOTS, _DRAWS, _SEED = 40, 10_000, 100
_AT = {name: k for k, name in enumerate(JOB_FEATURES)}


def _network() -> Scores:
    import torch

    from slurm_rl.policy.checkpoint import find_model, load_model, unflatten
    from slurm_rl.train.module import QueueNet

    net = QueueNet()
    net.take(unflatten(load_model(find_model("default")).net))

    def scores(jobs: Array, pool: Array, mask: Array) -> Array:
        with torch.no_grad():
            found: Array = net(*(torch.as_tensor(x) for x in (jobs, pool, mask)))[0].numpy()
        return found

    return scores


def picks() -> dict[str, Scores]:
    """Ways to pick, by what is seen of the jobs in hand; the highest score is next."""
    dice = np.random.default_rng(1)

    def seen(jobs: Array, name: str) -> Array:
        found: Array = jobs[:, :, _AT[name]]
        return found

    return {
        "FCFS": lambda jobs, pool, mask: -np.broadcast_to(np.arange(mask.shape[1]), mask.shape),
        "random": lambda jobs, pool, mask: dice.random(mask.shape),
        "longest estimate first": lambda jobs, pool, mask: seen(jobs, "estimate"),
        "shortest estimate first": lambda jobs, pool, mask: -seen(jobs, "estimate"),
        "sjf-age": lambda jobs, pool, mask: seen(jobs, "age_ratio") - seen(jobs, "estimate"),
        "WFP3": lambda jobs, pool, mask: (
            3.0 * (np.log(np.maximum(60.0 * np.expm1(seen(jobs, "age")), 1.0)) - seen(jobs, "limit"))
            + seen(jobs, "size")
        ),
        "smallest area first": lambda jobs, pool, mask: -seen(jobs, "estimate") - seen(jobs, "size"),
        "the shipped network": _network(),
    }


def gains(scores: Scores, windows: int, **options: Any) -> Array:
    """Gains over FCFS of each window (rows) by each metric, the same windows in the same order for all picks."""
    slots = min(_SLOTS, windows)
    each = windows // slots
    envs = gymnasium.make_vec(
        "slurm_rl/Replay-v0", num_envs=slots, observation="dict", rewards=lambda mine, theirs: 0.0, **options
    )
    seen, infos = envs.reset(seed=_SEED)
    found: list[list[list[float]]] = [[] for _ in range(slots)]
    while min(map(len, found)) < each:
        mask = infos["action_mask"]
        order = np.where(mask, scores(seen["jobs"], seen["pool"], mask), -np.inf)
        seen, _, ended, _, infos = envs.step(order.argmax(axis=1))
        for i in np.flatnonzero(ended).tolist():
            both = [(infos["baseline"][m][i], infos["metrics"][m][i]) for m in METRICS]
            found[i].append([np.log((base + (m == "mean_wait")) / (own + (m == "mean_wait")))
                             for m, (base, own) in zip(METRICS, both, strict=True)])  # fmt: skip
    envs.close()
    return np.array([row for slot in found for row in slot[:each]])


def _told(values: Array) -> str:
    draws = np.random.default_rng(0).integers(0, len(values), (_DRAWS, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def main(windows: str = "160", warm_up: str = "1024", part: str = "train", trace: str = "") -> None:
    """Prints each way's mean gain over FCFS, and by how much it is ahead of random picks in `users`."""
    path = Path(trace) if trace else bundled() / "hetero.csv.gz"
    options: dict[str, Any] = {"trace": path, "warm_up": int(warm_up), "part": part}
    print(f"{windows} windows, {warm_up} jobs before each; gain over FCFS, with 95% intervals")
    print(f"{'picks':<24}" + "".join(f"{m:>27}" for m in METRICS) + f"{'users, to random':>27}")
    random: Array | None = None
    for name, scores in picks().items():
        found = gains(scores, int(windows), **options)
        random = found if name == "random" else random
        ahead = _told(found[:, 0] - random[:, 0]) if random is not None and name != "random" else ""
        print(f"{name:<24}" + "".join(f"{_told(column):>27}" for column in found.T) + f"{ahead:>27}", flush=True)
