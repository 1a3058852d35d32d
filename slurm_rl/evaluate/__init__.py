"""Evaluation: paired comparisons, goals, and fitting to a site. Called, the package is `slurm_rl.evaluate(…)`."""

from slurm_rl.callable_package import make_callable

make_callable(__name__, "slurm_rl.evaluate.api")
