"""Teaches a network of any shape what another computes, where no exact step leads from one to the other."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slurm_rl.grow.errors import CannotGrow
from slurm_rl.grow.shell import unwrap


@dataclass(frozen=True, slots=True)
class Distilled:
    """How a lesson ended: steps taken, and the mean loss of the first and the last tenth of them."""

    steps: int
    first: float
    last: float


def distill(
    teacher: nn.Module,
    student: nn.Module,
    batches: Iterable[Tensor],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    seconds: float | None = None,
    temperature: float = 2.0,
    classes: bool = True,
) -> Distilled:
    """Trains `student` in place to answer `batches` as `teacher` does, until they end or `seconds` have passed.

    Outputs are logits, compared as softened probabilities; with `classes=False`, values, compared by squares.
    """
    if not any(p.requires_grad for p in student.parameters()):
        raise CannotGrow(f"the student ({type(student).__name__}) has no parameters to train")
    chosen = optimizer or torch.optim.Adam(student.parameters(), lr=3e-3)
    bare, was, losses = unwrap(teacher).bare, teacher.training, []
    began = time.monotonic()
    bare.eval()
    try:
        for batch in batches:
            with torch.no_grad():
                wanted = bare(batch)
            said = student(batch)
            if said.shape != wanted.shape:
                raise CannotGrow(f"the student answers {tuple(said.shape)}, the teacher {tuple(wanted.shape)}")
            loss = _softened(said, wanted, temperature) if classes else F.mse_loss(said, wanted)
            chosen.zero_grad()
            torch.autograd.backward(loss)
            chosen.step()
            losses.append(loss.item())
            if seconds is not None and time.monotonic() - began >= seconds:
                break
    finally:
        bare.train(was)
    if not losses:
        raise CannotGrow("no batch to learn from")
    part = max(len(losses) // 10, 1)
    return Distilled(len(losses), sum(losses[:part]) / part, sum(losses[-part:]) / part)


def _softened(said: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    return F.kl_div(
        F.log_softmax(said / temperature, -1), F.log_softmax(wanted / temperature, -1), log_target=True,
        reduction="batchmean",
    ) * temperature**2  # fmt: skip
