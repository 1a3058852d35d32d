"""Every error a user can cause or meet, each one sentence that names the object and the remedy.

SlurmRlError             anything we raise on purpose; exit code 1
├── InputError           a file, row, field or option is wrong; exit code 2
├── ModelError           a model was refused; exit code 3
├── EnvironmentMissing   a package, program or right is absent; exit code 4
└── SlurmError           Slurm did not answer, or refused; exit code 5
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SlurmRlError(Exception):
    """Base of all deliberate errors; `str()` of it is fit for a user's eyes."""

    exit_code = 1

    def as_dict(self) -> dict[str, object]:
        """What `--json` prints under "error"."""
        return {"type": type(self).__name__, "message": str(self)}


class InputError(SlurmRlError):
    """A wrong input: where it is, what was expected, and what to do about it."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.message, self.file, self.line, self.field, self.remedy = message, file, line, field, remedy
        place = ": ".join(
            str(part) for part in (file, f"line {line}" if line is not None else None, field) if part is not None
        )
        text = f"{place}: {message}" if place else message
        super().__init__(f"{text} ({remedy})" if remedy else text)

    def as_dict(self) -> dict[str, object]:
        known = {"file": self.file, "line": self.line, "field": self.field, "remedy": self.remedy}
        return super().as_dict() | {k: v for k, v in known.items() if v is not None}


class ModelError(SlurmRlError):
    """A model that must not be used: wrong hash, shape, feature version, or values."""

    exit_code = 3


class EnvironmentMissing(SlurmRlError):
    """Something this machine lacks; the message carries the command that brings it."""

    exit_code = 4


class SlurmError(SlurmRlError):
    """Slurm is unreachable, answered something unreadable, or refused."""

    exit_code = 5


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for a name that is not in a known set, with the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(names)
    return InputError(f"unknown {kind} {name!r}", remedy=hint)
