"""The default client: speaks to Slurm through its own commands."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from slurm_rl.domain.keys import Key
from slurm_rl.domain.topology import blocks_of
from slurm_rl.errors import SlurmError
from slurm_rl.slurm import history, jsonform, scontrol, sprio, squeue, squeue_more
from slurm_rl.slurm.command import Commands, NotPlain, separator
from slurm_rl.slurm.model import (
    Health,
    HistoryJob,
    JobUpdate,
    PriorityFactors,
    SlurmNode,
    SlurmState,
    UpdateResult,
    UpdateStatus,
)
from slurm_rl.slurm.release import Release, Traits, parse_release
from slurm_rl.slurm.updates import apply

_MOST_NAMED = 500  # new jobs that are asked about by name
_ASK_EVERY = 60.0  # seconds for which a change of --exclude or of CPUs by GPU may go unseen
_LONG = ("squeue", "sprio")  # answers that are read portion by portion
_CAREFUL = 3600.0  # seconds for which every field ends in a secret mark, after a value that held the separator
_FLAT = ("", "topology/none", "topology/default", "topology/flat")  # plugins that know of no switch and no block


def batch_time(timeout: float, updates: int) -> float:
    """Seconds that a batch may take."""
    return timeout + 0.005 * updates


class _LastRead:
    """What was read last, for what has not changed since; of one release, as each prints in its own way."""

    def __init__(self, release: Release | None = None) -> None:
        self.release = release
        self.jobs = squeue.KnownJobs()
        self.factors: dict[str, tuple[int, PriorityFactors]] = {}
        self.nodes: dict[str, SlurmNode] = {}
        self.details: dict[int, squeue_more.RequestDetails] = {}
        self.asked: frozenset[int] = frozenset()  # jobs that waited when `details` was read
        self.asked_at = -math.inf


class CliClient:
    """A SlurmClient on squeue, scontrol, sprio, sshare, sdiag and sacct.

    `timeout` bounds each call; a batch of updates gets 5 ms per job on top. A release that is not in our table is read,
    and written only with `force`.
    """

    force = False
    keys: Sequence[Key] = ()  # what else it asks of jobs, for estimates of their run times

    def __init__(self, conf: Path | None = None, timeout: float = 10.0, user: str | None = None) -> None:
        self.commands = Commands(conf, timeout, user)
        self._release: Release | None = None
        self._seen = _LastRead()
        self._careful_until = -math.inf

    def snapshot(self) -> SlurmState:
        if time.monotonic() > self._careful_until:
            try:
                return self._snapshot(plain=True)
            except NotPlain:  # somebody put the separator into a job's name: it may stay there for a while
                self._careful_until = time.monotonic() + _CAREFUL
        return self._snapshot(plain=False)

    def _snapshot(self, *, plain: bool) -> SlurmState:
        mark = separator()
        taken, began = time.time(), time.monotonic()
        config = self.config()
        release = parse_release(config["SLURM_VERSION"])
        traits = release.traits
        asked: dict[str, Sequence[str]] = {
            "partitions": ("scontrol", "-o", "-a", "show", "partition"),
            "reservations": ("scontrol", "-o", "show", "reservation"),
        }
        if release.known:
            asked["nodes"] = ("scontrol", "-o", "-d", "show", "node")
            asked["squeue"] = squeue.command(traits, mark, plain=plain)
            if not traits.array_unique:
                asked["arrays"] = squeue.arrays_command(mark)
            if not traits.cron_field and "enable" in scontrol.setting(config, "ScronParameters"):
                asked["cron"] = ("scontrol", "-o", "show", "job")
        else:  # what text a later release prints is not known; JSON names its fields
            asked["nodes as json"] = ("scontrol", "show", "nodes", "--json")
            asked["jobs as json"] = ("squeue", "-a", "--json")
        told = [key for key in self.keys if key.squeue]
        if told:
            asked["keys"] = squeue_more.squeue_keys(told, mark)
        if scontrol.setting(config, "TopologyPlugin") not in _FLAT:
            asked["topology"] = ("scontrol", "show", "topology")
        if scontrol.setting(config, "PriorityType") == "priority/multifactor":
            asked["sprio"] = ("sprio", "-h", "-o", sprio.factor_format(mark, plain=plain))
        if scontrol.setting(config, "AccountingStorageType") == "accounting_storage/slurmdbd":
            asked["sshare"] = ("sshare", "-h", "-P", "-a", "-o", "Account,User,FairShare")
        answers = dict(zip(asked, self.commands.run_all(list(asked.values())), strict=True))
        said = {name: "".join(answer) for name, answer in answers.items() if name not in _LONG}
        if self._seen.release != release:
            self._seen = _LastRead(release)
        seen = self._seen
        factors = sprio.factors(answers["sprio"], mark, seen.factors, plain=plain) if "sprio" in answers else {}
        if release.known:
            waiting, cron = squeue.arrays(said.get("arrays", ""), mark), scontrol.cron_jobs(said.get("cron", ""))
            more = functools.partial(squeue.jobs, waiting=waiting, cron=cron, details=self._details, known=seen.jobs)
            jobs = more(answers["squeue"], mark, factors, traits, plain=plain)
            nodes = scontrol.nodes(said["nodes"], seen.nodes)
        else:
            every = jsonform.jobs(said["jobs as json"].encode(), factors, self._exclusive(traits, mark))
            jobs = [j for j in every if j.pending or j.running]  # some releases ignore -t here
            nodes = jsonform.nodes(said["nodes as json"].encode())
        if told:
            jobs = squeue_more.with_keys(jobs, said["keys"], told, mark)
        return SlurmState(
            taken=taken,
            spread=time.monotonic() - began,
            release=release,
            cluster=scontrol.setting(config, "ClusterName"),
            jobs=tuple(jobs),
            nodes=tuple(nodes),
            partitions=tuple(scontrol.partitions(said["partitions"])),
            weights=scontrol.weights(config),
            fairshare=scontrol.fairshare(said.get("sshare", "")),
            config=config,
            topology=blocks_of(said.get("topology", "")),
            reservations=scontrol.reservations(said["reservations"], {n.name: n.cpus for n in nodes}),
        )

    def _details(self, waiting: frozenset[int]) -> dict[int, squeue_more.RequestDetails]:
        """Rare parts of requests: fixed at submission, so asked of jobs that are new, and of all once a minute."""
        seen, now = self._seen, time.monotonic()
        fresh = waiting - seen.asked
        if now - seen.asked_at > _ASK_EVERY or len(fresh) > _MOST_NAMED:
            seen.details, seen.asked_at = self._read_details(), now
        elif fresh:
            try:
                seen.details = {k: v for k, v in seen.details.items() if k in waiting} | self._read_details(
                    *sorted(fresh)
                )
            except SlurmError:  # squeue knows none of them any more: they came and went
                seen.details, seen.asked_at = self._read_details(), now
        seen.asked = waiting
        return seen.details

    def _read_details(self, *jobs: int) -> dict[int, squeue_more.RequestDetails]:
        """Of these jobs, or of all that wait."""
        mark = separator()
        named = ("-j", ",".join(map(str, jobs))) if jobs else ()
        traits = self.release().traits
        both = (squeue_more.squeue_details(mark, traits), squeue_more.squeue_excluded(mark))
        said, excluded = self.commands.run_all([(program, *named, *rest) for program, *rest in both])
        return squeue_more.details(said, excluded, mark, traits)

    def _exclusive(self, traits: Traits, mark: str) -> frozenset[int]:
        """Jobs that the JSON of some releases does not tell to be exclusive; none if a later one has no such field."""
        if traits.json_exclusive:
            return frozenset()
        try:
            return squeue_more.exclusive_jobs(self.commands.run(*squeue_more.squeue_exclusive(mark)), mark)
        except SlurmError:
            return frozenset()

    def config(self) -> dict[str, str]:
        """slurmctld's configuration as it runs, not as the file says."""
        config = scontrol.config(self.commands.run("scontrol", "show", "config"))
        if "SLURM_VERSION" not in config:
            raise SlurmError("scontrol show config names no SLURM_VERSION: is this Slurm?")
        release = parse_release(config["SLURM_VERSION"])
        if not release.known and release != self._release:
            import structlog  # undo must start without it

            structlog.get_logger().warning("unknown release of Slurm", why=release.not_known(), forced=self.force)
        self._release = release
        return config

    def load(self) -> tuple[int, int]:
        """How often Slurm was asked since the last time this was, and how many characters it said."""
        return self.commands.load.taken()

    def release(self) -> Release:
        """slurmctld's release, asked once."""
        if self._release is None:
            self.config()
        assert self._release is not None  # noqa: S101  (config sets it or raises)
        return self._release

    def site_factors(self, jobs: Sequence[int] = ()) -> dict[int, int]:
        """SiteFactor by job id: of these jobs, if they are few, or of all that sprio shows."""
        mark = separator()
        named = ("-j", ",".join(map(str, jobs))) if 0 < len(jobs) <= _MOST_NAMED else ()
        try:
            return sprio.site_factors(self.commands.run("sprio", "-h", *named, "-o", sprio.site_format(mark)), mark)
        except SlurmError:
            if not named:
                raise
            return self.site_factors()  # sprio knows none of them any more, and says so in words

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        if not updates:
            return []
        release = self.release()
        if not release.known and not self.force:
            raise SlurmError(f"{release.not_known()} (to write all the same: --force, or write_unknown_release = true)")
        results = self._apply(updates)
        if any(r.status is UpdateStatus.UNKNOWN for r in results):
            results = self._read_back(updates, results)
        return results

    def _apply(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        """How a batch is sent; the one step of an update that another client does in another way."""
        limit = batch_time(self.commands.timeout, len(updates))
        return apply(self.commands, updates, limit, self.release().traits)

    def _read_back(self, updates: Sequence[JobUpdate], results: list[UpdateResult]) -> list[UpdateResult]:
        """Settles what was under way when slurmctld went silent, if it answers again by now."""
        try:
            site = self.site_factors()
        except SlurmError:
            return results
        settled = []
        for update, result in zip(updates, results, strict=True):
            only_site = update.features is None and update.prefer is None and update.start_at is None
            if result.status is UpdateStatus.UNKNOWN and only_site and update.job_id in site:
                written = site[update.job_id] == update.site_factor
                status = UpdateStatus.APPLIED if written else UpdateStatus.NOT_SENT
                settled.append(msgspec.structs.replace(result, status=status))
            else:
                settled.append(result)
        return settled

    def history(self, start: float, end: float) -> list[HistoryJob]:
        mark = separator()
        said = self.commands.run(*history.command(start, end, mark, self.keys), timeout=history.TIMEOUT)
        return history.parse(said, mark, self.keys)

    def assoc_mgr(self) -> str:
        """What slurmctld holds of associations and QOS: limits, and how far they are used; "" without accounting."""
        try:
            return self.commands.run("scontrol", "show", "assoc_mgr")
        except SlurmError:
            return ""

    def licenses(self) -> tuple[str, Mapping[int, Mapping[str, int]]]:
        """What slurmctld counts of licences, and which jobs hold or ask for them."""
        mark = separator()
        try:
            counted, asked = self.commands.run_all(
                [("scontrol", "show", "licenses"), squeue_more.squeue_licenses(mark)]
            )
        except SlurmError:
            return "", {}
        return "".join(counted), squeue_more.job_licenses("".join(asked), mark)

    def health(self) -> Health:
        began = time.monotonic()
        try:
            said = self.commands.run("scontrol", "ping")
        except SlurmError as error:
            return Health(up=False, controller=str(error).partition(";")[0], answer_seconds=time.monotonic() - began)
        answer = time.monotonic() - began
        controller = said.strip().splitlines()[0]
        if " UP" not in said:
            return Health(up=False, controller=controller, answer_seconds=answer)
        try:
            return scontrol.health(self.commands.run("sdiag").splitlines(), controller, answer)
        except SlurmError as error:
            return Health(up=False, controller=str(error), answer_seconds=answer)
