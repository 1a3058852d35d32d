"""The agent's /metrics page: dcgm-exporter's names where the meaning is the same, `slurmrl_` for all else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from slurm_rl.telemetry.agent import Agent
from slurm_rl.telemetry.reading import Reading
from slurm_rl.telemetry.use import NO_JOB

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Units as dcgm-exporter has them: memory in MiB, power in W, energy in mJ, clocks in MHz.
_GPU: dict[str, tuple[str, str, Callable[[Reading], float | None]]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %).", lambda r: r.util),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Memory utilization (in %).", lambda r: r.memory_util),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB).", lambda r: r.used_mb),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB).", lambda r: _free(r.total_mb, r.used_mb)),
    "DCGM_FI_DEV_POWER_USAGE": (
        "gauge",
        "Power draw (in W).",
        lambda r: None if r.milliwatts is None else r.milliwatts / 1000,
    ),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (
        "counter",
        "Energy since the driver was loaded (in mJ).",
        lambda r: r.millijoules,
    ),
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz).", lambda r: r.sm_mhz),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz).", lambda r: r.memory_mhz),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C).", lambda r: r.celsius),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("gauge", "Why clocks are held down, as a bitmask.", lambda r: r.throttle),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("counter", "Single-bit volatile ECC errors.", lambda r: r.ecc_corrected),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("counter", "Double-bit volatile ECC errors.", lambda r: r.ecc_uncorrected),
    "slurmrl_gpu_lost": ("gauge", "1 while a GPU that was seen before cannot be read.", lambda r: bool(r.lost)),
    "slurmrl_gpu_processes": (
        "gauge",
        "Processes with a context on the GPU.",
        lambda r: None if r.lost else len(r.processes),
    ),
}


@dataclass(slots=True)
class _Family:
    name: str
    kind: str
    text: str
    rows: list[str] = field(default_factory=list)

    def add(self, labels: Mapping[str, object], value: float | None) -> None:
        if value is not None:
            written = ",".join(f'{k}="{_escaped(str(v))}"' for k, v in labels.items())
            self.rows.append(f"{self.name}{{{written}}} {value + 0:.15g}")

    def lines(self) -> Iterable[str]:
        if self.rows:
            yield f"# HELP {self.name} {self.text}"
            yield f"# TYPE {self.name} {self.kind}"
            yield from self.rows


def page(agent: Agent, job_data: bool) -> str:
    """The page; without `job_data` nothing on it tells of jobs or users."""
    families = [*_gpus(agent, job_data), *_agent(agent), *(_jobs(agent) if job_data else [])]
    return "\n".join([line for f in families for line in f.lines()]) + "\n"


def _labels(reading: Reading, node: str) -> dict[str, object]:
    return {
        "gpu": reading.index,
        "UUID": reading.uuid,
        "pci_bus_id": reading.bus_id,
        "device": f"nvidia{reading.index}",
        "modelName": reading.model,
        "Hostname": node,
    }


def _gpus(agent: Agent, job_data: bool) -> list[_Family]:
    view = agent.view
    families = {name: _Family(name, kind, text) for name, (kind, text, _) in _GPU.items()}
    xid = _Family("DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the last Xid error; 0: none since the agent started.")
    xids = _Family("slurmrl_gpu_xid_errors_total", "counter", "Xid errors since the agent started.")
    for reading in view.readings:
        labels = _labels(reading, agent.node)
        jobs = {u.job for u in view.uses if u.gpu == reading.index and u.job != NO_JOB}
        # dcgm-exporter's label for a job that has a GPU to itself.
        own = {"hpc_job": next(iter(jobs))} if job_data and len(jobs) == 1 and not reading.mig else {}
        for name, (_, _, value) in _GPU.items():
            if not (reading.mig and name.startswith("DCGM_FI_DEV_FB_")):
                families[name].add(labels | own, value(reading))
        for i in reading.instances if not reading.lost else ():
            part = labels | {"GPU_I_PROFILE": i.profile, "GPU_I_ID": i.gi}
            families["DCGM_FI_DEV_FB_USED"].add(part, i.memory_mb)
            families["DCGM_FI_DEV_FB_FREE"].add(part, i.total_mb - i.memory_mb)
        count, last = agent.nvml.xids.get(reading.uuid, (0, 0))
        xid.add(labels, last)
        xids.add(labels, count)
    return [*families.values(), xid, xids]


def _agent(agent: Agent) -> list[_Family]:
    here = {"Hostname": agent.node}
    nvml, ring, view = agent.nvml, agent.samples, agent.view
    values: list[tuple[str, str, str, float]] = [
        ("slurmrl_agent_samples_total", "counter", "Samples since the agent started.", agent.ticks),
        ("slurmrl_agent_last_sample_timestamp_seconds", "gauge", "When the last sample was taken.", view.wall),
        ("slurmrl_agent_sample_seconds", "gauge", "How long the last sample took.", view.seconds),
        ("slurmrl_agent_records_lost_total", "counter", "Records of samples that could not be kept.", ring.lost),
        ("slurmrl_agent_driver_trouble", "gauge", "1 while NVML cannot be used.", bool(nvml.problem)),
        ("slurmrl_agent_disk_trouble", "gauge", "1 while samples cannot be kept.", bool(ring.problem)),
        ("slurmrl_agent_slurm_trouble", "gauge", "1 while slurmctld does not answer.", bool(agent.lookup.problem)),
        ("slurmrl_agent_nvml_calls_total", "counter", "Calls of NVML since the agent started.", nvml.calls),
        ("slurmrl_agent_nvml_errors_total", "counter", "Calls of NVML that failed unexpectedly.", nvml.errors),
        ("process_cpu_seconds_total", "counter", "CPU time of the agent.", time.process_time()),
    ]
    families = []
    for name, kind, text, value in values:
        families.append(_Family(name, kind, text))
        families[-1].add({} if name.startswith("process_") else here, value)
    joules = _Family("slurmrl_gpu_energy_joules_total", "counter", "Energy of GPUs, held by jobs or free, by GPU type.")
    seconds = _Family("slurmrl_gpu_seconds_total", "counter", "GPU-seconds measured, held by jobs or free.")
    with agent.lock:
        for kind, watts in agent.account.watts.items():
            for state in ("held", "free"):
                labels = here | {"gpu_type": kind, "state": state}
                joules.add(labels, getattr(watts, f"{state}_joules"))
                seconds.add(labels, getattr(watts, f"{state}_seconds"))
    return [*families, joules, seconds]


def _jobs(agent: Agent) -> list[_Family]:
    named = {
        "gpus": ("slurmrl_job_gpus", "GPUs that the job holds on this node."),
        "gpus_used": ("slurmrl_job_gpus_used", "GPUs that the job has used so far."),
        "energy_j": ("slurmrl_job_energy_joules", "Energy of the job's GPUs so far."),
        "util_mean": ("slurmrl_job_gpu_utilization", "Mean utilization of the job's GPUs so far (in %)."),
        "memory_peak_mb": ("slurmrl_job_memory_peak_mebibytes", "Largest memory of the job on one GPU."),
        "idle_gpu_minutes": ("slurmrl_job_idle_gpu_minutes", "GPU-minutes that the job held and did not use."),
    }
    families = {key: _Family(name, "gauge", text) for key, (name, text) in named.items()}
    for record in agent.running():
        labels = {"Hostname": agent.node, "hpc_job": record["job_id"], "user": record["user"]}
        for key, family in families.items():
            family.add(labels | {"gpu_type": record["gpu_type"]}, record[key])
    return list(families.values())


def _free(total: int | None, used: int | None) -> int | None:
    return None if total is None or used is None else total - used


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
