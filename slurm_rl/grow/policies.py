"""When to grow and where: policies that need no learning."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

from slurm_rl.errors import unknown_name
from slurm_rl.grow.state import GrowthStep, State

WORTH = 3.0  # epochs that must still fit after a step, by the grown network's pace


class GrowthPolicy(Protocol):
    """Chooses a step of growth, or None. Must not change the state."""

    name: str

    def choose(self, state: State) -> GrowthStep | None: ...


def affordable(state: State, worth: float = WORTH) -> list[GrowthStep]:
    """What leaves time for some epochs of the grown network."""
    return [c for c in state.choices if state.left >= worth * c.cost * state.epoch_seconds]


class Never:
    """Leaves the network as it is."""

    name = "never"

    def choose(self, state: State) -> GrowthStep | None:
        return None


class Always:
    """Grows at every occasion, by one action, where it costs least."""

    def __init__(self, action: str) -> None:
        self.name, self._action = f"always-{action}", action

    def choose(self, state: State) -> GrowthStep | None:
        fitting = [c for c in affordable(state) if c.action == self._action]
        return min(fitting, key=lambda c: c.cost, default=None)


class AtPlateau:
    """Widens where it costs least once the metric has not risen by `gain` over `patience` epochs."""

    name = "at-plateau"

    def __init__(self, patience: int = 4, gain: float = 0.005) -> None:
        self._patience, self._gain = patience, gain

    def choose(self, state: State) -> GrowthStep | None:
        since = len(state.metrics) - max(state.grown, default=0)
        if since < 2 * self._patience:
            return None
        recent, before = state.metrics[-self._patience :], state.metrics[-2 * self._patience : -self._patience]
        if max(recent) - max(before) > self._gain:
            return None
        fitting = [c for c in affordable(state) if c.action == "widen"]
        return min(fitting, key=lambda c: c.cost, default=None)


class Random:
    """Nothing or any step, with equal chances."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - not for secrets

    def choose(self, state: State) -> GrowthStep | None:
        return self._random.choice([None, *affordable(state)])


HEURISTICS = ("never", "always-widen", "always-deepen", "at-plateau", "random")


def policy_of(name: str, seed: int = 0) -> GrowthPolicy:
    """A policy by its name, or a learned one by its file."""
    match name:
        case "never":
            return Never()
        case "always-widen" | "always-deepen":
            return Always(name.removeprefix("always-"))
        case "at-plateau":
            return AtPlateau()
        case "random":
            return Random(seed)
    if name.endswith(".safetensors") or Path(name).is_file():
        from slurm_rl.grow.learned import load_policy

        return load_policy(Path(name))
    raise unknown_name("growth policy", name, [*HEURISTICS, "FILE.safetensors"])
