"""What the live side tells of a queue and of one job; nothing here is written to Slurm."""
