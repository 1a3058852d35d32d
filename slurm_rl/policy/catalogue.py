"""The policies, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_rl.kernel.catalogue import Catalogue, within

_HERE = "slurm_rl.policy"
BY_LIMIT, BY_USER, BY_ORACLE = range(3)
SOURCES = {"limit": BY_LIMIT, "user": BY_USER, "oracle": BY_ORACLE}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: the kernel of its scores, and what it needs."""

    name: str
    help: str
    score: str = ""  # module:function of this package: the score of one job, higher first
    score_queue: str = "order:score_each"  # … of a queue: by default job by job
    uses_estimate: bool = False  # may be written NAME@limit, NAME@user or NAME@oracle
    source: int = BY_LIMIT  # of the estimate, where the name does not say
    fixed_order: bool = False  # two waiting jobs never change places (given estimates that do not change)
    uses_usage: bool = False  # looks at what users hold or have used
    may_preempt: bool = False
    by_remaining: bool = False  # … by remaining run time; otherwise by the submitters' priorities
    before_submission: bool = True  # scores a job by what its submitter says, not by what Slurm finds out later
    by_name: bool = True  # users may ask for it by this name
    choose: str = ""  # of a meta-policy, module:function: chooses among `candidates` before a queue is scored
    candidates: tuple[str, ...] = ()
    members: tuple[Policy, ...] = ()  # … or their rows, where the set is not part of this row
    digest: str = ""  # of a formula from outside: sha256 of the file it stands in

    @property
    def choices(self) -> tuple[Policy, ...]:
        """The policies that a meta-policy chooses from."""
        return self.members or tuple(POLICIES[name] for name in self.candidates)

    @property
    def kernels(self) -> Mapping[str, str]:
        slots = {"score": self.score, "score_queue": self.score_queue, "order_queue": "order:order_queue"}
        slots["choose_policy"] = self.choose
        return {name: within(_HERE, kernel) for name, kernel in slots.items() if kernel}


def _heuristic(name: str, kernel: str, help: str, **needs: bool | int | str) -> Policy:
    return Policy(name, help, f"heuristics:{kernel}", **needs)  # type: ignore[arg-type]  # all that it needs is a flag


def _chooser(name: str, kernel: str, help: str) -> Policy:
    return Policy(name, help, choose=kernel, source=BY_USER, uses_usage=True, by_name=False)


POLICIES = Catalogue(
    "policy",
    _heuristic("fcfs", "fcfs", "First come, first served.", fixed_order=True),
    _heuristic("lcfs", "lcfs", "Last come, first served.", fixed_order=True),
    _heuristic("sjf", "sjf", "Shortest job first.", fixed_order=True, uses_estimate=True),
    _heuristic("ljf", "ljf", "Longest job first.", fixed_order=True, uses_estimate=True),
    _heuristic("saf", "saf", "Smallest area (run time × size) first.", fixed_order=True, uses_estimate=True),
    _heuristic("sjf-age", "sjf_age", "Shortest job first, the longer it waits the sooner.", uses_estimate=True),
    _heuristic(
        "smith",
        "smith",
        "Smith's rule on uncertain run times: E[1/r] / E[r].",
        fixed_order=True,
        uses_estimate=True,
        source=BY_USER,
    ),
    _heuristic(
        "srpt",
        "srpt",
        "Shortest remaining run time first; may preempt.",
        fixed_order=True,
        uses_estimate=True,
        may_preempt=True,
        by_remaining=True,
    ),
    _heuristic("f1", "f1", "F1 of Carastan-Santos and de Camargo.", fixed_order=True, uses_estimate=True),
    _heuristic("wfp3", "wfp3", "(wait / run time)³ × size.", uses_estimate=True),
    _heuristic("unicef", "unicef", "Wait / (log size × run time).", uses_estimate=True),
    _heuristic("edf", "edf", "Earliest deadline first.", fixed_order=True),
    _heuristic(
        "static-priority", "static_priority", "Submitters' priorities; may preempt.", fixed_order=True, may_preempt=True
    ),
    _heuristic(
        "static-equal", "static_equal", "Users who hold least first.", uses_usage=True, before_submission=False
    ),
    _heuristic("dynamic", "dynamic", "Response ratio, raised by priority and a near deadline.", uses_estimate=True),
    _heuristic(
        "multifactor", "multifactor", "Slurm's own priority.", uses_usage=True, before_submission=False,
        score_queue="heuristics:score_by_multifactor",
    ),
    Policy(
        "learned",
        "A network: rl:MODEL.",
        score_queue="order:score_by_network",
        source=BY_USER,
        uses_usage=True,
        by_name=False,
    ),
    Policy("given", "Scores from outside.", score_queue="order:score_as_given", by_name=False),
    _chooser("meta", "meta_network:choose_by_network", "A network that chooses a policy: meta:MODEL."),
    _chooser("bandit-egreedy", "bandits:choose_by_egreedy", "Epsilon-greedy choice of a policy: bandit:egreedy."),
    _chooser("bandit-exp3", "bandits:choose_by_exp3", "EXP3's choice of a policy: bandit:exp3."),
    _chooser("bandit-linucb", "bandits:choose_by_linucb", "LinUCB's choice of a policy: bandit:linucb."),
)  # fmt: skip
EDF, STATIC_PRIORITY, STATIC_EQUAL, MULTIFACTOR, LEARNED, GIVEN = (
    POLICIES.code(name) for name in ("edf", "static-priority", "static-equal", "multifactor", "learned", "given")
)

BANDIT_NAMES = ("bandit:egreedy", "bandit:exp3", "bandit:linucb")


def policy_names() -> tuple[str, ...]:
    """The names that users may write, `rl:MODEL` among them."""
    return (*(row.name for row in POLICIES if row.by_name), "rl:MODEL", "meta:MODEL", *BANDIT_NAMES)
