"""The learned policy's network in numpy, called at each epoch's end without the cost of small tensors.

Layers and menu change only when the network grows. What depends on them is kept; an epoch's end adds the time and the
curve. `tests/unit/grow/test_study.py` holds the scores equal to those of the torch network.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurm_rl.grow.features import globals_of, rows_of
from slurm_rl.grow.state import GrowthStep, State
from slurm_rl.kernel.arrays import Array


class Scorer:
    """Scores of nothing and of each choice of a state."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        w = {name: np.asarray(value, dtype=np.float32) for name, value in weights.items()}
        self._words = w["words.weight"]
        self._in, self._in_bias = w["layers.weight_ih_l0"], w["layers.bias_ih_l0"]
        self._own, self._own_bias = w["layers.weight_hh_l0"], w["layers.bias_hh_l0"]
        arch = self._own.shape[1]
        rows, word = len(rows_of(_NOTHING)[0][0]), self._words.shape[1]
        first = w["score.0.weight"]
        cuts = np.cumsum([arch, first.shape[1] - arch - rows - word, rows])
        self._of_arch, self._of_context, self._of_rows, self._of_words = np.split(first, cuts, axis=1)
        self._bias, self._last, self._last_bias = w["score.0.bias"], w["score.2.weight"][0], w["score.2.bias"][0]
        self._known: tuple[tuple[int, ...], tuple[GrowthStep, ...], Array] | None = None
        self._arch: tuple[tuple[int, ...], Array] | None = None

    def __call__(self, state: State) -> Array:
        fixed = self._fixed(state)
        context = self._of_context @ np.array(globals_of(state), dtype=np.float32)
        return np.asarray(np.tanh(fixed + context) @ self._last + self._last_bias)

    def _fixed(self, state: State) -> Array:
        """The first layer's sums of all that does not change from one epoch to the next."""
        known = self._known
        if known is not None and known[0] == state.layers and known[1] == state.choices:
            return known[2]
        made, named = rows_of(state)
        rows = np.array(made, dtype=np.float32) @ self._of_rows.T + self._words[named] @ self._of_words.T
        fixed = rows + self._of_arch @ self._read(state.layers) + self._bias
        self._known = state.layers, state.choices, fixed
        return fixed

    def _read(self, layers: tuple[int, ...]) -> Array:
        """The recurrent cell's state after the last layer."""
        if self._arch is not None and self._arch[0] == layers:
            return self._arch[1]
        # Without any layer the network reads one word that means none, as a padded batch does.
        inputs = self._words[[i + 1 for i in layers] or [0]] @ self._in.T + self._in_bias
        h = np.zeros(self._own.shape[1], dtype=np.float32)
        for given in inputs:
            own = self._own @ h + self._own_bias
            (gr, gz, gn), (hr, hz, hn) = np.split(given, 3), np.split(own, 3)
            reset, update = 1 / (1 + np.exp(-(gr + hr))), 1 / (1 + np.exp(-(gz + hz)))
            h = (1 - update) * np.tanh(gn + reset * hn) + update * h
        self._arch = layers, h
        return h


_NOTHING = State((), (), 0.0, 0.0, 0.0)
