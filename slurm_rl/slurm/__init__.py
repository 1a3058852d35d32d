"""Speaks to Slurm: its answers as plain data, and clients that read and write."""
