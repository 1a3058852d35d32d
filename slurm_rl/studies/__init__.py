"""Studies behind the tables of the guides, run by `slurm-rl study`."""
