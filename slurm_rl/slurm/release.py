"""Slurm's release numbers, and which of them this project was written for."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_rl.errors import SlurmError

_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class Release(NamedTuple):
    """A release such as 22.05.8; year and month make the major release."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}.{self.patch}"

    @property
    def major(self) -> tuple[int, int]:
        return self.year, self.month

    @property
    def known(self) -> bool:
        """Whether reading *and* writing were written for this release; an unknown one is only read."""
        return self.major in KNOWN


KNOWN = frozenset({(22, 5), (23, 2), (23, 11), (24, 5), (24, 11), (25, 5), (25, 11), (26, 5)})


# The patch of each major release from which Prefer= no longer replaces a user's --constraint when it is tested.
PREFER_FIXED = {(22, 5): 9, (23, 2): 3, (24, 11): 4, (25, 11): 1, (26, 5): 2}


def prefer_is_sound(release: Release) -> bool:
    """Whether a wish for features leaves a user's own constraint alone."""
    return release.patch >= PREFER_FIXED.get(release.major, 0)


def parse_release(text: str) -> Release:
    """Finds the release in what `slurmctld -V` or `scontrol show config` say."""
    match = _NUMBER.search(text)
    if match is None:
        raise SlurmError(f"no Slurm release in {text.strip()!r}")
    return Release(int(match[1]), int(match[2]), int(match[3] or 0))
