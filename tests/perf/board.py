"""The dashboard over a large queue: a service on TCP with ticks, and what its API and its page take in a browser."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unit.live.fake_slurm import NOW

from perf.live import large_slurm

TOKEN = "t" * 40
QUESTIONS = {
    "first page": "/v1/queue?limit=100",
    "a search": "/v1/queue?limit=100&match=u17",
    "sorted by wait": "/v1/queue?limit=100&sort=wait&descending=true",
    "sorted by name": "/v1/queue?limit=100&sort=name",
    "a late page": "/v1/queue?limit=100&offset={half}",
    "overview": "/v1/overview",
    "nodes": "/v1/nodes",
}


def serve(pending: int, directory: str) -> None:
    """The service as `slurm-rl serve` runs it, with ticks every 10 s; prints its port when the first one is over."""
    from slurm_rl.config import Config
    from slurm_rl.controller.live import ControllerLive, warm_up
    from slurm_rl.controller.tick import Controller
    from slurm_rl.obs.journal import Journal
    from slurm_rl.serve import run

    token = Path(directory, "token")
    token.write_text(TOKEN)
    token.chmod(0o600)
    port = int(Path(directory, "port").read_text())
    config = Config(
        mode="shadow", policy="sjf@limit", socket=f"{directory}/s", state_dir=directory, tcp=f"127.0.0.1:{port}",
        token_file=str(token), request_timeout_ms=2000,
    )  # fmt: skip
    slurm, began = large_slurm(pending), time.time()
    controller = Controller(config, slurm, Journal(config.journal), clock=lambda: NOW + time.time() - began)
    live = ControllerLive(controller, Journal(config.journal, durable=False))
    warm_up(live)

    def control() -> None:
        first = time.perf_counter()
        controller.tick()
        print(f"{time.perf_counter() - first:.2f}", flush=True)
        controller.run()

    thread = threading.Thread(target=control)
    run.serve(config, live, thread.start)
    controller.stop()
    thread.join()


def answers(address: str, pending: int, times: int = 15) -> dict[str, list[float]]:
    """Milliseconds of each question, `times` times, while ticks go on."""
    took: dict[str, list[float]] = {name: [] for name in QUESTIONS}
    for _ in range(times):
        for name, path in QUESTIONS.items():
            url = address.rstrip("/") + path.format(half=pending // 2)
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
            began = time.perf_counter()
            with urllib.request.urlopen(request, timeout=30) as answer:
                json.load(answer)
            took[name].append(1000 * (time.perf_counter() - began))
        time.sleep(0.5)
    return took


def in_browser(address: str) -> dict[str, float]:
    """Milliseconds until the page shows something, until it shows its figures, and from an act to its rows."""
    from slurm_rl.report.chromium import chromium

    found = {}
    with chromium() as page:
        page.open(address)
        page.evaluate(f"sessionStorage.setItem('token', '{TOKEN}')")
        page.open(f"{address}?again#/overview")
        _until(page.evaluate, "!!document.getElementById('pending')")
        paints = "performance.getEntriesByName('first-contentful-paint')"
        _until(page.evaluate, f"{paints}.length > 0")
        found["first paint"] = page.evaluate(f"{paints}[0].startTime")
        for name, view, done in (("overview", "overview", "#pending"), ("queue", "queue", "#rows tr")):
            page.open(f"{address}?{name}#/{view}")
            _until(page.evaluate, f"!!document.querySelector('{done}')")
            ends = "performance.getEntriesByType('resource').filter(r => r.name.includes('/v1/') && "
            ends += "!r.name.includes('events')).map(r => r.responseEnd)"
            found[f"{name}: figures"] = page.evaluate(f"Math.max(...{ends})")
        for name, act in {
            "search": "(f => { f.value = 'u17'; f.oninput() })(document.getElementById('filter'))",
            "clear": "(f => { f.value = ''; f.oninput() })(document.getElementById('filter'))",
            "sort": "document.querySelector('th[data-sort=wait] button').click()",
            "next page": "document.getElementById('on').click()",
        }.items():
            found[name] = page.evaluate(
                "new Promise(done => { const began = performance.now(); new MutationObserver((_, seen) => { "
                "seen.disconnect(); requestAnimationFrame(() => done(performance.now() - began)) })"
                f".observe(document.getElementById('rows'), {{childList: true}}); {act} }})"
            )
    return found


def _until(evaluate: Callable[[str], Any], condition: str) -> None:
    until = time.monotonic() + 60
    while not evaluate(condition):
        if time.monotonic() > until:
            raise SystemExit(f"never true: {condition}")
        time.sleep(0.005)


def measure(pending: int) -> dict[str, Any]:
    """Starts the service, asks it and the browser, and ends it."""
    import os
    import signal
    import socket

    with tempfile.TemporaryDirectory(prefix="srl-") as directory:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        Path(directory, "port").write_text(str(port))
        command = [sys.executable, __file__, "serve", str(pending), directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ), text=True) as serving:
            try:
                assert serving.stdout is not None
                tick = float(serving.stdout.readline())
                address = f"http://127.0.0.1:{port}/"
                api = answers(address, pending)
                browser = in_browser(address)
            finally:
                serving.send_signal(signal.SIGTERM)
                serving.wait(timeout=60)
    worst = {name: {"median_ms": sorted(t)[len(t) // 2], "max_ms": max(t)} for name, t in api.items()}
    return {"pending": pending, "first_tick_s": tick, "api": worst, "browser_ms": browser}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3])
    else:
        print(json.dumps(measure(int(sys.argv[1])), indent=1))
