"""Colours of the report: one for each replay, in light and dark, told apart without hue by shape and dash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.report import contenders
from slurm_rl.report.inputs import ReportedRun

# (light, dark). The baseline is neutral. All have a contrast of 3:1 or more to their background, and the first six
# stay apart (CIE76 difference of 15 or more) to eyes without red, green or blue cones.
BASELINE = ("#4a5260", "#c3cad6")
COLOURS = (
    ("#c2410c", "#e0952b"),  # orange
    ("#2f7df6", "#5b9dff"),  # blue
    ("#12a37a", "#7df5b8"),  # green
    ("#d63aa0", "#ff5fa8"),  # pink
    ("#3f1d94", "#8f5bff"),  # violet
    ("#8a6d00", "#dfc244"),  # ochre
    ("#0e7490", "#67e8f9"),  # teal
    ("#5f4b3a", "#bfa48d"),  # brown
)
SHAPES = ("circle", "square", "diamond", "triangle", "down", "cross")

LIGHT = {
    "page": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#14181f",
    "muted": "#5b6472",
    "grid": "#e4e7ec",
    "axis": "#9aa3b0",
    "accent": "#1d5fd1",
    "good": "#0a7a55",
    "bad": "#b3400a",
    "heat": "#12458f",
    "track": "#e9eef6",
    "shade": "#f0f3f8",
}
DARK = {
    "page": "#0e1116",
    "card": "#161b22",
    "ink": "#e8ebf0",
    "muted": "#9aa5b4",
    "grid": "#272e38",
    "axis": "#5b6675",
    "accent": "#6ea8ff",
    "good": "#4fd1a1",
    "bad": "#ff9d66",
    "heat": "#6db2ff",
    "track": "#1d2530",
    "shade": "#1e2530",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one replay is drawn everywhere."""

    label: str
    light: str
    dark: str
    shape: str
    dashed: bool  # out of reach
    base: bool


def looks(runs: Sequence[ReportedRun]) -> list[Look]:
    """A look for each replay, in order; colours repeat only beyond nine replays."""
    base = contenders.baseline(runs)
    result, used = [], 0
    for i, (run, label) in enumerate(zip(runs, contenders.labels(runs), strict=True)):
        light, dark = BASELINE if i == base else COLOURS[used % len(COLOURS)]
        used += i != base
        shape = SHAPES[0] if i == base else SHAPES[1 + (used - 1) % (len(SHAPES) - 1)]
        result.append(Look(label, light, dark, shape, contenders.unreachable(run), i == base))
    return result


def variables(looks: list[Look], dark: bool) -> str:
    """The colours as CSS declarations."""
    theme = DARK if dark else LIGHT
    own = {f"p{i}": look.dark if dark else look.light for i, look in enumerate(looks)}
    return "".join(f"--{name}:{value};" for name, value in (theme | own).items())


def classes(looks: list[Look]) -> str:
    """Class `pN` gives a mark its replay's colour, and `hide-N` on the page hides its marks."""
    return "".join(f".p{i}{{--c:var(--p{i})}}.hide-{i} .p{i}{{display:none}}" for i in range(len(looks)))
