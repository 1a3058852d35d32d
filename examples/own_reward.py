"""A reward of your own: any function of the window's metrics and of the baseline's (docs/report.md names them)."""

import argparse

import gymnasium
import numpy as np

import slurm_rl  # noqa: F401  (registers the environment)


def reward(mine, baseline):
    """Shorter waits at the tail, but never at the price of the users' fairness."""
    tail = 1 - mine["p99_wait"] / max(baseline["p99_wait"], 1.0)
    return tail - max(baseline["jain_users"] - mine["jain_users"], 0.0)


def main(episodes=5, trace="traces/hetero.csv.gz", **options):
    env = gymnasium.make("slurm_rl/Replay-v0", trace=trace, rewards=reward, window=32, **options)
    dice, rewards = np.random.default_rng(0), []
    for episode in range(episodes):
        _, info = env.reset(seed=episode)
        done = False
        while not done:
            action = dice.choice(np.flatnonzero(info["action_mask"]))
            _, gained, done, _, info = env.step(action)
        rewards.append(gained)
        print(f"episode {episode}: reward {gained:+.3f} for picks at random")
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5)
    main(parser.parse_args().episodes)
