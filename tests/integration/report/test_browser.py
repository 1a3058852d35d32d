"""The report in a real browser: it shows what `--json` says, loads nothing, and works by keyboard, small and dark."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.report.chromium import Page, chromium, find_chromium
from slurm_rl.report.text import duration

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[3]
POLICIES = "multifactor,fcfs,sjf@user,sjf@oracle"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The report of the bundled SWF trace, and what the same command printed."""
    if find_chromium() is None:
        reason = "needs Chromium: apt install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("report") / "report.html"
    command = [sys.executable, "-c", "from slurm_rl.cli import main; main()", "replay", "traces/small.swf.gz"]
    command += ["--policy", POLICIES, "--json", "--report", str(out), "--figures", str(out.parent / "figures")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)
    return out, json.loads(done.stdout)


@pytest.fixture(scope="module")
def browser(replayed: tuple[Path, dict[str, Any]]) -> Iterator[Page]:
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser: Page, replayed: tuple[Path, dict[str, Any]]) -> Page:
    browser.open(replayed[0])
    return browser


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def rows(page: Page, chart: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(page.evaluate(f"slurmRl.csvOf({chart!r})"))))


def test_the_table_shows_what_json_says(page: Page, replayed: tuple[Path, dict[str, Any]]) -> None:
    shown = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('td[data-metric]')].map("
        "c => [c.dataset.metric + ' ' + c.dataset.run, [c.dataset.value, c.querySelector('b').innerText]]))"
    )
    compared = 0
    for i, run in enumerate(replayed[1]["runs"]):
        for name, value in run["metrics"].items():
            if value is not None and not name.startswith("decision_"):
                assert float(shown[f"{name} {i}"][0]) == value
                compared += 1
        assert shown[f"mean_wait {i}"][1].removeprefix("★ ") == duration(run["metrics"]["mean_wait"])
    assert compared >= 4 * 20


def test_nothing_is_requested_but_the_file_itself(page: Page, replayed: tuple[Path, dict[str, Any]]) -> None:
    page.evaluate("new Promise(done => setTimeout(done, 200))")
    asked = [e["params"]["request"]["url"] for e in page.events if e.get("method") == "Network.requestWillBeSent"]
    assert asked[0] == replayed[0].as_uri()
    assert [url for url in asked[1:] if not url.startswith("data:image/png;base64,")] == []


def test_the_script_runs_without_an_error(page: Page) -> None:
    assert [e for e in page.events if e.get("method") == "Runtime.exceptionThrown"] == []
    assert page.evaluate("document.documentElement.classList.contains('js')")


def test_charts_can_be_saved_as_csv(page: Page, replayed: tuple[Path, dict[str, Any]]) -> None:
    runs = replayed[1]["runs"]
    table = rows(page, "comparison")
    assert [r["policy"] for r in table] == POLICIES.split(",")
    assert [float(r["mean_bsld"]) for r in table] == [r["metrics"]["mean_bsld"] for r in runs]
    last = [r for r in rows(page, "wait_cdf") if r["policy"] == "fcfs"][-1]
    assert float(last["jobs"]) == 1
    longest = max(r["metrics"]["max_wait"] for r in runs)
    assert float(last["wait_seconds"]) == pytest.approx(longest, rel=1e-5)
    users = [r for r in rows(page, "users") if r["policy"] == "fcfs"]
    jobs = sum(int(r["jobs"]) for r in users)
    mean = sum(int(r["jobs"]) * float(r["mean_wait_seconds"]) for r in users) / jobs
    assert mean == pytest.approx(runs[1]["metrics"]["mean_wait"], rel=1e-5)


def test_a_button_saves_a_file(page: Page, tmp_path: Path) -> None:
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.evaluate("document.querySelector('[data-save=queue]').click()")
    for _ in range(50):
        if (tmp_path / "queue.csv").exists():
            break
        page.evaluate("new Promise(done => setTimeout(done, 100))")
    expected = page.evaluate("slurmRl.csvOf('queue')")
    assert (tmp_path / "queue.csv").read_bytes().decode() == expected


def test_a_policy_can_be_hidden_and_shown_again(page: Page) -> None:
    visible = (
        "[...document.querySelectorAll('[data-chart=wait_cdf].wide .line')]"
        ".filter(e => getComputedStyle(e).display !== 'none').length"
    )
    columns = "[...document.querySelectorAll('thead th')].filter(e => e.offsetWidth).length"
    assert (page.evaluate(visible), page.evaluate(columns)) == (4, 5)
    page.evaluate("document.querySelector('.chip[data-run=\"1\"]').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", windowsVirtualKeyCode=13)
    assert page.evaluate("document.querySelector('.chip[data-run=\"1\"]').getAttribute('aria-pressed')") == "false"
    assert (page.evaluate(visible), page.evaluate(columns)) == (3, 4)
    page.evaluate("document.getElementById('all').click()")
    assert page.evaluate(visible) == 4


def test_arrow_keys_read_the_values_under_the_cursor(page: Page) -> None:
    page.evaluate("document.querySelector('[data-chart=wait_cdf].wide').focus()")
    press(page, "ArrowRight", "End")
    told = page.evaluate("document.getElementById('live').textContent")
    assert told.startswith("wait ≤ ")
    assert "fcfs 100.0%" in told
    assert page.evaluate("document.getElementById('tip').hidden") is False
    press(page, "Escape")
    assert page.evaluate("document.getElementById('tip').hidden") is True


def test_the_pointer_reads_the_row_below_it(page: Page) -> None:
    x, y = page.evaluate(
        "(() => { const chart = document.querySelector('[data-chart=by_user].wide');"
        "chart.scrollIntoView({block: 'start', behavior: 'instant'}); scrollBy(0, -120);"
        "const box = chart.getBoundingClientRect(); return [box.x + box.width / 2, box.y + 20]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    first = rows(page, "by_user")[0]
    assert page.evaluate("document.querySelector('#tip strong').textContent").startswith(f"{first['user']}, ")
    assert duration(float(first["mean_wait_seconds"])) in page.evaluate("document.getElementById('tip').textContent")


def test_the_browser_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, browser: Page) -> None:
    with tempfile.TemporaryDirectory(prefix="srl-") as name:  # tmp_path is too long for its socket
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        with chromium() as page:
            page.open("about:blank")
            assert os.listdir(name) != []
        assert os.listdir(name) == []


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_the_page_fits_its_window(browser: Page, replayed: tuple[Path, dict[str, Any]], width: int) -> None:
    browser.open(replayed[0], width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    # One rendering of each panel is shown, the one that suits.
    shown = browser.evaluate(
        "[...document.querySelectorAll('.panel')].map("
        "p => [...p.querySelectorAll('svg.chart')].filter(s => getComputedStyle(s).display !== 'none').length)"
    )
    assert shown
    assert set(shown) == {1}
    smallest = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('.panel svg.chart')].filter(s => s.getBoundingClientRect().width)"
        ".map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width))"
    )
    assert smallest >= 0.8  # letters of 11 pixels stay legible


def test_dark_and_light_are_followed(browser: Page, replayed: tuple[Path, dict[str, Any]]) -> None:
    colours = []
    for dark in (False, True):
        browser.open(replayed[0], dark=dark)
        colours.append(
            browser.evaluate(
                "[getComputedStyle(document.body).backgroundColor,"
                "getComputedStyle(document.querySelector('.line.p1')).stroke]"
            )
        )
    assert colours == [["rgb(246, 247, 249)", "rgb(194, 65, 12)"], ["rgb(14, 17, 22)", "rgb(224, 149, 43)"]]


def test_figures_are_exported_as_svg_and_png(replayed: tuple[Path, dict[str, Any]]) -> None:
    files = {p.name for p in (replayed[0].parent / "figures").iterdir()}
    assert {"wait_cdf.svg", "wait_cdf.png", "occupancy.svg", "occupancy.png"} <= files
    assert {f[:-4] for f in files if f.endswith(".svg")} == {f[:-4] for f in files if f.endswith(".png")}
    png = (replayed[0].parent / "figures" / "wait_cdf.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">I", png[16:20]) == (2 * 600,)  # two pixels for one
