"""Schemas of requests and answers; values out of range are refused first."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_NAMES = (
    "name account default_account user_name partition qos default_qos features prefer gpu_type array comment".split()
)

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[int, Field(ge=0, le=2**40)]
Text = Annotated[str, Field(max_length=1024)]


class SubmitRequest(BaseModel):
    """A job that is being submitted, as the plugin describes it (docs/plugin.md); unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    user_id: Count
    user_name: Text = ""
    account: Text = ""
    default_account: Text = ""
    partition: Text = ""
    qos: Text = ""
    default_qos: Text = ""
    features: Text = ""
    prefer: Text = ""
    name: Text = ""
    time_limit_min: Count | None = None
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    num_tasks: Count | None = None
    cpus_per_task: Count | None = None
    min_cpus: Count | None = None
    priority: Count | None = None
    mem_per_node_mb: Annotated[int, Field(ge=0, le=2**53)] | None = None
    mem_per_cpu_mb: Annotated[int, Field(ge=0, le=2**53)] | None = None
    gpus: Count | None = None
    gpu_type: Text = ""
    tres_per_job: Text = ""
    tres_per_node: Text = ""
    tres_per_task: Text = ""
    tres_per_socket: Text = ""
    array: Text = ""
    nice: Annotated[int, Field(ge=-(2**31), le=2**31)] | None = None
    comment: Text = ""

    def asked(self) -> dict[str, Any]:
        """What was told, text as the user wrote it: the plugin sends each byte beyond ASCII as \\u00XX."""
        told = self.model_dump(exclude_none=True)
        for name in _NAMES:
            if told[name] and not told[name].isascii():
                told[name] = told[name].encode("latin-1", "replace").decode(errors="replace")
        return told


class SubmitAnswer(BaseModel):
    """Advice; what is absent is left as it is."""

    site_factor: int | None = None
    prefer: str | None = None
    features: str | None = None
    reason: str | None = None
    message: str | None = None  # a line for the user, which sbatch prints


class RankJob(BaseModel):
    """A pending job of a queue to be ranked."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[int, Field(ge=1, le=2**31 - 1)]
    submit_time: Seconds
    time_limit: Annotated[int, Field(ge=1, le=2**31 - 1)]
    gpus: Annotated[int, Field(ge=0, le=100_000)] = 0
    gpu_type: Annotated[str, Field(max_length=64)] = ""
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    cpus: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    mem_mb: Annotated[int, Field(ge=0, le=2**40)] = 0
    user: Annotated[str, Field(max_length=64)] = ""
    account: Annotated[str, Field(max_length=64)] = ""
    partition: Annotated[str, Field(max_length=64)] = "batch"


class RankNodes(BaseModel):
    """Equal nodes."""

    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    gpu_type: Annotated[str, Field(max_length=64)] = ""
    cpus: Annotated[int, Field(ge=1, le=4096)] = 64
    mem_mb: Annotated[int, Field(ge=1, le=2**30)] = 512_000
    partition: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")] = "batch"


class RankRequest(BaseModel):
    """A queue and its cluster; the service's own state plays no part."""

    model_config = ConfigDict(extra="forbid")

    now: Seconds
    policy: Annotated[str, Field(max_length=64)] = ""
    jobs: Annotated[list[RankJob], Field(max_length=500)]
    nodes: Annotated[list[RankNodes], Field(min_length=1, max_length=100)]


class ModeRequest(BaseModel):
    """The mode to change to."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["off", "shadow", "enforce"]


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str
