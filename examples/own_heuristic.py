"""A heuristic of your own: `slurm-rl replay TRACE --policy examples/own_heuristic.py:short_and_old@user`."""

import slurm_rl


@slurm_rl.heuristic
def short_and_old(wait, estimate, size):
    """Short and small jobs first, the longer they wait the sooner."""
    return (1 + wait / estimate) / (estimate * size**0.5)


if __name__ == "__main__":
    print(slurm_rl.replay("traces/hetero.csv.gz", policies=["multifactor", "sjf@user", "short-and-old@user"]))
