"""Node agents beside real slurmds: each job (40, and 200 in the soak) has its own GPUs and none of its neighbours."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import MIB, World, build

from slurm_rl.cli.app import main
from slurm_rl.lab.lab import Lab
from slurm_rl.telemetry.collect import Collector
from slurm_rl.telemetry.store import Store
from slurm_rl.traces.read import read_trace

pytestmark = pytest.mark.slurm

TOKEN = "f" * 40

# What a job does: it opens its GPUs as a CUDA program would (the world's driver sees the file), computes on them with
# a load of its own, and says what Slurm told it.
JOB = """#!/bin/sh
say() {{ printf '%s %s %s\\n' "$SLURM_JOB_ID" "$SLURMD_NODENAME" "$1" >> {directory}/said.$SLURM_JOB_ID; }}
say "$SLURM_JOB_GPUS"
printf '%s %s %s %s\\n' "$SLURMD_NODENAME" "$SLURM_JOB_GPUS" {load} $$ > {directory}/open/.$SLURM_JOB_ID
mv {directory}/open/.$SLURM_JOB_ID {directory}/open/$SLURM_JOB_ID
sleep {seconds}
rm -f {directory}/open/$SLURM_JOB_ID
"""


@dataclass
class Driver:
    """Plays each node's driver: GPUs that a job has opened are busy with its load and draw 50 + 3 × load watts."""

    directory: Path
    worlds: dict[str, World]
    seen: dict[int, tuple[str, tuple[int, ...], int]] = field(default_factory=dict)
    end: threading.Event = field(default_factory=threading.Event)
    late: float = 0.0  # the longest time between two of its steps

    def run(self) -> None:
        before = time.monotonic()
        while not self.end.wait(0.05):
            now = time.monotonic()
            loads: dict[tuple[str, int], tuple[int, int]] = {}
            for path in (self.directory / "open").glob("[0-9]*"):
                try:
                    node, gpus, load, pid = path.read_text().split()
                except (FileNotFoundError, ValueError):
                    continue
                numbers = tuple(int(g) for g in gpus.split(","))
                self.seen[int(path.name)] = (node, numbers, int(load))
                loads |= {(node, g): (int(load), int(pid)) for g in numbers}
            for name, world in self.worlds.items():
                for g, gpu in enumerate(world):
                    load, pid = loads.get((name, g), (0, 0))
                    gpu.util = load
                    gpu.milliwatts = 1000 * (50 + 3 * load)
                    gpu.millijoules += round(gpu.milliwatts * (now - before))
                    if pid:
                        gpu.run(pid, mib=100 * load)
                    else:
                        gpu.processes = 0
                    gpu.used = (500 + 100 * load) * MIB
            self.late = max(self.late, now - before)
            before = now


@dataclass
class Agents:
    lab: Lab
    driver: Driver
    processes: dict[str, subprocess.Popen[bytes]]
    ports: dict[str, int]

    def ask(self, node: str, route: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[node]}{route}")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def records(self) -> list[dict[str, Any]]:
        return [r for node in self.processes for r in self.ask(node, "/v1/records?limit=500")["records"]]


@pytest.fixture
def agents(start_lab: Callable[..., Lab], tmp_path: Path) -> Iterator[Agents]:
    """A lab of four nodes, an agent beside each slurmd, and their drivers."""
    lab = start_lab("a100:8*2,t4:4*2", accounting=True)
    library = build(tmp_path)
    (lab.directory / "open").mkdir()
    (lab.directory / "open").chmod(0o777)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    worlds = {name: World(tmp_path / f"world-{name}", 8 if name[0] == "a" else 4) for name in lab.state.nodes}
    driver = Driver(lab.directory, worlds)
    thread = threading.Thread(target=driver.run)
    thread.start()
    processes, ports = {}, {}
    try:
        for name in lab.state.nodes:
            processes[name] = start_agent(lab, name, tmp_path, library, tmp_path / f"{name}.log")
        for name in lab.state.nodes:
            ports[name] = port_of(tmp_path / f"{name}.log", processes[name])
        yield Agents(lab, driver, processes, ports)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(timeout=30)
        driver.end.set()
        thread.join()


def start_agent(lab: Lab, name: str, directory: Path, library: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slurm_rl", "node-agent", "--node", name, "--conf", str(lab.slurm_conf)]
    command += ["--dir", str(directory / name), "--ring-mb", "1", "--listen", "127.0.0.1:0"]
    command += ["--token-file", str(directory / "token"), "--interval", "0.5"]
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_WORLD": str(directory / f"world-{name}")}
    environment["PATH"] = lab.env()["PATH"]  # the commands of the lab's release
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def port_of(log: Path, process: subprocess.Popen[bytes]) -> int:
    """Where the agent listens, by its own word."""
    deadline = time.monotonic() + 120
    while True:
        for line in log.read_text().splitlines():
            if line.startswith("{") and json.loads(line)["event"] == "listening":
                return int(json.loads(line)["address"].rpartition(":")[2])
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.mark.parametrize("jobs", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_jobs_on_shared_nodes_are_told_apart(
    agents: Agents, tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    lab, draw = agents.lab, random.Random(200)
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 2))
    wanted: dict[int, tuple[str, int, int]] = {}
    for _ in range(jobs):
        kind = draw.choice(["a100", "a100", "t4"])
        gpus, load = draw.randint(1, 4 if kind == "a100" else 2), draw.randint(5, 95)
        script = JOB.format(directory=lab.directory, load=load, seconds=draw.randint(3, 6))
        options = [f"--gres=gpu:{kind}:{gpus}", "--mem=50", "--time=10", "--output=/dev/null", "--nodes=1"]
        job = int(lab.run("sbatch", "--parsable", *options, stdin=script).strip())
        wanted[job] = (kind, gpus, load)
    deadline = time.monotonic() + 900
    while lab.run("squeue", "-h", "-o", "%i").strip():
        assert time.monotonic() < deadline, "the jobs do not end"
        time.sleep(1)
    while len(agents.records()) < jobs:
        assert time.monotonic() < deadline, "records are missing"
        time.sleep(0.5)

    records = {r["job_id"]: r for r in agents.records()}
    assert set(records) == set(wanted)
    assert len(agents.records()) == jobs  # one each
    shared_nodes = 0
    for job, (kind, gpus, load) in wanted.items():
        r = records[job]
        number, node, numbers = (lab.directory / f"said.{job}").read_text().split()
        assert int(number) == job
        assert r["node"] == node
        assert list(r["places"]) == sorted(numbers.split(","), key=int), (job, r)
        assert (r["gpu_type"], r["gpus"], r["gpus_used"], r["user"]) == (kind, gpus, gpus, "root")
        assert not r["shared"]
        # The load is the job's own: nobody else's can be mistaken for it. A sample may fall before or after it.
        assert r["util_p95"] == load
        assert r["memory_peak_mb"] == 100 * load
        # A sample stands for the time before it, so the end of the GPU's last job may be in it.
        watts, seconds = r["energy_j"] / r["gpu_seconds"], r["gpu_seconds"] / gpus
        assert 50 <= watts <= 50 + 3 * load + 285 * (1 + agents.driver.late) / seconds, (job, r)
        overlapping = [
            o for o in records.values() if o["node"] == node and o["start"] < r["end"] and r["start"] < o["end"]
        ]
        shared_nodes += len(overlapping) > 1
    assert shared_nodes > jobs / 2  # else the test would show nothing

    # Pulled into a store and joined with sacct, they are columns of the trace.
    store = Store(tmp_path / "telemetry.sqlite")
    collector = Collector(store, [f"http://127.0.0.1:{p}" for p in agents.ports.values()], TOKEN)
    collector.collect()
    store.close()
    assert (collector.collected, collector.problems) == (jobs, {})
    words = ["from-slurm", "--out", tmp_path / "site.csv", "--since", began, "--conf", lab.slurm_conf]
    with pytest.raises(SystemExit) as ended:
        main(["traces", *map(str, words), "--telemetry", str(tmp_path / "telemetry.sqlite"), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (ended.value.code, said["measured_jobs"]) == (0, jobs)
    trace = read_trace(tmp_path / "site.csv", cache=False)
    for i, job in enumerate(trace.job_id.tolist()):
        assert trace.measured["gpu_util_p95"][i] == wanted[job][2]
        assert trace.measured["gpus_used"][i] == wanted[job][1] == trace.num_gpus[i]
        assert trace.measured["energy_kwh"][i] == pytest.approx(records[job]["energy_j"] / 3.6e6, abs=1e-6)


@pytest.mark.releases
def test_a_killed_agent_loses_no_job(agents: Agents, tmp_path: Path) -> None:
    lab = agents.lab
    script = JOB.format(directory=lab.directory, load=40, seconds=600)
    job = int(lab.run("sbatch", "--parsable", "--gres=gpu:a100:3", "--mem=50", "--nodes=1", stdin=script).strip())
    node = wait_for(lambda: next((n for n in agents.processes if agents.ask(n, "/v1/jobs")["jobs"]), None))
    wait_for(lambda: (agents.ask(node, "/v1/jobs")["jobs"] or [{"gpus_used": 0}])[0]["gpus_used"] == 3)
    wait_for(lambda: agents.ask(node, "/v1/jobs")["jobs"][0]["gpu_seconds"] > 6)
    [earlier] = agents.ask(node, "/v1/jobs")["jobs"]
    agents.processes[node].kill()
    agents.processes[node].wait()
    before = time.time()
    log = tmp_path / f"{node}-again.log"
    agents.processes[node] = start_agent(lab, node, tmp_path, tmp_path, log)
    agents.ports[node] = port_of(log, agents.processes[node])
    wait_for(lambda: agents.ask(node, "/v1/jobs")["jobs"][0]["end"] > before)
    [running] = agents.ask(node, "/v1/jobs")["jobs"]
    assert (running["job_id"], running["gpus"]) == (job, 3)
    # Since the earlier sample its three GPUs drew 170 W each: also while nobody looked.
    joules, seconds = (running[name] - earlier[name] for name in ("energy_j", "end"))
    allowed = 0.1 * seconds + 2 * agents.driver.late
    assert joules == pytest.approx(3 * 170 * seconds, abs=3 * 170 * allowed), (earlier, running)
    assert running["gpu_seconds"] - earlier["gpu_seconds"] == pytest.approx(3 * seconds, abs=3 * allowed)
    lab.run("scancel", str(job))
    [record] = wait_for(agents.records)
    assert record["energy_j"] >= running["energy_j"] - 0.001
    assert record["unmeasured_seconds"] == 0


def test_the_service_explains_what_a_job_uses(agents: Agents, tmp_path: Path) -> None:
    """Eight GPUs asked for, two used: `slurm-rl explain` says so to the job's owner while it runs, and after."""
    lab = agents.lab
    config = tmp_path / "slurm-rl.toml"
    socket = lab.directory / "run" / "s.sock"
    hosts = ",".join(f"127.0.0.1:{port}" for port in agents.ports.values())
    config.write_text(
        f'slurm_conf = "{lab.slurm_conf}"\nsocket = "{socket}"\nstate_dir = "{tmp_path / "state"}"\nclient = "cli"\n'
        f'policy = "sjf@limit"\ninterval = 1.0\ntelemetry_agents = "{hosts}"\ntelemetry_interval = 1.0\n'
        f'telemetry_token_file = "{tmp_path / "token"}"\n'
    )
    script = JOB.format(directory=lab.directory, load=44, seconds=600)
    script = script.replace('"$SLURM_JOB_GPUS" 44', '"0,1" 44')
    job = lab.run("sbatch", "--parsable", "--gres=gpu:a100:8", "--mem=50", "--nodes=1", stdin=script).strip()
    command = [sys.executable, "-m", "slurm_rl"]
    with (tmp_path / "serve.log").open("wb") as log:
        service = subprocess.Popen([*command, "serve", "--config", str(config)], stdout=log, stderr=log)

    def explained(words: str) -> str:
        ask = [*command, "explain", job, "--socket", str(socket)]
        said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
        return said if words in said else ""

    try:
        running = wait_for(lambda: explained("used so far 2 of 8 a100 GPUs"), 600)
        assert f"job {job} of root: runs" in running
        lab.run("scancel", job)
        ended = wait_for(lambda: explained("your job used 2 of 8 a100 GPUs at "), 600)
        assert "GPU-minutes idle" in ended
    finally:
        service.terminate()
        service.wait(timeout=120)


def wait_for(what: Any, seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
    return found
