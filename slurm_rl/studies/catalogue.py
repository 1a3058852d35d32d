"""The studies, one row each: the table, the public traces it needs, and its arguments in the guides."""

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
    quick: tuple[
        str, ...
    ]  # arguments that show in minutes that it runs: few seeds, few workloads, no interval to trust
    needs: tuple[str, ...] = ()  # files in the folder of public traces

    def lacks(self, folder: Path | None) -> list[str]:
        """What it needs and does not find."""
        return [name for name in self.needs if folder is None or not (folder / name).is_file()]


STUDIES = {
    s.name: s
    for s in (
        Study(
            "table-easy",
            "learning.md: the table, EASY backfill",
            "policy",
            ("table", "easy", "5"),
            ("table", "easy", "1", "hetero"),
            _FOUR,
        ),
        Study(
            "table-slurm",
            "learning.md: the table, Slurm's backfill",
            "policy",
            ("table", "slurm", "3"),
            ("table", "slurm", "1", "hetero"),
            _FOUR,
        ),
        Study(
            "standing",
            "auto.md: the standing table (EASY)",
            "standing",
            ("easy", "3"),
            ("easy", "1", "hetero"),
            _FOUR,
        ),
        Study(
            "standing-slurm",
            "auto.md: the standing table (Slurm's)",
            "standing",
            ("slurm", "2"),
            ("slurm", "1", "hetero"),
            _FOUR,
        ),
        Study(
            "standing-machines",
            "auto.md: machines unlike ours",
            "standing",
            ("machines", "easy", "3"),
            ("machines", "easy", "1", "one-user"),
        ),
        Study(
            "hidden",
            "learning.md: what hidden layers cost",
            "hidden",
            (),
            ("hetero", "easy", "1"),
            _FOUR,
        ),
        Study(
            "styles",
            "learning.md: styles on generated sites",
            "policy",
            ("styles", "easy", "8"),
            ("styles", "easy", "1"),
        ),
        Study(
            "development",
            "learning.md: eleven other workloads",
            "policy",
            ("development",),
            ("development", "easy", "1", "default", "1"),
            (_ITP, _RICC, _CEDAR),
        ),
        Study(
            "stretches",
            "learning.md: stretches of RICC",
            "policy",
            ("stretches", "easy", "1"),
            ("stretches", "easy", "1", "default", "1"),
            (_RICC,),
        ),
        Study(
            "hindsight",
            "learning.md: styles in hindsight",
            "policy",
            ("hindsight", "easy", "5"),
            ("hindsight", "easy", "1", "hetero"),
            _FOUR,
        ),
        Study(
            "controls",
            "learning.md: the model taken apart",
            "policy",
            ("controls",),
            ("controls", "8"),
            (_VENUS, _ITP, _RICC),
        ),
        Study(
            "ablations",
            "learning.md: training without a part",
            "policy",
            ("ablations",),
            ("ablations", "nothing", "8", "1"),
            (_VENUS, _ITP, _RICC),
        ),
        Study("estimator", "learning.md: run-time estimates", "policy", ("estimator",), ("estimator", "hetero"), _FOUR),
        Study("windows", "learning.md: picks in the environment", "windows", ("160",), ("8",)),
        Study("placement", "placement.md: the tables", "placement", ("8",), ("2", "sjf-age@user", "hetero"), _OPEN),
        Study("placement-weights", "placement.md: the weights", "placement", ("weights", "2"), ("weights", "1")),
        Study(
            "slices",
            "gres.md: measured on slices",
            "placement",
            ("8", "sjf-age@user", "slices"),
            ("2", "sjf-age@user", "slices"),
        ),
        Study(
            "slices-weights",
            "gres.md: what makes the difference",
            "placement",
            ("weights", "8", "slices"),
            ("weights", "1", "slices"),
        ),
        Study("placement-orders", "placement.md: orders of GPU types", "placement", ("orders",), ("orders", "2")),
        Study("topology", "placement.md: gangs inside blocks", "topology", ("8",), ("2", "0.8")),
        Study("telemetry", "telemetry.md: a measured figure as a feature", "telemetry", ("11",), ("2",)),
        Study(
            "meta",
            "agents.md: choosing among policies",
            "meta",
            ("60",),
            ("4", "regimes,hetero"),
            _FOUR,
        ),
        Study("meta-decision", "agents.md: what a choice costs", "decision", (), ()),
        Study("forecasts", "forecasts.md: ranges and errors", "forecasts", (), ("hetero", "60", "8"), _FOUR),
        Study(
            "reality",
            "fidelity.md: does the gain hold? (root)",
            "reality",
            ("3", "60"),
            ("1", "10", "out/reality-quick.json", "mixed"),
            (_VENUS,),
        ),
    )
}
