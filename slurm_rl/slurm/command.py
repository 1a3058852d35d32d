"""Runs Slurm's commands: no shell, bounded time, a clean environment, and one clear error when they fail."""

from __future__ import annotations

import codecs
import os
import re
import secrets
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing, SlurmError

UNIT = "\x1f"  # separates fields, where no value holds it
_PORTION = 1 << 17  # characters that are read and taken apart at once: a submission waits no longer than for these
Answer = tuple[str, ...]  # what a command printed, in portions: of 100,000 jobs it is 40 MB
PATIENCE = 1.0  # seconds of silence after which we look whether slurmctld is there at all

# What Slurm's commands say -> what it means for the one who runs us. The first match wins.
_MEANINGS = (
    ("Invalid authentication credential", "munge did not authenticate us: is munged running, with the cluster's key?"),
    ("Munge encode failed", "munge did not authenticate us: is munged running, with the cluster's key?"),
    ("Unable to process configuration file", "Slurm cannot read its configuration: check SLURM_CONF"),
    ("Could not establish a configuration source", "Slurm finds no configuration: set SLURM_CONF"),
    ("Unable to contact slurm controller", "slurmctld does not answer: is it running?"),
    ("Unable to contact slurm database", "slurmdbd does not answer: is it running?"),
    ("Connection refused", "slurmctld or slurmdbd does not answer: is it running?"),
    (
        "Slurm accounting storage is disabled",
        "this cluster has no accounting: it needs AccountingStorageType=accounting_storage/slurmdbd",
    ),
    ("no answer within", "slurmctld or munged hangs"),
    ("Access/permission denied", "this user may not do that"),
)
_MUNGE_SOCKET = re.compile(r"^\s*AuthInfo\s*=\s*(?:\S*,)?socket=([^,\s]+)", re.IGNORECASE | re.MULTILINE)


class Load:
    """How often Slurm was asked, and how much it said; any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls = 0
        self.characters = 0

    def add(self, characters: int) -> None:
        with self._lock:
            self.calls += 1
            self.characters += characters

    def taken(self) -> tuple[int, int]:
        """(calls, characters) since the last time this was asked."""
        with self._lock:
            found = self.calls, self.characters
            self.calls = self.characters = 0
        return found


class Commands:
    """Slurm's commands, pointed at one cluster."""

    def __init__(self, conf: Path | None = None, timeout: float = 10.0, user: str | None = None) -> None:
        """`conf` overrides SLURM_CONF; `user` runs the commands under another account (needs root)."""
        self.conf, self.timeout, self.user = conf, timeout, user
        self.load = Load()

    def env(self) -> dict[str, str]:
        """Nothing that would change what the commands print, times as Unix seconds, task lists in full."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SQUEUE_", "SINFO_", "SACCT_", "SPRIO_"))
        }
        conf = str(self.conf) if self.conf is not None else os.environ.get("SLURM_CONF")
        if conf is not None:
            kept["SLURM_CONF"] = conf
            # A lab of another release than the installed one has its commands beside its slurm.conf.
            beside = Path(conf).absolute().parent / "bin"
            if (beside / "scontrol").is_file():
                kept["PATH"] = os.pathsep.join((str(beside), kept.get("PATH", os.defpath)))
        # COLUMNS: scontrol's line editor breaks the echo of a command at the screen's width.
        fixed = {"LC_ALL": "C", "TERM": "dumb", "COLUMNS": "30000"}
        return kept | fixed | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}

    def check_conf(self) -> None:
        """Says early that a given configuration is not there: Slurm's own commands would ask the DNS and wait."""
        conf = self.env().get("SLURM_CONF")
        if conf is not None and not os.access(conf, os.R_OK):
            raise SlurmError(f"SLURM_CONF={conf} cannot be read: name the slurm.conf of the cluster")

    def run(self, *command: str, timeout: float | None = None) -> str:
        """The command's output; raises SlurmError if it fails or does not end in time."""
        return "".join(self.answer(*command, timeout=timeout))

    def answer(self, *command: str, timeout: float | None = None) -> Answer:
        """The command's output, as it came; raises as `run`."""
        self.check_conf()
        limit = self.timeout if timeout is None else timeout
        try:
            process = subprocess.Popen(
                command,
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                user=self.user,
            )
        except FileNotFoundError:
            raise not_installed(command[0]) from None
        with process:
            try:
                stdout, stderr = self._read(process, command, limit)
            finally:
                process.kill()
        self.load.add(sum(map(len, stdout)))
        if process.returncode != 0:
            raise failed(command[0], "".join(stderr or stdout))
        return stdout

    def _read(self, process: subprocess.Popen[bytes], command: Sequence[str], limit: float) -> tuple[Answer, Answer]:
        """What it prints until it ends; text by text, where `communicate` would put 40 MB together at once."""
        deadline = time.monotonic() + limit
        out, err = process.stdout, process.stderr
        if out is None or err is None:
            raise ValueError(f"{command[0]} must be started with pipes")
        heard = {out.fileno(): _Heard(), err.fileno(): _Heard()}
        with selectors.DefaultSelector() as ready:
            for pipe in heard:
                ready.register(pipe, selectors.EVENT_READ)
            while ready.get_map():
                left = deadline - time.monotonic()
                told = ready.select(max(min(left, PATIENCE), 0.0))
                for key, _ in told:
                    if not heard[key.fd].more(os.read(key.fd, _PORTION)):
                        ready.unregister(key.fd)
                if not told or left <= 0:
                    self._still_waiting(command, left, limit, heard[err.fileno()])
        while process.poll() is None:
            left = deadline - time.monotonic()
            try:
                process.wait(max(min(left, PATIENCE), 0.0))
            except subprocess.TimeoutExpired:
                self._still_waiting(command, left, limit, heard[err.fileno()])
        return heard[out.fileno()].said(), heard[err.fileno()].said()

    def _still_waiting(self, command: Sequence[str], left: float, limit: float, err: _Heard) -> None:
        """Raises SlurmError if it is no use to wait any longer."""
        if left <= PATIENCE:
            raise failed(command[0], f"{''.join(err.said())}\nno answer within {limit:g} s")
        # Slurm's commands try again and again when slurmctld or munged is gone; do not wait for that.
        if command[0] not in ("sacct", "sacctmgr") and (why := self.silent_because()):
            raise SlurmError(f"{command[0]}: {why}")

    def silent_because(self) -> str:
        """Why nobody answers, if it can be told: munged is gone, or slurmctld is down; "" if both may just be slow."""
        return self._munge_gone() or self._controller_down()

    def _munge_gone(self) -> str:
        try:
            conf = Path(self.env().get("SLURM_CONF", "/etc/slurm/slurm.conf")).read_text(errors="replace")
        except OSError:
            return ""  # a configless site: nothing to look at
        named = _MUNGE_SOCKET.search(conf)
        if named is None:
            return ""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PATIENCE)
            try:
                probe.connect(named[1])
            except OSError as error:
                return f"munged does not answer on {named[1]} ({error.strerror or error}): is it running?"
        return ""

    def _controller_down(self) -> str:
        try:
            done = subprocess.run(
                ["scontrol", "ping"],
                env=self.env(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
                user=self.user,
            )
        except (subprocess.TimeoutExpired, FileNotFoundError):
            return ""
        return "" if " UP" in done.stdout or " DOWN" not in done.stdout else done.stdout.strip().splitlines()[0]

    def run_all(self, commands: Sequence[Sequence[str]]) -> list[Answer]:
        """Runs commands side by side, so that their answers are of nearly one moment."""
        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(lambda command: self.answer(*command), commands))


class _Heard:
    """The text of a pipe."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._texts: list[str] = []

    def more(self, read: bytes) -> bool:
        """Adds what was read; False: that was the end."""
        if text := self._decode(read, not read):
            self._texts.append(text)
        return bool(read)

    def said(self) -> Answer:
        return tuple(self._texts)


def not_installed(program: str) -> EnvironmentMissing:
    return EnvironmentMissing(f"{program} is not installed: on Debian, apt-get install slurm-client")


def failed(program: str, said: str) -> SlurmError:
    """An error that says what Slurm said and, where we know it, what that means."""
    lines = [line.strip().removeprefix(f"{program}: ").removeprefix("error: ") for line in said.splitlines()]
    text = "; ".join(dict.fromkeys(line for line in lines if line))[:400] or "failed without a word"
    meaning = next((meaning for sign, meaning in _MEANINGS if sign in said), None)
    return SlurmError(f"{program}: {text}" + (f" ({meaning})" if meaning else ""))


def separator() -> str:
    """A field separator nobody can put into a job's name: it is drawn anew for each command."""
    return f"{UNIT}{secrets.token_hex(4)}x"


def records(output: str, fields: Sequence[str], mark: str) -> Iterator[dict[str, str]]:
    """Splits output in which `mark` ends every field; values may hold spaces and line breaks."""
    values = output.split(mark)
    width = len(fields)
    if len(values) % width != 1:
        raise SlurmError(f"Slurm's answer is cut short or has other fields than asked for ({', '.join(fields[:3])}, …)")
    for i in range(0, len(values) - 1, width):
        record = dict(zip(fields, values[i : i + width], strict=True))
        record[fields[0]] = record[fields[0]].strip()  # the line break that ended the record before
        yield record


class NotPlain(SlurmError):
    """Some value holds the separator of fields, or the answer is cut short: `records` can tell."""


def split_records(output: str | Answer, fields: Sequence[str], mark: str, *, plain: bool = False) -> list[str]:
    """What `each_record` yields."""
    return list(each_record(output, fields, mark, plain=plain))


def each_record(output: str | Answer, fields: Sequence[str], mark: str, *, plain: bool = False) -> Iterator[str]:
    """`records` as texts, their fields separated by "\0", which nothing that Slurm prints can hold.

    Two looks at a record that has not changed give equal texts, whatever their marks. `plain`: `mark` ends records
    alone, and UNIT the other fields, which takes a third less text; raises NotPlain where a value holds UNIT.
    """
    end, unread = f"{mark}\n", ""
    over = f"\0{mark.removeprefix(UNIT)}\n" if plain else "\0\n"
    portions = _portions(output)
    for read in portions:  # a submission must not wait for one long step of the interpreter
        unread += read
        cut = unread.rfind(end) + len(end)
        if cut < len(end):
            continue
        text = unread[:cut].replace("\0", "\ufffd").replace(UNIT if plain else mark, "\0")
        pieces = text.split(over)
        pieces.pop()
        # Only a value can add a separator or an end, and nothing takes one away: the sum tells of each record.
        if text.count("\0") != len(pieces) * len(fields):
            break
        unread = unread[cut:]
        yield from pieces
    if not unread:
        return
    if plain:
        raise NotPlain(f"Slurm's answer is cut short or has other fields than asked for ({fields[0]}, …)")
    # Some value begins with a line break, or the answer is cut short: count fields from here on.
    rest = (unread + "".join(portions)).replace("\0", "\ufffd").replace(mark, "\0")
    for record in records(rest, fields, "\0"):
        yield "\0".join(record.values())


def _portions(output: str | Answer) -> Iterator[str]:
    for text in (output,) if isinstance(output, str) else output:
        for at in range(0, len(text), _PORTION):
            yield text[at : at + _PORTION]


def key_values(line: str) -> Mapping[str, str]:
    """scontrol's one-line records, `Key=value Key=value …`; of a value that holds spaces, its first word."""
    # The first of equal keys wins: texts that people write (Reason, Comment) come last.
    return dict(word.split("=", 1) for word in reversed(line.split()) if "=" in word)
