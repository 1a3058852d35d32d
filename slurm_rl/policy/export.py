"""Writes networks of other libraries as ONNX files that `onnx:FILE` takes; needs torch and onnx."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from slurm_rl.errors import EnvironmentMissing
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.policy.onnx import FEATURES, features_told, load_onnx


def save_onnx(policy: Any, path: str | Path, *, window: int | None = None) -> Path:
    """Writes an agent of stable-baselines3, or a torch module of (jobs, pool, mask), as a file for `onnx:FILE`."""
    try:
        import onnx
        import torch
    except ImportError as error:
        raise EnvironmentMissing(f"save_onnx needs {error.name}: pip install 'slurm-rl[onnx,train]'") from None
    path = Path(path)
    if hasattr(policy, "observation_space") and hasattr(policy, "policy"):
        module, example, names = _of_sb3(policy)
        batch: dict[str, Any] = {}
    else:
        module = policy.eval()
        length = window or 4
        example = (torch.zeros(1, length, JOB_COUNT), torch.zeros(1, POOL_COUNT), torch.ones(1, length))
        names = ["jobs", "pool", "action_mask"]
        batch = {} if window else {"jobs": {1: "jobs"}, "action_mask": {1: "jobs"}, "scores": {1: "jobs"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is called old
        torch.onnx.export(
            module,
            example,
            str(path),
            input_names=names,
            output_names=["scores"],
            dynamic_axes=batch,
            dynamo=False,
        )
    made = onnx.load(str(path))
    entry = made.metadata_props.add()
    entry.key, entry.value = FEATURES, features_told()
    onnx.save(made, str(path))
    load_onnx(path)
    return path


def _of_sb3(model: Any) -> tuple[Any, tuple[Any, ...], list[str]]:
    import torch

    space, policy = model.observation_space, model.policy.to("cpu").eval()

    class Preferences(torch.nn.Module):
        """What an agent would choose, as numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, *parts: Any) -> Any:
            seen: Any = parts[0] if len(parts) == 1 else dict(zip(("jobs", "pool", "action_mask"), parts, strict=True))
            if hasattr(self.policy, "q_net"):
                return self.policy.q_net(seen)
            features = self.policy.extract_features(seen, self.policy.pi_features_extractor)
            return self.policy.action_net(self.policy.mlp_extractor.forward_actor(features))

    if hasattr(space, "spaces"):
        order = ("jobs", "pool", "action_mask")
        return Preferences(), tuple(torch.zeros(1, *space[k].shape) for k in order), list(order)
    return Preferences(), (torch.zeros(1, *space.shape),), ["observation"]
