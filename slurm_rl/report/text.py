"""Figures as people read them: durations, shares, ratios and counts."""

from __future__ import annotations

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def duration(seconds: float | None) -> str:
    """`1.5 h`: the largest unit that is not above the value."""
    if seconds is None:
        return "–"
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def number(value: float | None) -> str:
    """Three significant digits, thousands separated: `12,345`, `1.49`, `2.00`; a count as it is: `2`."""
    if value is None:
        return "–"
    if isinstance(value, int) or value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def share(value: float | None) -> str:
    """`59.8%`, `1,196%`."""
    return "–" if value is None else f"{value:.1%}" if abs(value) < 10 else f"{value:,.0%}"


def ratio(value: float | None, base: float | None) -> str:
    """`×0.52`: a value as a multiple of a base; a dash where there is none."""
    return "–" if value is None or not base else f"×{value / base:.2f}"


def shown(value: float | None, unit: str) -> str:
    """A value in its unit: `s`, `share`, `ratio` or `count`."""
    if unit == "s":
        return duration(value)
    if unit == "share":
        return share(value)
    if unit == "ratio":
        return ratio(value, 1.0)
    return number(value)


def plural(count: int, noun: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def clipped(text: str, length: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"
