"""`import slurm_rl` registers the environment, in a fresh interpreter and by the lines that the guide prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def fresh(program: str) -> str:
    """What a new interpreter prints, with nothing of this process's set-up."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "lines",
    [
        'import gymnasium, slurm_rl; made = gymnasium.make("slurm_rl/Replay-v0", {})',
        'import slurm_rl, gymnasium; made = gymnasium.make("slurm_rl/Replay-v0", {})',
        'import gymnasium; made = gymnasium.make("slurm_rl:slurm_rl/Replay-v0", {})',
        'import slurm_rl, gymnasium; made = gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=2, {})',
        'import gymnasium; made = gymnasium.make_vec("slurm_rl:slurm_rl/Replay-v0", num_envs=2, {})',
    ],
)
def test_gymnasium_makes_it_by_name(lines: str) -> None:
    made = lines.format('trace="traces/hetero.csv.gz", jobs=32, window=16')
    assert "Replay" in fresh(f"{made}; made.reset(seed=1); print(made.unwrapped)")


_IN_BETWEEN = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "gymnasium.core":
            sys.meta_path.remove(self)
            import slurm_rl

sys.meta_path.insert(0, Finder())
import gymnasium
assert "slurm_rl" in sys.modules
print(gymnasium.spec("slurm_rl/Replay-v0").id)
"""


def test_it_may_be_imported_while_gymnasium_is() -> None:
    assert fresh(_IN_BETWEEN) == "slurm_rl/Replay-v0\n"


def test_the_lines_of_the_guide_run_as_they_stand() -> None:
    guide = (ROOT / "docs" / "learning.md").read_text().partition("## The environment")[2].partition("\n## ")[0]
    lines = [line.removeprefix("    ") for line in guide.splitlines() if line.startswith("    ")]
    assert sum("gymnasium.make" in line for line in lines) == 2
    fresh("\n".join(lines))


def test_importing_us_does_not_import_gymnasium() -> None:
    assert fresh("import slurm_rl, sys; print('gymnasium' in sys.modules, 'numpy' in sys.modules)") == "False False\n"
