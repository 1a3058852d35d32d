"""What a site's first history teaches of run times."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_rl.controller.estimates import Finished, RunTimes, batches


def test_the_first_history_is_not_judged_by_estimates_without_any() -> None:
    """150 jobs that all took 1% of their limit: but for the first few, that was expected.

    Before the first has ended, half of the limit is expected. If all 150 were held against that, every later run time
    would be drawn too short.
    """
    known = RunTimes()
    known.learn(Finished("ann", "train", 1.0, True, 100_000, 1000.0) for _ in range(150))
    expected, spread = np.full(1, np.log(1000.0)), np.ones(1)
    (drawn,) = known.residuals.draw(np.array([0.5]), expected, spread, np.zeros(1), np.full(1, 100_000.0))
    assert drawn == pytest.approx(1000.0, rel=0.3)


def test_jobs_teach_in_growing_batches() -> None:
    sizes = [s.stop - s.start for s in batches(2000, 0)]
    assert sizes[:8] == [1, 1, 1, 1, 1, 1, 1, 1]
    assert max(sizes) == 200
    assert sum(s.stop - s.start for s in list(batches(2000, 0))[:-1]) < 2000
    assert len(sizes) < 50
    assert [s.stop - s.start for s in batches(400, 10_000)] == [200, 200]
