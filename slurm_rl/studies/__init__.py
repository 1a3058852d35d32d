"""Studies behind the tables of the guides, run by `slurm-rl study`: what they need, and where they find it."""
