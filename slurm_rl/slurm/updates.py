"""Writes a batch of job updates through one scontrol process and finds the outcome of each."""

from __future__ import annotations

import os
import re
import select
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence

from slurm_rl.errors import InputError, SlurmError
from slurm_rl.slurm.command import PATIENCE, Commands, failed, not_installed
from slurm_rl.slurm.model import JobUpdate, UpdateResult, UpdateStatus
from slurm_rl.slurm.quantities import ranges, task_numbers
from slurm_rl.slurm.release import NEWEST, TABLE, Traits

# scontrol reads its commands through readline, which would act on tabs and control characters.
_EXPRESSION = re.compile(r"[\w.&|*()\[\]:,!+-]*", re.ASCII)
_SITE_LIMIT = 2**31 - 2**20  # Slurm stores the factor as an offset in 32 bits
_TASK_LIST = re.compile(r"\d+(-\d+(:[1-9]\d*)?)?(,\d+(-\d+(:[1-9]\d*)?)?)*", re.ASCII)
_ECHO = re.compile(r"^(?:scontrol: )?update JobId=(\d+)(?:_\S+)? ")
_TASKS = re.compile(r"^(\d+)_\[?(\S+?)\]?: (.*)$")
_LINE_LIMIT = 4000  # a scontrol built without readline cuts lines at 4,095 characters
_WORD_LIMIT = 120_000  # Linux takes 128 KiB in one argument
_FOR_JOB = re.compile(r"\bfor job (\d+)(?:_\S+)?$")
_SILENT = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "authentication")
_UNCLEAR = ("Unexpected message received", "Zero Bytes", "ommunication", "transmit")  # the answer itself was lost
_FORBIDDEN = ("Invalid user id", "Access/permission denied", "Invalid user")
_PROMPT = "scontrol: "


def command_line(update: JobUpdate) -> str:
    """The scontrol command for one update; raises InputError for a value that must not reach scontrol."""
    if update.array_tasks and _TASK_LIST.fullmatch(update.array_tasks) is None:
        raise InputError(f"job {update.job_id}: {update.array_tasks[:80]!r} is not a list of array tasks")
    tasks = f"_[{ranges(task_numbers(update.array_tasks)[0])}]" if update.array_tasks else ""  # it takes no steps
    if len(tasks) > _WORD_LIMIT:
        raise InputError(f"job {update.job_id}: the list of its array tasks is too long for one command")
    words = [f"update JobId={update.job_id}{tasks}"]
    if update.site_factor is not None:
        if abs(update.site_factor) > _SITE_LIMIT:
            raise InputError(f"job {update.job_id}: SiteFactor {update.site_factor} is out of Slurm's range")
        words.append(f"SiteFactor={update.site_factor}")
    for key, value in (("Features", update.features), ("Prefer", update.prefer)):
        if value is not None:
            if _EXPRESSION.fullmatch(value) is None:
                raise InputError(f"job {update.job_id}: {value!r} is not a feature expression", field=key)
            words.append(f"{key}={value}")
    if update.start_at is not None:
        if not 0 <= update.start_at < 2**31:
            raise InputError(f"job {update.job_id}: {update.start_at} is not a Unix time", field="StartTime")
        words.append(f"StartTime=uts{update.start_at}" if update.start_at else "StartTime=now")
    if len(words) == 1:
        raise InputError(f"job {update.job_id}: the update changes nothing")
    return " ".join(words)


def checked(updates: Sequence[JobUpdate]) -> tuple[dict[int, str], dict[int, UpdateResult]]:
    """The command lines of a batch, and a refusal for each update that must not be sent; both by job id."""
    lines: dict[int, str] = {}
    refused: dict[int, UpdateResult] = {}
    for update in updates:
        if update.job_id in lines or update.job_id in refused:
            raise InputError(f"two updates for job {update.job_id} in one batch: merge them")
        try:
            lines[update.job_id] = command_line(update)
        except InputError as error:
            refused[update.job_id] = UpdateResult(update.job_id, UpdateStatus.REFUSED, str(error))
    return lines, refused


def check_rights(results: Sequence[UpdateResult]) -> None:
    """Raises SlurmError when Slurm refused every update because of who we are."""
    refused = [r.message for r in results if r.status is UpdateStatus.REFUSED]
    if refused and len(refused) == len(results) and all(any(sign in m for sign in _FORBIDDEN) for m in refused):
        raise SlurmError(
            f"Slurm refused all {len(results)} updates ({refused[0]}): this user may not change others' jobs; "
            "run as SlurmUser or root, or: sacctmgr modify user NAME set AdminLevel=Operator"
        )


def apply(
    commands: Commands, updates: Sequence[JobUpdate], timeout: float, traits: Traits = TABLE[NEWEST]
) -> list[UpdateResult]:
    """Runs the batch; stops at the first sign that slurmctld is silent, or when the time is over.

    An update that cannot be sent is refused by itself; the others are written.
    """
    lines, refused = checked(updates)
    outcome = _Outcome({u.job_id: u for u in updates if u.job_id in lines}, lines, traits)
    deadline = time.monotonic() + timeout
    commands.check_conf()
    script = "".join(line + "\n" for line in lines.values() if len(line) <= _LINE_LIMIT)
    if script:
        _talk(commands, ["scontrol"], script, outcome, deadline)
    for line in lines.values():
        if len(line) > _LINE_LIMIT and not outcome.silence:
            outcome.hear(_PROMPT + line)
            _talk(commands, ["scontrol", *line.split()], "", outcome, deadline)
    written = outcome.results() if lines else {}
    return [refused.get(u.job_id) or written[u.job_id] for u in updates]


def _talk(commands: Commands, command: list[str], script: str, outcome: _Outcome, deadline: float) -> None:
    """Runs one scontrol, feeds it commands and tells `outcome` what it says."""
    try:
        process = subprocess.Popen(
            command,
            env=commands.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=subprocess.STDOUT,  # one stream: an error then follows the echo of its command
            user=commands.user,
        )
    except FileNotFoundError:
        raise not_installed("scontrol") from None
    with process:
        try:
            _converse(commands, process, script.encode(), outcome, deadline)
        finally:
            process.kill()


def _converse(
    commands: Commands, process: subprocess.Popen[bytes], script: bytes, outcome: _Outcome, deadline: float
) -> None:
    """Feeds scontrol and reads its answers at the same time, so neither pipe can fill up and block."""
    to, heard = process.stdin, process.stdout
    if to is None or heard is None:
        raise ValueError("scontrol must be started with pipes")
    unread = b""
    last_word = time.monotonic()
    with selectors.DefaultSelector() as ready:
        if script:
            ready.register(to, selectors.EVENT_WRITE)
        ready.register(heard, selectors.EVENT_READ)
        while not outcome.silence:
            now = time.monotonic()
            if now >= deadline or now - last_word >= commands.timeout:
                outcome.silence = f"no answer within {now - last_word:.1f} s: slurmctld or munged hangs"
                return
            for key, _ in ready.select(min(deadline - now, PATIENCE)):
                if key.fileobj is to:
                    script = _feed(to.fileno(), script)
                    if not script:
                        ready.unregister(to)
                        to.close()
                    continue
                chunk = os.read(heard.fileno(), 65_536)
                last_word = time.monotonic()
                if not chunk:
                    outcome.finish(unread.decode(errors="replace"), process.wait(PATIENCE))
                    return
                *lines, unread = (unread + chunk).split(b"\n")
                for line in lines:
                    outcome.hear(line.decode(errors="replace"))
            if time.monotonic() - last_word >= PATIENCE:
                outcome.silence = commands.silent_because()


def _feed(pipe: int, script: bytes) -> bytes:
    """Writes what a pipe takes without blocking and returns the rest."""
    try:
        return script[os.write(pipe, script[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return b""  # scontrol ended; its last words say why


class _Outcome:
    """What is known of each job while scontrol talks: it echoes a command, then says what went wrong with it."""

    def __init__(self, updates: Mapping[int, JobUpdate], commands: Mapping[int, str], traits: Traits) -> None:
        self.updates = updates
        self.commands = commands
        self.traits = traits
        self.echoed: set[int] = set()
        self.current: int | None = None
        self.refusals: dict[int, list[str]] = {}
        self.refused_tasks: dict[int, set[int]] = {}
        self.partly: set[int] = set()  # arrays of which some tasks took the update
        self.unclear: dict[int, str] = {}
        self.general: list[str] = []
        self.silence = ""
        self.complete = False

    def hear(self, line: str) -> None:
        echo = _ECHO.match(line)
        if echo is not None:
            self.current = int(echo[1])
            self.echoed.add(self.current)
            return
        message = line.removeprefix(_PROMPT).strip()
        if not message or message in self.commands.get(self.current or 0, ""):  # a piece of an echo that was broken
            return
        if any(sign in message for sign in _SILENT):
            self.silence = message
            return
        tasks = _TASKS.match(message)
        named = tasks or _FOR_JOB.search(message)
        about = int(named[1]) if named and int(named[1]) in self.commands else self.current
        if about is None:
            self.general.append(message)
        elif tasks and tasks[3] == "No error":
            self.partly.add(about)
        elif any(sign in message for sign in _UNCLEAR):
            self.unclear[about] = message
        else:
            self.refusals.setdefault(about, []).append(message)
            if tasks:
                self._tasks_refused(about, tasks[2], message)

    def _tasks_refused(self, job_id: int, listed: str, message: str) -> None:
        """Of an array, tasks that started meanwhile cannot take an update; those still waiting did."""
        if self.traits.lists_written_tasks:
            return
        if "..." in listed:
            self.unclear[job_id] = message
        else:
            self.refused_tasks.setdefault(job_id, set()).update(task_numbers(listed)[0])

    def _partly(self, job_id: int) -> bool:
        """Whether some tasks of an array took an update that others refused."""
        if job_id in self.partly:
            return True
        refused = self.refused_tasks.get(job_id, set())
        return bool(refused) and bool(task_numbers(self.updates[job_id].array_tasks)[0] - refused)

    def finish(self, rest: str, returncode: int) -> None:
        self.hear(rest)
        self.complete = not self.silence
        if not self.echoed and returncode != 0 and not self.refusals:
            raise failed("scontrol", "\n".join(self.general) or self.silence)

    def results(self) -> dict[int, UpdateResult]:
        """One result per job; raises when Slurm refused every one because of who we are, or never answered."""
        results = [self._result(job_id) for job_id in self.commands]
        check_rights(results)
        if self.silence and not any(r.applied or r.status is UpdateStatus.REFUSED for r in results):
            raise SlurmError(f"scontrol: {self.silence}")
        return {r.job_id: r for r in results}

    def _result(self, job_id: int) -> UpdateResult:
        if job_id in self.unclear:
            return UpdateResult(job_id, UpdateStatus.UNKNOWN, self.unclear[job_id])
        if job_id in self.refusals:
            status = UpdateStatus.APPLIED if self._partly(job_id) else UpdateStatus.REFUSED
            return UpdateResult(job_id, status, "; ".join(self.refusals[job_id]))
        if self.complete:
            return UpdateResult(job_id, UpdateStatus.APPLIED)
        if job_id == self.current:
            return UpdateResult(job_id, UpdateStatus.UNKNOWN, self.silence)
        if job_id in self.echoed:  # scontrol went on to the next command, so this one was acknowledged
            return UpdateResult(job_id, UpdateStatus.APPLIED)
        return UpdateResult(job_id, UpdateStatus.NOT_SENT, self.silence)
