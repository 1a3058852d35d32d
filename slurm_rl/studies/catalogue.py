"""The studies, one row each: what it makes, which public traces it reads, and its arguments in the guides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_VENUS, _ITP, _RICC = "helios_venus_sept2020.csv.gz", "microsoft_itp_2021.csv.gz", "pwa_ricc_2010.csv.gz"
_CEDAR, _PAI, _OPENB = (
    "drac_cedar_2021_queued.csv.gz",
    "alibaba_pai_2020_jobpool.csv.gz",
    "alibaba_openb_v2023.cluster.json",
)
_FOUR = (_VENUS, "helios_venus_sept2020.cluster.json", _ITP, _RICC)
_OPEN = (_VENUS, _PAI, _OPENB)


@dataclass(frozen=True, slots=True)
class Study:
    """A table of a guide."""

    name: str
    makes: str
    module: str  # in this package, with a function `main`
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()  # files in the folder of public traces

    def lacks(self, folder: Path | None) -> list[str]:
        """What it needs and does not find."""
        return [name for name in self.needs if folder is None or not (folder / name).is_file()]


STUDIES = {
    s.name: s
    for s in (
        Study("table-easy", "learning.md: the table, EASY backfill", "policy", ("table", "easy", "5"), _FOUR),
        Study("table-slurm", "learning.md: the table, Slurm's backfill", "policy", ("table", "slurm", "3"), _FOUR),
        Study("styles", "learning.md: styles on generated sites", "policy", ("styles", "easy", "8")),
        Study("development", "learning.md: eleven other workloads", "policy", ("development",), (_ITP, _RICC, _CEDAR)),
        Study("stretches", "learning.md: stretches of RICC", "policy", ("stretches", "easy", "1"), (_RICC,)),
        Study("hindsight", "learning.md: styles in hindsight", "policy", ("hindsight", "easy", "5"), _FOUR),
        Study("controls", "learning.md: the model taken apart", "policy", ("controls",), (_VENUS, _ITP, _RICC)),
        Study("ablations", "learning.md: training without a part", "policy", ("ablations",), (_VENUS, _ITP, _RICC)),
        Study("estimator", "learning.md: run-time estimates", "policy", ("estimator",), _FOUR),
        Study("placement", "placement.md: the tables", "placement", ("8",), _OPEN),
        Study("placement-weights", "placement.md: the weights", "placement", ("weights", "2")),
        Study("placement-orders", "placement.md: orders of GPU types", "placement", ("orders",)),
    )
}
