"""The service on a real unix socket, in front of a controller on a Slurm in memory."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.obs.journal import Journal
from slurm_rl.serve import board
from slurm_rl.serve.app import make_app
from slurm_rl.serve.ask import ask
from slurm_rl.serve.peers import Accepted
from slurm_rl.serve.run import server
from slurm_rl.slurm.model import SlurmState

from .fake_slurm import NOW, FakeSlurm, a_job
from .service import as_nobody, by_nobody, needs_root, raw, serving

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
def path(live: ControllerLive) -> Iterator[Path]:
    with serving(live) as where:
        yield where


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
    answer = by_nobody(lambda: raw(path, the_plugins(json.dumps(JOB).encode())).decode())
    assert answer.split()[1] == "403"


def test_in_shadow_mode_there_is_no_advice(path: Path, live: ControllerLive) -> None:
    live.controller.command("shadow", "test")
    live.controller.tick()
    assert ask(path, "POST", "/v1/submit", JOB) == (200, {})


@pytest.mark.parametrize(
    ("settings", "job"),
    [
        ({"leave_alone_partitions": ("batch",)}, {}),
        ({"leave_alone_partitions": ("batch",)}, {"partition": ""}),  # Slurm's default
        ({"leave_alone_partitions": ("other",)}, {"partition": "batch,other"}),
        ({"leave_alone_qos": ("high",)}, {"qos": "high"}),
        ({"leave_alone_qos": ("high",)}, {"default_qos": "high"}),
        ({"leave_alone_accounts": ("caf\u00e9",)}, {"account": "caf\u00c3\u00a9"}),
        ({"leave_alone_accounts": ("phys",)}, {"default_account": "phys"}),
        ({"leave_alone_users": ("root",)}, {}),
        ({"leave_alone_users": ("nobody",)}, {"user_id": 4242}),  # without a name, nobody knows
        ({"users_may_opt_out": True}, {"comment": "mine, slurm-rl:off"}),
        ({}, {"priority": 0}),
        ({}, {"priority": 77}),
    ],
)
def test_what_is_left_alone_gets_no_advice(
    path: Path, live: ControllerLive, settings: dict[str, Any], job: dict[str, Any]
) -> None:
    live.controller.config = dataclasses.replace(live.config, **settings)
    assert ask(path, "POST", "/v1/submit", JOB | job) == (200, {})
    assert live._journal.advice(0) == []


@pytest.mark.parametrize(
    ("settings", "job"),
    [
        ({"leave_alone_partitions": ("other",)}, {}),
        ({"leave_alone_qos": ("high",)}, {"qos": "low", "default_qos": "high"}),
        ({"leave_alone_accounts": ("phys",)}, {"account": "chem", "default_account": "phys"}),
        ({"leave_alone_users": ("nobody",)}, {}),
        ({"users_may_opt_out": False}, {"comment": "slurm-rl:off"}),
        ({"users_may_opt_out": True}, {"comment": "slurm-rl:official"}),
    ],
)
def test_all_others_get_it(path: Path, live: ControllerLive, settings: dict[str, Any], job: dict[str, Any]) -> None:
    live.controller.config = dataclasses.replace(live.config, **settings)
    live._look_up(0)
    assert ask(path, "POST", "/v1/submit", JOB | job)[1].keys() == {"site_factor", "reason"}


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
    live.controller.tick()
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
    assert set(said["slurm_reason"]) == {"code", "meaning", "remedy"}
    low, high = said["expected_start"]["range"]
    assert NOW <= low <= said["expected_start"]["time"] <= high
    halved = next(m for m in said["what_would_move_it"] if m["what"].startswith("a time limit of 41 min"))
    assert (halved["from"], halved["rank"]) == (5, 3)  # 2500 s stand behind 1000 and 2000
    (change,) = ask(path, "GET", "/v1/jobs/1/explain")[1]["changes"]
    assert (change["old"], change["status"]) == (0, "applied")
    assert ask(path, "GET", "/v1/jobs/4242/explain")[0] == 404
    for name in ("x", "5x", "5_", "0", "-5", "5_000", "\u0665", "99999999999", "5+"):
        status, said = ask(path, "GET", f"/v1/jobs/{quote(name)}/explain")
        assert (status, "is not a job id" in str(said)) in ((422, True), (404, False))


def test_rank_is_stateless(path: Path) -> None:
    status, said = ask(path, "POST", "/v1/rank", QUEUE, timeout=180)
    assert status == 200
    assert [row["id"] for row in said["order"]] == [2, 1]
    assert said["can_start_now"] == [2]
    assert ask(path, "POST", "/v1/rank", QUEUE | {"policy": "sjf@oracle"}, timeout=180)[0] == 422
    assert ask(path, "POST", "/v1/rank", QUEUE | {"policy": "nonsense"}, timeout=180)[0] == 422
    assert ask(path, "POST", "/v1/rank", QUEUE | {"policy": "rl:/etc/passwd"}, timeout=180)[0] == 422
    twice = QUEUE | {"jobs": [QUEUE["jobs"][0]] * 2}  # type: ignore[index]
    assert ask(path, "POST", "/v1/rank", twice, timeout=180)[0] == 422


def test_the_mode_changes_with_the_next_tick(path: Path, live: ControllerLive, slurm: FakeSlurm) -> None:
    assert ask(path, "GET", "/v1/mode") == (200, {"mode": "enforce"})
    assert ask(path, "PUT", "/v1/mode", {"mode": "off"}) == (200, {"mode": "off"})
    live.controller.tick()
    assert ask(path, "GET", "/v1/mode") == (200, {"mode": "off"})
    assert set(slurm.site_factors().values()) == {0}
    assert ask(path, "PUT", "/v1/mode", {"mode": "on"})[0] == 422


def test_the_choice_of_policies_and_the_promise_are_shown(path: Path) -> None:
    status, said = ask(path, "GET", "/v1/auto")
    assert status == 200
    assert (said["chosen"], said["choices"], said["choosing"]) == ({}, [], False)
    assert said["promise"] == {"promise": "none", "groups": []}
    assert ask(path, "POST", "/v1/auto") == (200, {"started": False}), "policies are not chosen here"


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
    files = re.findall(r'"/ui/([^"]+)"', page)
    assert files
    for name in files:
        status, content = ask(path, "GET", f"/ui/{name}")
        assert status == 200
        assert "https://" not in content
    assert ask(path, "GET", "/ui/..%2fapp.py")[0] == 404


def test_it_is_not_ready_while_ticks_come_to_nothing(
    path: Path, live: ControllerLive, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead() -> SlurmState:
        raise SlurmError("slurmctld does not answer")

    def tick(outcome: str) -> None:
        count = live.controller.metrics.ticks.labels(outcome)._value
        before = count.get()
        live.controller.stopping.clear()
        thread = threading.Thread(target=live.controller.run)
        thread.start()
        while count.get() == before:
            time.sleep(0.01)
        live.controller.stop()
        thread.join()

    assert ask(path, "GET", "/readyz") == (200, {"status": "ready"})
    with monkeypatch.context() as broken:
        broken.setattr(slurm, "snapshot", dead)
        tick("static")
        status, said = ask(path, "GET", "/readyz")
    assert status == 503
    assert "slurmctld does not answer" in said["status"]
    tick("done")
    assert ask(path, "GET", "/readyz")[0] == 200


def test_the_queue_is_searched_where_it_is_whole(path: Path, live: ControllerLive, slurm: FakeSlurm) -> None:
    slurm.jobs |= {i: a_job(i, user="ann" if i == 777 else "root", name=f"n{i}") for i in range(500, 800)}
    live.controller.tick()

    def found(match: str, limit: int = 10) -> tuple[int, list[int]]:
        said = ask(path, "GET", f"/v1/queue?limit={limit}&match={match}")[1]
        assert said["pending"] == 305
        return said["matching"], [j["job_id"] for j in said["jobs"]]

    assert found("ANN") == (1, [777])
    assert found("n778") == (1, [778])
    assert found("799") == (1, [799])
    assert found("root")[0] == 304
    assert len(found("root", 10)[1]) == 10
    assert found("nobody-at-all") == (0, [])


def test_a_second_service_on_the_same_socket_is_refused(path: Path, live: ControllerLive) -> None:
    with pytest.raises(InputError, match="another service answers"):
        server(Config(socket=str(path)), live)


def from_root(app: Callable[..., Any]) -> Callable[..., Any]:
    async def asked(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "state": Accepted(0).put_in({})}, receive, send)

    return asked


def test_a_number_beyond_what_the_journal_counts_is_refused(path: Path) -> None:
    assert ask(path, "GET", f"/v1/decisions?before={2**63 - 1}")[0] == 200
    assert ask(path, "GET", f"/v1/decisions?before={2**63}")[0] == 422


def test_no_request_that_fits_the_schema_or_does_not_causes_a_server_error(
    live: ControllerLive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    monkeypatch.setattr(board, "_STREAM_LASTS", 0.1)  # a stream of events ends, so that its case does
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
            assert case.call(timeout=300).status_code < 500  # the first ranking compiles

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
    live.controller.tick()
    live.advise(JOB)
    assert compiled() == before


def test_serving_imports_neither_torch_nor_mip() -> None:
    code = (
        "import sys, slurm_rl.cli.serve, slurm_rl.serve.run, slurm_rl.controller.live;"
        "assert not {'torch', 'mip'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
