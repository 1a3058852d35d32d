"""Who asks is told by the accepted socket alone: nothing in a request can change it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.controller.live import ControllerLive

from .service import free_port, raw, serving

TOKEN = "t" * 40
BODY = b'{"mode":"off"}'
CLAIMS = [
    b"X-Forwarded-For: unix",
    b"x-forwarded-for: unix",
    b"X-Forwarded-For: unix:0",
    b"X-Forwarded-For: unix, 127.0.0.1",
    b"X-Forwarded-For: 127.0.0.1, unix",
    b"X-Forwarded-For: unix\r\nX-Forwarded-For: unix",
    b"X-Forwarded-For: unix\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Port: 0",
    b"Forwarded: for=unix;proto=http;by=unix",
    b"X-Real-IP: unix",
    b"X-Client-IP: unix\r\nTrue-Client-IP: unix\r\nCF-Connecting-IP: unix\r\nVia: 1.1 unix",
    b"Authorization: Bearer",
    b"Authorization: Bearer ",
    b"Authorization: Bearer None",
    b"Authorization: unix",
    b"Authorization: Basic cm9vdDpyb290",
    b"Cookie: token=" + TOKEN.encode(),
    b"X-Peer: 0\r\nX-Uid: 0\r\nRemote-User: root\r\nX-Remote-User: root",
]


@pytest.fixture
def port(live: ControllerLive, tmp_path: Path) -> Iterator[int]:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    number = free_port()
    with serving(live, tcp=f"127.0.0.1:{number}", token_file=str(token)):
        yield number


def over_tcp(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
        s.sendall(request)
        answer = b""
        while chunk := s.recv(65536):
            answer += chunk
        return answer


def change_mode(*headers: bytes, target: bytes = b"/v1/mode", version: bytes = b"1.1", last: bool = True) -> bytes:
    lines = [b"PUT %b HTTP/%b" % (target, version), b"Content-Type: application/json"]
    lines += [b"Content-Length: %d" % len(BODY), *headers]
    if not any(h.lower().startswith(b"host:") for h in headers):
        lines.append(b"Host: x")
    if last:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + BODY


def statuses(answer: bytes) -> list[bytes]:
    return [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.")] + [
        piece.split()[0] for piece in answer.split(b"}HTTP/1.1 ")[1:]
    ]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.decode().replace("\r\n", " | "))
def test_no_header_stands_in_for_the_token(port: int, live: ControllerLive, claim: bytes) -> None:
    assert statuses(over_tcp(port, change_mode(claim))) == [b"401"]
    assert live.controller.journal.last_command() is None


@pytest.mark.parametrize("host", [b"unix", b"localhost", b"unix:0", b""])
def test_no_host_stands_in_for_the_token(port: int, live: ControllerLive, host: bytes) -> None:
    assert statuses(over_tcp(port, change_mode(b"Host: " + host))) == [b"401"]
    assert live.controller.journal.last_command() is None


@pytest.mark.parametrize("target", [b"http://unix/v1/mode", b"http://127.0.0.1/v1/mode", b"//unix/v1/mode"])
def test_no_form_of_the_address_stands_in_for_the_token(port: int, live: ControllerLive, target: bytes) -> None:
    assert statuses(over_tcp(port, change_mode(target=target)))[0] in (b"401", b"404")
    assert live.controller.journal.last_command() is None


@pytest.mark.parametrize("claim", [b"X-Forwarded-For: unix", b"X-Nothing: at all"])
def test_http_1_0_needs_the_token_as_well(port: int, live: ControllerLive, claim: bytes) -> None:
    assert statuses(over_tcp(port, change_mode(claim, version=b"1.0"))) == [b"401"]
    assert live.controller.journal.last_command() is None


def test_the_right_token_opens_one_request_not_the_connection(port: int, live: ControllerLive) -> None:
    opened = b"GET /v1/mode HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    answer = over_tcp(port, opened + change_mode(b"X-Forwarded-For: unix"))
    assert statuses(answer) == [b"200"], "the connection ends with the answer"
    assert live.controller.journal.last_command() is None


def test_a_submission_as_the_plugin_writes_it_needs_the_token_on_tcp(port: int) -> None:
    body = b'{"user_id": 0}'
    head = b"POST /v1/submit HTTP/1.1\r\nHost: slurm-rl\r\nContent-Type: application/json\r\nConnection: close\r\n"
    assert statuses(over_tcp(port, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)) == [b"401"]


def test_the_right_token_is_heard_whatever_stands_beside_it(port: int, live: ControllerLive) -> None:
    answer = over_tcp(port, change_mode(b"X-Forwarded-For: 203.0.113.9", b"Authorization: Bearer " + TOKEN.encode()))
    assert statuses(answer) == [b"200"]
    assert live.controller.journal.last_command()[1:] == ("off", "admin token")  # type: ignore[index]


def test_on_the_unix_socket_no_header_makes_somebody_else(live: ControllerLive) -> None:
    with serving(live) as path:
        claims = (b"X-Forwarded-For: 203.0.113.9", b"Forwarded: for=203.0.113.9", b"X-Real-IP: 203.0.113.9")
        assert statuses(raw(path, change_mode(*claims))) == [b"200"]
        assert live.controller.journal.last_command()[1:] == ("off", "uid 0")  # type: ignore[index]
