"""The real traces: to native, to SWF and back, losing nothing that the target can express."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_traces_native_swf import same

from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.swf import write_swf
from slurm_rl.traces.trace import Labels, Trace

SHARED = Path(__file__).parents[4] / "shared" / "traces"
JOBS = {
    "helios_venus_sept2020": 23_859,
    "microsoft_itp_2021": 69_351,
    "drac_cedar_2021_queued": 115_043,
    "alibaba_openb_v2023": 7_255,  # 897 of 8,152 pods never ran
    "alibaba_openb_v2023_gpuspec33": 7_255,
    "alibaba_pai_2020_jobpool": 3_046,
    "pwa_ricc_2010": 447_794,
}


@pytest.fixture(params=sorted(JOBS))
def real(request: pytest.FixtureRequest) -> Trace:
    path = SHARED / f"{request.param}.csv.gz"
    if not path.exists():
        pytest.skip("the real traces are not here")
    return read_trace(path)


def test_every_job_is_read(real: Trace) -> None:
    assert len(real) == JOBS[real.name]
    dropped = sum(n.rows for n in real.notes if n.dropped)
    assert dropped == (897 if "openb" in real.name else 0)


def test_native_and_back(real: Trace, tmp_path: Path) -> None:
    write_native(real, tmp_path / "t.csv")
    again = read_trace(tmp_path / "t.csv", cache=False)
    same(real, again)
    assert not [n for n in again.notes if n.dropped]


def test_swf_and_back(real: Trace, tmp_path: Path) -> None:
    write_swf(real, tmp_path / "t.swf")
    again = read_trace(tmp_path / "t.swf", cache=False)
    for field in ("submit_time", "run_time", "time_limit"):
        np.testing.assert_array_equal(getattr(real, field), getattr(again, field))
    if real.job_id.dtype == np.int64:
        np.testing.assert_array_equal(real.job_id, again.job_id)
    whole = (real.cpus >= 1) & (real.cpus == np.floor(real.cpus))
    np.testing.assert_array_equal(real.cpus[whole], again.cpus[whole])
    near = whole & ~np.isnan(real.mem_gb)  # SWF keeps whole KB a processor
    np.testing.assert_allclose(
        real.mem_gb[near], again.mem_gb[near], atol=float(real.cpus[near].max(initial=1)) / 2**20
    )
    for field in ("user", "account"):
        assert _grouping(getattr(real, field)) == _grouping(getattr(again, field))
    if real.name == "pwa_ricc_2010":  # its names are SWF's own numbers
        for field in ("user", "account", "partition", "status"):
            assert getattr(real, field).strings() == getattr(again, field).strings()


def _grouping(labels: Labels) -> list[int]:
    """The codes renumbered by first appearance: which rows are of one name, whatever the names."""
    index: dict[int, int] = {}
    return [-1 if c < 0 else index.setdefault(c, len(index)) for c in labels.codes.tolist()]
