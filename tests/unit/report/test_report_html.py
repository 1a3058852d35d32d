"""The page: complete, equal to the metrics, safe whatever the trace is called, and the same every time."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import a_job
from report_cases import ROOT, Case, a_case

from slurm_rl.report.html import render, write_report
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Labels
from slurm_rl_sim.replay import DEFAULT_POLICIES, find_cluster, parse_contenders, prepare, replay


class Reader(HTMLParser):
    """Collects the elements of a page, with the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.cells: dict[tuple[str, int], dict[str, str]] = {}
        self._inside = ""
        self._cell: dict[str, str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.elements.append((tag, values))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")
        if tag == "td" and (metric := values.get("data-metric")):
            self._cell = self.cells[metric, int(values["data-run"] or 0)] = {"value": values["data-value"] or ""}

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
        if tag == "td":
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        if self._cell is not None and self._inside in ("b", "small"):
            self._cell[self._inside] = data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def page(hetero: Case) -> Reader:
    return Reader(render(*hetero))


def test_the_table_holds_every_metric_exactly(hetero: Case, page: Reader) -> None:
    for i, run in enumerate(hetero[1]):
        for name, value in run.metrics.items():
            if value is not None and not name.startswith("decision_"):
                assert float(page.cells[name, i]["value"]) == value, name


def test_the_table_shows_figures_and_their_multiples(hetero: Case, page: Reader) -> None:
    base, other = hetero[1][0].metrics["mean_wait"], hetero[1][1].metrics["mean_wait"]
    assert base is not None
    assert other is not None
    assert page.cells["mean_wait", 0]["b"] == f"{base / 3600:.1f} h"
    assert "small" not in page.cells["mean_wait", 0]
    assert page.cells["mean_wait", 1]["small"] == f"×{other / base:.2f}"


def test_the_embedded_data_is_what_is_plotted(hetero: Case, page: Reader) -> None:
    charts = page.data["charts"]
    assert set(charts) == {
        "glance", "wait_cdf", "jct_cdf", "queue", "utilization", "by_size", "by_priority", "by_user", "users",
        "fragmentation",
    }  # fmt: skip
    assert page.data["runs"][1]["metrics"]["mean_wait"] == hetero[1][1].metrics["mean_wait"]
    drawn = {a.get("data-chart") for tag, a in page.elements if tag == "svg"}
    assert drawn - {None} == set(charts) | {"occupancy"}
    heat = page.data["heat"]
    assert len(base64.b64decode(heat["cells"][0])) == len(heat["rows"]) * len(heat["xs"]) == 72 * 168


def test_every_chart_can_be_saved(page: Reader) -> None:
    buttons = {a["data-save"] for tag, a in page.elements if tag == "button" and "data-save" in a}
    assert buttons == set(page.data["charts"]) | {"occupancy", "comparison"}


def test_two_replays_of_one_trace_give_the_same_bytes(tmp_path: Path) -> None:
    pages = []
    for name in ("one", "two"):
        jobs = [a_job(i, 50 + i, gpus=1 + i % 4, user=f"u{i % 3}", id=i) for i in range(40)]
        write_report(*a_case(jobs, "multifactor,fcfs,sjf@user"), tmp_path / "new" / name)
        pages.append((tmp_path / "new" / name).read_bytes())
    assert pages[0] == pages[1]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["one", "two"]  # no temporary file stays


def test_names_from_the_trace_cannot_become_markup() -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    jobs = [a_job(i, 10, gpus=4, user=evil if i % 2 else '"><svg onload=alert(1)>', gpu_type="") for i in range(4)]
    prepared, runs = a_case(jobs, "multifactor,sjf")
    object.__setattr__(prepared.trace, "name", evil)
    object.__setattr__(prepared.cluster, "name", evil)
    text = render(prepared, runs)
    reader = Reader(text)
    assert len(reader.scripts) == 2
    assert not [tag for tag, _ in reader.elements if tag == "img"]
    assert not [a for _, a in reader.elements if any(name.startswith("on") for name in a)]
    assert evil in reader.data["charts"]["users"]["xs"]
    assert evil not in text


def test_names_that_utf8_cannot_write_do_not_stop_the_report(tmp_path: Path) -> None:
    prepared, runs = a_case([a_job(i, 10, gpus=4, user=f"u{i}") for i in range(2)], "multifactor,sjf")
    object.__setattr__(prepared.trace, "user", Labels(prepared.trace.user.codes, ("half \ud800", "nul \x00")))
    write_report(prepared, runs, tmp_path / "out.html")
    assert (tmp_path / "out.html").read_bytes().decode("utf-8")


def test_only_the_page_s_own_script_may_run(page: Reader) -> None:
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_nothing_is_loaded_from_elsewhere(hetero: Case, page: Reader) -> None:
    text = render(*hetero)
    assert "http://" not in text
    assert "https://" not in text
    assert not [a for tag, a in page.elements if tag in ("link", "iframe", "object", "embed")]
    sources = [a[k] for _, a in page.elements for k in ("src", "href") if k in a]
    assert sources
    assert all(s is not None and s.startswith("data:image/png;base64,") for s in sources)
    assert not re.findall(r"url\((?!#)", text)


def test_each_replay_has_one_colour_everywhere(page: Reader) -> None:
    marks = [a["class"] or "" for _, a in page.elements if "class" in a]
    for i in range(3):
        assert [c for c in marks if f"p{i}" in c.split() and "line" in c.split()]
        assert [c for c in marks if f"p{i}" in c.split() and "dot" in c.split()]


def test_a_single_policy_has_a_report_too() -> None:
    reader = Reader(render(*a_case([a_job(0, 10, gpus=1)], "fcfs")))
    assert reader.cells["mean_wait", 0]["b"] == "0 s"
    assert "users" not in reader.data["charts"]


def test_the_report_of_venus_is_small(tmp_path: Path) -> None:
    path = ROOT.parent / "shared" / "traces" / "helios_venus_sept2020.csv.gz"
    if not path.is_file():
        pytest.skip("the shared traces are not here")
    trace = read_trace(path)
    prepared = prepare(trace, find_cluster(trace, path, None))
    runs = replay(prepared, parse_contenders(DEFAULT_POLICIES, "easy"))
    write_report(prepared, runs, tmp_path / "venus.html")
    assert (tmp_path / "venus.html").stat().st_size <= 1_500_000  # the limit is 6 MB; it takes 0.7
