"""MaskablePPO of sb3-contrib, end to end: train, judge on windows it has not seen, write an ONNX file for the service.

pip install 'slurm-rl[train,onnx]' sb3-contrib
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
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

import slurm_rl

JOBS, POOL = len(slurm_rl.JOB_FEATURES), len(slurm_rl.POOL_FEATURES)


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


def parts(seen, window):
    """Jobs, pool and mask of observations that are vectors."""
    cuts = (window * JOBS, window * JOBS + POOL)
    return seen[:, : cuts[0]].reshape(-1, window, JOBS), seen[:, cuts[0] : cuts[1]], seen[:, cuts[1] :]


def usual(envs, window, steps=60):
    """Mean and spread of each feature under random picks, by which the networks see them."""
    dice = np.random.default_rng(0)
    seen, infos = envs.reset(seed=1)
    jobs, pools = [], []
    for _ in range(steps):
        held = infos["action_mask"].sum(axis=1)
        seen, _, _, _, infos = envs.step((dice.random(len(held)) * held).astype(np.int64))
        job, pool, mask = parts(seen, window)
        jobs.append(job[mask > 0])
        pools.append(pool)
    found = [np.concatenate(jobs), np.concatenate(pools)]
    return [torch.as_tensor(x) for f in found for x in (f.mean(0), f.std(0) + 0.1)]


class PerJob(torch.nn.Module):
    """One small network scores every job in hand: a slot has no meaning of its own. Another one values the queue.

    The two share nothing: the critic's errors are large at first, and would shake the scores.
    """

    def __init__(self, window, figures):
        super().__init__()
        self.window, self.latent_dim_pi, self.latent_dim_vf = window, window, 64
        for name, values in zip(("job_mean", "job_spread", "pool_mean", "pool_spread"), figures, strict=True):
            self.register_buffer(name, values)
        tanh = torch.nn.Tanh()
        self.score = torch.nn.Sequential(torch.nn.Linear(JOBS + POOL, 64), tanh, torch.nn.Linear(64, 1))
        self.straight = torch.nn.Linear(JOBS, 1, bias=False)
        torch.nn.init.zeros_(self.straight.weight)
        self.look = torch.nn.Sequential(torch.nn.Linear(JOBS, 64), tanh)
        self.value = torch.nn.Sequential(torch.nn.Linear(64 + POOL + 1, 64), tanh)

    def seen(self, observed):
        jobs, pool, mask = parts(observed, self.window)
        jobs = ((jobs - self.job_mean) / self.job_spread).clamp(-4, 4)
        return jobs, ((pool - self.pool_mean) / self.pool_spread).clamp(-4, 4), mask

    def forward(self, observed):
        return self.forward_actor(observed), self.forward_critic(observed)

    def forward_actor(self, observed):
        jobs, pool, _ = self.seen(observed)
        both = torch.cat([jobs, pool[:, None, :].expand(-1, self.window, -1)], dim=2)
        return (self.score(both) + self.straight(jobs))[:, :, 0]

    def forward_critic(self, observed):
        jobs, pool, mask = self.seen(observed)
        held = mask.sum(1, keepdim=True)
        queue = (self.look(jobs) * mask[:, :, None]).sum(1) / held.clamp(min=1)
        return self.value(torch.cat([queue, pool, held / self.window], dim=1))


def agent(env, window, figures, seed, **options):
    """An agent whose preferences are the scores, slot by slot."""

    class Policy(MaskableActorCriticPolicy):
        def _build_mlp_extractor(self):
            self.mlp_extractor = PerJob(window, figures)

        def _build(self, schedule):
            super()._build(schedule)
            self.action_net = torch.nn.Identity()
            self.optimizer = self.optimizer_class(self.parameters(), lr=schedule(1), **self.optimizer_kwargs)

    kinds = {"ortho_init": False}
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


def rewards(picks, windows, kind):
    """Rewards of so many held-out windows, the same for every way to pick from an observation and its mask."""
    slots = min(40, windows)
    envs = gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=slots, **kind | {"part": "test", "stepwise": False})
    seen, infos = envs.reset(seed=1000)
    paid = [[] for _ in range(slots)]
    while min(map(len, paid)) < windows // slots:
        seen, reward, ended, _, infos = envs.step(picks(seen, infos["action_mask"]))
        for i in np.flatnonzero(ended):
            paid[i].append(reward[i])
    envs.close()
    return np.concatenate([p[: windows // slots] for p in paid])


def told(name, gains):
    """A mean with its 95% interval, windows drawn again and again."""
    dice = np.random.default_rng(0)
    low, high = np.percentile(gains[dice.integers(0, len(gains), (4000, len(gains)))].mean(1), (2.5, 97.5))
    print(f"{name:<28} {gains.mean():+.3f} [{low:+.3f}, {high:+.3f}]", flush=True)


def main(
    minutes=10.0, steps=10**9, out="out/maskable", trace="traces/hetero.csv.gz", window=64, windows=120, **options
):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    kind = {"trace": trace, "window": window, "rewards": {"bsld": 1.0, "users": 1.0}, **options}
    envs = gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=min(64, steps), stepwise=True, **kind)
    n_steps = min(256, max(1, steps // envs.num_envs))
    model = agent(
        *(ManyWindows(envs), window, usual(envs, window), 0),
        **{"n_steps": n_steps, "batch_size": min(2048, n_steps * envs.num_envs), "n_epochs": 4, "learning_rate": 1e-3},
        **{"gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.0},
    )
    model.learn(steps, callback=Clock(minutes))
    envs.close()
    file = slurm_rl.save_onnx(model, out / "policy.onnx")
    print(f"{model.num_timesteps:,} steps; written: {file}")

    # The environment draws its windows from the first 60% of the trace: these are from the rest.
    dice = np.random.default_rng(1)
    found = {
        "MaskablePPO": lambda seen, mask: model.predict(seen, action_masks=mask, deterministic=True)[0],
        "random picks": lambda seen, mask: (dice.random(mask.shape) * mask).argmax(axis=1),
        "first come, first served": lambda seen, mask: np.zeros(len(mask), dtype=np.int64),
        "shortest estimate first": lambda seen, mask: np.where(
            mask, -parts(seen, window)[0][:, :, slurm_rl.JOB_FEATURES.index("estimate")], -np.inf
        ).argmax(axis=1),
    }
    found = {name: rewards(picks, windows, kind) for name, picks in found.items()}
    print(f"mean reward of {windows} held-out windows, as picks:")
    for name, gains in found.items():
        told(name, gains)
    told("MaskablePPO - random picks", found["MaskablePPO"] - found["random picks"])

    slurm_rl.policy("random")(lambda queue: dice.random(len(queue)))
    judged = {"window": "0.6:1", "windows": min(windows, 40), "tune": False, "window_jobs": options.get("jobs", 1024)}
    print("mean slowdown of held-out stretches as a policy of the engine, and as a ratio to fcfs:")
    table = slurm_rl.evaluate(
        trace, options.get("cluster"), [f"onnx:{file}", "random", "sjf@user"], base="fcfs", **judged
    )
    print(table.table("mean_bsld"))
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", default="out/maskable")
    given = parser.parse_args()
    main(given.minutes, out=given.out)
