"""Trains a small network on scikit-learn's digits within the job's time limit; it grows when learning stalls."""

from __future__ import annotations

import argparse
import logging

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from slurm_rl.grow import Budget, Grower

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--checkpoint", default=None)
parser.add_argument("--requeue", action="store_true")
parser.add_argument("--batch", type=int, default=16)
given = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(message)s")

torch.manual_seed(0)
torch.set_num_threads(1)
digits, labels = load_digits(return_X_y=True)
x, y = torch.tensor(digits, dtype=torch.float32) / 16, torch.tensor(labels)
x_train, y_train, x_test, y_test = x[:1200], y[:1200], x[1200:], y[1200:]

model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

grower = Grower(
    model,
    optimizer,
    budget=Budget.from_slurm(),
    epochs=given.epochs,
    checkpoint=given.checkpoint,
    requeue=given.requeue,
)
while grower.more:
    model, total = grower.model, 0.0
    model.train()
    for batch in torch.randperm(len(x_train)).split(given.batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x_train[batch]), y_train[batch])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    model.eval()
    accuracy = (model(x_test).argmax(-1) == y_test).float().mean().item()
    grower.step(total / len(x_train), {"accuracy": accuracy})

size = sum(p.numel() for p in grower.model.parameters())
last = f"epoch {grower.record.epoch}: accuracy {grower.record.metrics[-1]:.3f}, {size} parameters"
logging.info("%s, %s", last, "done" if grower.done else "out of time")
