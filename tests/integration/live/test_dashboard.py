"""The dashboard in a real browser, over TCP with its token: it fills, filters, explains, and logs no error."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.live.fake_slurm import FakeSlurm, a_job, a_running_job
from unit.live.test_measured import a_record

from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive, warm_up
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.journal import Journal
from slurm_rl.report.chromium import Page, chromium, find_chromium
from slurm_rl.serve.run import server
from slurm_rl.telemetry.measured import MeasuredJobs

pytestmark = pytest.mark.browser

TOKEN = "t" * 40


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if find_chromium() is None:
        reason = "needs Chromium: apt install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    users = ("ann", "bob", "chi")
    jobs = [
        a_job(i, limit=600 * (1 + i * 7 % 23), gpus=(1, 2, 4, 8)[i % 4], waited=137 * i, user=users[i % 3])
        for i in range(1, 41)
    ]
    held = a_job(99, user="ann", waited=20, reservation="maintenance")
    long_ago = a_job(98, user="bob", waited=900_000, limit=7200)
    slurm = FakeSlurm(*jobs, held, long_ago, a_running_job(901, "n1"), a_running_job(902, "n2"))
    with tempfile.TemporaryDirectory(prefix="srl-") as name, socket.create_server(("127.0.0.1", 0)) as probe:
        directory, port = Path(name), probe.getsockname()[1]
        probe.close()
        token = directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        (directory / "gpus").mkdir()
        now = {"node": "n1", "jobs": [a_record(901, "ann", gpus_used=2, idle_gpu_minutes=90.0)], "watts": {}}
        (directory / "gpus" / "n1.now.json").write_text(json.dumps(now))
        ended = [a_record(71, "bob", idle_gpu_minutes=5.0), a_record(72, "ann", idle_gpu_minutes=600.0)]
        (directory / "gpus" / "n1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ended))
        config = Config(
            mode="enforce",
            telemetry_dir=str(directory / "gpus"),
            socket=str(directory / "s"),
            state_dir=name,
            tcp=f"127.0.0.1:{port}",
            token_file=str(token),
            request_timeout_ms=5000,
        )
        controller = Controller(config, slurm, Journal(config.journal), clock=lambda: slurm.now)
        live = ControllerLive(controller, Journal(config.journal, durable=False))
        live.measurements = MeasuredJobs(config, live.metrics.registry)
        warm_up(live)
        controller.tick()
        runner, sockets = server(config, live)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": sockets})
        thread.start()
        while not runner.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}/"
        runner.should_exit = True
        thread.join()
        live.measurements.close()
        for listener in sockets:
            listener.close()


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Page]:
    with chromium() as page:
        page.open(address)
        yield page


def until(page: Page, condition: str) -> None:
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.evaluate("new Promise(done => setTimeout(done, 50))")
    raise AssertionError(f"never true: {condition}")


def troubles(page: Page) -> list[object]:
    """Whatever the browser would show in red."""
    return [
        e
        for e in page.events
        if e.get("method") == "Runtime.exceptionThrown"
        or (e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")
        or (e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] == "error")
    ]


def test_it_asks_for_the_token_and_then_shows_the_queue(page: Page, tmp_path: Path) -> None:
    until(page, "!document.getElementById('ask').hidden")
    page.events.clear()
    page.evaluate(
        f"document.getElementById('token').value = '{TOKEN}';"
        "document.getElementById('ask').dispatchEvent(new Event('submit', {cancelable: true}))"
    )
    until(page, "document.querySelectorAll('#rows tr').length === 42")
    assert page.evaluate("document.getElementById('ask').hidden")
    shown = page.evaluate("Object.fromEntries(['cluster', 'mode', 'pending'].map(i => [i, $(i).textContent]))")
    assert shown == {"cluster": "fake", "mode": "enforce", "pending": "42"}
    first = page.evaluate("[...document.querySelector('#rows tr').cells].map(c => c.textContent)")
    assert first[:2] == ["1", "98"], "the one that has waited too long goes first"
    assert "promoted" in first[-1]
    last = page.evaluate("[...document.querySelector('#rows tr:last-child').cells].map(c => c.textContent)")
    assert (last[1], last[-1]) == ("99", "in a reservation")
    assert page.evaluate("$('problem').textContent") == ""


def test_running_jobs_show_what_they_use(page: Page) -> None:
    until(page, "document.querySelectorAll('#used tr').length === 1")
    cells = page.evaluate("[...document.querySelector('#used tr').cells].map(c => c.textContent)")
    assert cells == ["901", "ann", "a100", "2 of 8", "11%", "44%", "4.0 GB", "1.5 h", "1.00 kWh"]


def test_ended_jobs_show_what_they_used(page: Page) -> None:
    until(page, "document.querySelectorAll('#was tr').length === 2")
    cells = page.evaluate(
        "[...document.querySelectorAll('#was tr')].map(r => r.cells[0].textContent + r.cells[7].textContent)"
    )
    assert cells == ["7210.0 h", "715 min"]


def test_a_row_explains_itself(page: Page) -> None:
    page.evaluate("document.querySelectorAll('#rows tr')[20].click()")
    until(page, "!!document.querySelector('#chosen li')")
    assert page.evaluate("$('chosen').textContent").startswith("Job ")
    assert "place 21 of 41" in page.evaluate("$('chosen').textContent")


def test_the_queue_can_be_filtered(page: Page) -> None:
    page.evaluate("$('filter').value = 'ANN'; $('filter').oninput()")
    users = "[...document.querySelectorAll('#rows tr')].map(r => r.cells[2].textContent)"
    until(page, f"[...new Set({users})].join() === 'ann'")
    assert re.fullmatch(r"Queue, (\d+) shown, \1 of 42 found", page.evaluate("$('shown').textContent"))
    page.evaluate("$('filter').value = ''; $('filter').oninput()")
    until(page, "document.querySelectorAll('#rows tr').length === 42")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_it_fits_its_window_and_logs_no_error(page: Page, address: str, width: int, dark: bool) -> None:
    page.open(address, width=width, dark=dark)
    until(page, "document.querySelectorAll('#rows tr').length === 42")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    if pictures := os.environ.get("PICTURES"):
        page.evaluate("document.querySelectorAll('#rows tr')[20].click()")
        until(page, "!!document.querySelector('#chosen li')")
        (Path(pictures) / f"dashboard-{width}-{'dark' if dark else 'light'}.png").write_bytes(page.picture())
    assert troubles(page) == []
