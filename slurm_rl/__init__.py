"""slurm-rl: a learned batch-scheduler backend for Slurm clusters with mixed GPUs.

The names in `__all__` are the public API (docs/api.md). They are loaded on first use: `import slurm_rl` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slurm_rl.environments import register_when_gymnasium_is_there

if TYPE_CHECKING:
    from slurm_rl.api.explaining import Explanation, explain
    from slurm_rl.api.results import Results, replay
    from slurm_rl.api.stepping import Simulation
    from slurm_rl.domain.cluster import Cluster, NodeClass, read_cluster
    from slurm_rl.errors import SlurmRlError
    from slurm_rl.evaluate.api import Evaluation, evaluate
    from slurm_rl.place.formula import NODE_FIGURES, placement
    from slurm_rl.policy.agents import from_sb3, from_torch
    from slurm_rl.policy.checkpoint import Model
    from slurm_rl.policy.export import save_onnx
    from slurm_rl.policy.features import JOB_FEATURES, POOL_FEATURES
    from slurm_rl.policy.formula import heuristic
    from slurm_rl.policy.named import load_model
    from slurm_rl.policy.outside import policy
    from slurm_rl.policy.queue import Queue
    from slurm_rl.policy.vocabulary import FIGURES
    from slurm_rl.traces.read import read_trace
    from slurm_rl.traces.trace import Trace

__version__ = "0.1.0"

# Where each public name lives. `policy` and `evaluate` are also packages: these can be called (see their files).
_HOME = {
    "Cluster": "domain.cluster",
    "Evaluation": "evaluate.api",
    "Explanation": "api.explaining",
    "FIGURES": "policy.vocabulary",
    "JOB_FEATURES": "policy.features",
    "Model": "policy.checkpoint",
    "NODE_FIGURES": "place.formula",
    "NodeClass": "domain.cluster",
    "POOL_FEATURES": "policy.features",
    "Queue": "policy.queue",
    "Results": "api.results",
    "Simulation": "api.stepping",
    "SlurmRlError": "errors",
    "Trace": "traces.trace",
    "evaluate": "evaluate",
    "explain": "api.explaining",
    "from_sb3": "policy.agents",
    "from_torch": "policy.agents",
    "heuristic": "policy.formula",
    "load_model": "policy.named",
    "placement": "place.formula",
    "policy": "policy",
    "read_cluster": "domain.cluster",
    "read_trace": "traces.read",
    "replay": "api.results",
    "save_onnx": "policy.export",
}

__all__ = [
    "FIGURES",
    "JOB_FEATURES",
    "NODE_FIGURES",
    "POOL_FEATURES",
    "Cluster",
    "Evaluation",
    "Explanation",
    "Model",
    "NodeClass",
    "Queue",
    "Results",
    "Simulation",
    "SlurmRlError",
    "Trace",
    "evaluate",
    "explain",
    "from_sb3",
    "from_torch",
    "heuristic",
    "load_model",
    "placement",
    "policy",
    "read_cluster",
    "read_trace",
    "replay",
    "save_onnx",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{home}")
    found = module if name == home else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_when_gymnasium_is_there()
