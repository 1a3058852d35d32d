"""The algorithms, one row each, and the protocol between them and the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from slurm_rl.errors import InputError, unknown_name
from slurm_rl.kernel.catalogue import Catalogue, find_kernel, within

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer


class Learner(Protocol):
    """One way to change the trainer's network.

    It is made from a Trainer, whose `net` it changes and whose scenes it plays. The trainer calls `step` with 0, 1, …
    until `steps` are done, and saves in between. A step may draw from nothing but its number, the run's seed, the
    network and the state: so a run that is killed and resumed ends as one that was not.
    """

    @property
    def steps(self) -> int:
        """How many there are."""

    def step(self, number: int) -> dict[str, float]:
        """Changes the network; figures for the curve."""

    def state(self) -> dict[str, Any]:
        """What the next steps need beside the network: tensors, numbers, and lists or dicts of them."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a state that was saved."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm: where it is, and the algorithms that prepare the network for it."""

    name: str
    help: str
    learner: str  # module:class of this package
    options: str = ""  # module:dataclass, its own settings
    first: tuple[str, ...] = ("imitate", "search")
    trainer: str = ""  # module:class, where the run is not that of a network that orders jobs
    by_name: bool = True  # users may ask for it; otherwise it only prepares networks for others

    def start(self, trainer: Trainer) -> Learner:
        """A learner, ready for its first step."""
        made: Learner = find_kernel(within(__package__, self.learner))(trainer)
        return made

    def settings(self, given: Mapping[str, float]) -> Any:
        """Its own settings, some of them other than the default."""
        if not self.options:
            if given:
                raise InputError(f"{self.name} has no settings", field="--set")
            return None
        kind = find_kernel(within(__package__, self.options))
        known: dict[str, Any] = {f.name: type(f.default) for f in fields(kind)}
        for name in given:
            if name not in known:
                remedy = f"known: {', '.join(known)}"
                raise InputError(f"{self.name} has no setting {name!r}", field="--set", remedy=remedy)
        return kind(**{name: known[name](value) for name, value in given.items()})


ALGORITHMS = Catalogue(
    "algorithm",
    Algorithm("imitate", "Learns what run time estimates miss.", "imitate:Imitate", first=(), by_name=False),
    Algorithm("search", "Evolution strategies over the linear path.", "search:Search", by_name=False),
    Algorithm("ppo", "Proximal policy optimisation.", "ppo:Ppo", "ppo:PpoSettings"),
    Algorithm("reinforce", "Policy gradient with a baseline.", "reinforce:Reinforce", "reinforce:ReinforceSettings"),
    Algorithm("d3qn", "Dueling double Q-learning, by priorities.", "d3qn:D3qn", "d3qn:D3qnSettings"),
    Algorithm("sac", "Discrete soft actor-critic.", "sac:Sac", "sac:SacSettings"),
    Algorithm(
        "metadqn",
        "Deep Q-learning of which policy rules now.",
        "metadqn:MetaDqn",
        "metadqn:MetaDqnSettings",
        first=(),
        trainer="slurm_rl.train.meta_trainer:MetaTrainer",
    ),
)


def algorithm_names() -> tuple[str, ...]:
    """The names that users may write."""
    return tuple(row.name for row in ALGORITHMS if row.by_name)


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of that name."""
    if name not in algorithm_names():
        raise unknown_name("algorithm", name, algorithm_names())
    return ALGORITHMS[name]
