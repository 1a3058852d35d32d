"""Tokens, TLS and munge credentials on real ports: who may do what, and nothing else."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli import main
from slurm_rl.config import Config, load, read_tokens
from slurm_rl.controller.live import ControllerLive
from slurm_rl.errors import EnvironmentMissing, InputError
from slurm_rl.serve import munge
from slurm_rl.serve.app import make_app
from slurm_rl.serve.ask import ask, ask_from_afar
from slurm_rl.serve.roles import NEEDED, OPEN, Role
from slurm_rl.serve.run import server
from slurm_rl.slurm.sockets import reserved_path

from .fake_slurm import FakeSlurm, a_job
from .service import as_nobody, by_nobody, free_port, needs_root, serving

ROOT = Path(__file__).resolve().parents[3]
FILES = {Role.ADMIN: "token_file", Role.OPERATOR: "operator_token_file", Role.READER: "read_token_file"}
BODIES: dict[tuple[str, str], str] = {
    ("POST", "/v1/submit"): '{"user_id": 0}',
    ("POST", "/v1/rank"): '{"now": 1, "jobs": [], "nodes": [{}], "policy": "no such"}',
    ("PUT", "/v1/mode"): '{"mode": "shadow"}',
}
ENOUGH = (200, 422)  # an empty configuration or an unknown policy is refused, but not for who asks


def a_token(directory: Path, name: str, letter: str) -> str:
    file = directory / name
    file.write_text(letter * 40 + "\n")
    file.chmod(0o600)
    return str(file)


@pytest.fixture
def token_files(tmp_path: Path) -> dict[str, str]:
    return {name: a_token(tmp_path, name, name[0]) for name in FILES.values()}


@contextmanager
def on_tcp(live: ControllerLive, **settings: Any) -> Iterator[int]:
    port = free_port()
    with serving(live, tcp=f"127.0.0.1:{port}", **settings):
        yield port


def status(port: int, method: str, route: str, given: str | None, body: str | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"} | ({"Authorization": given} if given else {})
    connection.request(method, route, body, headers)
    code = connection.getresponse().status
    connection.close()
    return code


def test_every_route_has_its_role(live: ControllerLive) -> None:
    routes = {(m, r.path) for r in make_app(live).app.routes for m in r.methods - {"HEAD"}}  # type: ignore[attr-defined]
    assert routes == NEEDED.keys() | OPEN


def test_the_guide_says_who_may_do_what() -> None:
    """The table in docs/service.md: each route in its own row, each role in its own column."""
    rows = re.findall(
        r"^\| `(GET|PUT|POST) (/\S*)` " + r"\|([^|]*)" * 5,
        (ROOT / "docs" / "service.md").read_text(),
        re.MULTILINE,
    )
    told = {(method, path.split("?")[0]): [cell.strip() for cell in cells] for method, path, *cells in rows}
    assert told.keys() == NEEDED.keys() | OPEN
    for route, cells in told.items():
        allowed = ["yes" if cell != "no" else "no" for cell in cells]
        needed = NEEDED.get(route)
        expected = [
            "yes" if needed is None or (role is not None and role >= needed) else "no" for role in (None, *Role)
        ]
        assert allowed == expected, route


@pytest.mark.parametrize("role", [None, *FILES])
def test_a_token_opens_what_its_role_may_do_and_no_more(
    live: ControllerLive, token_files: dict[str, str], role: Role | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "reload", lambda: {"changed": {}})
    given = None if role is None else f"Bearer {FILES[role][0] * 40}"
    with on_tcp(live, **token_files) as port:
        for method, route in [*NEEDED, *OPEN]:
            needed = NEEDED.get((method, route))
            if role is not None and (method, route) == ("POST", "/v1/rank"):
                continue  # a process comes up for it: that is another test's matter
            code = status(port, method, route.format(job_id=1, file="main.js"), given, BODIES.get((method, route)))
            if needed is None or (role is not None and role >= needed):
                assert code in ENOUGH, (method, route)
            else:
                assert code == (401 if role is None else 403), (method, route)


def test_what_was_changed_names_the_token(live: ControllerLive, token_files: dict[str, str]) -> None:
    with on_tcp(live, **token_files) as port:
        assert status(port, "PUT", "/v1/mode", "Bearer " + "o" * 40, '{"mode": "off"}') == 200
    assert live.controller.journal.last_command()[1:] == ("off", "operator token")  # type: ignore[index]


def test_two_roles_may_not_share_a_token(tmp_path: Path) -> None:
    same = {name: a_token(tmp_path, name, "x") for name in FILES.values()}
    with pytest.raises(InputError, match="holds the token of another role"):
        read_tokens(Config(tcp="127.0.0.1:1", **same))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('tcp = "0.0.0.0:8443"\ntoken_file = "/t"', "no loopback address"),
        ('tcp = "ctl.example.org:8443"\nmunge = true', "no loopback address"),
        ('tcp = "[2001:db8::1]:8443"\ntoken_file = "/t"', "no loopback address"),
        ('tcp = "127.0.0.1:8443"', "never open to everybody"),
        ('url = "ctl:8443"', "https://HOST:PORT"),
        ('url = "https://ctl:8443/x"', "https://HOST:PORT"),
        ("munge = 1", "true or false"),
    ],
)
def test_what_would_be_unsafe_is_refused(tmp_path: Path, settings: str, problem: str) -> None:
    (tmp_path / "c.toml").write_text(settings + "\n")
    with pytest.raises(InputError, match=problem):
        load(tmp_path / "c.toml", {})


@pytest.mark.parametrize(
    "settings",
    [
        'tcp = "127.0.0.2:8443"\nread_token_file = "/t"',
        'tcp = "[::1]:8443"\nmunge = true',
        'tcp = "localhost:8443"\noperator_token_file = "/t"',
        'tcp = "0.0.0.0:8443"\ntoken_file = "/t"\ntls_cert = "/c"',
        'tcp = "0.0.0.0:8443"\ntoken_file = "/t"\ntcp_plain = true',
    ],
)
def test_what_is_safe_or_forced_is_taken(tmp_path: Path, settings: str) -> None:
    (tmp_path / "c.toml").write_text(settings + "\n")
    assert load(tmp_path / "c.toml", {}).config.tcp


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost, and its key."""
    where = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()
    subprocess.run([*command, *subject, "-keyout", "key", "-out", "cert"], cwd=where, check=True, capture_output=True)
    return str(where / "cert"), str(where / "key")


def test_tls_guards_tcp_and_leaves_the_unix_sockets_as_they_are(
    live: ControllerLive, token_files: dict[str, str], certificate: tuple[str, str]
) -> None:
    port, (cert, key) = free_port(), certificate
    bearer = {"Authorization": "Bearer " + "t" * 40}
    with serving(live, tcp=f"127.0.0.1:{port}", tls_cert=cert, tls_key=key, **token_files) as path:
        url = f"https://localhost:{port}"
        assert ask_from_afar(url, "GET", "/v1/mode", bearer, ca=cert) == (200, {"mode": "enforce"})
        assert ask_from_afar(url, "GET", "/v1/mode", {}, ca=cert)[0] == 401
        assert ask(path, "GET", "/v1/mode")[0] == 200
        with pytest.raises(EnvironmentMissing, match="CERTIFICATE_VERIFY_FAILED"):
            ask_from_afar(url, "GET", "/v1/mode", bearer)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as s, suppress(ConnectionResetError):
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"alive" not in s.recv(1000), "plain HTTP gets nothing"
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", port), timeout=30) as s, old.wrap_socket(s) as wrapped:
            assert wrapped.version() == "TLSv1.2"
        assert ask_from_afar(url, "GET", "/healthz", {}, ca=cert)[0] == 200


def test_a_certificate_that_cannot_be_used_is_named(live: ControllerLive, token_files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="tls_cert"):
        server(Config(tcp="127.0.0.1:1", tls_cert="/no/such/cert", **token_files), live)


@pytest.fixture(scope="module")
def munged() -> Iterator[str]:
    """A munged of our own; its socket."""
    if os.geteuid() != 0 or shutil.which("munged") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("needs munge and root")
        pytest.skip("needs munge and root")
    with tempfile.TemporaryDirectory(prefix="srl-") as name:
        d = Path(name)
        d.chmod(0o755)
        (d / "key").write_bytes(os.urandom(128))
        (d / "key").chmod(0o600)
        files = [f"--{kind}-file={d}/{kind}" for kind in ("key", "pid", "log", "seed")]
        daemon = subprocess.Popen(
            ["munged", "--foreground", "--force", f"--socket={d}/s", *files],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not (d / "s").is_socket():
            assert daemon.poll() is None, (d / "log").read_text()
            time.sleep(0.02)
        yield f"{d}/s"
        daemon.terminate()
        daemon.wait()


def by_munge(given: str) -> dict[str, str]:
    return {"Authorization": munge.SCHEME + given}


def test_a_munge_credential_shows_ones_own_jobs_and_nothing_else(
    live: ControllerLive, slurm: FakeSlurm, munged: str
) -> None:
    slurm.jobs[77] = a_job(77, user="nobody")
    live.controller.tick()
    with on_tcp(live, munge=True, munge_socket=munged) as port:

        def asked(route: str, method: str = "GET", made_for: str = "") -> tuple[int, Any]:
            url = f"http://127.0.0.1:{port}"
            return ask_from_afar(url, method, route, by_munge(munge.credential(method, made_for or route, munged)))

        assert asked("/v1/jobs/1/explain")[0] == 200, "root's own job"
        assert asked("/v1/jobs/77/explain")[0] == 403, "another user's, though root asks"
        assert asked("/v1/mode", "PUT")[0] == 403
        assert asked("/v1/reload", "POST")[0] == 403
        status, said = asked("/v1/jobs/1/explain", made_for="/v1/jobs/2/explain")
        assert (status, said["detail"]) == (401, "the credential was made for another request")

        once = by_munge(munge.credential("GET", "/v1/jobs/1/explain", munged))
        url = f"http://127.0.0.1:{port}"
        assert ask_from_afar(url, "GET", "/v1/jobs/1/explain", once)[0] == 200
        status, said = ask_from_afar(url, "GET", "/v1/jobs/1/explain", once)
        assert status == 401
        assert "Replayed" in said["detail"]
        for wrong in ("", "MUNGE:AwQDAAB:", "x", "MUNGE:" + "A" * 5000 + ":", "MUNGE:--help:"):
            assert ask_from_afar(url, "GET", "/v1/jobs/1/explain", by_munge(wrong))[0] == 401
    with on_tcp(live, munge=True, munge_socket="/no/such/munged") as port:
        other = by_munge(munge.credential("GET", "/v1/mode", munged))
        assert ask_from_afar(f"http://127.0.0.1:{port}", "GET", "/v1/mode", other)[0] == 401


def test_explain_on_a_login_node(live: ControllerLive, slurm: FakeSlurm, munged: str, tmp_path: Path) -> None:
    """The command itself, as the user `nobody`, who has no unix socket to ask."""
    slurm.jobs |= {77: a_job(77, user="nobody"), 78: a_job(78, user="root")}
    live.controller.tick()
    with on_tcp(live, munge=True, munge_socket=munged) as port, tempfile.TemporaryDirectory(prefix="srl-") as name:
        Path(name).chmod(0o755)
        config = Path(name) / "c.toml"
        config.write_text(f'url = "http://127.0.0.1:{port}"\nmunge_socket = "{munged}"\nsocket = "/no/such/socket"\n')

        def explain(job: str) -> tuple[int, Any]:
            out = io.StringIO()
            with redirect_stdout(out), pytest.raises(SystemExit) as ended:
                main(["explain", job, "--config", str(config), "--json"])
            return int(ended.value.code or 0), json.loads(out.getvalue())

        assert explain("78")[1]["job"]["user"] == "root"  # by root, and everything is imported then
        code, mine = by_nobody(lambda: explain("77"))
        assert (code, mine["job"]["user"]) == (0, "nobody")
        code, theirs = by_nobody(lambda: explain("78"))
        assert code != 0
        assert theirs["error"]["message"] == "job 78 is not yours"
        code, wrong = by_nobody(lambda: explain("7_8_9"))
        assert code != 0
        assert "is not a job id" in wrong["error"]["message"]


@needs_root
def test_the_reserved_socket_is_closed_to_strangers(live: ControllerLive) -> None:
    with serving(live) as path:
        own = reserved_path(path)
        deadline = time.monotonic() + 30
        while b"\x02\x00\x06\x00" not in os.getxattr(own, "system.posix_acl_access"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(AssertionError, match="PermissionError"):
            by_nobody(lambda: socket.socket(socket.AF_UNIX).connect(str(own)))
        assert as_nobody(path, "GET", "/healthz")[0] == 200
        assert ask(path, "GET", "/healthz")[0] == 200
    assert not own.exists()


@needs_root
def test_slurm_user_may_use_the_reserved_socket_once_a_tick_has_told_who_it_is(
    live: ControllerLive, slurm: FakeSlurm
) -> None:
    slurm.config["SlurmUser"] = "nobody(65534)"
    live.controller.tick()
    with serving(live) as path:
        own, deadline = reserved_path(path), time.monotonic() + 30
        while not by_nobody(lambda: os.access(own, os.W_OK)):
            assert time.monotonic() < deadline
        assert by_nobody(lambda: socket.socket(socket.AF_UNIX).connect(str(own))) is None
        assert as_nobody(path, "POST", "/v1/submit", {"user_id": 0})[0] == 200
