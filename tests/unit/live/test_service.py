"""The service on a real unix socket, in front of a controller on a Slurm in memory."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive, warm_up
from slurm_rl.errors import InputError
from slurm_rl.obs.journal import Journal
from slurm_rl.serve.app import make_app
from slurm_rl.serve.ask import ask
from slurm_rl.serve.run import server

from .conftest import MakeController
from .fake_slurm import NOW, FakeSlurm, a_job, a_running_job

JOB = {"user_id": 0, "partition": "batch", "time_limit_min": 1, "gpus": 1, "name": "train"}
QUEUE = {
    "now": 1000,
    "policy": "sjf@limit",
    "jobs": [
        {"id": 1, "submit_time": 10, "time_limit": 500, "gpus": 8},
        {"id": 2, "submit_time": 20, "time_limit": 100, "gpus": 8},
    ],
    "nodes": [{"count": 1, "gpus": 8, "gpu_type": "A100"}],
}


@pytest.fixture
def slurm() -> FakeSlurm:
    jobs = [a_job(i, limit=1000 * i, user="root") for i in range(1, 6)]
    return FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"), SlurmUser=f"me({os.getuid()})")


@pytest.fixture
def live(slurm: FakeSlurm, controller: MakeController, journal: Journal) -> ControllerLive:
    made = ControllerLive(controller(slurm), journal)
    warm_up(made)
    made.controller.cycle()
    return made


@contextmanager
def serving(live: ControllerLive, **settings: Any) -> Iterator[Path]:
    """A running service; its directory is short and open, as a unix socket for everybody needs it."""
    with tempfile.TemporaryDirectory(prefix="srl-") as directory:
        Path(directory).chmod(0o755)
        where = Path(directory) / "s.sock"
        config = Config(socket=str(where), request_timeout_ms=5000, max_connections=64, **settings)
        runner, sockets = server(config, live)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": sockets})
        thread.start()
        while not runner.started:
            time.sleep(0.01)
        yield where
        runner.should_exit = True
        thread.join()
        for listener in sockets:
            listener.close()


@pytest.fixture
def path(live: ControllerLive) -> Iterator[Path]:
    with serving(live) as where:
        yield where


def raw(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(str(path))
        s.sendall(request)
        answer = b""
        while chunk := s.recv(65536):
            answer += chunk
        return answer


def as_nobody(path: Path, method: str, route: str, body: object = None) -> tuple[int, Any]:
    """Asks as a user who may not write, from a child process that becomes that user."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            os.write(write, json.dumps(ask(path, method, route, body)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    status, content = json.loads(said)
    return status, content


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


def test_submit_puts_a_short_job_near_the_top(path: Path, live: ControllerLive, slurm: FakeSlurm) -> None:
    status, short = ask(path, "POST", "/v1/submit", JOB)
    assert status == 200
    _, long = ask(path, "POST", "/v1/submit", JOB | {"time_limit_min": 10_000})
    best, worst = slurm.site_factors()[1], slurm.site_factors()[5]
    assert short["site_factor"] >= best
    assert "1 of 6" in short["reason"]
    assert long["site_factor"] < worst


def test_advice_is_journaled_before_it_is_given(path: Path, journal: Journal) -> None:
    _, said = ask(path, "POST", "/v1/submit", JOB | {"user_id": 7})
    assert journal.advice(0) == [(NOW, 7, said["site_factor"])]


def test_the_answer_has_a_content_length_and_closes(path: Path) -> None:
    body = json.dumps(JOB).encode()
    head = b"POST /v1/submit HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer = raw(path, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"content-length: " in answer.lower()
    assert b"chunked" not in answer.lower()


def the_plugins(body: bytes) -> bytes:
    """A request as the plugin writes it."""
    head = b"POST /v1/submit HTTP/1.1\r\nHost: slurm-rl\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_the_plugins_requests_are_answered_at_once_and_as_the_application_would(
    path: Path, live: ControllerLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "advise", lambda job: {"site_factor": len(job), "reason": job["name"]})
    body = json.dumps(JOB | {"name": "caf\u00c3\u00a9", "nice": -5}).encode()  # the bytes of an UTF-8 é
    quick = raw(path, the_plugins(body))
    slow = raw(path, the_plugins(body).replace(b"Host: slurm-rl", b"Accept: */*\r\nHost: slurm-rl"))
    assert json.loads(quick.partition(b"\r\n\r\n")[2]) == json.loads(slow.partition(b"\r\n\r\n")[2])
    assert json.loads(quick.partition(b"\r\n\r\n")[2])["reason"] == "café"
    asked = 'slurmrl_requests_total{code="200",route="/v1/submit"} 2.0'
    assert asked in live.metrics.text().decode()


def test_a_defect_behind_it_costs_one_answer(path: Path, live: ControllerLive, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: object) -> dict[str, object]:
        raise ZeroDivisionError

    request = the_plugins(json.dumps(JOB).encode())
    with monkeypatch.context() as broken:
        broken.setattr(live, "advise", fail)
        assert raw(path, request).split()[1] == b"500"
    assert raw(path, request).split()[1] == b"200"


def test_a_request_that_comes_in_pieces_is_answered_too(path: Path) -> None:
    request = the_plugins(json.dumps(JOB).encode())
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(str(path))
        for at in range(0, len(request), 40):
            s.sendall(request[at : at + 40])
            time.sleep(0.002)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("body", [b"{", b'{"user_id": "x"}', b"x" * 20_000])
def test_what_the_plugin_would_not_send_is_refused_by_the_application(path: Path, body: bytes) -> None:
    assert raw(path, the_plugins(body)).split()[1] in (b"413", b"422")


@needs_root
def test_a_strangers_submission_is_refused_however_it_is_written(path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            os.write(write, raw(path, the_plugins(json.dumps(JOB).encode())))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert answer.read().split()[1] == b"403"
    os.waitpid(child, 0)


def test_in_shadow_mode_there_is_no_advice(path: Path, live: ControllerLive) -> None:
    live.controller.command("shadow", "test")
    live.controller.cycle()
    assert ask(path, "POST", "/v1/submit", JOB) == (200, {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"user_id": "x"}',
        b'{"user_id": 1e99}',
        b'{"user_id": NaN}',
        b"\xff\xfe",
        b"[" * 9000,
    ],
)
def test_a_malformed_submission_is_refused_politely(path: Path, body: bytes) -> None:
    head = b"POST /v1/submit HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer = raw(path, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.split()[1] in (b"400", b"422")


def test_an_oversize_request_is_refused_declared_or_not(path: Path) -> None:
    big = {"user_id": 0, "name": "x" * 20_000}
    assert ask(path, "POST", "/v1/submit", big)[0] == 413
    chunk = b"x" * 15_000
    head = b"POST /v1/submit HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    piece = b"%x\r\n" % len(chunk) + chunk + b"\r\n"
    assert raw(path, head + piece + piece + b"0\r\n\r\n").split()[1] == b"413"


def test_a_thousand_connections_do_not_stop_it(path: Path) -> None:
    crowd = []
    try:
        for _ in range(1000):
            s = socket.socket(socket.AF_UNIX)
            s.setblocking(False)
            s.connect_ex(str(path))
            crowd.append(s)
        time.sleep(0.2)
    finally:
        for s in crowd:
            s.close()
    deadline = time.monotonic() + 5
    while ask(path, "GET", "/healthz")[0] != 200:
        assert time.monotonic() < deadline


def test_a_connection_that_asks_nothing_is_dropped(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(str(path))
        s.sendall(b"GET /heal")
        began = time.monotonic()
        assert s.recv(100) == b""
        assert time.monotonic() - began < 4


@needs_root
def test_a_stranger_may_not_change_anything(path: Path, live: ControllerLive) -> None:
    assert as_nobody(path, "PUT", "/v1/mode", {"mode": "off"})[0] == 403
    assert as_nobody(path, "POST", "/v1/reload")[0] == 403
    assert as_nobody(path, "POST", "/v1/submit", JOB)[0] == 403
    assert live.controller.journal.last_command() is None
    assert as_nobody(path, "GET", "/v1/queue")[0] == 200
    assert as_nobody(path, "GET", "/v1/jobs/1/explain")[0] == 403


@needs_root
def test_private_data_hides_other_users_jobs(path: Path, live: ControllerLive, slurm: FakeSlurm) -> None:
    slurm.config["PrivateData"] = "jobs,usage"
    slurm.jobs[77] = a_job(77, user="nobody")
    live.controller.cycle()
    said = as_nobody(path, "GET", "/v1/queue")[1]
    assert [j["job_id"] for j in said["jobs"]] == [77]
    assert as_nobody(path, "GET", "/v1/jobs/1/explain")[0] == 404
    assert as_nobody(path, "GET", "/v1/jobs/77/explain")[0] == 200
    assert len(ask(path, "GET", "/v1/queue")[1]["jobs"]) == 6


def test_explain_tells_place_reason_estimate_start_and_moves(path: Path) -> None:
    status, said = ask(path, "GET", "/v1/jobs/5/explain")
    assert status == 200
    assert (said["rank"], said["of"]) == (5, 5)
    assert said["policy"]["name"] == "sjf@limit"
    assert said["slurm"]["partition"] == 500
    low, high = said["expected_start"]["range"]
    assert NOW <= low <= said["expected_start"]["time"] <= high
    halved = next(m for m in said["what_would_move_it"] if m["what"].startswith("a time limit of 41 min"))
    assert (halved["from"], halved["rank"]) == (5, 3)  # 2500 s stand behind 1000 and 2000
    (change,) = ask(path, "GET", "/v1/jobs/1/explain")[1]["changes"]
    assert (change["old"], change["status"]) == (0, "applied")
    assert ask(path, "GET", "/v1/jobs/4242/explain")[0] == 404


def test_rank_is_stateless(path: Path) -> None:
    status, said = ask(path, "POST", "/v1/rank", QUEUE)
    assert status == 200
    assert [row["id"] for row in said["order"]] == [2, 1]
    assert said["can_start_now"] == [2]
    assert ask(path, "POST", "/v1/rank", QUEUE | {"policy": "sjf@oracle"})[0] == 422
    assert ask(path, "POST", "/v1/rank", QUEUE | {"policy": "nonsense"})[0] == 422


def test_the_mode_changes_with_the_next_tick(path: Path, live: ControllerLive, slurm: FakeSlurm) -> None:
    assert ask(path, "GET", "/v1/mode") == (200, {"mode": "enforce"})
    assert ask(path, "PUT", "/v1/mode", {"mode": "off"}) == (200, {"mode": "off"})
    live.controller.cycle()
    assert ask(path, "GET", "/v1/mode") == (200, {"mode": "off"})
    assert set(slurm.site_factors().values()) == {0}
    assert ask(path, "PUT", "/v1/mode", {"mode": "on"})[0] == 422


def test_reload_takes_a_good_file_and_refuses_a_bad_one(path: Path, live: ControllerLive, tmp_path: Path) -> None:
    live._config_file = tmp_path / "c.toml"
    live._config_file.write_text('mode = "enforce"\npolicy = "fcfs"\n')
    status, said = ask(path, "POST", "/v1/reload")
    assert (status, said["changed"]["policy"]) == (200, "fcfs")
    assert live.controller.policy.name == "fcfs"
    live._config_file.write_text('policy = "best"\n')
    assert ask(path, "POST", "/v1/reload")[0] == 422
    assert live.controller.policy.name == "fcfs"


def test_health_metrics_and_the_page(path: Path, live: ControllerLive) -> None:
    assert ask(path, "GET", "/healthz")[0] == 200
    assert ask(path, "GET", "/readyz")[0] == 200
    live.warm = False
    assert ask(path, "GET", "/readyz")[0] == 503
    _, text = ask(path, "GET", "/metrics")
    assert 'slurmrl_mode{mode="enforce"} 1.0' in text
    names = {row.split("{")[0].split()[0] for row in text.splitlines() if row and not row.startswith("#")}
    assert all(name.startswith("slurmrl_") for name in names)
    _, page = ask(path, "GET", "/")
    assert "https://" not in page
    assert "/v1/queue" in page


def test_a_second_service_on_the_same_socket_is_refused(path: Path, live: ControllerLive) -> None:
    with pytest.raises(InputError, match="another service answers"):
        server(Config(socket=str(path)), live)


def test_tcp_needs_the_token(live: ControllerLive) -> None:
    def status(app: Callable[..., Any], *headers: tuple[bytes, bytes]) -> int:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/v1/mode", "query_string": b"", "headers": list(headers)}
        asyncio.run(app(scope | {"client": ("127.0.0.1", 0), "root_path": "", "scheme": "http"}, receive, send))
        return int(sent[0]["status"])

    app = make_app(live, token="t" * 32)
    assert status(app) == 401
    assert status(app, (b"authorization", b"Bearer wrong")) == 401
    assert status(app, (b"authorization", b"Bearer " + b"t" * 32)) == 200
    assert status(make_app(live), (b"authorization", b"Bearer None")) == 401


def test_tcp_on_a_real_port_wants_the_token_and_gives_a_writers_rights(live: ControllerLive, tmp_path: Path) -> None:
    import http.client

    token = tmp_path / "token"
    token.write_text("t" * 40 + "\n")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with serving(live, tcp=f"127.0.0.1:{port}", token_file=str(token)):

        def status(method: str, route: str, given: str | None, body: str | None = None) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {given}"} if given else {})
            connection.request(method, route, body, headers)
            code = connection.getresponse().status
            connection.close()
            return code

        for route in ("/v1/queue", "/v1/mode", "/metrics", "/v1/jobs/1/explain"):
            assert status("GET", route, None) == 401
            assert status("GET", route, "x" * 40) == 401
            assert status("GET", route, "t" * 40) == 200
        assert status("POST", "/v1/submit", None, json.dumps(JOB)) == 401
        assert status("POST", "/v1/submit", "t" * 40, json.dumps(JOB)) == 200
        assert status("PUT", "/v1/mode", "t" * 40, '{"mode": "shadow"}') == 200
        assert status("GET", "/healthz", None) == 200


def from_root(app: Callable[..., Any]) -> Callable[..., Any]:
    async def asked(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "client": ("unix", 0)}, receive, send)

    return asked


def test_no_request_that_fits_the_schema_or_does_not_causes_a_server_error(
    live: ControllerLive, tmp_path: Path
) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    app = from_root(make_app(live, seconds=30))
    live._config_file = tmp_path / "c.toml"
    live._config_file.write_text('mode = "enforce"\npolicy = "sjf@limit"\n')
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)

    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        strategy = operation.as_strategy()

        @given(strategy)
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def one(case: Any) -> None:
            assert case.call().status_code < 500

        one()
        tried += 1
    assert tried >= 9


def test_warming_up_compiles_whatever_a_tick_and_a_submission_need(live: ControllerLive) -> None:
    def compiled() -> int:
        from numba.core.dispatcher import Dispatcher

        modules = [m for name, m in list(sys.modules.items()) if name.startswith("slurm_rl")]
        kernels = {id(k): k for m in modules for k in vars(m).values() if isinstance(k, Dispatcher)}
        return sum(len(k.signatures) for k in kernels.values())

    before = compiled()
    live.controller.cycle()
    live.advise(JOB)
    assert compiled() == before


def test_serving_imports_neither_torch_nor_mip() -> None:
    code = (
        "import sys, slurm_rl.cli.serve, slurm_rl.serve.run, slurm_rl.controller.live;"
        "assert not {'torch', 'mip'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
