"""Schedules and plans are, digest for digest, those that were recorded (see digests.py for the longer ones)."""

from __future__ import annotations

import pytest
from golden.digests import QUICK, recorded


@pytest.mark.parametrize("section", QUICK)
def test_nothing_has_changed(section: str) -> None:
    known = recorded()[section]
    found = dict(QUICK[section]())
    assert found.keys() >= known.keys()
    assert [key for key in known if found[key] != known[key]] == [], "meant? python tests/golden/digests.py --record"
