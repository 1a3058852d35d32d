"""Which model is in charge: promotes one that passed the gate (evaluate/promotion.py), and rolls it back.

A promoted model is copied into the state directory, so that nothing changes under the service; one small file, replaced
at once, says which one is in charge and which one was before. The policy `rl:current` is whatever it says.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from slurm_rl.errors import InputError, ModelError
from slurm_rl.policy.checkpoint import Model, load_model
from slurm_rl.policy.registry import PolicySpec

CURRENT = "rl:current"
_PERMITS = "outside.json"  # policies from outside that passed the gate, with the digests of their files


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
