"""The public Python API: `import slurm_rl` lists these names and loads each on first use."""
