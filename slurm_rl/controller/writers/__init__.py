"""What the live side writes to Slurm, one file for each field of a job."""
