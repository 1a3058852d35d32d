"""A service over a large queue in memory, and a client that submits at a steady rate: two processes."""

from __future__ import annotations

import json
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
from unit.live.fake_slurm import NOW, FakeSlurm, a_job, a_running_job

from perf import recorded
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmJob, SlurmState

PENDING, NODES = 10_000, 1_000


def large_slurm(pending: int = PENDING, nodes: int = NODES) -> FakeSlurm:
    """Every node is taken by a running job; what waits is of 200 users, all sizes and ages."""
    rng = random.Random(1)
    waiting = [
        a_job(
            i,
            limit=rng.choice((600, 3600, 7200, 14_400, 86_400)),
            gpus=rng.choice((1, 1, 1, 2, 4, 8)),
            waited=rng.randrange(1, 200_000),
            own=rng.randrange(100, 2000),
            user=f"u{rng.randrange(200)}",
            account=f"g{rng.randrange(20)}",
            name=f"n{rng.randrange(300)}",
        )
        for i in range(1, pending + 1)
    ]
    running: list[SlurmJob] = [
        a_running_job(pending + k, f"n{k}", limit=86_400, began=rng.randrange(80_000)) for k in range(1, nodes + 1)
    ]
    return FakeSlurm(*waiting, *running, nodes=nodes, weights=15_000)


class SlurmOfPrograms(CliClient):
    """The real client over the programs of `programs.py`; its time is the site's."""

    def __init__(self, conf: Path) -> None:
        super().__init__(conf, timeout=60)
        self.began = time.time()

    def now(self) -> float:
        return recorded.NOW + time.time() - self.began

    def snapshot(self) -> SlurmState:
        return msgspec.structs.replace(super().snapshot(), taken=self.now())


def serve(path: str, policy: str, conf: str = "") -> None:
    """The service as `slurm-rl serve` runs it, with ticks every 10 s; says `ready` when the first one is over.

    Slurm is in memory, or else the programs beside `conf`. The end of each tick is printed, with its seconds of the
    processor in this thread.
    """
    from slurm_rl.config import Config
    from slurm_rl.controller.live import ControllerLive, warm_up
    from slurm_rl.controller.tick import Controller, TickOutcome
    from slurm_rl.obs.journal import Journal
    from slurm_rl.serve import run

    with tempfile.TemporaryDirectory(prefix="srl-") as state:
        config = Config(mode="enforce", policy=policy, socket=path, state_dir=state)
        slurm = SlurmOfPrograms(Path(conf)) if conf else large_slurm()
        began = time.time()
        clock = slurm.now if isinstance(slurm, SlurmOfPrograms) else lambda: NOW + time.time() - began

        class Told(Controller):
            def tick(self) -> TickOutcome:
                began, spent = time.perf_counter(), time.thread_time()
                outcome = super().tick()
                print("tick", time.perf_counter() - began, time.thread_time() - spent, flush=True)
                return outcome

        controller = Told(config, slurm, Journal(config.journal), clock=clock)
        live = ControllerLive(controller, Journal(config.journal, durable=False))
        warm_up(live)

        def control() -> None:
            controller.tick()
            print("ready", flush=True)
            controller.run()

        thread = threading.Thread(target=control)
        run.serve(config, live, thread.start)
        controller.stop()
        thread.join()


def submit(path: str, rate: float, seconds: float) -> None:
    """Submits as the plugin does, one connection each, and prints the milliseconds from when each was due."""
    job = {"user_id": 0, "partition": "batch", "time_limit_min": 10, "gpus": 1, "name": "train", "min_nodes": 1}
    took: list[float] = []
    advised = 0
    first = time.perf_counter() + 0.1
    for i in range(int(rate * seconds)):
        due = first + i / rate
        body = json.dumps(job | {"user_id": i % 300, "time_limit_min": 1 + i * 7919 % 3000}).encode()
        head = b"POST /v1/submit HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        time.sleep(max(0.0, due - time.perf_counter()))
        began = max(due, time.perf_counter()) if time.perf_counter() - due < 0.001 else due
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
            s.sendall(request)
            answer = b""
            while part := s.recv(65536):
                answer += part
        took.append(1000 * (time.perf_counter() - began))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"answered {answer!r}")
        advised += b"site_factor" in answer
    print(json.dumps({"milliseconds": took, "advised": advised}))


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "serve":
        serve(where, *rest)
    else:
        submit(where, *map(float, rest))
