"""A large Slurm as programs: squeue, sprio, scontrol … in a directory, over a `Site` in a process of its own.

`python tests/perf/programs.py DIRECTORY PENDING NODES` makes them beside a slurm.conf, where the real client finds
them, says `ready` and answers until it is ended. At each look of the client, as much time has passed as by the clock.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS.parent / "sim"), str(TESTS)]

_NAMES = ("squeue", "sprio", "scontrol", "sshare", "sdiag", "sacct")
# A program hands its output and its input to the site and waits for one byte: text does not go through it. Where the
# service is measured at a real-time priority, because the machine is busy, its programs are not.
_PROGRAM = """#!/usr/bin/env -S chrt --other 0 {python} -ISE
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({address!r})
socket.send_fds(s, ["\\n".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]).encode()], [0, 1])
sys.exit(s.recv(1) != b"0")
"""
_UPDATE = re.compile(r"update JobId=(\d+)\S* SiteFactor=(-?\d+)")


def make_programs(directory: Path) -> str:
    """Writes the programs; where they ask."""
    address = str(directory / "site")
    (directory / "bin").mkdir()
    (directory / "slurm.conf").touch()
    for name in _NAMES:
        program = directory / "bin" / name
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
    return address


class _Answers:
    """Answers programs, several at a time."""

    def __init__(self, pending: int, nodes: int) -> None:
        from perf.recorded import Site

        self.site = Site(pending, nodes)
        self.since = time.monotonic()
        self.lock = threading.Lock()

    def update(self, script: str) -> str:
        for job_id, factor in ((int(i), int(f)) for i, f in _UPDATE.findall(script)):
            if job_id in self.site.site:
                self.site.site[job_id] = factor
                self.site._priority(job_id)
        return script

    def answer(self, connection: socket.socket) -> None:
        from perf.recorded import said

        with connection, suppress(BrokenPipeError):  # a ping that has waited for its second is ended by the client
            message, fds, _, _ = socket.recv_fds(connection, 65_536, 2)
            if not fds:
                return
            command = message.decode().split("\n")
            with os.fdopen(fds[0], "rb") as given, os.fdopen(fds[1], "wb") as out:
                script = given.read().decode() if command == ["scontrol"] else ""
                with self.lock:
                    if command[1:] == ["show", "config"] and (seconds := int(time.monotonic() - self.since)) > 0:
                        self.since += seconds
                        self.site.pass_time(seconds)
                    text = self.update(script) if script else said(self.site, command)
                out.write(text.encode())
            connection.send(b"0")


def run(directory: Path, pending: int, nodes: int) -> None:
    """Answers until it is ended."""
    answers = _Answers(pending, nodes)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(make_programs(directory))
        door.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = door.accept()
            threading.Thread(target=answers.answer, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
