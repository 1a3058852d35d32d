"""A headless Chromium on a pair of pipes: opens pages, evaluates, and takes pictures."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_rl.errors import EnvironmentMissing, SlurmRlError

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE = 60.0  # seconds for one answer: a loaded machine starts a browser slowly


def find_chromium() -> str | None:
    """The program, if this machine has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of a browser, driven by messages of the DevTools protocol that end in a zero byte."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._write, self._read = to_browser, from_browser
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []  # what the browser told without being asked
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        unsent = json.dumps(message).encode() + b"\0"
        while unsent:
            unsent = unsent[os.write(self._write, unsent) :]
        while (answer := self._next()).get("id") != self._last:
            self.events.append(answer)
        if "error" in answer:
            raise SlurmRlError(f"Chromium: {method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            part = os.read(self._read, 1 << 16) if ready else b""
            if not part:
                raise SlurmRlError("Chromium ended, or did not answer for a minute")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 900, scale: float = 1, dark: bool = False
    ) -> None:
        """Opens a file or an address in a window of this size, and waits until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise SlurmRlError(f"Chromium: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def picture(self, *, whole: bool = True) -> bytes:
        """A PNG of the page: all of it, or what the window shows."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])


@contextlib.contextmanager
def chromium() -> Iterator[Page]:
    """A page of a browser of its own, which ends with the block and leaves nothing behind."""
    program = find_chromium()
    if program is None:
        raise EnvironmentMissing("needs Chromium: apt install chromium")
    ours_in, theirs_out = _pipe()
    theirs_in, ours_out = _pipe()
    with tempfile.TemporaryDirectory(prefix="slurm-rl-chromium-", ignore_cleanup_errors=True) as home:
        options = [
            "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe",
            f"--user-data-dir={home}",
        ]  # fmt: skip
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium's sandbox refuses to run as root
        pid = os.posix_spawn(
            program,
            [program, *options],
            os.environ | {"HOME": home, "TMPDIR": home},  # it leaves things in both
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(ours_out, ours_in)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends have numbers above those that the browser expects its own at."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high[0], high[1]
