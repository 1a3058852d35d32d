"""Pictures of a simulation at a moment: the load of the nodes, and the waiting jobs."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import CPU, GPU, NOW, Array
from slurm_rl_sim.replay import Prepared
from slurm_rl_sim.simulation import ReplayState

_BAR, _ROWS = 40, 12
_CELL, _WIDTH, _QUEUE = 6, 40, 200  # pixels of a node, nodes in a row, pixels of the queue's bars
_FREE, _BUSY = np.array([226.0, 232.0, 240.0]), np.array([30.0, 64.0, 175.0])
_GROUND, _WAIT = np.array([255.0, 255.0, 255.0]), np.array([217.0, 119.0, 6.0])


def occupancy(simulation: ReplayState) -> Array:
    """[nodes] share of each node's GPUs (or CPUs, where it has none) that is held."""
    world = simulation.world
    nodes, free = world["nodes"], world["free"][NOW]
    on_gpus = nodes["gpu"] > 0
    total = np.where(on_gpus, nodes["gpu"], nodes["cpu"])
    left = np.where(on_gpus, free[:, GPU], free[:, CPU])
    return np.clip(1.0 - left / np.maximum(total, 1), 0.0, 1.0)


def as_text(simulation: ReplayState, prepared: Prepared, hand: Array) -> str:
    """A bar for each class of nodes, and the jobs in hand, oldest first."""
    held, workload = occupancy(simulation), prepared.workload
    lines = [f"t = {simulation.now} s"]
    for k, kind in enumerate(workload.cluster.classes):
        mine = held[workload.node_class == k]
        if len(mine):
            full = round(_BAR * float(mine.mean()))
            name = f"{kind.count} × {kind.gpus} {kind.gpu_type or 'GPUs'}" if kind.gpus else f"{kind.count} × CPU"
            lines.append(f"{name:<18.18} [{'#' * full}{'.' * (_BAR - full)}] {mine.mean():4.0%}")
    jobs, live = simulation.world["jobs"], simulation.world["live"]
    size = simulation.world["requests"]["volume"]
    lines.append(f"{len(hand)} jobs in hand:" if len(hand) else "no job waits for a choice")
    for slot, j in enumerate(hand[:_ROWS].tolist()):
        waited = simulation.now - int(jobs["submit"][j])
        lines.append(
            f"{slot:>4}  job {prepared.trace.job_id[j]}  size {size[jobs['request'][j]]:g}  waits {waited} s  "
            f"estimate {live['expected'][j]:.0f} s"
        )
    if len(hand) > _ROWS:
        lines.append(f"      and {len(hand) - _ROWS} more")
    return "\n".join(lines) + "\n"


def as_picture(simulation: ReplayState, hand: Array) -> Array:
    """[height, width, 3] uint8: a square for each node, the fuller the darker; a bar for each job in hand, by size."""
    held = occupancy(simulation)
    rows = -(-len(held) // _WIDTH)
    height = max(rows * _CELL, 32 * _CELL)
    picture = np.broadcast_to(_GROUND, (height, _WIDTH * _CELL + _QUEUE, 3)).copy()
    for n, share in enumerate(held.tolist()):
        y, x = n // _WIDTH * _CELL, n % _WIDTH * _CELL
        picture[y : y + _CELL - 1, x : x + _CELL - 1] = _FREE + share * (_BUSY - _FREE)
    requests = simulation.world["requests"]["volume"][simulation.world["jobs"]["request"][hand]]
    largest = max(float(requests.max(initial=0.0)), 1e-9)
    for i, size in enumerate(requests[: height // _CELL].tolist()):
        wide = max(round((_QUEUE - _CELL) * np.log1p(size) / np.log1p(largest)), 1)
        y, x = i * _CELL, _WIDTH * _CELL + _CELL
        picture[y : y + _CELL - 2, x : x + wide] = _WAIT
    return picture.astype(np.uint8)
