"""The live side's writes to Slurm, one file for each field of a job."""
