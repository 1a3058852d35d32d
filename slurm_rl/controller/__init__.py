"""The controller: observes a live Slurm, decides, and writes bounded, journaled SiteFactors."""
