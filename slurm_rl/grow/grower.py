"""Grows a network while it trains: the three lines that a training script needs.

Nothing here stops a script: what goes wrong is said in one line on the log "slurm_rl.grow", kept as `problem`, and the
training goes on with the network as it is.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from slurm_rl.errors import InputError, SlurmRlError
from slurm_rl.grow import checkpoint as files
from slurm_rl.grow.budget import Budget
from slurm_rl.grow.errors import CannotGrow
from slurm_rl.grow.policies import WORTH, GrowthPolicy, Never, policy_of
from slurm_rl.grow.requeue import Requeue
from slurm_rl.grow.shell import own, unwrap
from slurm_rl.grow.state import GrowthStep, State, survey
from slurm_rl.grow.table import apply

log = logging.getLogger("slurm_rl.grow")
EVENTS = "SLURM_RL_GROW_LOG"  # a file for events, which `slurm-rl grow run` shows
POLICY = "SLURM_RL_GROW_POLICY"
_SLACK = 1.15  # the next epoch may take longer than the slowest of the last ones
_CLOSE = 1e-3  # how far outputs may be apart, relative to their size, before a step is taken back


class Grower:
    """Decides at each epoch's end whether the network grows; `model` is the network to go on with."""

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        budget: Budget | None = None,
        policy: str | GrowthPolicy | None = None,
        epochs: int | None = None,
        checkpoint: str | Path | None = None,
        save_every: float = 600.0,
        requeue: bool | float = False,
        longest: float | None = None,
        factor: float = 2.0,
        noise: float = 0.1,
        most: float = 16.0,
        layers: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        """`policy` is a name, a learned policy's file or an object; `never` if none is given.

        With `checkpoint`, a training that was cut short resumes grown as it was. `requeue` puts a job that runs out of
        time back into the queue, if `epochs` are not done; a number is the longest wait, in seconds, that the service
        may foresee for it. It then asks for a limit of `longest` seconds, if the service foresees that in time, too.
        Growth is planned with the next run's time. The network has at most `most` times its first parameters.
        """
        self.model, self.optimizer = model, optimizer
        self.budget = budget if budget is not None else Budget()
        self.problem = ""
        self.epochs, self.factor, self.noise, self.layers, self.seed = epochs, factor, noise, own(layers, model), seed
        self.record = files.Record("")
        self.policy: GrowthPolicy = Never()
        self._file: Path | None = None
        self._save_every, self._save_seconds = save_every, 0.0
        self._requeue = Requeue(self.budget, requeue, longest)
        self._most = most
        self._surveyed: tuple[int, tuple[int, ...], tuple[GrowthStep, ...]] | None = None  # size, layers, menu
        self._seen: dict[str, Any] = {}
        self._recent: list[float] = []
        self.more = True
        try:
            self._begin(policy, checkpoint)
        except SlurmRlError as error:
            self._trouble(str(error))
        self._mark = self._saved = time.monotonic()
        self.more = self._time_for_more()

    def _begin(self, policy: str | GrowthPolicy | None, checkpoint: str | Path | None) -> None:
        bare = unwrap(self.model).bare
        self.record.base = files.fingerprint(bare)
        self._most *= _size(bare)
        if not any(True for _ in bare.parameters()):
            raise CannotGrow(f"the model ({type(bare).__name__}) has no parameters to grow")
        if checkpoint is not None:
            self._resume(Path(checkpoint))
        self._watch()
        if self.budget.left() <= 0:
            raise InputError("the budget is already spent", remedy="ask Slurm for more time: sbatch --time")
        if self._requeue and (checkpoint is None or self.epochs is None):
            self._requeue.wish = False
            raise InputError("requeue needs a checkpoint and the number of epochs", remedy="checkpoint=…, epochs=…")
        wanted = policy if policy is not None else os.environ.get(POLICY) or "never"
        self.policy = policy_of(wanted, self.seed) if isinstance(wanted, str) else wanted

    # The training's side

    def step(self, loss: float | torch.Tensor, metrics: float | Mapping[str, float] | None = None) -> bool:
        """At an epoch's end: records it, grows the network if that is worth it; whether another epoch fits.

        Of several `metrics`, the first counts; higher is better. Without any, the loss does.
        """
        now = time.monotonic()
        self._recent.append(now - self._mark)
        record = self.record
        record.elapsed += now - self._mark
        self._mark = now
        record.epoch += 1
        record.losses.append(_plain(loss))
        first = next(iter(metrics.values()), None) if isinstance(metrics, Mapping) else metrics
        record.metrics.append(_plain(first) if first is not None else -record.losses[-1])
        choice = self._choose()
        grew = choice is not None and self._grow(choice)
        self.more = self._time_for_more()
        if self._file is not None and (grew or not self.more or now - self._saved >= self._save_every):
            self.save()
        if not self.more:
            self._put_back()
        return self.more

    @property
    def done(self) -> bool:
        """Whether all epochs that were wanted are done."""
        return self.epochs is not None and self.record.epoch >= self.epochs

    def save(self) -> None:
        """Writes the checkpoint; of several ranks, the first does."""
        if self._file is None or _rank() != 0:
            return
        began = time.monotonic()
        try:
            files.save(self._file, self.record, unwrap(self.model).bare, self.optimizer)
        except OSError as error:
            self._trouble(f"cannot write {self._file}: {error.strerror or error}")
            return
        self._saved = time.monotonic()
        self._save_seconds = max(self._save_seconds, self._saved - began)
        self._event("saved", epoch=self.record.epoch)

    # Growing

    def _choose(self) -> GrowthStep | None:
        """The policy's choice; of several ranks, the first chooses for all."""
        chosen: list[GrowthStep | None] = [None]
        if _rank() == 0 and not (self.problem or self.budget.warned or isinstance(self.policy, Never)):
            try:
                chosen = [self._chosen()]
            except SlurmRlError as error:
                self._trouble(str(error))
            except Exception as error:  # a user's policy
                self._trouble(f"the policy failed: {type(error).__name__}: {error}")
        if _ranks() > 1:
            distributed.broadcast_object_list(chosen, src=0)
        return chosen[0]

    def _chosen(self) -> GrowthStep | None:
        if self._surveyed is None:
            bare = unwrap(self.model).bare
            self._surveyed = (_size(bare), *survey(bare, self.factor, self.layers))
        size, words, choices = self._surveyed
        r, left, ahead, pace = self.record, self.budget.left(), self._requeue.ahead(), self._pace()
        # A job that comes back has the next run's time, too; but one epoch must fit into one run.
        fitting = tuple(
            c
            for c in choices
            if left + ahead >= WORTH * c.cost * pace
            and max(left, ahead) >= _SLACK * c.cost * pace
            and size * c.growth <= self._most
        )
        if not fitting:
            return None
        return self.policy.choose(
            State(words, fitting, r.elapsed, left + ahead, pace, tuple(r.losses), tuple(r.metrics), tuple(r.grown))
        )

    def _grow(self, choice: GrowthStep) -> bool:
        """Takes a step, unless the grown network answers otherwise than the old one; whether it was taken."""
        bare, before = unwrap(self.model).bare, self.model
        seed = self.seed + len(self.record.steps)
        # The optimiser is moved last: until then the old network can go on as if nothing had been tried.
        try:
            tried = apply(bare, choice, None, self.noise, seed, self.layers)
            if (apart := self._apart(bare, unwrap(tried).bare)) > _CLOSE:
                raise CannotGrow(f"{choice.action} at {choice.name!r} would change the function by {apart:.1e}")
            self.model = apply(before, choice, self.optimizer, self.noise, seed, self.layers)
        except (SlurmRlError, RuntimeError, TypeError, AttributeError) as error:
            self.model = before
            self._trouble(str(error).strip().splitlines()[0])
            return False
        self.record.steps.append(files.step_of(choice, self.noise, seed))
        self.record.grown.append(self.record.epoch)
        self._surveyed = None
        self._recent = [self._pace() * choice.cost]
        self._watch()
        size = _size(unwrap(self.model).bare)
        self._event("grew", action=choice.action, name=choice.name, to=choice.to, epoch=self.record.epoch, size=size)
        self._mark = time.monotonic()
        return True

    def _apart(self, old: nn.Module, new: nn.Module) -> float:
        """The largest relative difference of outputs on the last batch seen; 0 if none was."""
        args = self._seen.get("args")
        if args is None:
            return 0.0
        few = tuple(a[:32] if isinstance(a, torch.Tensor) and a.dim() else a for a in args)
        outs = []
        for model in (old, new):
            asked = copy.deepcopy(model).eval()
            with torch.no_grad():
                outs.append([t for t in _tensors(asked(*few)) if t.is_floating_point()])
        return max(
            (float((a - b).abs().max() / (a.abs().max() + 1e-6)) for a, b in zip(*outs, strict=True) if a.numel()),
            default=0.0,
        )

    def _watch(self) -> None:
        """Remembers the last batch, to check steps by, and saves after an optimiser's step once there is a warning."""
        bare, seen = unwrap(self.model).bare, self._seen
        if self.model is bare and not seen.get("watching"):  # a compiled model would be compiled again for each batch

            def remember(module: nn.Module, args: tuple[Any, ...]) -> None:
                seen["args"] = args

            bare.register_forward_pre_hook(remember)
            seen["watching"] = True  # a copy keeps its hooks
        if self.optimizer is not None and not seen.get("hooked"):
            me = weakref.ref(self)

            def after(*_: Any) -> None:
                grower = me()
                if grower is not None and grower.budget.warned:
                    grower._on_warning()

            self.optimizer.register_step_post_hook(after)
            seen["hooked"] = True

    def _on_warning(self) -> None:
        """The end was announced in the middle of an epoch: save now, the next one may come too late."""
        if self._seen.get("warned"):
            return
        self._seen["warned"] = True
        self._event("warned", epoch=self.record.epoch, left=round(self.budget.left(), 1))
        self.save()
        self._put_back()

    # Time

    def _pace(self) -> float:
        """Seconds that an epoch takes: the slowest of the last ones, since the network is as it is."""
        return max(self._recent[-4:], default=0.0)

    def _time_for_more(self) -> bool:
        if self.done or self.budget.warned:
            more = False
        else:
            need = self._pace() * _SLACK + 2 * self._save_seconds
            more = self.budget.left() > need or self.budget.refresh() > need
        if _ranks() > 1:
            agreed = [more]
            distributed.broadcast_object_list(agreed, src=0)
            more = agreed[0]
        return more

    def _put_back(self) -> None:
        """Asks Slurm to run this job again, if work is left and the queue is not too long."""
        if self.done or _rank() != 0:
            return
        try:
            self._requeue.put_back(lambda kind, **facts: self._event(kind, epoch=self.record.epoch, **facts))
        except SlurmRlError as error:
            self._trouble(str(error))

    # Resuming

    def _resume(self, file: Path) -> None:
        self._file = file
        if not file.exists():
            return
        try:
            record, value = files.load(file)
            if record.base != self.record.base:
                raise InputError(
                    "was written by a training of another network", file=str(file), remedy="name another file"
                )
            model = self.model
            for step in record.steps:
                choice = GrowthStep(step["action"], step["name"], step["to"], 1.0, -1)
                model = apply(model, choice, self.optimizer, step["noise"], step["seed"], self.layers)
        except SlurmRlError:
            self._file = None  # what is there is not ours to replace
            raise
        unwrap(model).bare.load_state_dict(value["model"])
        if self.optimizer is not None and value["optimizer"] is not None:
            self.optimizer.load_state_dict(value["optimizer"])
        torch.set_rng_state(value["random"])
        self.model, self.record = model, record
        self._event("resumed", epoch=record.epoch, steps=len(record.steps))

    # Words

    def _trouble(self, said: str) -> None:
        self.problem = said
        log.error("%s; the training goes on without growing", said)
        self._event("problem", said=said)

    def _event(self, kind: str, **facts: Any) -> None:
        if _rank() != 0:
            return
        log.info("%s %s", kind, " ".join(f"{k}={v}" for k, v in facts.items()))
        if where := os.environ.get(EVENTS):
            with suppress(OSError), Path(where).open("a") as out:
                out.write(json.dumps({"time": round(time.time(), 3), "event": kind} | facts) + "\n")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in _tensors(v)]
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple | list) else []


def _plain(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _ranks() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _rank() -> int:
    return distributed.get_rank() if _ranks() > 1 else 0
