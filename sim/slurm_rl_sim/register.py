"""Tells gymnasium of our environment; `import slurm_rl` calls it."""

from __future__ import annotations

from gymnasium.envs import registration

ID = "slurm_rl/Replay-v0"


def register() -> None:
    """Registers the environment, without loading it."""
    if ID not in registration.registry:
        vector = "slurm_rl_sim.vector:ReplayVectorEnv"
        registration.register(id=ID, entry_point="slurm_rl_sim.env:ReplayEnv", vector_entry_point=vector)
