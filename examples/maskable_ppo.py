"""MaskablePPO of sb3-contrib, end to end: train, judge on windows it has not seen, write an ONNX file for the service.

python examples/maskable_ppo.py --minutes 10 --out out/maskable
slurm-rl evaluate --policy onnx:out/maskable/policy.onnx --trace traces/hetero.csv.gz --windows 20 --window-jobs 256
slurm-rl serve      with policy = "onnx:out/maskable/policy.onnx" in its configuration: shadow until promoted
"""

import argparse
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

import slurm_rl

JOBS = len(slurm_rl.JOB_FEATURES)


class PerJob(BaseFeaturesExtractor):
    """The same small network for every job in hand: a slot has no meaning of its own."""

    def __init__(self, space, window):
        super().__init__(space, window)
        self.window = window
        self.net = torch.nn.Sequential(
            torch.nn.Linear(JOBS + len(slurm_rl.POOL_FEATURES), 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        )

    def forward(self, seen):
        jobs = seen[:, : self.window * JOBS].reshape(-1, self.window, JOBS) / 10
        pool = seen[:, self.window * JOBS : self.window * JOBS + len(slurm_rl.POOL_FEATURES)] / 10
        pool = pool[:, None, :].expand(-1, self.window, -1)
        return self.net(torch.cat([jobs, pool], dim=2))[:, :, 0]


class AsItIs(torch.nn.Module):
    """One preference a job is all that the policy needs; the value is a small network over them."""

    def __init__(self, window):
        super().__init__()
        self.latent_dim_pi, self.latent_dim_vf = window, 32
        self.value = torch.nn.Sequential(torch.nn.Linear(window, 32), torch.nn.Tanh())

    def forward(self, features):
        return features, self.value(features)

    def forward_actor(self, features):
        return features

    def forward_critic(self, features):
        return self.value(features)


def agent(env, window, seed, **options):
    """An agent whose preferences are the network's outputs, slot by slot."""
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy

    class Policy(MaskableActorCriticPolicy):
        def _build_mlp_extractor(self):
            self.mlp_extractor = AsItIs(window)

        def _build(self, schedule):
            super()._build(schedule)
            self.action_net = torch.nn.Identity()
            self.optimizer = self.optimizer_class(self.parameters(), lr=schedule(1), **self.optimizer_kwargs)

    kinds = {"features_extractor_class": PerJob, "features_extractor_kwargs": {"window": window}}
    return MaskablePPO(Policy, env, policy_kwargs=kinds, seed=seed, verbose=0, device="cpu", **options)


class Clock(BaseCallback):
    """Stops after so many minutes."""

    def __init__(self, minutes):
        super().__init__()
        self.until = time.monotonic() + 60 * minutes

    def _on_step(self):
        return time.monotonic() < self.until


def main(minutes=10.0, steps=10**9, out="out/maskable", trace="traces/hetero.csv.gz", window=32, windows=40, **options):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    env = gymnasium.make("slurm_rl/Replay-v0", trace=trace, window=window, **options)
    n_steps = min(2048, steps)
    model = agent(env, window, 0, n_steps=n_steps, batch_size=min(256, n_steps), gamma=1.0, ent_coef=0.003)
    model.learn(steps, callback=Clock(minutes))
    file = slurm_rl.save_onnx(model, out / "policy.onnx")
    print(f"{model.num_timesteps:,} steps; written: {file}")

    dice = np.random.default_rng(1)
    slurm_rl.policy("random")(lambda queue: dice.random(len(queue)))
    # The environment draws its windows from the first 60% of the trace: these are from the rest.
    found = slurm_rl.evaluate(
        trace,
        options.get("cluster"),
        [f"onnx:{file}", "random", "sjf@user"],
        base="fcfs",
        window="0.6:1",
        windows=windows,
        window_jobs=options.get("jobs", 256),
        tune=False,
    )
    print(found.table())
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", default="out/maskable")
    given = parser.parse_args()
    main(given.minutes, out=given.out)
