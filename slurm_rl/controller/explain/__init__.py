"""Reports on the live queue and on single jobs; nothing here is written to Slurm."""
