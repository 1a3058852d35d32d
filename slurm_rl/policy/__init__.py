"""Policies: which job goes first. Called, the package is the decorator `@slurm_rl.policy("mine")`."""

from slurm_rl.callable_package import make_callable

make_callable(__name__, "slurm_rl.policy.outside")
