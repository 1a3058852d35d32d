"""The 95% interval of bootstrap samples: one definition; each caller draws its own units."""

from __future__ import annotations

from typing import Any

import numpy as np


def middle95(drawn: Any) -> tuple[float, float]:
    """Between which values 95% of the drawn ones lie."""
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)
