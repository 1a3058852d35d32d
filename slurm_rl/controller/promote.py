"""Promotes a model after a replay of recent history in which it did no harm, and rolls it back.

A promoted model is copied into the state directory, so that nothing changes under the service; one small file, replaced
at once, says which one is in charge and which one was before. The policy `rl:current` is whatever it says.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.errors import InputError, ModelError
from slurm_rl.policy.checkpoint import Model, load_model
from slurm_rl.policy.registry import PolicySpec
from slurm_rl_sim.replay import Contender, Prepared, replay

CURRENT = "rl:current"
P95, LONGEST = 1.05, 1.2  # times the incumbent's wait that a candidate may have
COMPLETED = 0.995  # of the jobs that complete under the incumbent; the others end at their limit on slower GPUs
LEAST_JOBS = 100
RULES = (
    f"history: at least {LEAST_JOBS} jobs",
    f"p95: the 95% wait is at most {P95:g} times that of the policy in charge (and a second)",
    f"longest: the longest wait is at most {LONGEST:g} times that of the policy in charge (and a second)",
    f"completed: at least {COMPLETED:g} of the jobs that complete under the policy in charge complete",
)
REMEDY = (
    "judge by more history (--days) or another trace (--trace), or watch it in shadow mode with policy = "
    '"rl:NAME", which asks no gate'
)
_PERMITS = "outside.json"  # policies from outside that passed the gate, with the digests of their files
_SECOND = 1.0  # waits that differ by less are the same: of nothing, 1.05 times is nothing


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the replay gate found, in seconds of waiting."""

    jobs: int
    incumbent: str
    candidate: str
    p95: tuple[float, float]  # of the incumbent, of the candidate
    longest: tuple[float, float]
    completed: tuple[float, float] = (0.0, 0.0)  # jobs

    @property
    def objections(self) -> list[str]:
        """Why the candidate must not be promoted; none: it may."""
        found = []
        waits = (("p95", "95% wait", P95, self.p95), ("longest", "longest wait", LONGEST, self.longest))
        for rule, what, share, (old, new) in waits:
            if not new <= share * old + _SECOND:
                found.append(
                    f"rule {rule}: {what} {new:.0f} s, more than {share:g} times the {old:.0f} s of {self.incumbent}"
                )
        before, after = self.completed
        if not after >= COMPLETED * before:
            found.append(
                f"rule completed: {after:.0f} jobs complete, fewer than {COMPLETED:g} of the {before:.0f} of "
                f"{self.incumbent}"
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"objections": self.objections}


def judge(
    prepared: Prepared,
    incumbent: PolicySpec,
    candidate: PolicySpec,
    *,
    influence: float,
    weights: dict[str, float] | None = None,
    slurm: SlurmSettings | None = None,
) -> Verdict:
    """Replays history under both, as they act on a live Slurm: through its backfill, with a bounded influence."""
    jobs = len(prepared.trace)
    if jobs < LEAST_JOBS:
        raise InputError(
            f"a history of {jobs} jobs tells nothing: the gate wants {LEAST_JOBS}",
            remedy="look further back with --days, or judge by a trace with --trace",
        )
    contenders = [Contender(incumbent, "slurm"), Contender(candidate, "slurm")]
    old, new = (r.metrics for r in replay(prepared, contenders, influence=influence, weights=weights, slurm=slurm))

    def pair(name: str) -> tuple[float, float]:
        return float(old[name] or 0.0), float(new[name] or 0.0)

    return Verdict(jobs, incumbent.name, candidate.name, pair("p95_wait"), pair("max_wait"), pair("completed"))


class Promotions:
    """The models of a state directory, and which of them is in charge."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / "models"
        self.file = self.directory / "promoted.json"

    def stamp(self) -> int:
        """Changes with every promotion and rollback; 0 before the first."""
        try:
            return self.file.stat().st_mtime_ns
        except OSError:
            return 0

    def names(self) -> tuple[str, str]:
        """Directories of the model in charge and of the one before it; "" for none."""
        try:
            said = json.loads(self.file.read_text(encoding="utf-8"))
            return str(said["current"]), str(said["previous"])
        except FileNotFoundError:
            return "", ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{self.file}: cannot be read: {error}") from None

    def current(self) -> Model | None:
        """The model in charge, checked in every respect; None if there was no promotion yet."""
        name = self.names()[0]
        return load_model(self.directory / name) if name else None

    def promote(self, model: Model) -> Model:
        """Puts a model in charge; the one that was stays at hand for `rollback`."""
        name = f"{model.name}-{model.digest[:12]}"
        before = self.names()[0]
        self.directory.mkdir(parents=True, exist_ok=True)
        if not (self.directory / name).is_dir():
            fresh = Path(tempfile.mkdtemp(prefix=".new.", dir=self.directory))
            try:
                shutil.copytree(model.path, fresh / name)
                load_model(fresh / name)  # what was copied is what was checked
                for path in (self.directory, fresh / name):  # the service reads it as a user of its own
                    path.chmod(0o755)
                for path in (fresh / name).iterdir():
                    path.chmod(0o644)
                (fresh / name).rename(self.directory / name)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        copied = load_model(self.directory / name)
        if copied.digest != model.digest:
            raise ModelError(f"{copied.path}: is another model than {model.path}")
        self._write(name, before if before != name else self.names()[1])
        return copied

    def rollback(self) -> Model:
        """Puts the model before the present one in charge again."""
        current, previous = self.names()
        if not previous:
            raise InputError("no earlier model to roll back to", remedy="slurm-rl models promote NAME")
        model = load_model(self.directory / previous)
        self._write(previous, current)
        return model

    def permitted(self, policy: PolicySpec) -> bool:
        """Whether a policy may change a queue: ours may, one from outside once this very file passed the gate."""
        return policy.ours or (bool(policy.digest) and self._permits().get(policy.name) == policy.digest)

    def permit(self, policy: PolicySpec) -> None:
        """Lets a policy from outside change the queue."""
        if not policy.digest:
            raise InputError(f"{policy.name}: is in no file, so a later change could not be detected")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._replace(self.directory / _PERMITS, self._permits() | {policy.name: policy.digest})

    def _permits(self) -> dict[str, str]:
        try:
            said = json.loads((self.directory / _PERMITS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.directory / _PERMITS}: cannot be read: {error}") from None
        return {str(k): str(v) for k, v in said.items()} if isinstance(said, dict) else {}

    def _write(self, current: str, previous: str) -> None:
        self._replace(self.file, {"current": current, "previous": previous})

    @staticmethod
    def _replace(file: Path, said: dict[str, str]) -> None:
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        temporary.write_text(json.dumps(said) + "\n", encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(file)
