"""A private, real Slurm with fake GPUs below one directory."""
