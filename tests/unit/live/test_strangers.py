"""One user cannot hold up the rest: what is counted, and what a real unprivileged user gets who asks for too much."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.controller.live import ControllerLive
from slurm_rl.errors import InputError
from slurm_rl.serve.ask import ask
from slurm_rl.serve.gate import EACH, Gate
from slurm_rl.serve.ranker import LARGEST_PRODUCT, Ranker, TooMuch
from slurm_rl.serve.roles import NEEDED, OPEN
from slurm_rl.serve.turns import Busy
from slurm_rl.slurm.sockets import reserved_path

from .fake_slurm import FakeSlurm, a_job
from .service import as_nobody, by_nobody, needs_root, raw, serving

QUEUE: dict[str, Any] = {
    "now": 1000,
    "policy": "sjf@limit",
    "jobs": [{"id": i, "submit_time": 10, "time_limit": 500, "gpus": 1} for i in range(1, 4)],
    "nodes": [{"count": 1, "gpus": 8}],
}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_stranger_has_so_many_connections_and_others_theirs(clock: Clock) -> None:
    gate = Gate(lambda: frozenset({0}), 128, clock)
    assert [gate.enter(7) for _ in range(EACH.connections)] == [""] * EACH.connections
    assert "connections" in gate.enter(7)
    assert gate.enter(8) == ""
    assert [gate.enter(0) for _ in range(1000)] == [""] * 1000
    gate.leave(7)
    assert gate.enter(7) == ""


def test_all_strangers_together_leave_half(clock: Clock) -> None:
    gate = Gate(lambda: frozenset({0}), 128, clock)
    let_in = [uid for uid in range(1, 1000) if gate.enter(uid) == ""]
    assert len(let_in) == 64
    assert gate.enter("192.0.2.1") == "", "TCP has an account of its own"
    assert gate.enter(0) == ""


def test_requests_come_back_with_time(clock: Clock) -> None:
    gate = Gate(frozenset, 128, clock)

    def asked(key: int | str) -> int:
        count = 0
        while gate.enter(key) == "":
            gate.leave(key)
            count += 1
        return count

    assert asked(7) == 40
    assert asked(7) == 0
    clock.now += 1
    assert asked(7) == 20
    clock.now += 1000
    assert asked("192.0.2.1") == 40
    clock.now -= 500  # a clock set back takes nothing away
    assert asked(8) == 40


def test_work_is_paid_for(clock: Clock) -> None:
    gate = Gate(frozenset, 128, clock)
    gate.enter(7)
    assert gate.wait_for_work(7) == 0
    gate.charge(7, 0.7)
    assert gate.wait_for_work(7) == pytest.approx(4, abs=0.1)
    assert gate.wait_for_work(8) == 0
    clock.now += 4.1
    assert gate.wait_for_work(7) == 0


def test_a_million_addresses_cost_no_memory(clock: Clock) -> None:
    gate = Gate(frozenset, 128, clock)
    for i in range(20_000):
        if gate.enter(f"192.0.2.{i}") == "":
            gate.leave(f"192.0.2.{i}")
        clock.now += 0.01
    assert len(gate._shares) <= 4096


@pytest.fixture
def ranker() -> Iterator[Ranker]:
    made = Ranker()
    yield made
    made.close()


def test_a_queue_too_large_is_refused_before_anything_begins(ranker: Ranker) -> None:
    nodes = [{"count": LARGEST_PRODUCT // 3 + 1}]
    with pytest.raises(TooMuch, match="jobs × nodes is at most"):
        ranker.admit(7, QUEUE | {"nodes": nodes})
    assert ranker._process is None


def test_one_queue_at_a_time_for_each_and_eight_for_all(ranker: Ranker) -> None:
    for uid in range(8):
        ranker.admit(uid, QUEUE)
    with pytest.raises(Busy, match="one queue at a time"):
        ranker.admit(0, QUEUE)
    with pytest.raises(Busy, match="8 users wait"):
        ranker.admit(8, QUEUE)
    ranker.leave(3)
    ranker.admit(8, QUEUE)


def full(queue: dict[str, Any]) -> dict[str, Any]:
    from slurm_rl.serve.schemas import RankRequest

    return RankRequest(**queue).model_dump()


def test_what_takes_too_long_is_killed_and_the_next_one_is_served(ranker: Ranker, tmp_path: Path) -> None:
    where = ("sjf@limit", str(tmp_path))
    assert [r["id"] for r in ranker.work(full(QUEUE), *where)["order"]] == [1, 2, 3]
    first = ranker._process
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)  # as one that computes for ever
    ranker._seconds = 0.5
    with pytest.raises(TooMuch, match="aborted"):
        ranker.work(full(QUEUE), *where)
    assert first.returncode == -signal.SIGKILL
    ranker._seconds = 60
    with pytest.raises(InputError, match="the same id"):
        ranker.work(full(QUEUE | {"jobs": QUEUE["jobs"] * 2}), *where)
    second = ranker._process
    assert second is not None
    ranker.close()
    assert second.returncode == -signal.SIGKILL


@contextmanager
def a_crowd(path: Path, threads: int = 30) -> Iterator[list[str]]:
    """An unprivileged process that opens connections and asks on every route, as quickly as it can."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            _be_hostile(path, threads, write)
        finally:
            os._exit(0)
    os.close(write)
    answers: list[str] = []
    try:
        assert os.read(read, 1) == b"+"
        yield answers
    finally:
        os.kill(child, signal.SIGTERM)
        with os.fdopen(read) as rest:
            answers += rest.read().split()
        os.waitpid(child, 0)


# What is asked for where a route alone would be refused at once.
_ASKED = {
    "/v1/queue": "/v1/queue?limit=1000&match=a&sort=wait",
    "/v1/jobs/{job_id}/explain": "/v1/jobs/77/explain",
    "/v1/when": "/v1/when?time_limit=600&gpus=1",
    "/v1/pressure": "/v1/pressure?gpus=1&time_limit=600",
    "/v1/measured": "/v1/measured?limit=1000&ended=86400",
    "/v1/decisions": "/v1/decisions?limit=1000",
    "/ui/{file}": "/ui/lib.js",
}


def _be_hostile(path: Path, threads: int, report: int) -> None:
    routes = [f"{method} {_ASKED.get(route, route)}".encode() for method, route in [*NEEDED, *OPEN]]
    routes += [b"GET /v1/jobs/77/explain", b"POST /v1/rank", b"GET /x"]  # these cost most
    body = b'{"now":1,"jobs":[' + b",".join(
        b'{"id":%d,"submit_time":1,"time_limit":9}' % i for i in range(1, 301)
    ) + b'],"nodes":[{"count":600}]}'  # fmt: skip
    seen: Counter[str] = Counter()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))

    def ask_on(number: int) -> None:
        held: list[socket.socket] = []
        turn = number
        while not stop.is_set():
            turn += 1
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(1)
            with suppress(OSError):
                s.connect(str(path))
                if number % 3 == 0 and len(held) < 100:  # says nothing, and stays
                    held.append(s)
                    continue
                asked = routes[turn % len(routes)]
                s.sendall(asked + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                answer = s.recv(4096)
                seen[answer[9:12].decode(errors="replace") or "closed"] += 1
            s.close()

    crowd = [threading.Thread(target=ask_on, args=(i,)) for i in range(threads)]
    for thread in crowd:
        thread.start()
    while not seen:
        time.sleep(0.01)
    os.write(report, b"+")
    for thread in crowd:
        thread.join()
    os.write(report, " ".join(f"{code}={count}" for code, count in seen.items()).encode())


def the_plugins() -> bytes:
    body = b'{"user_id": 0, "partition": "batch", "time_limit_min": 1, "gpus": 1}'
    head = b"POST /v1/submit HTTP/1.1\r\nHost: slurm-rl\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@needs_root
def test_root_and_the_plugin_are_served_while_a_user_asks_for_everything(
    live: ControllerLive, slurm: FakeSlurm
) -> None:
    """By counts: every question of theirs is answered, the crowd is turned away."""
    slurm.jobs[77] = a_job(77, user="nobody")
    live.controller.tick()
    with serving(live) as path:
        with a_crowd(path) as crowd:
            explained = [ask(path, "GET", "/v1/jobs/1/explain", timeout=30)[0] for _ in range(30)]
            advised = [raw(reserved_path(path), the_plugins()).split()[1] for _ in range(100)]
        assert explained == [200] * 30
        assert advised == [b"200"] * 100
        codes = dict(row.split("=") for row in crowd)
        assert int(codes["429"]) > 5 * int(codes.get("200", 0)), codes
        assert as_nobody(path, "GET", "/healthz")[0] in (200, 429)


@needs_root
def test_a_backlog_full_of_strangers_does_not_reach_the_reserved_socket(live: ControllerLive) -> None:
    """Connections that are made while the service stands still, more than the kernel keeps."""
    with serving(live) as path:

        def fill() -> int:
            resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
            crowd = []
            for _ in range(6000):
                s = socket.socket(socket.AF_UNIX)
                s.setblocking(False)
                s.connect_ex(str(path))
                crowd.append(s)
            return len(crowd)

        assert by_nobody(fill) == 6000
        assert raw(reserved_path(path), the_plugins()).split()[1] == b"200"
        assert ask(path, "GET", "/v1/jobs/1/explain", timeout=30)[0] == 200


def test_a_strangers_connection_ends_with_the_answer(live: ControllerLive) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    twice = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2
    with serving(live) as path:
        answer = by_nobody(lambda: raw(path, twice).decode())
    assert answer.count("HTTP/1.1 200") == 1
    assert "connection: close" in answer
