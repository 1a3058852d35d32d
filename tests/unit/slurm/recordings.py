"""What real Slurms said, as tests/record_fixtures.py wrote it down."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.slurm import sprio, squeue
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.release import Traits, parse_release

FIXTURES = Path(__file__).parent / "fixtures"
MARK = "\x1fmarkx"  # the separator the text fixtures were recorded with


class Recording:
    """What one release's commands said about the queue of tests/record_fixtures.py."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.directory = FIXTURES / release
        self.traits: Traits = parse_release(release).traits

    def __call__(self, file: str) -> str:
        return (self.directory / file).read_text()

    def jobs(self) -> list[SlurmJob]:
        """Its jobs as the text readers see them."""
        factors = sprio.factors(self("sprio.txt"), MARK)
        waiting = {} if self.traits.array_unique else squeue.arrays(self("arrays.txt"), MARK)
        return squeue.jobs(self("squeue.txt"), MARK, factors, self.traits, waiting=waiting)
