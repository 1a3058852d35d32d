"""A real slurmctld with tens of thousands of waiting jobs: `python tests/perf/large_lab.py [PENDING]`. Needs root.

Jobs are arrays whose tasks were separated into records of their own, beside one array that is whole. A controller in
enforce mode ticks over them; sdiag says what that cost slurmctld.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS.parent / "sim"), str(TESTS)]

from perf.releases import submit  # noqa: E402  (run as a script, it has to find the tests' own modules first)
from slurm_rl.config import Config  # noqa: E402
from slurm_rl.controller.tick import Controller  # noqa: E402
from slurm_rl.lab.lab import Lab, up  # noqa: E402
from slurm_rl.lab.spec import LabSpec, parse_nodes  # noqa: E402
from slurm_rl.obs.journal import Journal  # noqa: E402
from slurm_rl.slurm.cli import CliClient  # noqa: E402

_EACH = 10_000  # tasks of an array
_RPC = re.compile(r"^\s*(REQUEST_\w+)\s+\(\s*\d+\) count:(\d+)\s+ave_time:(\d+)\s+total_time:(\d+)", re.MULTILINE)


def rpcs(lab: Lab) -> dict[str, tuple[int, int]]:
    """Of each kind of RPC, how many slurmctld has served and the microseconds they took."""
    return {kind: (int(count), int(total)) for kind, count, _, total in _RPC.findall(lab.run("sdiag"))}


def measure(pending: int, ticks: int = 4) -> dict[str, Any]:
    """Seconds of ticks by the clock, and what slurmctld did for the last of them."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    directory = Path(tempfile.mkdtemp(prefix="srl-lab-"))
    directory.chmod(0o755)
    settings = (("MaxJobCount", str(2 * pending)),)
    nodes = parse_nodes("a100:8*500,t4:4*500")
    lab = up(LabSpec(directory=directory, nodes=nodes, run_nodes=False, settings=settings))
    try:
        for _ in range(pending // _EACH):
            submit(lab, _EACH)
        submit(lab, _EACH, apart=False)
        config = Config(mode="enforce", policy="sjf-age@user", state_dir=str(directory / "state"))
        Path(config.state_dir).mkdir()
        controller = Controller(config, CliClient(lab.slurm_conf, timeout=60), Journal(config.journal))
        rows = []
        for _ in range(ticks):
            before = rpcs(lab)
            wall, cpu = time.perf_counter(), time.process_time()
            done = controller.tick()
            took = {"clock_s": time.perf_counter() - wall, "processor_s": time.process_time() - cpu}
            after = rpcs(lab)
            served = {k: (n - before.get(k, (0, 0))[0], us - before.get(k, (0, 0))[1]) for k, (n, us) in after.items()}
            controller.reading.count(controller.client, config.mb_per_tick)
            rows.append(took | {"ordered": done.ordered, "applied": done.applied, "stretch": controller.reading.stretch,
                                "slurmctld": {k: v for k, v in served.items() if v[0]}})  # fmt: skip
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"release": str(lab.state.release), "pending": pending + _EACH, "ticks": rows, "peak_mb": peak}
    finally:
        lab.down()
        shutil.rmtree(directory)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000), indent=1))
