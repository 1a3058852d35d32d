"""Slurm's releases 22.05 to 26.05 as a table of their differences; all other code asks this table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from slurm_rl.errors import SlurmError

_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")

Major = tuple[int, int]


class ReleaseTooOld(SlurmError):
    """The cluster's Slurm is older than every row of the table."""


class Evidence(StrEnum):
    """How we know what a row says."""

    TRIED = "tried"  # our tests run against its daemons
    RECORDED = "recorded"  # our tests read what its commands printed
    SOURCE = "source"  # read in Slurm's own source and release notes


@dataclass(frozen=True, slots=True)
class Traits:
    """What one major release has, and what its words mean."""

    evidence: Evidence
    tried: str = ""  # the patch release that was tried or recorded
    data_parser: str = ""  # newest version of its JSON
    array_unique: bool = False  # squeue --array-unique: a line per record; else --array, a line per task
    exclusive_field: bool = False  # exclusiveness has a field of its own, and OverSubscribe=NO is an ordinary job
    json_exclusive: bool = True  # JSON tells whether a job is exclusive
    cron_field: bool = False  # squeue tells scrontab's jobs
    segment_field: bool = False  # squeue tells --segment
    scontrol_json: bool = True  # scontrol show nodes --json; else sinfo --json
    lists_written_tasks: bool = False  # a partly refused array update also lists the tasks that took it
    auth_slurm: bool = True  # AuthType=auth/slurm, without munge
    cgroup_disabled: bool = True  # CgroupPlugin=disabled, without which slurmd wants a cgroup mount
    openmetrics: bool = False  # MetricsType=metrics/openmetrics
    prefer_fixed: int | None = 0  # first patch whose Prefer= neither loses a --constraint nor holds the job; None: none


TABLE: dict[Major, Traits] = {
    (22, 5): Traits(
        Evidence.TRIED,
        "22.05.8",
        "openapi v0.0.38",
        array_unique=True,
        scontrol_json=False,
        lists_written_tasks=True,
        auth_slurm=False,
        cgroup_disabled=False,
        prefer_fixed=9,
    ),
    (23, 2): Traits(Evidence.SOURCE, "", "v0.0.39", auth_slurm=False, cgroup_disabled=False, prefer_fixed=3),
    (23, 11): Traits(Evidence.SOURCE, "", "v0.0.40", cgroup_disabled=False, prefer_fixed=None),
    (24, 5): Traits(Evidence.SOURCE, "", "v0.0.41", prefer_fixed=None),
    (24, 11): Traits(Evidence.TRIED, "24.11.5", "v0.0.42", prefer_fixed=4),
    (25, 5): Traits(Evidence.SOURCE, "", "v0.0.43", cron_field=True),
    (25, 11): Traits(Evidence.RECORDED, "25.11.7", "v0.0.44", cron_field=True, openmetrics=True, prefer_fixed=1),
    (26, 5): Traits(
        Evidence.TRIED,
        "26.05.5",
        "v0.0.45",
        segment_field=True,
        exclusive_field=True,
        json_exclusive=False,
        cron_field=True,
        openmetrics=True,
        prefer_fixed=2,
    ),
}
OLDEST, NEWEST = min(TABLE), max(TABLE)


def name(major: Major) -> str:
    return f"{major[0]}.{major[1]:02}"


class Release(NamedTuple):
    """A release such as 22.05.8; year and month make the major release."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}.{self.patch}"

    @property
    def major(self) -> Major:
        return self.year, self.month

    @property
    def known(self) -> bool:
        """Whether it has a row in the table; an unknown one is only read, unless that is forced."""
        return self.major in TABLE

    @property
    def traits(self) -> Traits:
        """The row of this release, or of the newest known one before it; raises SlurmError if it is older than all."""
        if self.major < OLDEST:
            raise ReleaseTooOld(f"Slurm {self} is too old: slurm-rl needs {name(OLDEST)} or later")
        return TABLE[max(major for major in TABLE if major <= self.major)]

    def not_known(self) -> str:
        """Why it is only read, in words for its administrator."""
        return (
            f"Slurm {self} is not known to this version of slurm-rl, which knows {name(OLDEST)} to {name(NEWEST)}: "
            "it is only read, never written"
        )


def prefer_is_sound(release: Release) -> bool:
    """Whether a wish for features leaves a user's own constraint alone."""
    fixed = release.traits.prefer_fixed
    return fixed is not None and (not release.known or release.patch >= fixed)


class Lack(NamedTuple):
    """What a release does not tell or have, and what slurm-rl does about it."""

    what: str
    instead: str


def lacks(traits: Traits) -> list[Lack]:
    """What an administrator should know about a release; the same words stand in docs/releases.md."""
    found = [
        Lack(
            "no command shows the SiteFactor of held, dependent and deferred jobs",
            "undo writes those too, and slurmctld's acknowledgement counts",
        )
    ]
    if not traits.array_unique:
        found.append(
            Lack(
                "squeue lists an array's waiting tasks merged or one by one, not by record",
                "slurm-rl asks for both and gathers the tasks by record",
            )
        )
    if not traits.cron_field:
        found.append(
            Lack(
                "squeue does not mark scrontab's jobs, which refuse updates",
                "with ScronParameters=enable, scontrol show job is read as well",
            )
        )
    if not traits.json_exclusive:
        found.append(Lack("JSON does not mark an exclusive job", "squeue's text is read"))
    if not traits.openmetrics:
        found.append(
            Lack("slurmctld exports no metrics", "Slurm's panels in etc/grafana stay empty; ours do not need them")
        )
    return found


def sound_prefer(release: Release) -> str:
    """The first release, from this one on, in which `prefer_is_sound`."""
    later = (Release(*major, row.prefer_fixed) for major, row in sorted(TABLE.items()) if row.prefer_fixed is not None)
    return str(next(one for one in later if one.major >= min(release.major, NEWEST)))


def parse_release(text: str) -> Release:
    """Finds the release in what `slurmctld -V` or `scontrol show config` say."""
    match = _NUMBER.search(text)
    if match is None:
        raise SlurmError(f"no Slurm release in {text.strip()!r}")
    return Release(int(match[1]), int(match[2]), int(match[3] or 0))
