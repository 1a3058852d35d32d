"""Puts this directory on the import path for `builders` and `reference`, and runs tests on several releases of Slurm.

A test that asks for `slurm_release` (as all do that start a lab) runs on the installed Slurm. Those marked `releases`
run on the fetched ones too, and with `--releases all` every one does. `releases("installed")` or
`releases("24.11", "26.05")` names those it is about, and then it runs on no other.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from slurm_rl.lab import requirements, roots

INSTALLED = "installed"
# For newer Pythons torch is a CUDA build of 6 GB: `make pythons` goes without it, and without the tests that need it.
WITHOUT_TORCH = sys.version_info >= (3, 13) and importlib.util.find_spec("torch") is None
if WITHOUT_TORCH:  # some of them import it in a test
    collect_ignore = ["unit/evaluate/test_fit.py", "unit/train/test_network.py", "unit/train/test_ppo.py"]
    collect_ignore += ["unit/live/test_pressure.py", "unit/grow", "property/test_grow_properties.py"]
    collect_ignore += ["unit/train/test_trainer.py", "unit/train/test_algorithms.py", "unit/train/test_tracking.py"]
    collect_ignore += ["unit/api/test_examples.py"]
if WITHOUT_TORCH and sys.version_info >= (3, 14):  # river, the witness of the bandits, has no release for it
    collect_ignore += ["unit/policy/test_bandits.py"]


class _ModuleWithoutTorch(pytest.Module):
    """Skips a file of tests that cannot be imported for want of torch; other errors stay errors."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if "No module named 'torch'" in str(error):
                pytest.skip("needs torch", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _ModuleWithoutTorch.from_parent(parent, path=module_path) if WITHOUT_TORCH else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--releases",
        choices=["marked", "all"],
        default="marked",
        help="which tests run on the fetched releases of Slurm as well: those marked so, or all",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "slurm_release" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("releases")
    chosen = marker.args if marker else ()
    if not chosen:
        everywhere = marker or metafunc.config.getoption("--releases") == "all"
        chosen = (INSTALLED, *roots.SUITES) if everywhere else (INSTALLED,)
    metafunc.parametrize("slurm_release", chosen, indirect=True, scope="session")


@pytest.fixture(scope="session")
def slurm_release(request: pytest.FixtureRequest) -> str:
    """The Slurm to test with, as LabSpec takes it; skips where it or root is absent, and fails in CI."""
    chosen: str = request.param
    problem = ""
    if os.geteuid() != 0:
        problem = "needs root"
    elif chosen == INSTALLED and (missing := requirements.missing(accounting=True)):
        problem = f"needs the packages {' '.join(missing)}"
    elif chosen != INSTALLED and not roots.directory_of(chosen).is_dir():
        problem = f"needs slurm-rl lab fetch {chosen}"
    if problem and os.environ.get("CI") == "true":
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)
    return "" if chosen == INSTALLED else chosen
