"""Measuring, and the table of what was measured against what was promised."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

# A child of a large process inherits that process's peak as its own on Linux: a small process in between does not.
_LAUNCHER = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=float(sys.argv[1]))
wall = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"code": done.returncode, "out": done.stdout.decode(), "err": done.stderr.decode()[-2000:],
    "wall": wall, "cpu": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, the best of several runs: by the clock, and of the processor."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Child:
    """A command that has ended well."""

    out: str
    wall: float
    cpu: float
    peak_mb: float


def best_of(times: int, make: Callable[[], Callable[[], object]]) -> Cost:
    """Prepares (unmeasured) and runs (measured) several times."""
    wall, cpu = float("inf"), float("inf")
    for _ in range(times):
        work = make()
        began, used = time.perf_counter(), time.process_time()
        work()
        wall, cpu = min(wall, time.perf_counter() - began), min(cpu, time.process_time() - used)
    return Cost(wall, cpu)


def command(*arguments: str | Path, cache: Path, limit: float = 600.0) -> Child:
    """Runs `slurm-rl …` as users do, with its caches under `cache`."""
    program = Path(sys.executable).with_name("slurm-rl")
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"XDG_CACHE_HOME": str(cache)}
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(limit), str(program), *map(str, arguments)]
    done = subprocess.run(launch, capture_output=True, text=True, env=environment, check=True)
    value = json.loads(done.stdout)
    assert value["code"] == 0, value["err"]
    return Child(value["out"], value["wall"], value["cpu"], value["peak_mb"])


@dataclass(slots=True)
class Row:
    """One promise: what was measured, and how it compares with the plain Python reference and with AccaSim."""

    what: str
    unit: str  # "jobs/s" (more is better), "s", "ms", "MB", "×" (less is better)
    measured: float  # the engine by the processor's time, commands by the clock
    target: float | None = None
    other: float | None = None  # the engine by the clock, commands by the processor's time
    to_reference: float | None = None
    to_accasim: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        good = self.measured >= self.target if self.unit == "jobs/s" else self.measured <= self.target
        return "ok" if good else "MISS"


@dataclass(slots=True)
class Report:
    """Everything measured in one run."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, float | str]]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def missed(self) -> list[str]:
        """The promises not kept."""
        return [
            f"{r.what}: {_amount(r.measured)} {r.unit}, target {_amount(r.target or 0)}"
            for r in self.rows
            if r.verdict == "MISS"
        ]

    def lines(self) -> list[str]:
        """The table, at most 100 columns wide."""
        form = "{:<38} {:>6} {:>11} {:>10} {:>11} {:>4} {:>7} {:>6}"
        lines = [form.format("", "unit", "target", "measured", "(other)", "", "×Python", "×Acca")]
        for r in self.rows:
            sign = "≥ " if r.unit == "jobs/s" else "≤ "
            target = "" if r.target is None else sign + _amount(r.target)
            other = "" if r.other is None else f"({_amount(r.other)})"
            ratios = ["" if x is None else f"{x:,.0f}" for x in (r.to_reference, r.to_accasim)]
            cells = (r.what[:38], r.unit, target, r.note + _amount(r.measured), other, r.verdict, *ratios)
            lines.append(form.format(*cells).rstrip())
        lines.append("engine: measured by the processor's time (other: the clock); commands and starts: the reverse")
        lines += [f"skipped: {reason}" for reason in self.skipped]
        for title, rows in self.tables.items():
            lines += ["", title]
            names = list(rows[0])
            lines.append("".join(f"{n:>13}" for n in names))
            for row in rows:
                cells = (v if isinstance(v := row[n], str) else _amount(v) for n in names)
                lines.append("".join(f"{c:>13}" for c in cells))
        return lines

    def write(self, path: Path) -> None:
        """As JSON, with what the numbers depend on."""
        value = {
            "machine": machine(),
            "rows": [asdict(r) | {"verdict": r.verdict} for r in self.rows],
            "tables": self.tables,
            "skipped": self.skipped,
            "missed": self.missed(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(path)


def machine() -> dict[str, object]:
    """The processor, the load on it and the versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "numba": version("numba"),
        "numpy": version("numpy"),
    }


def _amount(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
