"""`slurm-rl bench`: suites of paired runs that compare schedulers, agents and placements, with figures and a page."""
