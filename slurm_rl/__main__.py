"""`python -m slurm_rl` is the command `slurm-rl`."""

from slurm_rl.cli import main

main()
