"""A policy in plain Python and a placement of your own; what goes wrong in the policy leaves Slurm's order."""

import argparse

import numpy as np

import slurm_rl


@slurm_rl.policy("fair-short")
def fair_short(queue):
    """Short jobs first, those of users who had little before others."""
    return queue.fairshare - 0.1 * np.log(queue.estimate)


@slurm_rl.placement
def fast_and_full(speed, free_gpus):
    """The fastest GPUs, on the fullest of their nodes."""
    return 100 * speed - free_gpus


def main(window="0:1"):
    results = slurm_rl.replay(
        "traces/hetero.csv.gz", policies=["multifactor", fair_short], placement="fast-and-full", window=window
    )
    print(results)
    print(results.failures)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", default="0:1", help="part of the trace that is measured")
    main(parser.parse_args().window)
