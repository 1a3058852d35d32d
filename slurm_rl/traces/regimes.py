"""Named workloads and clusters: the default one, and the 56 small regimes on which meta-policies are compared."""

from __future__ import annotations

import re
from dataclasses import replace

from slurm_rl.domain.cluster import KNOWN_GPUS, Cluster, NodeClass, default_watts
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.traces.arrivals import DAY
from slurm_rl.traces.generate import WorkloadSpec

_SHAPES = ("base", "bursty", "diurnal", "shifted")
_GPUS = (2, 4, 8, 16)
_INTENSITIES = (1.0, 2.0, 4.0)
_BETWEEN = (("bursty", 1.5), ("diurnal", 1.5))  # the eight further ones: an intensity nobody trained on
_ARRIVALS_PER_DAY = DAY / 60  # one job a minute at x1
_LOAD_AT_X1 = 0.5  # so that x2 just fills the cluster and x4 drowns it

DEFAULT_NODES = "16xA100:8:128:1024,24xV100:8:96:768,32xT4:4:64:256"
_NODE = re.compile(r"(\d+)x([A-Za-z][\w.-]*)(?::(\d+)(?::(\d+)(?::(\d+(?:\.\d+)?))?)?)?")


def _named() -> dict[str, tuple[str, float, int]]:
    every = [(s, x, g) for s in _SHAPES for x in _INTENSITIES for g in _GPUS]
    every += [(s, x, g) for s, x in _BETWEEN for g in _GPUS]
    return {f"{s}-x{x:g}-g{g}": (s, x, g) for s, x, g in every}


REGIMES = _named()


def regime(name: str, *, jobs: int = 2000, seed: int = 0) -> tuple[WorkloadSpec, Cluster]:
    """A regime by name, `SHAPE-xINTENSITY-gGPUS`: jobs of minutes on one or two nodes, one a minute at x1.

    Gangs up to the whole cluster, limits that overestimate, deadlines and priorities are all in: with one-GPU jobs
    and perfect estimates the shortest job first is the best rule and nothing is left to choose.
    """
    if name not in REGIMES:
        raise unknown_name("regime", name, REGIMES)
    shape, intensity, gpus = REGIMES[name]
    per_node = min(gpus, 8)
    watts = default_watts("V100", per_node)
    node = NodeClass(gpus // per_node, "V100", per_node, 12 * per_node, 96.0 * per_node, "gpu", 1.0, *watts)
    workload = WorkloadSpec(
        jobs=jobs,
        days=jobs / (_ARRIVALS_PER_DAY * intensity),
        load=_LOAD_AT_X1 * intensity,
        shape=shape,
        users=12,
        cpu_only=0.0,
        typed=0.0,
        max_gpus=gpus,
        median_run=120.0,
        run_spread=0.9,
        batch=1.5,
        deadlines=0.6,
        seed=seed,
    )
    return workload, Cluster(name, (node,))


def nodes(text: str, name: str = "generated") -> Cluster:
    """A cluster from `COUNTxTYPE:GPUS[:CPUS[:MEM_GB]],…`; the type `cpu` has no GPUs: `8xcpu:0:16:64`."""
    classes = []
    for part in text.split(","):
        match = _NODE.fullmatch(part.strip())
        if not match or int(match[1]) < 1:
            raise InputError(
                f"unreadable node class {part.strip()!r}",
                field="nodes",
                remedy="expected COUNTxTYPE:GPUS[:CPUS[:MEM_GB]], as in 16xA100:8:128:1024",
            )
        gpus = int(match[3] or 0)
        kind = "" if match[2].lower() == "cpu" else match[2]
        if bool(kind) != bool(gpus) or gpus > 64:
            raise InputError(f"{gpus} GPUs of type {match[2]!r} in a node make no sense", field="nodes")
        known = KNOWN_GPUS.get(kind.upper())
        classes.append(
            NodeClass(
                count=int(match[1]),
                gpu_type=kind,
                gpus=gpus,
                cpus=int(match[4]) if match[4] else None,
                mem_gb=float(match[5]) if match[5] else None,
                speed=known.speed if known else 1.0,
                watts_idle=default_watts(kind, gpus)[0],
                watts_busy=default_watts(kind, gpus)[1],
            )
        )
    has_gpus = any(c.gpus for c in classes)
    return Cluster(name, tuple(replace(c, partition="gpu" if has_gpus else "batch") for c in classes))
