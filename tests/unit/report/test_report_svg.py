"""Scales, ticks and drawings; exported files are well-formed whatever names are in the trace."""

from __future__ import annotations

import itertools
import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from builders import a_job
from report_cases import Case, a_case

from slurm_rl.report import figures
from slurm_rl.report.draw import NARROW, WIDE, pictures
from slurm_rl.report.gather import all_charts
from slurm_rl.report.image import grey_png
from slurm_rl.report.measured import Comparison
from slurm_rl.report.svg import Scale, polyline, text_of, ticks
from slurm_rl.report.theme import looks

NASTY = ("</text><script>alert(1)</script>", 'a"b&c', "nul\x00bell\x07", "half \ud800", "]]>", "x" * 300)


def test_scales_keep_values_within_the_picture() -> None:
    linear, log = Scale(0, 10, 100, 200), Scale(1, 100, 0, 50, log=True)
    assert [linear(v) for v in (-1, 0, 5, 10, 11)] == [100, 100, 150, 200, 200]
    assert [log(v) for v in (0, 1, 10, 100, 1000)] == pytest.approx([0, 0, 25, 50, 50])


@pytest.mark.parametrize(
    ("scale", "unit", "labels"),
    [
        (Scale(0, 1, 0, 200), "share", ["0%", "20%", "40%", "60%", "80%", "100%"]),
        (Scale(0, 1234, 0, 100), "count", ["0", "500", "1,000"]),
        (Scale(0, 10 * 86400, 0, 200), "s", ["0", "2 d", "4 d", "6 d", "8 d", "10 d"]),
        (Scale(1, 1e6, 0, 400, log=True), "s", ["1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "1 d", "7 d"]),
        (Scale(3600, 4 * 3600, 0, 400, log=True), "s", ["1 h", "2 h", "4 h"]),
        (Scale(0.1, 2, 0, 200, log=True), "ratio", ["×0.1", "×0.2", "×0.5", "×1", "×2"]),
    ],
)
def test_ticks_are_round_and_apart(scale: Scale, unit: str, labels: list[str]) -> None:
    got = ticks(scale, unit, 30)
    assert [label for _, label in got] == labels
    places = [scale(v) for v, _ in got]
    assert all(b - a >= 30 for a, b in itertools.pairwise(places))


def test_a_line_breaks_where_a_value_is_unknown() -> None:
    assert polyline([0, 1, 2, 3], [5.0, 6.0, None, 7.0]) == "M0.0 5.0L1.0 6.0M3.0 7.0"


def test_text_cannot_leave_its_element() -> None:
    assert text_of("<a href='x'>\"&\x00\ud800") == "&lt;a href=&#x27;x&#x27;&gt;&quot;&amp;\ufffd\ufffd"


def test_a_png_holds_the_pixels_given() -> None:
    pixels = np.array([[0, 128, 255], [1, 2, 3]], dtype=np.uint8)
    png = grey_png(pixels)
    assert struct.unpack(">II", png[16:24]) == (3, 2)
    start = png.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", png[start - 8 : start - 4])
    assert zlib.decompress(png[start : start + length]) == b"\0\x00\x80\xff\0\x01\x02\x03"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_chart_is_drawn_within_its_picture(hetero: Case, width: float) -> None:
    measured, styles = Comparison(*hetero), looks(hetero[1])
    for chart in all_charts(measured, 0):
        for picture in pictures(chart, styles, width):
            root = ElementTree.fromstring(f"<svg>{picture.body}</svg>")
            for text in root.iter("text"):
                assert 0 <= float(text.attrib["x"]) <= picture.frame.width
                assert 0 <= float(text.attrib["y"]) <= picture.frame.height


def test_exported_svg_is_well_formed_and_needs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_chromium", lambda: None)
    jobs = [a_job(i, 100, gpus=4, user=name, priority=i % 2) for i, name in enumerate(NASTY)]
    written, lacking = figures.write_figures(*a_case(jobs, "multifactor,sjf"), tmp_path)
    assert "PNG files need Chromium" in lacking
    assert {p.name for p in written} == {p.name for p in tmp_path.iterdir()}
    assert {"wait_cdf.svg", "users.svg", "occupancy.svg", "by_user.svg"} <= {p.name for p in written}
    for path in written:
        root = ElementTree.fromstring(path.read_bytes())
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
        outside = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "http" not in outside
        assert "@import" not in outside
