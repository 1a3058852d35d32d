"""The public Python API: `import slurm_rl` names what is here, and loads it when it is used."""
