"""Gathers job records from the node agents: over the network with their token, or from a shared directory."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from slurm_rl.errors import InputError
from slurm_rl.slurm.quantities import expand_hosts
from slurm_rl.telemetry.share import read_lines
from slurm_rl.telemetry.store import Store

log = structlog.get_logger()

_PAGE = 200
_MOST_BYTES = 32 << 20
_SECONDS = 5.0
_AT_ONCE = 16


def agent_urls(text: str) -> tuple[str, ...]:
    """`gpu[01-40]:9410` or `https://gpu[01-40]:9410`, comma-separated."""
    urls = []
    for host in expand_hosts(text) if text.strip() else ():
        url = host.strip() if "://" in host else f"http://{host.strip()}"
        rest = url.partition("://")[2]
        if not url.startswith(("http://", "https://")) or not rest.rpartition(":")[2].isdecimal() or "/" in rest:
            raise InputError(f"must be HOST:PORT or https://HOST:PORT, got {host!r}", field="telemetry_agents")
        urls.append(url)
    return tuple(urls)


class Collector:
    """Asks every agent, and reads the shared directory; one that does not answer is asked again next time."""

    def __init__(
        self,
        store: Store,
        agents: Sequence[str] = (),
        token: str = "",
        directory: Path | None = None,
        ca_file: Path | None = None,
        keep_days: float = 365.0,
    ) -> None:
        self.store, self._agents, self._token, self._directory = store, agents, token, directory
        self._keep = keep_days * 86_400
        self._tls = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._end, self._counting = threading.Event(), threading.Lock()
        self.problems: dict[str, str] = {}  # where -> what is wrong now
        self.collected = 0

    def collect(self) -> None:
        """One round; never raises."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = zip(self._agents, pool.map(self._pull, self._agents), strict=True)
            problems = {url: problem for url, problem in answers if problem}
        if self._directory is not None and (problem := self._read_directory(self._directory)):
            problems[str(self._directory)] = problem
        self.store.forget(time.time() - self._keep)
        for where in problems.keys() | self.problems.keys():
            if problems.get(where) != self.problems.get(where):
                event = "telemetry is missing" if where in problems else "telemetry is back"
                log.warning(event, where=where, why=problems.get(where, ""))
        self.problems = problems

    def run(self, interval: float) -> None:
        """Collects until `stop`."""
        while True:
            self.collect()
            if self._end.wait(interval):
                return

    def stop(self) -> None:
        self._end.set()

    def _count(self, records: int) -> None:
        with self._counting:
            self.collected += records

    def _pull(self, url: str) -> str:
        try:
            now = self._get(f"{url}/v1/jobs")
            node = str(now["node"])
            ring = str(self._get(f"{url}/v1/records?limit=1")["ring"])
            while True:
                after = self.store.cursor(node, ring)
                page = self._get(f"{url}/v1/records?after={after}&limit={_PAGE}")
                if page["ring"] != ring:
                    break  # the agent was set up anew meanwhile; the next round begins there
                self._count(self.store.add(node, ring, page["records"]))
                if len(page["records"]) < _PAGE:
                    break
            self.store.now(node, now["jobs"], now["watts"])
        except (OSError, http.client.HTTPException) as error:
            return str(error) or repr(error)
        except (ValueError, KeyError, TypeError) as error:
            return f"answers nonsense: {error!r}"
        return ""

    def _get(self, url: str) -> Any:
        """One answer; no proxy is asked and no redirection followed, so the token goes to the agent alone."""
        at = urlsplit(url)
        host, port = at.hostname or "", at.port or 0
        if at.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_SECONDS, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
        try:
            connection.request("GET", f"{at.path}?{at.query}", headers={"Authorization": f"Bearer {self._token}"})
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES)
        finally:
            connection.close()
        if answer.status != 200:
            hint = ": is it the right token?" if answer.status in (401, 403) else ""
            raise OSError(f"answers {answer.status}{hint}")
        return json.loads(body)

    def _read_directory(self, directory: Path) -> str:
        try:
            for path in sorted([*directory.glob("*.jsonl.1"), *directory.glob("*.jsonl")]):
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_size)
                if self._stamps.get(path) != stamp:
                    self._read_file(path)
                    self._stamps[path] = stamp
            for path in directory.glob("*.now.json"):
                now = json.loads(path.read_text(encoding="utf-8"))
                if now["node"] == path.name.removesuffix(".now.json"):
                    self.store.now(now["node"], now["jobs"], now["watts"])
        except OSError as error:
            return str(error)
        except (ValueError, KeyError, TypeError) as error:
            return f"holds nonsense: {error!r}"
        return ""

    def _read_file(self, path: Path) -> None:
        node = path.name.partition(".jsonl")[0]
        records = read_lines(path)
        for ring in dict.fromkeys(str(r["ring"]) for r in records):
            after = self.store.cursor(node, ring)
            fresh = [r for r in records if r["ring"] == ring and int(r["number"]) > after]
            self._count(self.store.add(node, ring, fresh))
