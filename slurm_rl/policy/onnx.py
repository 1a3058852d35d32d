"""ONNX files as policies: checked for shape and features when they are loaded, run by onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.errors import EnvironmentMissing, InputError, ModelError
from slurm_rl.kernel.arrays import JOB, Array
from slurm_rl.policy.agents import extended, flat, seen, window_of
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT, POOL_FEATURES, VERSION
from slurm_rl.policy.gate import objection
from slurm_rl.policy.queue import Queue

FEATURES = "slurm_rl.features"  # key of the file's metadata


def features_told() -> str:
    """What a file says of the features that it was made for."""
    return json.dumps({"version": VERSION, "job": JOB_FEATURES, "pool": POOL_FEATURES})


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise EnvironmentMissing("onnx: needs onnxruntime: pip install 'slurm-rl[onnx]'") from None
    return onnxruntime


def load_onnx(path: Path) -> Callable[[Queue], Array]:
    """A policy from a file; refused with the reason unless its inputs, output and features are as they should be.

    Inputs: `observation` [1, window × 33 + 8], or `jobs` [jobs, 32] (or [1, jobs, 32]) and `pool` [8] (or [1, 8]), with
    an `action_mask` or without; `jobs` of any length or of a fixed one. Output: one score a job.
    """
    runtime = _runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # of small networks, threads cost more than help
    options.log_severity_level = 3
    if not path.is_file():
        raise InputError("no such file", file=str(path))
    try:
        session = runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{path}: no ONNX model that onnxruntime reads: {error}") from None
    told = session.get_modelmeta().custom_metadata_map.get(FEATURES)
    if told is None:
        raise ModelError(f"{path}: does not say which features it was made for (write it with slurm_rl.save_onnx)")
    if told != features_told():
        raise ModelError(f"{path}: made for other features than this release's: export it anew")
    inputs = {i.name: list(i.shape) for i in session.get_inputs()}
    output = session.get_outputs()[0].name
    if set(inputs) == {"observation"}:
        shape = inputs["observation"]
        if len(shape) != 2 or not isinstance(shape[1], int):
            raise ModelError(f"{path}: input observation is {shape}, want [1, N]")
        window = window_of(shape[1])
        return _checked(lambda q: _run(session, output, {"observation": flat(seen(q, window))[None]}), path)
    if not {"jobs", "pool"} <= set(inputs) <= {"jobs", "pool", "action_mask"}:
        raise ModelError(f"{path}: inputs are {', '.join(inputs)}, want jobs and pool, or observation")
    if inputs["jobs"][-1] != JOB_COUNT or inputs["pool"][-1] != POOL_COUNT:
        want = f"want [.., {JOB_COUNT}] and [.., {POOL_COUNT}]"
        raise ModelError(f"{path}: inputs are jobs {inputs['jobs']} and pool {inputs['pool']}, {want}")
    length = inputs["jobs"][-2] if len(inputs["jobs"]) > 1 else None

    def scores(queue: Queue) -> Array:
        observed = seen(queue, length if isinstance(length, int) else len(queue))
        given = {}
        for name, shape in inputs.items():
            value = observed[name]
            given[name] = value[None] if len(shape) > value.ndim else value
        if "action_mask" in given:
            given["action_mask"] = given["action_mask"].astype(_kind(session))
        return _run(session, output, given)

    return _checked(scores, path)


def _kind(session: Any) -> Any:
    told = next(i.type for i in session.get_inputs() if i.name == "action_mask")
    return {"tensor(bool)": np.bool_, "tensor(float)": np.float32, "tensor(int64)": np.int64}.get(told, np.int8)


def _run(session: Any, output: str, given: dict[str, Array]) -> Array:
    return np.asarray(session.run([output], given)[0], dtype=np.float64).ravel()


def _checked(scores: Callable[[Queue], Array], path: Path) -> Callable[[Queue], Array]:
    """The policy, after it has scored a made-up queue."""

    def policy(queue: Queue) -> Array:
        return extended(scores(queue), len(queue))

    try:
        found = policy(_Sample())  # type: ignore[arg-type]  # all that it looks at is there
    except Exception as error:
        raise ModelError(f"{path}: fails on a queue of three jobs: {error}") from None
    _, problem = objection(found, np.zeros(3, dtype=JOB))
    if problem:
        raise ModelError(f"{path}: asked for the scores of three jobs, it {problem}: {found.tolist()}")
    return policy


class _Sample:
    """Three jobs that look alike but for their order."""

    features = np.linspace(0.0, 1.0, 3 * JOB_COUNT, dtype=np.float32).reshape(3, JOB_COUNT)
    pool = np.full(POOL_COUNT, 0.5, dtype=np.float32)

    def __len__(self) -> int:
        return 3
