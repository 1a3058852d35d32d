"""Speaks to Slurm: what it says as plain data, and clients that ask and write."""
