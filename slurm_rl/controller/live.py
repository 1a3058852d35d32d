"""The controller as the service sees it: advice, ranks, explanations, mode and reload."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pwd
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.config import Config, load
from slurm_rl.controller.advice import Advisor, Submission
from slurm_rl.controller.estimates import Finished, RunTimes
from slurm_rl.controller.explain import board
from slurm_rl.controller.explain.live_scene import LiveScene, RecentJobs, starts_in_order
from slurm_rl.controller.explain.place_in_queue import UNITS, Ordered
from slurm_rl.controller.explain.start_forecast import foretell
from slurm_rl.controller.explain.when import Wish, when
from slurm_rl.controller.live_policy import LivePolicy, guardrails_of
from slurm_rl.controller.live_reservations import reservations_in_the_way
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe
from slurm_rl.controller.tick import Controller
from slurm_rl.domain.snapshot import Plan
from slurm_rl.errors import InputError
from slurm_rl.obs.journal import Journal, JournalError
from slurm_rl.obs.metrics import Metrics
from slurm_rl.obs.queue import QueueView
from slurm_rl.place.plan import Planner
from slurm_rl.slurm.model import PriorityFactors, PriorityWeights, SlurmJob, SlurmNode, SlurmState
from slurm_rl.slurm.release import NEWEST, Release
from slurm_rl.slurm.scontrol import setting
from slurm_rl.telemetry.measured import MeasuredJobs
from slurm_rl.telemetry.store import Measured

_NO_FACTORS = PriorityFactors(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
SHADOW_REPORT = "shadow-report.json"  # in the state directory: what the command of that name found last
_LONGEST = 300  # characters of a line for the user; the shim takes no more
_NOT_ADVISABLE = -2  # job_submit/lua reads it as "no value"


class ControllerLive:
    """Wraps a controller for the service; it never touches what a tick is working on, only what ticks publish."""

    def __init__(self, controller: Controller, advice_journal: Journal, config_file: Path | None = None) -> None:
        self.controller = controller
        self._journal = advice_journal
        self._config_file = config_file
        self._names: dict[int, str] = {}
        self._advising = threading.Lock()
        self._read_from: tuple[LiveQueue, Plan] | None = None
        self._slurm_user = ""
        self._asked: tuple[tuple[LiveQueue, Plan], Config, Ordered] | None = None
        self._counted: tuple[SlurmState, board.Counts] | None = None
        self.warm = False
        self.measurements: MeasuredJobs | None = None

    @property
    def config(self) -> Config:
        return self.controller.config

    @property
    def metrics(self) -> Metrics:
        return self.controller.metrics

    @property
    def mode(self) -> str:
        return self.controller.mode

    @property
    def writers(self) -> frozenset[int]:
        observed = self.controller.observed
        if observed is not self._read_from:  # asked at every submission
            self._read_from = observed
            self._slurm_user = setting(observed[0].state.config, "SlurmUser") if observed else ""
        return _writers(self._slurm_user, self.config.write_uids)

    def ready(self) -> str:
        if not self.warm:
            return "kernels are being prepared"
        if self.controller.trouble:
            return f"the last tick failed, the queue is unchanged: {self.controller.trouble}"
        if self.controller.mode != "off" and self.controller.report is None:
            return "no tick has succeeded yet"
        return "" if self.lively() else "the controller has been silent for too long"

    def lively(self) -> bool:
        """Whether the controller's loop goes round; while kernels are compiled, it is given the time."""
        age = self.controller.clock() - self.controller.heartbeat
        return age < (5 * self.config.interval + 60 if self.warm else 600)

    def queue(self) -> QueueView | None:
        return self.controller.report

    def advise(self, job: Mapping[str, Any]) -> dict[str, Any]:
        said = self._message(job)
        return self._factor(job) | ({"message": said} if said else {})

    def _message(self, job: Mapping[str, Any]) -> str:
        """A line about the time limit, which sbatch prints; "" unless the site wants that."""
        limit = 60 * int(job.get("time_limit_min") or 0)
        if not self.config.advise_limits or self.controller.mode == "off" or not limit:
            return ""
        nodes, tasks = job.get("min_nodes", 1), job.get("num_tasks", 1)
        cpus = max(job.get("min_cpus", 1), tasks * job.get("cpus_per_task", 1), nodes)
        user = job.get("user_name") or self._name(int(job["user_id"]))
        advice = self.controller.learning.runs.advise(user, job.get("name", ""), job.get("gpus", 0), cpus, limit)
        return "" if advice is None else f"slurm-rl: {advice}".encode("ascii", "replace").decode()[:_LONGEST]

    def _factor(self, job: Mapping[str, Any]) -> dict[str, Any]:
        advisor = self.controller.advisor
        if self.controller.mode != "enforce" or advisor is None:
            return {}
        uid = int(job["user_id"])
        if "priority" in job or self._left_alone(job, uid, advisor.default_partition):
            return {}  # held, set by hand, or left alone by the site's or the user's wish
        nodes, tasks = job.get("min_nodes", 1), job.get("num_tasks", 1)
        submission = Submission(
            user=job.get("user_name") or self._name(uid),
            name=job.get("name", ""),
            partition=job.get("partition", ""),
            gpus=job.get("gpus", 0),
            cpus=max(job.get("min_cpus", 1), tasks * job.get("cpus_per_task", 1), nodes),
            limit=min(60 * job.get("time_limit_min", 0), 10**9),
            nodes=max(nodes, 1),
        )
        with self._advising:
            advice = advisor.advise(submission, self.controller.clock())
        if advice is None or advice.site_factor in (0, _NOT_ADVISABLE):
            return {}
        try:
            self._journal.advise(self.controller.clock(), uid, advice.site_factor)
        except JournalError:
            self.metrics.journal_errors.inc()
            return {}  # what cannot be taken back is not given
        return {"site_factor": advice.site_factor, "reason": advice.reason}

    def _left_alone(self, job: Mapping[str, Any], uid: int, default_partition: str) -> bool:
        """Whether the site or the user wants it so; what Slurm is to fill in counts as filled in."""
        wish = self.config.leave_alone
        if not wish:
            return False
        user = job.get("user_name") or self._name(uid)
        if wish.users and user == str(uid):
            return True  # the name is not known yet: the next tick knows
        account = job.get("account") or job.get("default_account", "")
        qos = job.get("qos") or job.get("default_qos", "")
        partition = job.get("partition") or default_partition
        return bool(wish.why(partition, qos, account, user, job.get("comment", "")))

    def _name(self, uid: int) -> str:
        """The user's name if it is known by now; a name service may be slow, so it is asked beside the request."""
        if uid not in self._names:
            self._names[uid] = str(uid)
            threading.Thread(target=self._look_up, args=(uid,), daemon=True).start()
        return self._names[uid]

    def _look_up(self, uid: int) -> None:
        try:
            self._names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            self._names[uid] = str(uid)

    def ranking(self) -> tuple[str, str]:
        return self.config.policy, self.config.state_dir

    def place_in_queue(self, job_id: int) -> dict[str, Any]:
        ordered = self._ordered(job_id)
        place = ordered.place_of(job_id) if ordered is not None else None
        if place is None:
            return {}
        features = [asdict(c) | {"unit": UNITS.get(c.feature, "")} for c in place.contributions()]
        return {"features": features, "what_would_move_it": place.moves()}

    def around(self, job_id: int, *, to_user: bool = False) -> dict[str, Any]:
        report = self.controller.report
        record = report.record(job_id) if report is not None else None
        if report is None or record is None:
            return {}
        limits = self.controller.limits_seen.of(record, to_user=to_user)
        limits += reservations_in_the_way(report.queue.state, record, to_user=to_user)
        return {"ahead": report.ahead(job_id), "limits": limits}

    def _ordered(self, job_id: int) -> Ordered | None:
        """The last tick's order, made ready once for all who ask about its jobs."""
        observed, config = self.controller.observed, self.config
        if observed is None:
            return None
        policy = self.controller.policy
        if self.controller.auto is not None and self.controller.auto.mixed:
            record = next((j for j in observed[0].jobs if j.job_id == job_id), None)
            policy = self.controller.policy_of(record.partitions[0]) if record is not None else policy
        known = self._asked
        if known is None or known[0] is not observed or known[1] is not config or known[2].policy is not policy:
            known = self._asked = (observed, config, Ordered(*observed, policy, guardrails_of(config)))
        return known[2]

    def when(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """When a job would start that is described so; its own thread may take seconds."""
        controller = self.controller
        observed = controller.observed
        if observed is None:
            raise InputError("no tick has observed the queue yet")
        wish = Wish(**asked)
        cpus = wish.cpus or wish.nodes
        runs = controller.learning.runs
        advice = runs.advise(wish.user, wish.name, wish.gpus, cpus, wish.limit) if wish.user else None
        known, forecasts = controller.run_times.known(), controller.start_forecasts
        told = when(
            wish,
            observed,
            forecasts.recent,
            known,
            controller.policy,
            controller.mode,
            self.config,
            forecasts.calibration,
            advice,
        )
        return told | {"skill": asdict(forecasts.skill) | {"text": str(forecasts.skill)}}

    def forecast_skill(self) -> dict[str, Any]:
        forecasts = self.controller.start_forecasts
        skill = forecasts.skill
        return asdict(skill) | {
            "text": str(skill),
            "calibrated_on": forecasts.calibration.outcomes,
            "foreseen": len(forecasts.told),
        }

    def waited(self, job_id: int, submit_time: int | None = None) -> tuple[str, dict[str, float]] | None:
        if submit_time is not None:
            return "", self.controller.held_back.of(job_id, submit_time)
        return self.controller.forecasts.held_back(job_id)

    def forecasts_of(self, job_id: int) -> list[dict[str, float | None]]:
        return self.controller.forecasts.of_job(job_id)

    def limit_advice(self, user: str, name: str, gpus: int, cpus: int, limit: int) -> dict[str, Any] | None:
        advice = self.controller.learning.runs.advise(user, name, gpus, cpus, limit)
        return None if advice is None else asdict(advice) | {"text": str(advice)}

    def past(self, job_id: int, submit_time: int) -> list[dict[str, object]]:
        names = ("time", "old", "new", "reason", "status")
        return [dict(zip(names, row, strict=True)) for row in self._journal.history(job_id, submit_time)[-20:]]

    def measured(self, job_id: int) -> Measured | None:
        return self.measurements.of(job_id) if self.measurements is not None else None

    def measured_now(self, user: str | None, limit: int) -> list[Measured]:
        return self.measurements.running(user, limit) if self.measurements is not None else []

    def measured_ended(self, seconds: float, user: str | None, limit: int) -> list[Measured]:
        since = self.controller.clock() - seconds
        return self.measurements.idlest(since, user, limit) if self.measurements is not None else []

    def auto(self) -> dict[str, Any]:
        auto, supervisor = self.controller.auto, self.controller.supervisor
        found = auto.shown() if auto is not None else {"chosen": {}, "choices": [], "choosing": False}
        return found | {"promise": supervisor.shown()}

    def choose(self) -> bool:
        return self.controller.choose_policies()

    def overview(self) -> dict[str, Any]:
        controller, observed = self.controller, self.controller.observed
        told: dict[str, Any] = {
            "mode": self.mode,
            "policy": controller.policy.name,
            "model": controller.policy.model,
            "health": {"trouble": self.ready(), "tick_age": max(0.0, controller.clock() - controller.heartbeat)},
            "changes": self._journal.changes_since(controller.clock() - 86_400),
            "shadow": self.shadow_report(),
            "forecasts": self.forecast_skill(),
        }
        if observed is not None:
            state = observed[0].state
            week = controller.learning.waits.by_partition(state.taken)
            told |= {"time": state.taken, "cluster": state.cluster, "slurm": str(state.release)}
            if self._counted is None or self._counted[0] is not state:
                self._counted = (state, board.counts(state))
            told |= board.overview(self._counted[1], week)
        return told

    def nodes(self, own: str | None) -> list[dict[str, Any]]:
        observed = self.controller.observed
        return [] if observed is None else board.nodes(observed[0].state, own)

    def decisions(self, limit: int, before: int | None, job_id: int | None, status: str) -> list[dict[str, object]]:
        names = ("id", "time", "job_id", "old", "new", "reason", "status")
        rows = self._journal.decisions(limit, before, job_id, status)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def models(self) -> dict[str, Any]:
        names = ("time", "action", "model", "hash", "who", "gate")
        rows = [dict(zip(names, row, strict=True)) for row in self._journal.promotions()[-50:]]
        policy = self.controller.policy
        return {"policy": policy.name, "model": policy.model, "promotions": rows[::-1]}

    def shadow_report(self) -> dict[str, Any] | None:
        try:
            told = json.loads((Path(self.config.state_dir) / SHADOW_REPORT).read_bytes())
        except (OSError, ValueError):
            return None
        return told if isinstance(told, dict) else None

    def set_mode(self, mode: str, who: str) -> None:
        self.controller.command(mode, who)

    def reload(self) -> dict[str, Any]:
        config = load(self._config_file).config
        names = ("socket", "tcp", "state_dir", "estimate_keys")
        fixed = [n for n in names if getattr(config, n) != getattr(self.config, n)]
        if fixed:
            raise InputError("needs a restart to change", field=", ".join(fixed))
        before, after = asdict(self.config), asdict(config)
        self.controller.reconfigure(config)
        return {"changed": {name: after[name] for name in after if after[name] != before[name]}}


@functools.lru_cache(maxsize=8)
def _writers(slurm_user: str, others: tuple[int, ...]) -> frozenset[int]:
    """Root, ourselves, SlurmUser as slurmctld names it (`slurm(64030)`), and those that are configured."""
    match = re.search(r"\((\d+)\)", slurm_user)
    return frozenset({0, os.geteuid(), *others, *([int(match[1])] if match else [])})


def described(request: Mapping[str, Any]) -> SlurmState:
    """A queue and a cluster from a request, as if Slurm had told of them."""
    numbers = itertools.count(1)
    nodes = [
        SlurmNode(
            name=f"n{next(numbers)}",
            state="IDLE",
            cpus=c["cpus"],
            mem_mb=c["mem_mb"],
            gpus={c["gpu_type"]: c["gpus"]} if c["gpus"] else {},
            partitions=(c["partition"],),
        )
        for c in request["nodes"]
        for _ in range(c["count"])
    ]
    jobs = [
        SlurmJob(
            job_id=j["id"],
            user=j["user"],
            account=j["account"],
            partitions=(j["partition"],),
            submit_time=j["submit_time"],
            time_limit=j["time_limit"],
            gpus={j["gpu_type"]: j["gpus"]} if j["gpus"] else {},
            nodes=j["nodes"],
            cpus=j["cpus"],
            mem_mb=j["mem_mb"],
            priority=1,
            factors=_NO_FACTORS,
        )
        for j in request["jobs"]
    ]
    return SlurmState(
        taken=float(request["now"]),
        spread=0.0,
        release=Release(*NEWEST),
        cluster="request",
        jobs=tuple(jobs),
        nodes=tuple(nodes),
        partitions=(),
        weights=PriorityWeights(),
        fairshare={},
        config={},
    )


SAMPLE = {
    "now": 1000,
    "jobs": [
        {"id": i, "submit_time": 10 * i, "time_limit": 600, "gpus": 1, "gpu_type": "", "nodes": 1, "cpus": 1}
        | {"mem_mb": 0, "user": "a", "account": "", "partition": "p"}
        for i in (1, 2, 3)
    ],
    "nodes": [{"count": 1, "gpus": 2, "gpu_type": "", "cpus": 4, "mem_mb": 1000, "partition": "p"}],
}


def compile_kernels(policy: LivePolicy, config: Config, planner: Planner | None = None) -> None:
    """Compiles what a tick, advice, explain and forecasts call, on a queue made up for it: a live one may be empty."""
    run_times, guardrails = RunTimes(), guardrails_of(config)
    run_times.learn([Finished("a", "", 1.0, True, 600, 60.0)])
    queue = observe(described(SAMPLE), run_times, policy.spec)
    plan = policy.plan(queue.snapshot, guardrails, dict(queue.weights), config.placement, planner)
    advisor = Advisor.of(queue, plan, np.zeros(len(queue.jobs), dtype=np.int64), 1, policy, run_times)
    advisor.advise(Submission("a", "", "p", 1, 1, 600), 1000.0)
    _foretell_once(queue, plan, policy, config, run_times)
    if config.promise:
        starts_in_order(queue, plan.order, 1)
    ordered = Ordered(queue, plan, policy, guardrails)
    for job in queue.jobs:
        place = ordered.place_of(job.job_id)
        if place is not None:
            place.contributions()
            place.moves()


def _foretell_once(queue: LiveQueue, plan: Plan, policy: LivePolicy, config: Config, run_times: RunTimes) -> None:
    """One future under each rule that forecasts run under: Slurm's own, and the one for long queues."""
    waiting = [queue.jobs[j] for j in plan.order]
    for mode, long in itertools.product(("shadow", "enforce"), (False, True)):
        scene = LiveScene(queue.state, waiting, RecentJobs(), run_times.known(), policy, mode, config, long=long)
        foretell(scene.scene(), np.array(scene.waiting), np.random.default_rng(0), most=1, seconds=600.0)


def warm_up(live: ControllerLive) -> None:
    """Compiles the kernels before anybody waits for them."""
    controller = live.controller
    for policy in controller.policies():
        compile_kernels(policy, live.config, controller.planner)
    live.warm = True
