"""The settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_rl.errors import SlurmRlError
from slurm_rl.evaluate.goals import GOALS
from slurm_rl.train.rollout import COSTS


class TrainingStopped(SlurmRlError):
    """Training cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Sizes of the search; width and rate fall to 40% and 15% in its course."""

    generations: int = 120
    pairs: int = 8
    width: float = 0.12  # of a candidate's steps, in standardised features
    rate: float = 0.04


@dataclass(frozen=True, slots=True)
class Settings:
    """What every algorithm shares; its own settings are a dataclass in its file."""

    algorithm: str = "ppo"
    options: dict[str, float] = field(default_factory=dict)  # of the algorithm's own settings, where not the default
    iterations: int = 60
    scenes: int = 12  # played in each iteration
    jobs: int = 3000  # of a scene
    generated: float = 0.5  # share of scenes that are made up
    temperature: float = 0.5  # of the draws while playing
    validation: int = 150  # scenes on which the best network is chosen
    reference: str = "sjf-age@user"
    lessons: int = 400  # scenes from which run times are learned first; 0: not at all
    search: SearchSettings = field(default_factory=SearchSettings)  # then search over the linear path
    without: tuple[str, ...] = ()  # parts of the network that are switched off (module.PARTS)
    goals: dict[str, float] = field(default_factory=lambda: dict(GOALS))  # of the search and the validation
    costs: dict[str, float] = field(default_factory=lambda: dict(COSTS))  # of rewards
    candidates: tuple[str, ...] = ()  # what a meta-policy chooses from; none: the default set
    seed: int = 0
