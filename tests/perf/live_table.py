"""The live side by size: `python tests/perf/live_table.py [PENDING,… [NODES,…]]` prints the table of the docs.

Each size is a process of its own: the real client over printed text (recorded.py), the real controller in enforce mode,
and the service's own functions for those who ask. Seconds are of the processor; making the text is not counted.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS.parent / "sim"), str(TESTS)]

PENDING, NODES = (1_000, 10_000, 50_000, 100_000), (100, 1_000, 10_000)
COLUMNS = ("pending", "nodes", "first tick s", "quiet tick s", "aged tick s", "observe s", "decide s", "apply s",
           "calls", "MB read", "explain ms", "queue page ms", "overview ms", "peak MB")  # fmt: skip
SMALL = (300, 20)  # a queue before the first tick, so that kernels are compiled


def measure(pending: int, nodes: int, policy: str = "sjf-age@user") -> dict[str, float]:
    """One size, in this process."""
    import structlog

    from perf.recorded import LargeSlurm, Site
    from slurm_rl.config import Config
    from slurm_rl.controller.live import ControllerLive
    from slurm_rl.controller.tick import Controller
    from slurm_rl.obs.journal import Journal
    from slurm_rl.serve.run import _SEARCHES

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))

    class Timed(Controller):
        spent: dict[str, float]

        def _phase(self, name: str, began: float) -> None:
            self.spent[name] = time.process_time() - self.since
            self.since = time.process_time()

    def a_controller(site: Site, state: str) -> Timed:
        client = LargeSlurm(site)
        config = Config(mode="enforce", policy=policy, updates_per_second=1e5, state_dir=state)
        return Timed(config, client, Journal(config.journal), clock=lambda: float(site.now))

    def ticked(c: Timed) -> tuple[float, dict[str, float]]:
        """A tick without the time that the text took."""
        c.client.commands.spent = 0.0  # type: ignore[attr-defined]
        c.spent, c.since = {}, time.process_time()
        before = time.process_time()
        c.tick()
        text = c.client.commands.spent  # type: ignore[attr-defined]
        c.spent["observe"] -= text
        return time.process_time() - before - text, c.spent

    def asked(times: int, ask: Callable[[int], Any]) -> float:
        took = []
        for i in range(times):
            began = time.process_time()
            ask(i)
            took.append(time.process_time() - began)
        return 1e3 * max(took)

    with tempfile.TemporaryDirectory(prefix="srl-") as state, tempfile.TemporaryDirectory(prefix="srl-") as other:
        small = Site(*SMALL)
        ticked(a_controller(small, other))
        gc.freeze()  # as the service does
        gc.set_threshold(*_SEARCHES)
        site = Site(pending, nodes)
        c = a_controller(site, state)
        first, _ = ticked(c)
        for _ in range(3):
            site.pass_time()
            ticked(c)
        quiet, phases = float("inf"), {}
        for _ in range(3):
            site.pass_time()
            c.client.load()  # type: ignore[attr-defined]
            seconds, spent = ticked(c)
            if seconds < quiet:
                quiet, phases = seconds, spent
            calls, read = c.client.load()  # type: ignore[attr-defined]
        site.age()
        aged, _ = ticked(c)
        live = ControllerLive(c, Journal(c.config.journal, durable=False))
        assert c.report is not None
        jobs = [c.report.queue.jobs[j].job_id for j in c.report.plan.order[:: max(len(c.report.plan.order) // 10, 1)]]

        def explain(i: int) -> None:
            assert c.report is not None
            job_id = jobs[i % len(jobs)]
            assert c.report.find(job_id) is not None
            live.place_in_queue(job_id)
            live.around(job_id)
            live.waited(job_id)
            c.report.ahead(job_id)

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures = (first, quiet, aged, phases["observe"], phases["decide"], phases["apply"], calls, read / 1e6,
                   asked(10, explain), asked(5, lambda i: live.queue().page(100 * i, 100)),  # type: ignore[union-attr]
                   asked(3, lambda _: live.overview()), peak)  # fmt: skip
        return dict(zip(COLUMNS, (pending, nodes, *figures), strict=True))


def table(pending: tuple[int, ...], nodes: tuple[int, ...]) -> None:
    """Every size in a process of its own, as lines of Markdown."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for one in itertools.product(pending, nodes):
        command = [sys.executable, __file__, "one", *map(str, one)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        whole = ("pending", "nodes", "calls", "peak MB")
        cells = (f"{v:,.0f}" if name in whole else f"{v:.3g}" for name, v in row.items())
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(measure(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        given = [tuple(map(int, text.split(","))) for text in sys.argv[1:3]]
        table(*(given + [PENDING, NODES][len(given) :]))
