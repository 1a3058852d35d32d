"""A thousand sbatch in every state of the service: none fails, and what each costs; printed as a table."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lua.shim import install
from lua.site import SERVICES, Site

pytestmark = [pytest.mark.soak, pytest.mark.slurm]

JOBS = 1000
HUNG = ("stopped", "dripping")


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="rl") as name:
        built = Site(Path(name) / "lab", slurm_release)
        try:
            built.use(install(built.lab.directory / "first", service=built.socket))
            built.enable_lua()
            built.submit({"warm-up": ""})
            yield built
        finally:
            built.lab.down()


@pytest.mark.parametrize("how", SERVICES)
def test_a_thousand_submissions(site: Site, how: str) -> None:
    """With the settings as installed, and, unless the service hangs, also with a breaker that never opens."""
    for name, breaker in [(how, 3)] + [(f"{how}, no breaker", 1000)] * (how not in HUNG):
        label = name.replace(" ", "-").replace(",", "")
        site.use(install(site.lab.directory / label, service=site.socket, deadline_ms=30, breaker_failures=breaker))
        with SERVICES[how](site.socket) as asked:
            held = site.submit({f"{label}-{i}": "" for i in range(JOBS)})
            times = asked()
        site.socket.unlink(missing_ok=True)
        factors = site.factors()
        assert all(f"{label}-{i}" in held for i in range(JOBS)), "none failed"
        assert {factors[f"{label}-{i}"] for i in range(JOBS)} == {0}
        took = site.milliseconds()
        assert len(took) == JOBS
        p99 = statistics.quantiles(took, n=100)[98]
        first = " ".join(f"{t:.2f}" for t in took[:5])
        print(
            f"| {name} | {times} | {statistics.median(took):.2f} ms | {p99:.2f} ms | {max(took):.1f} ms | {first} |",
            flush=True,
        )
        assert p99 <= (5 if how in ("dead", "refusing") else 50)
        site.lab.run("scancel", "--user=root", "--quiet")
