"""How good forecasts of start times are, workload by workload: the table of docs/forecasts.md.

slurm-rl study forecasts [WORKLOAD,…] [FORECASTS] [DRAWS]

The rows of `slurm-rl forecast-report`; RICC, where one future takes long, has half the forecasts and half the futures.
"""

from __future__ import annotations

from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import unknown_name
from slurm_rl.evaluate.forecasts import forecast_history, report_of, site_of
from slurm_rl.studies.places import public
from slurm_rl.studies.policy import workload
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import find_cluster, prepare, window_of

_HEAD = (
    "| trace, window | forecasts | in the 80% range | (futures alone) | log error | backfill by limits "
    "| mean wait of jobs like it | ratio to limits |"
)
_WINDOWS = {"venus": "0.6:1", "itp": "0.3:1", "ricc": "0.13:0.23", "hetero": "0.5:1"}


def _workload(name: str) -> tuple[Trace, Cluster]:
    if name != "ricc":
        return workload(name)[:2]
    path = public() / "pwa_ricc_2010.csv.gz"  # all of it, not the days that policies are judged on
    trace = read_trace(path)
    return trace, find_cluster(trace, path, None)


def main(names: str = ",".join(_WINDOWS), forecasts: str = "400", draws: str = "24") -> None:
    """Prints a row a workload."""
    print("\n".join([_HEAD, "|---" * 8 + "|"]))
    for name in names.split(","):
        if name not in _WINDOWS:
            raise unknown_name("workload", name, _WINDOWS)
        part = 2 if name == "ricc" else 1
        trace, cluster = _workload(name)
        window = window_of(trace, _WINDOWS[name])
        assert window is not None
        prepared = prepare(trace, cluster, window=window, seed=0)
        site = site_of("multifactor", "easy")
        rows, earlier = forecast_history(
            prepared, site, window=window, count=int(forecasts) // part, draws=int(draws) // part, seed=0
        )
        found = report_of(rows, earlier)
        ours, alone, limits, naive = found.methods
        shares = f"{ours.coverage:.0%} | {alone.coverage:.0%}"
        errors = " | ".join(f"{m.log_error:.2f}" for m in (ours, limits, naive))
        print(f"| {name}, {_WINDOWS[name]} | {found.forecasts} | {shares} | {errors} | {found.ratio:.2f} |", flush=True)
