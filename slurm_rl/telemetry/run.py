"""Runs the agent: its sampling loop, its threads, and its end."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from slurm_rl.errors import SlurmRlError
from slurm_rl.obs import systemd
from slurm_rl.telemetry.agent import Agent, RealClock
from slurm_rl.telemetry.endpoint import Endpoint
from slurm_rl.telemetry.lookup import Lookup, NodeSlurm
from slurm_rl.telemetry.presence import Presence
from slurm_rl.telemetry.share import RecordFiles
from slurm_rl.telemetry.use import NO_JOB

log = structlog.get_logger()

_DEFAULT_SPOOL = Path("/var/spool/slurmd")
_SHARE_EVERY = 15.0
_YOUNGEST_TO_RESTART = 60.0  # seconds; a driver that stays broken must not make us start over and over


def make_agent(node: str, directory: Path, conf: Path | None, spool: Path | None, ring_mb: float) -> Agent:
    """An agent for this node; Slurm is asked where slurmd keeps its sockets."""
    node = node or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    slurm = NodeSlurm(node, conf)
    if spool is None:
        try:
            spool = slurm.spool()
        except SlurmRlError as error:
            log.warning("slurmctld does not say where slurmd's spool is", why=str(error), taken=str(_DEFAULT_SPOOL))
        spool = spool or _DEFAULT_SPOOL
    presence = Presence(node, spool)
    return Agent(node, directory, presence, Lookup(slurm, presence), RealClock(), ring_mb)


def sample_once(node: str, conf: Path | None, spool: Path | None) -> dict[str, Any]:
    """One sample with its attribution, without touching what a running agent keeps."""
    with tempfile.TemporaryDirectory(prefix="slurm-rl-") as directory:
        agent = make_agent(node, Path(directory), conf, spool, 0.1)
        agent.tick()
        agent.lookup.work()
        agent.tick()
        view, problem = agent.view, agent.nvml.problem
        agent.close()
    gpus = [
        {
            "index": r.index,
            "uuid": r.uuid,
            "model": r.model,
            "type": agent.account.types.get(r.index, ""),
            "lost": r.lost,
            "util": r.util,
            "watts": None if r.milliwatts is None else r.milliwatts / 1000,
            "used_mb": r.used_mb,
            "mig": [i.profile for i in r.instances],
            "jobs": sorted({u.job for u in view.uses if u.gpu == r.index and u.job != NO_JOB}),
        }
        for r in view.readings
    ]
    return {"node": agent.node, "driver": problem, "slurm": agent.lookup.problem, "gpus": gpus}


def run(agent: Agent, interval: float, serve: Callable[[Agent], Endpoint | None], share_dir: Path | None) -> None:
    """Samples until SIGTERM or SIGINT."""
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    endpoint = serve(agent)
    threads = [threading.Thread(target=agent.lookup.run, name="slurm", daemon=True)]
    if endpoint is not None:
        threads.append(threading.Thread(target=endpoint.serve_forever, name="endpoint", daemon=True))
    if share_dir is not None:
        threads.append(threading.Thread(target=_share, args=(agent, share_dir, end), name="share", daemon=True))
    for thread in threads:
        thread.start()
    if endpoint is not None:
        host, port = endpoint.server_address[:2]
        log.info("listening", address=f"{host!s}:{port}", token=endpoint.access.token is not None)
    watchdog = systemd.Watchdog(lambda: time.monotonic() - agent.view.mono < 30 + 10 * interval)
    watchdog.start()
    systemd.notify("READY=1")
    log.info("sampling", node=agent.node, interval=interval, ring=str(agent.samples.path))
    try:
        _sample(agent, interval, end)
    finally:
        systemd.notify("STOPPING=1")
        agent.lookup.stop()
        watchdog.stop()
        if endpoint is not None:
            endpoint.shutdown()
            endpoint.server_close()
        agent.close()


def _sample(agent: Agent, interval: float, end: threading.Event) -> None:
    began = due = time.monotonic()
    while not end.is_set():
        agent.tick()
        if agent.nvml.stale_library and time.monotonic() - began > _YOUNGEST_TO_RESTART:
            log.warning("the driver was replaced: restarting to load its library")
            agent.close()
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # ourselves, as we were started
        due += interval
        late = time.monotonic() - due
        if late > interval:
            due += late  # missed samples are not made up for
        end.wait(max(0.0, due - time.monotonic()))


def _share(agent: Agent, directory: Path, end: threading.Event) -> None:
    share, said = RecordFiles(agent, directory), ""
    while True:
        ending = end.wait(_SHARE_EVERY)
        share.work()
        if share.problem != said:
            log.warning("trouble" if share.problem else "well again", what="share", why=share.problem or said)
            said = share.problem
        if ending:
            return
