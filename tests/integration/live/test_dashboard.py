"""The dashboard in a real browser, over TCP with its token: it fills, filters, explains, and logs no error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
def site() -> Iterator[tuple[str, Controller]]:
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
            policy="rl:default",
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
        yield f"http://127.0.0.1:{port}/", controller
        runner.should_exit = True
        thread.join()
        live.measurements.close()
        for listener in sockets:
            listener.close()


@pytest.fixture(scope="module")
def address(site: tuple[str, Controller]) -> str:
    return site[0]


@pytest.fixture(scope="module")
def controller(site: tuple[str, Controller]) -> Controller:
    return site[1]


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


def at(page: Page, place: str, condition: str) -> None:
    """Goes to a view and waits until it shows what it should."""
    page.evaluate(f"location.hash = '{place}'")
    until(page, condition)


CELLS = "[...document.querySelectorAll('{} tr')].map(r => [...r.cells].map(c => c.textContent))"


def cells(page: Page, where: str) -> list[list[str]]:
    found: list[list[str]] = page.evaluate(CELLS.format(where))
    return found


def asked(address: str, path: str) -> Any:
    """What the service itself answers."""
    request = urllib.request.Request(address.rstrip("/") + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_it_asks_for_the_token_and_then_shows_the_overview(page: Page, address: str) -> None:
    until(page, "!document.getElementById('ask').hidden")
    page.events.clear()
    page.evaluate(
        f"document.getElementById('token').value = '{TOKEN}';"
        "document.getElementById('ask').dispatchEvent(new Event('submit', {cancelable: true}))"
    )
    until(page, "!!document.getElementById('pending')")
    assert page.evaluate("document.getElementById('ask').hidden")
    ids = "['cluster', 'mode', 'pending', 'running', 'policy', 'health']"
    until(page, "document.getElementById('cluster').textContent !== ''")
    shown = page.evaluate(f"Object.fromEntries({ids}.map(i => [i, document.getElementById(i).textContent]))")
    said = asked(address, "/v1/overview")
    told = {name: said[name] for name in ("cluster", "mode", "policy")} | {
        "health": said["health"]["trouble"] or "good"
    }
    assert shown == told | {"pending": str(said["pending"]), "running": str(said["running"])}
    assert (shown["cluster"], shown["mode"], shown["pending"], shown["running"]) == ("fake", "enforce", "42", "2")
    gpus = asked(address, "/v1/overview")["gpus"]
    first = cells(page, ".card:nth-child(1) tbody")[0]
    assert first[0] == gpus[0]["type"]
    assert [int(n) for n in first[2:]] == [gpus[0][name] for name in ("used", "idle", "down")]


def test_the_queue_shows_what_the_service_says(page: Page, address: str) -> None:
    at(page, "#/queue", "document.querySelectorAll('#rows tr').length === 42")
    rows, said = cells(page, "#rows"), asked(address, "/v1/queue?limit=100")["jobs"]
    assert [row[1] for row in rows] == [str(job["job_id"]) for job in said]
    assert rows[0][:2] == ["1 of 41", "98"], "the one that has waited too long goes first"
    assert "waited long enough" in rows[0][-1]
    assert (rows[-1][0], rows[-1][1], rows[-1][-1]) == ("–", "99", "in a reservation")
    assert page.evaluate("document.getElementById('problem').textContent") == ""


def test_the_service_searches_and_sorts(page: Page, address: str) -> None:
    page.evaluate("(f => { f.value = 'ANN'; f.oninput() })(document.getElementById('filter'))")
    users = "[...new Set([...document.querySelectorAll('#rows tr')].map(r => r.cells[2].textContent))].join()"
    until(page, f"{users} === 'ann'")
    found = asked(address, "/v1/queue?match=ann")["matching"]
    shown = page.evaluate("document.getElementById('shown').textContent")
    assert shown == f"1–{found} of {found} found in 42 jobs"
    page.evaluate("(f => { f.value = ''; f.oninput() })(document.getElementById('filter'))")
    until(page, "document.querySelectorAll('#rows tr').length === 42")
    for times in (1, 2):  # the second click turns it round
        page.evaluate("document.querySelector('th[data-sort=gpus] button').click()")
        way = ("ascending", "descending")[times - 1]
        until(page, f"document.querySelector('th[data-sort=gpus]').getAttribute('aria-sort') === '{way}'")
        gpus = [int(row[5]) for row in cells(page, "#rows")]
        assert gpus == sorted(gpus, reverse=times == 2)
    page.evaluate("document.querySelector('th[data-sort=rank] button').click()")


def test_a_job_has_a_page_of_its_own(page: Page, address: str) -> None:
    ids = [job["job_id"] for job in asked(address, "/v1/queue?limit=100")["jobs"]]
    at(page, f"#/job/{ids[20]}", "document.getElementById('view').textContent.includes('What puts it there')")
    text, said = (
        page.evaluate("document.getElementById('view').textContent"),
        asked(address, f"/v1/jobs/{ids[20]}/explain"),
    )
    assert text.startswith(f"Job {ids[20]}")
    assert f"{said['rank']} of {said['of']}" in text
    assert all(m["what"] in text for m in said["what_would_move_it"])
    size = next((f for f in said["features"] if f["feature"] == "size"), None)
    assert size is None or f"{size['value']:g} GPU" in text, "features have units"
    assert "your" not in page.evaluate("document.getElementById('ahead')?.textContent ?? ''"), "an admin may look at it"
    at(page, "#/job/99", "document.getElementById('view').textContent.includes('in a reservation')")
    at(page, "#/job/12345", "document.getElementById('problem').textContent.includes('12345')")
    page.events.clear()  # the browser shows a 404 in red


def test_nodes_are_a_map_with_their_jobs(page: Page, address: str) -> None:
    nodes = asked(address, "/v1/nodes")["nodes"]
    at(page, "#/nodes", f"document.querySelectorAll('.map button').length === {len(nodes)}")
    busy = next(node for node in nodes if node["jobs"])
    page.evaluate(f"document.querySelector('.map button[title^=\"{busy['name']}:\"]').click()")
    until(page, "!!document.getElementById('node')")
    assert [row[0] for row in cells(page, "#node tbody")] == [str(job["job_id"]) for job in busy["jobs"]]


def test_decisions_are_the_journal(page: Page, address: str) -> None:
    at(page, "#/decisions", "document.querySelectorAll('#view tbody tr').length > 5")
    said = asked(address, "/v1/decisions")["decisions"]
    assert [row[1] for row in cells(page, "#view tbody")] == [str(d["job_id"]) for d in said][:200]
    last = said[-1]["job_id"]
    page.evaluate(f"(f => {{ f.value = '{last}'; f.onchange() }})(document.getElementById('filter'))")
    until(page, f"[...document.querySelectorAll('#view tbody tr')].every(r => r.cells[1].textContent === '{last}')")


def test_what_gpus_do_is_shown(page: Page) -> None:
    at(page, "#/use", "document.querySelectorAll('#used tbody tr').length === 1")
    assert cells(page, "#used tbody") == [["901", "ann", "a100", "2 of 8", "11%", "44%", "4.0 GB", "1.5 h", "1.00 kWh"]]
    assert [row[0] + row[7] for row in cells(page, "#was tbody")] == ["7210.0 h", "715 min"]


def test_the_policy_in_charge_is_named(page: Page, address: str) -> None:
    policy = asked(address, "/v1/models")["policy"]
    at(page, "#/policy", f"document.querySelector('.tiles b')?.textContent === '{policy}'")


def test_a_tick_reaches_the_page_by_itself(page: Page, controller: Controller) -> None:
    at(page, "#/overview", "!!document.getElementById('pending')")
    until(page, "document.getElementById('pending').textContent === '42'")
    slurm = controller.client
    assert isinstance(slurm, FakeSlurm)
    slurm.jobs[500] = a_job(500, user="dan", waited=1)
    controller.tick()
    until(page, "document.getElementById('pending').textContent === '43'")


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (1400, True), (400, False), (400, True)])
def test_every_view_fits_its_window_and_logs_no_error(page: Page, address: str, width: int, dark: bool) -> None:
    page.events.clear()
    for view in ("overview", "queue", "nodes", "decisions", "use", "policy", "job/7"):
        page.open(f"{address}?{view}#/{view}", width=width, dark=dark)  # another address: the page is loaded anew
        until(page, "!!document.querySelector('#view .card')")
        assert page.evaluate("document.documentElement.scrollWidth") == width, view
        if pictures := os.environ.get("PICTURES"):
            name = f"dashboard-{view.replace('/', '-')}-{width}-{'dark' if dark else 'light'}.png"
            (Path(pictures) / name).write_bytes(page.picture())
    assert troubles(page) == []


@pytest.mark.soak
def test_axe_finds_nothing_serious(page: Page, address: str, tmp_path: Path) -> None:
    """axe-core from npm looks at every view, wide and narrow, light and dark."""
    subprocess.run(["npm", "pack", "--silent", "axe-core@4"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (packed,) = tmp_path.glob("axe-core-*.tgz")
    with tarfile.open(packed) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        script = source.read().decode()
    if page.evaluate("!sessionStorage.getItem('token')"):
        page.evaluate(f"sessionStorage.setItem('token', '{TOKEN}')")
    for width, dark in ((1400, False), (1400, True), (400, False), (400, True)):
        for view in ("overview", "queue", "nodes", "decisions", "use", "policy", "job/7"):
            page.open(f"{address}?axe-{width}-{dark}-{view}#/{view}", width=width, dark=dark)
            until(page, "!!document.querySelector('#view .card')")
            page.evaluate(script)
            found = page.evaluate(
                "axe.run().then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
                ".map(v => v.id + ': ' + v.nodes.map(n => n.target.join(' ')).join(', ')))"
            )
            assert found == [], (view, width, dark)
