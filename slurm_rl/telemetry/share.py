"""Job records on a shared directory, for sites where the service cannot reach the nodes over the network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from slurm_rl.telemetry.agent import Agent

FILE_BYTES = 4 << 20  # then a file is put aside as NODE.jsonl.1, in place of the one before


class RecordFiles:
    """Writes NODE.jsonl (ended jobs) and NODE.now.json (running ones); what cannot be written is tried again."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self._agent, self._directory = agent, directory
        self._lines = directory / f"{agent.node}.jsonl"
        self._done: int | None = None
        self.problem = ""

    def work(self) -> None:
        """Writes what is new; never raises."""
        try:
            self._ended()
            self._running()
            self.problem = ""
        except OSError as error:
            self.problem = f"{self._directory}: {error.strerror or error}"

    def _ended(self) -> None:
        agent, ring = self._agent, self._agent.records.identity
        if self._done is None:
            self._done = _last(self._lines, ring)
        for number, record in agent.ended(self._done, 500):
            line = json.dumps(record | {"number": number, "ring": ring}, separators=(",", ":")) + "\n"
            if self._lines.exists() and self._lines.stat().st_size + len(line) > FILE_BYTES:
                self._lines.replace(self._lines.with_suffix(".jsonl.1"))
            with self._lines.open("a+b") as file:
                if file.tell() and not _ends_whole(file):
                    file.write(b"\n")  # the last line was cut short: this one must not go with it
                file.write(line.encode())
            self._lines.chmod(0o640)  # job data is for the service's group
            self._done = number

    def _running(self) -> None:
        value = {"node": self._agent.node, "jobs": self._agent.running(), "watts": self._agent.watts()}
        path = self._directory / f"{self._agent.node}.now.json"
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.chmod(0o640)
        temporary.replace(path)


def _ends_whole(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _last(path: Path, ring: str) -> int:
    """The number of the last record of this ring that stands in the file, or in the one put aside."""
    for file in (path, path.with_suffix(".jsonl.1")):
        numbers = [int(r["number"]) for r in read_lines(file) if r["ring"] == ring]
        if numbers:
            return max(numbers)
    return 0


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole records of a file; a line that was cut short is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    records = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and {"number", "ring", "job_id", "node"} <= set(value):
            records.append(value)
    return records
