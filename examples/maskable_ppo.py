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
from stable_baselines3.common.vec_env import VecEnv

import slurm_rl

JOBS = len(slurm_rl.JOB_FEATURES)


class ManyWindows(VecEnv):
    """The fast vector environment as stable-baselines3 wants it.

    A window that has ended is followed by another one a step later; the action of that step is ignored.
    """

    def __init__(self, envs):
        self.envs, self.mask, self.actions, self.sums, self.paid = envs, None, None, np.zeros(envs.num_envs), []
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self):
        seen, infos = self.envs.reset(seed=0)
        self.mask = infos["action_mask"]
        return seen

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        seen, reward, ended, _, infos = self.envs.step(self.actions)
        self.mask = infos["action_mask"]
        self.sums += reward
        self.paid.extend(self.sums[ended])
        self.sums[ended] = 0.0
        return seen, reward, ended, [{} for _ in ended]

    def env_method(self, name, *args, indices=None, **kwargs):
        if name != "action_masks":
            raise AttributeError(name)
        return list(self.mask)

    def has_attr(self, name):
        return name == "action_masks"

    def get_attr(self, name, indices=None):
        return [getattr(self.envs, name)] * self.num_envs

    def set_attr(self, name, value, indices=None):
        raise AttributeError(name)

    def env_is_wrapped(self, wrapper, indices=None):
        return [False] * self.num_envs

    def close(self):
        self.envs.close()


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
    """Tells the mean reward of each round's windows, and stops after so many minutes."""

    def __init__(self, minutes):
        super().__init__()
        self.until = time.monotonic() + 60 * minutes

    def _on_step(self):
        return time.monotonic() < self.until

    def _on_rollout_end(self):
        paid = self.training_env.paid
        if paid:
            print(f"{self.num_timesteps:,} steps: mean reward {np.mean(paid):+.3f} of {len(paid)} windows", flush=True)
        paid.clear()


def main(minutes=10.0, steps=10**9, out="out/maskable", trace="traces/hetero.csv.gz", window=32, windows=40, **options):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    kind = {"trace": trace, "window": window, "stepwise": True, **options}
    envs = gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=min(32, steps), **kind)
    n_steps = min(512, max(1, steps // envs.num_envs))
    # A window is paid as a whole, in parts: later gains are worth as much as early ones.
    model = agent(
        *(ManyWindows(envs), window, 0),
        **{"n_steps": n_steps, "batch_size": min(2048, n_steps * envs.num_envs), "n_epochs": 4, "learning_rate": 1e-3},
        **{"gamma": 1.0, "gae_lambda": 0.95, "ent_coef": 0.003},
    )
    model.learn(steps, callback=Clock(minutes))
    envs.close()
    file = slurm_rl.save_onnx(model, out / "policy.onnx")
    print(f"{model.num_timesteps:,} steps; written: {file}")

    dice = np.random.default_rng(1)
    slurm_rl.policy("random")(lambda queue: dice.random(len(queue)))
    # The environment draws its windows from the first 60% of the trace: these are from the rest.
    held_out = {"window": "0.6:1", "windows": windows, "window_jobs": options.get("jobs", 256), "tune": False}
    mine, cluster = f"onnx:{file}", options.get("cluster")
    found = slurm_rl.evaluate(trace, cluster, [mine, "random", "sjf@user"], base="fcfs", **held_out)
    against_random = slurm_rl.evaluate(trace, cluster, [mine], base="random", **held_out)
    for metric in ("user_bsld", "mean_bsld"):
        print(f"{metric}: ratios to fcfs, then to random picks, on the same windows")
        print(found.table(metric))
        print(against_random.table(metric))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", default="out/maskable")
    given = parser.parse_args()
    main(given.minutes, out=given.out)
