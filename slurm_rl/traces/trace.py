"""A trace: the jobs submitted to a cluster, one row each, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from slurm_rl.domain.keys import KEYS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NATIVE_COLUMNS = (
    "job_id,submit_time,run_time,time_limit,num_gpus,gpu_type,num_nodes,cpus,mem_gb,user,group,vc,status"
).split(",")
OPTIONAL_COLUMNS = ("qos", "priority", "deadline", "name")
# What jobs ask for besides, as sbatch has it: GRES of each node, features, wishes, whole nodes (yes), licences …
ASKED_COLUMNS = ("gres", "constraint", "prefer", "exclusive", "switches", "segment", "licenses", "reservation")
# What tells jobs of one kind besides their name (domain/keys.py), as hashes or in clear.
KEY_COLUMNS = tuple(key.name for key in KEYS)
# What node agents measured: GPUs used of those held, percent of their time, GB on one GPU, GPU-minutes idle, kWh.
MEASURED_COLUMNS = ("gpus_used", "gpu_util", "gpu_util_p95", "gpu_mem_gb", "gpu_idle_min", "energy_kwh")


@dataclass(frozen=True, slots=True)
class Labels:
    """A column of strings as codes into names; code -1 is blank. Names are unique and never empty."""

    codes: npt.NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Iterable[str]) -> Labels:
        """Codes in order of first appearance; an empty string is blank."""
        index: dict[str, int] = {}
        codes = [index.setdefault(v, len(index)) if v else -1 for v in values]
        return cls(np.asarray(codes, dtype=np.int32), tuple(index))

    @classmethod
    def blank(cls, count: int) -> Labels:
        return cls(np.full(count, -1, dtype=np.int32), ())

    def strings(self) -> list[str]:
        names = self.names
        return [names[c] if c >= 0 else "" for c in self.codes.tolist()]

    def take(self, rows: npt.NDArray[np.intp] | slice) -> Labels:
        return Labels(self.codes[rows], self.names)


@dataclass(frozen=True, slots=True)
class Note:
    """Something a reader did or left out: how many rows, and the first few line numbers."""

    what: str
    rows: int
    lines: tuple[int, ...] = ()
    dropped: bool = False  # True: these rows are not in the trace

    def __str__(self) -> str:
        where = f" (lines {', '.join(map(str, self.lines))}{', …' if self.rows > len(self.lines) else ''})"
        return f"{self.rows} row{'s' if self.rows != 1 else ''}: {self.what}{where if self.lines else ''}"


@dataclass(frozen=True, slots=True)
class Trace:
    """Columns of equal length, sorted by (submit, position in the file); times in whole seconds.

    Unknown is -1 in whole-number columns (0 in `num_nodes`), NaN in `cpus`, `mem_gb` and `priority`, code -1 in labels.
    `num_gpus`, `cpus` and `mem_gb` are totals over the job's nodes. `gpu_type` "A|B" means any of A and B.
    """

    name: str
    job_id: npt.NDArray[np.int64] | npt.NDArray[np.object_]  # int64, or str objects where an id is no whole number
    submit_time: Ints
    run_time: Ints
    time_limit: Ints
    num_gpus: Floats
    gpu_type: Labels
    num_nodes: npt.NDArray[np.int32]
    cpus: Floats
    mem_gb: Floats
    user: Labels
    account: Labels
    partition: Labels
    status: Labels
    qos: Labels
    job_name: Labels
    priority: Floats
    deadline: Ints  # seconds on the same clock as submit_time
    notes: tuple[Note, ...] = ()
    asked: dict[str, Labels] = field(default_factory=dict)  # by ASKED_COLUMNS, those that some job has
    keys: dict[str, Labels] = field(default_factory=dict)  # by KEY_COLUMNS, those that some job has
    measured: dict[str, Floats] = field(default_factory=dict)  # by MEASURED_COLUMNS, those that are known; NaN unknown
    meta: dict[str, object] = field(default_factory=dict)  # format, sha256, time origin, max_procs of an SWF header …

    def __len__(self) -> int:
        return len(self.submit_time)

    def take(self, rows: npt.NDArray[np.intp] | slice) -> Trace:
        """The same trace with only these rows, in the given order."""
        changed: dict[str, object] = {}
        for column in COLUMN_FIELDS:
            values = getattr(self, column)
            changed[column] = values.take(rows) if isinstance(values, Labels) else values[rows]
        changed["asked"] = {name: values.take(rows) for name, values in self.asked.items()}
        changed["keys"] = {name: values.take(rows) for name, values in self.keys.items()}
        changed["measured"] = {name: values[rows] for name, values in self.measured.items()}
        return replace(self, **changed)  # type: ignore[arg-type]  # each column keeps its own type

    def with_keys(self, names: Iterable[str]) -> Trace:
        """The same trace with these keys only."""
        wanted = set(names)
        return replace(self, keys={name: labels for name, labels in self.keys.items() if name in wanted})

    def sorted(self) -> Trace:
        """Sorted by submit time; equal times keep their order."""
        if len(self) < 2 or bool(np.all(self.submit_time[1:] >= self.submit_time[:-1])):
            return self
        return self.take(np.argsort(self.submit_time, kind="stable"))

    def span(self) -> tuple[int, int]:
        """First and last submit time; (0, 0) for an empty trace."""
        return (int(self.submit_time[0]), int(self.submit_time[-1])) if len(self) else (0, 0)


COLUMN_FIELDS = (
    "job_id submit_time run_time time_limit num_gpus gpu_type num_nodes cpus mem_gb user account partition status "
    "qos job_name priority deadline"
).split()


def make_trace(name: str, submit_time: Sequence[int] | Ints, **columns: object) -> Trace:
    """A trace from the columns at hand; the missing ones are unknown. Labels may be given as lists of strings."""
    n = len(submit_time)
    unknown = np.full(n, -1, dtype=np.int64)
    nan = np.full(n, np.nan)
    values: dict[str, object] = {
        "job_id": np.arange(1, n + 1, dtype=np.int64),
        "run_time": unknown,
        "time_limit": unknown,
        "num_gpus": np.zeros(n),
        "num_nodes": np.zeros(n, dtype=np.int32),
        "cpus": nan,
        "mem_gb": nan,
        "priority": nan,
        "deadline": unknown,
    }
    dtypes: dict[str, type] = {
        "run_time": np.int64,
        "time_limit": np.int64,
        "deadline": np.int64,
        "num_nodes": np.int32,
        "num_gpus": np.float64,
        "cpus": np.float64,
        "mem_gb": np.float64,
        "priority": np.float64,
    }
    for label in ("gpu_type", "user", "account", "partition", "status", "qos", "job_name"):
        values[label] = Labels.blank(n)
    for key, given in columns.items():
        if key in dtypes:
            values[key] = np.asarray(given, dtype=dtypes[key])
        elif isinstance(values.get(key), Labels) and not isinstance(given, Labels):
            values[key] = Labels.of(given)  # type: ignore[arg-type]  # a sequence of strings by contract
        else:
            values[key] = given
    trace = Trace(name=name, submit_time=np.asarray(submit_time, dtype=np.int64), **values)  # type: ignore[arg-type]
    return trace.sorted()
