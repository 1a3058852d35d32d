"""Opens a journal for an undo, even on a full or read-only disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from slurm_rl.obs.journal import Journal, JournalError


def open_anyhow(path: Path, stack: ExitStack, *, empty: bool = False) -> tuple[Journal, str]:
    """The journal for an undo, closed with the stack: itself, else a copy in memory, else (if allowed) an empty one.

    The second value says why it is not the journal itself. A copy is read as SQLite would have read it, with what was
    not yet checkpointed; what is written to it is lost.
    """
    problem = ""
    if path.exists():
        try:
            return stack.enter_context(Journal(path)), ""
        except JournalError as error:
            problem = str(error)
    memory = Path("/dev/shm")  # noqa: S108  (a directory of our own is made in it)
    directory = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="slurm-rl-", dir=memory if os.access(memory, os.W_OK) else None)
    )
    copy = Path(directory) / path.name
    if path.exists():
        try:
            for suffix in ("", "-wal"):
                if (source := path.with_name(path.name + suffix)).exists():
                    shutil.copyfile(source, copy.with_name(copy.name + suffix))
            if (advice := path.with_suffix(".advice")).exists():
                shutil.copyfile(advice, copy.with_suffix(".advice"))
            journal = stack.enter_context(Journal(copy))
            journal.touched()
            return journal, f"{problem}: read from a copy; a running service would not notice: stop it first"
        except (OSError, JournalError) as error:
            if not empty:
                raise JournalError(problem) from error
    return stack.enter_context(Journal(Path(directory) / "empty.sqlite")), problem and f"{problem}: not used"
