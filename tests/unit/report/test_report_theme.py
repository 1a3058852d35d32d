"""Colours can be told apart, by everybody and on both backgrounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from report_cases import Case

from slurm_rl.report.theme import BASELINE, COLOURS, DARK, LIGHT, looks

# Machado, Oliveira and Fernandes (2009): full protanopia, deuteranopia and tritanopia, on linear RGB.
EYES = {
    name: np.array(values).reshape(3, 3)
    for name, values in {
        "all cones": (1, 0, 0, 0, 1, 0, 0, 0, 1),
        "no red": (0.1523, 1.0526, -0.2049, 0.1145, 0.7863, 0.0992, -0.0039, -0.0481, 1.0520),
        "no green": (0.3673, 0.8606, -0.2280, 0.2801, 0.6725, 0.0474, -0.0118, 0.0429, 0.9689),
        "no blue": (1.2555, -0.0767, -0.1788, -0.0784, 0.9308, 0.1476, 0.0047, 0.6914, 0.3039),
    }.items()
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    high, low = sorted((float(XYZ[1] @ linear(a)), float(XYZ[1] @ linear(b))), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("theme", "at"), [(LIGHT, 0), (DARK, 1)])
def test_marks_and_text_stand_out_from_the_card(theme: dict[str, str], at: int) -> None:
    for colours in (BASELINE, *COLOURS):
        assert contrast(colours[at], theme["card"]) >= 3
    for name in ("ink", "muted", "good", "bad", "accent"):
        assert contrast(theme[name], theme["card"]) >= 4.5, name
        assert contrast(theme[name], theme["page"]) >= 4.5, name


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("eye", EYES)
def test_the_first_six_replays_differ_to_all_eyes(eye: str, at: int) -> None:
    seen = [lab(EYES[eye] @ linear(c[at])) for c in (BASELINE, *COLOURS[:5])]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) >= 15


def test_the_baseline_is_neutral_and_the_oracle_dashed(hetero: Case) -> None:
    styles = looks(hetero[1])
    assert [s.label for s in styles] == ["multifactor", "fcfs+firstfit", "sjf@oracle"]
    assert [s.base for s in styles] == [True, False, False]
    assert [s.dashed for s in styles] == [False, False, True]
    assert (styles[0].light, styles[0].dark) == BASELINE
    assert len({s.light for s in styles}) == len({s.shape for s in styles}) == 3
