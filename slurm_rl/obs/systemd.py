"""Tells systemd that we are ready, and that we are alive."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable


def notify(message: str) -> None:
    """Sends a message to systemd, if it started us."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)


class Watchdog:
    """Reports life as often as systemd asks, as long as `alive` says so; without systemd it does nothing."""

    def __init__(self, alive: Callable[[], bool]) -> None:
        self._alive = alive
        self._end = threading.Event()
        self._seconds = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6

    def start(self) -> None:
        if self._seconds > 0:
            threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self._seconds):
            if self._alive():
                notify("WATCHDOG=1")
