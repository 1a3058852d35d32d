"""A job's measured use in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def words(m: Mapping[str, Any]) -> list[str]:
    """Lines for `slurm-rl explain`, from a Measured as a mapping."""
    whose = "your job" + (" has used so far" if m["running"] else " used")
    kind = f" {m['gpu_type']}" if m["gpu_type"] else ""
    gpus = f"{m['gpus_used']} of {m['gpus']}{kind} GPU{'s' if m['gpus'] != 1 else ''}"
    load = "" if m["util_mean"] is None else f" at {m['util_mean']:.0f}% (95% of the time at most {m['util_p95']}%)"
    lines = [
        f"{whose} {gpus}{load}",
        f"{m['energy_j'] / 3.6e6:.3g} kWh, at most {m['memory_peak_mb'] / 1024:.3g} GB on one GPU,"
        f" {m['idle_gpu_minutes']:.3g} GPU-minutes idle",
    ]
    if m["shared"]:
        lines.append("it shared a GPU with other jobs: its part is by the time of its kernels, where known")
    if m["sm_mhz"] is not None:
        lines.append(f"its kernels ran at {m['sm_mhz'] / 1000:.2f} GHz on average")
    if m["slowed_seconds"] >= 60:
        lines.append(f"for {m['slowed_seconds'] / 60:.3g} GPU-minutes heat or power held the clocks down")
    if not m["running"] and not m["complete"]:
        missing = m["unmeasured_seconds"] / max(m["gpu_seconds"], 1.0)
        lines.append(f"not all of it was seen: {missing:.0%} of its GPU time is missing, or its end")
    return lines
