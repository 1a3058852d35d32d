"""Serves the agent over HTTP: metrics for Prometheus, job records for the service."""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slurm_rl.errors import InputError
from slurm_rl.telemetry.agent import Agent
from slurm_rl.telemetry.page import CONTENT_TYPE, page

PORT = 9410
_CONNECTIONS = 16
_SECONDS = 5.0  # for a peer to send its request and to take the answer
_MOST_RECORDS = 500

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see what: `token` opens everything, without it there is nothing about jobs."""

    token: str | None = None
    networks: tuple[Network, ...] = ()  # () lets every peer try

    def allows(self, address: str) -> bool:
        peer = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        return not self.networks or any(peer in n for n in self.networks)

    def knows(self, header: str) -> bool:
        return self.token is not None and hmac.compare_digest(header.encode(), f"Bearer {self.token}".encode())


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """`10.0.0.0/8`, or a single address."""
    try:
        return tuple(ipaddress.ip_network(t) for t in texts)
    except ValueError as error:
        raise InputError(str(error), field="--allow", remedy="write 10.1.0.0/16 or one address") from None


class Endpoint(ThreadingHTTPServer):
    """A small HTTP server; more than a few connections at a time are turned away."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, agent: Agent, address: str, access: Access, certificate: Path | None, key: Path | None) -> None:
        host, port = split(address)
        if access.token is None and not _loopback(host):
            raise InputError(
                f"{address} is not loopback", field="--listen", remedy="give --token-file: others may ask there"
            )
        self.agent, self.access = agent, access
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._tls = _tls(certificate, key)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(f"cannot listen on {address}: {error.strerror or error}", field="--listen") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.access.allows(client_address[0]) or not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_SECONDS)
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:
            self.shutdown_request(request)  # a peer that does not speak TLS, or is too slow
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    server_version = "slurm-rl"
    sys_version = ""
    timeout = _SECONDS

    def do_GET(self) -> None:
        agent, access = self.server.agent, self.server.access
        where = urlsplit(self.path)
        trusted = access.knows(self.headers.get("Authorization", ""))
        if where.path == "/healthz":
            self._json({"status": "alive", "samples": agent.ticks, "driver": agent.nvml.problem or "ok"})
        elif access.token is not None and not trusted:
            self._refuse(401, "a bearer token is needed")
        elif where.path == "/metrics":
            self._send(200, page(agent, trusted), CONTENT_TYPE)
        elif where.path not in ("/v1/jobs", "/v1/records"):
            self._refuse(404, "there are /healthz, /metrics, /v1/jobs and /v1/records")
        elif not trusted:
            self._refuse(403, "job data is given with a token only: start the agent with --token-file")
        elif where.path == "/v1/jobs":
            self._json({"node": agent.node, "jobs": agent.running(), "watts": agent.watts()})
        else:
            self._records(parse_qs(where.query))

    def _records(self, query: dict[str, list[str]]) -> None:
        agent = self.server.agent
        after, limit = (query.get(n, [d])[0] for n, d in (("after", "0"), ("limit", "100")))
        if not (after.isdecimal() and limit.isdecimal() and len(after) < 20 and 0 < int(limit[:9]) <= _MOST_RECORDS):
            self._refuse(422, f"after and limit must be whole numbers, limit from 1 to {_MOST_RECORDS}")
            return
        rows = [record | {"number": number} for number, record in agent.ended(int(after), int(limit))]
        self._json({"node": agent.node, "ring": agent.records.identity, "records": rows})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value), "application/json")

    def _refuse(self, status: int, why: str) -> None:
        self._send(status, json.dumps({"detail": why}), "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: there is one every few seconds."""


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"must be HOST:PORT, got {address!r}", field="--listen")
    return host.strip("[]"), int(port)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--tls-cert and --tls-key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"cannot be used: {error}", file=str(certificate), field="--tls-cert") from None
    return context
