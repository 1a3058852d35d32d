"""PPO in one file, in the manner of CleanRL, on the compiled vector environment; masks, no library but torch."""

import argparse
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch.distributions import Categorical

import slurm_rl  # registers the environment

JOBS, POOL = len(slurm_rl.JOB_FEATURES), len(slurm_rl.POOL_FEATURES)


@dataclass
class Args:
    trace: object = "traces/hetero.csv.gz"
    cluster: object = None
    total_steps: int = 200_000
    num_envs: int = 32
    num_steps: int = 128
    """steps of each environment between two updates"""
    window: int = 32
    jobs: int = 256
    windows: int | None = 64
    """windows that are kept and played again; None: each is new"""
    learning_rate: float = 1e-3
    epochs: int = 4
    minibatches: int = 8
    clip: float = 0.2
    entropy: float = 0.003
    gae_lambda: float = 0.95
    seed: int = 1


class Agent(torch.nn.Module):
    """A score for each job in hand, and a value of the queue."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(JOBS + POOL, 64), torch.nn.Tanh())
        self.actor, self.critic = torch.nn.Linear(64, 1), torch.nn.Linear(64, 1)

    def forward(self, jobs, pool, mask):
        seen = torch.cat([jobs, pool[:, None, :].expand(-1, jobs.shape[1], -1)], dim=2) / 10
        hidden = self.body(seen)
        scores = self.actor(hidden)[:, :, 0]
        there = mask[:, :, None].float()
        value = self.critic((hidden * there).sum(1) / there.sum(1).clamp(min=1))[:, 0]
        return scores, scores.masked_fill(mask == 0, -1e9), value


def train(args):
    torch.manual_seed(args.seed)
    envs = gymnasium.make_vec(
        "slurm_rl/Replay-v0", num_envs=args.num_envs, trace=args.trace, cluster=args.cluster, jobs=args.jobs,
        window=args.window, windows=args.windows, observation="dict",
    )  # fmt: skip
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    seen, _ = envs.reset(seed=args.seed)
    done = np.zeros(args.num_envs)
    returns = []

    def tensors(observed):
        return tuple(torch.as_tensor(observed[k]) for k in ("jobs", "pool", "action_mask"))

    for update in range(max(args.total_steps // (args.num_envs * args.num_steps), 1)):
        steps = []
        for _ in range(args.num_steps):
            with torch.no_grad():
                _, logits, value = agent(*tensors(seen))
                chosen = Categorical(logits=logits)
                action = chosen.sample()
            after, reward, ended, _, _ = envs.step(action.numpy())
            # After an end the next step only opens a window: its action counts for nothing.
            steps.append(
                (*tensors(seen), action, chosen.log_prob(action), value, torch.tensor(reward), torch.tensor(1 - done))
            )
            returns += reward[ended].tolist()
            seen, done = after, ended.astype(float)
        jobs, pool, mask, action, logp, value, reward, counts = (
            torch.stack(column) for column in zip(*steps, strict=True)
        )
        with torch.no_grad():
            last = agent(*tensors(seen))[2]
        advantage = torch.zeros_like(value)
        carried = torch.zeros(args.num_envs)
        for t in reversed(range(args.num_steps)):
            # A step that ends a window is followed by one that does not count.
            following = counts[t + 1].float() if t + 1 < args.num_steps else torch.tensor(1 - done).float()
            ahead = value[t + 1] if t + 1 < args.num_steps else last
            delta = reward[t].float() + ahead * following - value[t]
            carried = delta + args.gae_lambda * following * carried
            advantage[t] = carried
        target = advantage + value
        keep = counts.flatten() > 0
        flat = [x.flatten(0, 1)[keep] for x in (jobs, pool, mask, action, logp, advantage, target)]
        for _ in range(args.epochs):
            for rows in torch.randperm(int(keep.sum())).chunk(args.minibatches):
                j, p, m, a, old, adv, goal = (x[rows] for x in flat)
                _, logits, v = agent(j, p, m)
                now = Categorical(logits=logits)
                ratio = (now.log_prob(a) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                gained = torch.min(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv).mean()
                loss = -gained + 0.5 * ((v - goal.float()) ** 2).mean() - args.entropy * now.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        recent = np.mean(returns[-200:]) if returns else float("nan")
        print(f"update {update}: mean reward of the last windows {recent:+.3f}")
    envs.close()
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in ("trace", "cluster", "total_steps", "num_envs", "learning_rate", "entropy", "seed"):
        default = getattr(Args, field)
        kind = str if default is None else type(default)
        parser.add_argument(f"--{field.replace('_', '-')}", type=kind, default=default, help=" ")
    args = Args(**vars(parser.parse_args()))
    trained = train(args)
    scores = slurm_rl.from_torch(lambda jobs, pool, mask: trained(jobs, pool, mask)[0], args.window)
    print(
        slurm_rl.replay(
            args.trace, args.cluster, policies=["fcfs", "sjf@user", slurm_rl.policy("cleanrl")(scores)], window="0.6:1"
        )
    )
