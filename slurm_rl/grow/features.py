"""A learned policy's input from a training: time, the learning curve, and a row for each choice."""

from __future__ import annotations

import math

from slurm_rl.grow.state import State

GLOBALS, CHOICE = 15, 5


def globals_of(state: State) -> list[float]:
    """Time and the learning curve so far, all of order one."""
    epochs = len(state.metrics)
    left = min(state.epochs_left, 2.0**16)
    whole = state.elapsed + state.left
    part = state.elapsed / whole if 0 < whole < math.inf else 0.0
    waves = [f(2 * math.pi * part * k) for k in (1, 2) for f in (math.sin, math.cos)]
    metrics, losses = state.metrics or (0.0,), state.losses or (0.0,)
    last, middle, first = metrics[-1], metrics[len(metrics) // 2], metrics[0]
    recent = metrics[max(len(metrics) - 4, 0)]
    since = epochs - max(state.grown, default=0)
    curve = [last, last - recent, last - middle, middle - first, math.tanh(losses[-1])]
    slope = math.tanh((losses[max(len(losses) - 4, 0)] - losses[-1]) / (abs(losses[-1]) + 1e-6))
    times = [part, math.log2(1 + epochs) / 8, math.log2(1 + left) / 8]
    return [*times, *waves, *curve, slope, math.log2(1 + since) / 8, len(state.grown) / 4]


def rows_of(state: State) -> tuple[list[list[float]], list[int]]:
    """A row for nothing and for each choice, and the word of the layer that each is about."""
    depth = max(len(state.layers), 1)
    rows, words = [[1.0, 0.0, 0.0, 0.0, 0.0]], [0]
    for c in state.choices:
        place = c.layer / depth if c.layer >= 0 else 0.0
        rows.append([0.0, float(c.action == "widen"), float(c.action == "deepen"), math.log2(c.cost), place])
        words.append(state.layers[c.layer] + 1 if c.layer >= 0 else 0)
    return rows, words
