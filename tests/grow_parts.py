"""Small parts for tests of the Grower: a clock to set, a policy that follows a plan."""

from __future__ import annotations

from slurm_rl.grow.state import GrowthStep, State


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Planned:
    """Takes the n-th choice at given epochs."""

    name = "planned"

    def __init__(self, **steps: int) -> None:
        self.steps = {int(k.removeprefix("at")): n for k, n in steps.items()}
        self.states: list[State] = []

    def choose(self, state: State) -> GrowthStep | None:
        self.states.append(state)
        step = self.steps.get(len(state.metrics))
        return None if step is None else state.choices[step]
