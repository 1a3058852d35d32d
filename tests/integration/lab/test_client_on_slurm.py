"""The client against a real Slurm: what it reads is what was submitted, what it writes is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from slurm_rl.cli import main
from slurm_rl.controller.undo import undo
from slurm_rl.domain.keys import parse_keys
from slurm_rl.errors import SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal
from slurm_rl.slurm import jsonform, squeue, squeue_more
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.command import separator
from slurm_rl.slurm.connect import connect
from slurm_rl.slurm.model import JobUpdate, SlurmJob, UpdateStatus
from slurm_rl.slurm.release import TABLE

from .conftest import Submit, sbatch, separate_jobs, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.releases]


def jobs_by_name(client: CliClient) -> dict[str, SlurmJob]:
    return {f"{j.name}+{j.het_offset}" if j.het_offset else j.name: j for j in client.snapshot().jobs}


def test_a_snapshot_equals_what_was_submitted(client: CliClient, submit: Submit, slurm: Lab) -> None:
    """Types, arrays, dependencies, held and deferred jobs, heterogeneous jobs, and names that try to confuse."""
    fill = submit("--job-name=fill", "--nodes=2", "--gpus-per-node=a100:8", "--time=1-00:00:00")
    wait_until(lambda: jobs_by_name(client)["fill"].running, "the first job runs")
    name = "it's 'a' \"name\" | with\nlines=1 JobId=1 Priority=9"
    submit(f"--job-name={name}", "--gpus=a100:2", "--cpus-per-task=4", "--mem=3G", "--time=90", "--nice=70")
    submit("--job-name=array", "--array=1-9:2%2", "--gpus=a100:8")
    submit("--job-name=held", "--hold", "--gpus=3")
    submit("--job-name=after", f"--dependency=afterok:{fill}", "--gpus-per-node=t4:1")
    submit("--job-name=later", "--begin=now+1hour")
    submit("--job-name=choosy", "--nodes=2", "--gpus-per-node=8", "--constraint=(a100|v100)", "--hold")
    het = sbatch(slurm, "--job-name=het", "--gpus=a100:8", ":", "--gpus=t4:1")
    submit("--job-name=reserved", "--hold", "--exclusive", "--nodelist=t4-1", "--prefer=t4", "--time=UNLIMITED")
    jobs = jobs_by_name(client)
    assert len(jobs) == 10

    assert jobs["fill"].gpus == {"a100": 16}
    assert jobs["fill"].node_list == ("a100-1", "a100-2")
    assert jobs["fill"].time_limit == 86_400

    odd = jobs[name]
    assert (odd.gpus, odd.cpus, odd.mem_mb, odd.time_limit, odd.nice) == ({"a100": 2}, 4, 3072, 5400, 70)
    assert (odd.state, odd.user, odd.partitions) == ("PENDING", "root", ("batch",))
    assert odd.submit_time is not None
    assert abs(odd.submit_time - time.time()) < 30

    array = jobs["array"]
    assert (array.array_job_id, array.array_tasks, array.array_task_count) == (array.job_id, "1,3,5,7,9", 5)
    assert array.array_max_running == 2

    assert jobs["held"].held
    assert jobs["held"].gpus == {"": 3}
    assert jobs["after"].dependency == f"afterok:{fill}(unfulfilled)"
    assert jobs["after"].gpus == {"t4": 1}
    later = jobs["later"]
    assert later.eligible_time is not None
    assert 3500 < later.eligible_time - time.time() <= 3600
    assert later.gpus == {}

    assert (jobs["choosy"].gpus, jobs["choosy"].features) == ({"": 16}, "(a100|v100)")
    assert [(jobs[n].het_job_id, jobs[n].het_offset, jobs[n].gpus) for n in ("het", "het+1")] == [
        (het, 0, {"a100": 8}),
        (het, 1, {"t4": 1}),
    ]
    reserved = jobs["reserved"]
    assert (reserved.exclusive, reserved.required_nodes, reserved.prefer, reserved.time_limit) == (
        True,
        ("t4-1",),
        "t4",
        None,
    )
    eligible = {n for n, j in jobs.items() if j.eligible(time.time())}
    assert eligible == {name, "array", "het", "het+1"}


def test_keys_are_read_where_they_are_asked_for(client: CliClient, submit: Submit, tmp_path: Path) -> None:
    """The same values that accounting tells later: a group of jobs is one group, waiting or ended."""
    submit("--job-name=fill-1", "--nodes=2", "--gpus-per-node=a100:8", f"--chdir={tmp_path}")
    wait_until(lambda: jobs_by_name(client)["fill-1"].running, "the first job runs")
    array = submit("--job-name=seed-12", "--array=1-9:2%2", "--gpus=a100:8", f"--chdir={tmp_path}")
    submit("--job-name=held", "--hold", "--chdir=/usr")
    assert all(not job.keys for job in client.snapshot().jobs)
    asking = CliClient(client.commands.conf)
    asking.keys = parse_keys("name,workdir,array")
    keys = {name: dict(job.keys) for name, job in jobs_by_name(asking).items()}
    assert keys == {
        "fill-1": {"stem": "fill-#", "workdir": str(tmp_path)},
        "seed-12": {"stem": "seed-#", "workdir": str(tmp_path), "array": str(array)},
        "held": {"stem": "held", "workdir": "/usr"},
    }


def test_text_and_json_of_slurm_agree(client: CliClient, submit: Submit) -> None:
    """Field by field, over jobs that read differently in the one and in the other."""
    submit("--job-name=fill", "--nodes=2", "--gpus-per-node=a100:8")
    submit("--job-name=array", "--array=1-20%3", "--gpus=a100:8")
    submit("--job-name=stepped", "--array=1-400:3%7", "--gpus=a100:8")
    submit("--job-name=held", "--hold", "--gpus=2", "--constraint=t4|a100")
    submit("--job-name=None", "--hold", "--comment=None")
    submit("--job-name=N/A", "--hold", "--exclusive", "--deadline=now+2days")
    submit("--job-name=(null) 'ä' | \n", "--hold", "--exclusive=user")
    submit("--job-name=shares", "--hold", "--oversubscribe", "--ntasks=3", "--gpus-per-task=t4:1")
    wait_until(lambda: jobs_by_name(client)["fill"].running, "the first job runs")
    for _ in range(5):  # Slurm may change a job between the two answers
        mark = separator()
        traits = client.release().traits
        whole = squeue_more.squeue_exclusive(mark)
        exclusive = () if traits.json_exclusive else squeue_more.exclusive_jobs(client.commands.run(*whole), mark)
        as_text = {j.job_id: msgspec.structs.replace(j, factors=None) for j in client.snapshot().jobs}
        said = client.commands.run("squeue", "-a", "--json")
        as_json = {j.job_id: j for j in jsonform.jobs(said.encode(), {}, exclusive) if j.pending or j.running}
        if as_json == as_text:
            break
    assert as_json == as_text
    assert len(as_text) == 8
    assert {j.name for j in as_text.values() if j.exclusive} == {"N/A"}
    assert {"None", "N/A", "(null) 'ä' | \n"} <= {j.name for j in as_text.values()}


@pytest.mark.releases("24.11", "26.05")
def test_a_release_that_is_not_in_the_table_is_read_and_written_only_by_force(
    client: CliClient, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit("--job-name=fill", "--nodes=2", "--gpus-per-node=a100:8")
    wait_until(lambda: jobs_by_name(client)["fill"].running, "the first job runs")
    waiting = submit("--job-name=array", "--array=1-20:3%3", "--gpus=a100:8")
    wait_until(lambda: jobs_by_name(client)["array"].factors is not None, "sprio shows the array")
    before = client.snapshot()
    monkeypatch.delitem(TABLE, before.release.major)
    later = CliClient(client.commands.conf)
    read = later.snapshot()
    assert not read.release.known
    told = ("name", "user", "state", "gpus", "nodes", "cpus", "time_limit", "array_tasks", "array_max_running")
    assert {j.job_id: [getattr(j, k) for k in told] for j in read.jobs} == {
        j.job_id: [getattr(j, k) for k in told] for j in before.jobs
    }
    assert [(n.name, n.gpus, n.gpus_allocated) for n in read.nodes] == [
        (n.name, n.gpus, n.gpus_allocated) for n in before.nodes
    ]
    update = JobUpdate.of(next(j for j in read.jobs if j.job_id == waiting), site_factor=12)
    with pytest.raises(SlurmError, match=r"is not known.*only read, never written.*--force"):
        later.update([update])
    wait_until(lambda: waiting in client.site_factors(), "sprio shows the job")
    assert client.site_factors()[waiting] == 0
    later.force = True
    assert [r.applied for r in later.update([update])] == [True]
    assert client.site_factors()[waiting] == 12


def test_nodes_show_their_gpus_in_use_by_type(client: CliClient, submit: Submit) -> None:
    submit("--gpus=v100:3", "--nodes=1", "--nodelist=v100-1", "--cpus-per-task=5", "--mem=2G")
    wait_until(lambda: any(j.running for j in client.snapshot().jobs), "the job runs")
    nodes = {n.name: n for n in client.snapshot().nodes}
    assert {n: (node.gpus, node.features) for n, node in nodes.items() if n.endswith("-1")} == {
        "a100-1": ({"a100": 8}, ("a100",)),
        "v100-1": ({"v100": 8}, ("v100",)),
        "t4-1": ({"t4": 4}, ("t4",)),
    }
    busy = nodes["v100-1"]
    assert (busy.gpus_allocated, busy.cpus_allocated, busy.mem_mb_allocated) == ({"v100": 3}, 5, 2048)
    assert (busy.cpus, busy.mem_mb, busy.state) == (64, 524_288, "MIXED")
    assert nodes["v100-2"].gpus_allocated == {}


def test_partitions_weights_fairshare_and_health(client: CliClient) -> None:
    state = client.snapshot()
    (batch,) = state.partitions
    assert batch.default
    assert len(batch.nodes) == 6
    assert (batch.max_time, batch.default_time) == (None, 3600)
    assert (state.weights.age, state.weights.fairshare, state.weights.total) == (1000, 1000, 3500)
    assert ("lab", "root") in state.fairshare
    assert state.release.known
    health = client.health()
    assert health.up
    assert health.answer_seconds < 5


def test_a_thousand_site_factors_are_read_back_right(client: CliClient, slurm: Lab) -> None:
    sbatch(slurm, "--nodes=2", "--gpus-per-node=a100:8")
    wait_until(lambda: any(j.running for j in client.snapshot().jobs), "the first job runs")
    separate_jobs(slurm, 1000, "--gpus=a100:8", "--nodes=2")
    jobs = [j for j in client.snapshot().jobs if j.pending and not j.held]
    assert len(jobs) >= 1000
    jobs = jobs[:1000]

    def all_shown() -> bool:
        # sprio leaves out a task that was just separated until the scheduler has looked at it once.
        return {j.job_id for j in jobs} <= client.site_factors().keys()

    for attempt in (1, 2):  # to either side of what was there
        wanted = {j.job_id: (-1) ** attempt * (10 * attempt + j.job_id % 977) for j in jobs}
        results = client.update([JobUpdate.of(j, site_factor=wanted[j.job_id]) for j in jobs])
        assert {r.status for r in results} == {UpdateStatus.APPLIED}
        wait_until(all_shown, "sprio shows every job")
        read_back = client.site_factors()
        assert {job_id: read_back[job_id] for job_id in wanted} == wanted


def test_features_prefer_and_deferral_are_written_and_cleared(client: CliClient, submit: Submit) -> None:
    job_id = submit("--gpus=2", "--hold")
    update = JobUpdate(
        job_id=job_id, site_factor=5, features="t4|v100", prefer="(t4|v100)&t4", start_at=int(time.time()) + 500
    )
    assert [r.status for r in client.update([update])] == [UpdateStatus.APPLIED]
    (job,) = client.snapshot().jobs
    assert (job.features, job.prefer) == ("t4|v100", "(t4|v100)&t4")
    assert job.held
    assert [r.applied for r in client.update([JobUpdate(job_id=job_id, features="", prefer="", start_at=0)])] == [True]
    (job,) = client.snapshot().jobs
    assert (job.features, job.prefer) == ("", "")


def test_a_deferred_job_waits_and_a_lifted_deferral_lets_it_run(client: CliClient, submit: Submit) -> None:
    submit("--nodes=2", "--gpus-per-node=t4:4", "--job-name=fill")
    wait_until(lambda: jobs_by_name(client)["fill"].running, "the first job runs")
    job_id = submit("--gpus=t4:1", "--job-name=deferred")
    assert client.update([JobUpdate(job_id=job_id, start_at=int(time.time()) + 900)])[0].applied
    job = jobs_by_name(client)["deferred"]
    assert not job.eligible(time.time())
    assert job.eligible(time.time() + 901)
    assert client.update([JobUpdate(job_id=job_id, start_at=0)])[0].applied
    assert jobs_by_name(client)["deferred"].eligible(time.time() + 1)


def test_an_untyped_job_is_steered_by_features(client: CliClient, submit: Submit) -> None:
    job_id = submit("--gpus=2", "--job-name=steered", "--hold")
    assert client.update([JobUpdate(job_id=job_id, features="t4")])[0].applied
    client.commands.run("scontrol", "release", str(job_id))
    wait_until(lambda: jobs_by_name(client)["steered"].running, "the job runs")
    assert jobs_by_name(client)["steered"].node_list[0].startswith("t4-")


def test_updating_an_array_record_touches_neither_running_nor_separate_tasks(client: CliClient, submit: Submit) -> None:
    array = submit("--array=0-20", "--nodes=2", "--gpus-per-node=a100:8")

    def records() -> dict[str, SlurmJob]:
        return {j.array_tasks: j for j in client.snapshot().jobs}

    wait_until(lambda: any(j.running for j in records().values()), "the first task runs")
    client.commands.run("scontrol", "update", f"JobId={array}_20", "Nice=3")  # separates this task
    waiting = records()["1-19"]
    results = client.update([JobUpdate.of(waiting, site_factor=77, features="a100")])
    assert [r.status for r in results] == [UpdateStatus.APPLIED]
    after = records()
    assert set(after) == {"0", "1-19", "20"}
    assert (after["1-19"].site_factor, after["1-19"].features) == (77, "a100")
    assert (after["20"].site_factor, after["20"].features) == (0, "")
    assert after["0"].features == ""


def test_arrays_with_steps_are_written_whole_and_undone(client: CliClient, submit: Submit, tmp_path: Path) -> None:
    """scontrol takes no steps, and may cut long lines; one bad update must not stop the others."""
    submit("--nodes=2", "--gpus-per-node=a100:8", "--job-name=fill")
    wait_until(lambda: jobs_by_name(client)["fill"].running, "the first job runs")
    submit("--job-name=steps", "--array=1-400:3%7", "--gpus=a100:8")
    submit("--job-name=evens", "--array=0-5998:2", "--gpus=a100:8")
    submit("--job-name=held", "--array=1-9:4", "--hold")

    def shown() -> bool:  # sprio tells a factor once Slurm has looked at the job
        found = jobs_by_name(client)
        return all(found[name].site_factor is not None for name in ("steps", "evens"))

    wait_until(shown, "sprio shows both arrays")
    jobs = {name: job for name, job in jobs_by_name(client).items() if name != "fill"}
    assert {name: job.array_task_count for name, job in jobs.items()} == {"steps": 134, "evens": 3000, "held": 3}
    bad = JobUpdate(job_id=4_000_000, array_tasks="1-", site_factor=3)
    results = client.update([bad, *(JobUpdate.of(job, site_factor=55) for job in jobs.values())])
    assert [r.status for r in results] == [UpdateStatus.REFUSED] + [UpdateStatus.APPLIED] * 3
    after = jobs_by_name(client)
    assert {name: after[name].array_task_count for name in jobs} == {"steps": 134, "evens": 3000, "held": 3}
    assert (after["steps"].site_factor, after["evens"].site_factor) == (55, 55)
    with closing(Journal(tmp_path / "journal")) as journal:
        undone = undo(client, journal, everything=True)
    assert undone.left == ()
    after = jobs_by_name(client)
    assert (after["steps"].site_factor, after["evens"].site_factor) == (0, 0)


def test_an_array_of_which_a_task_runs_takes_an_update_of_the_others(client: CliClient, submit: Submit) -> None:
    """As when a task starts between the snapshot and the update; releases report it in different words."""
    array = submit("--array=0-20", "--nodes=2", "--gpus-per-node=a100:8")
    wait_until(lambda: any(j.running for j in client.snapshot().jobs), "the first task runs")
    result, refused = client.update(
        [
            JobUpdate(job_id=array, array_tasks="0-20", site_factor=31, features="a100"),
            JobUpdate(job_id=4_000_000, array_tasks="0-20", site_factor=31),
        ]
    )
    assert (result.status, refused.status) == (UpdateStatus.APPLIED, UpdateStatus.REFUSED)
    assert "no longer pending" in result.message
    (waiting,) = [j for j in client.snapshot().jobs if j.pending]
    assert (waiting.array_tasks, waiting.site_factor, waiting.features) == ("1-20", 31, "a100")


def test_a_hidden_factor_shows_in_the_priority(client: CliClient, submit: Submit) -> None:
    """sprio hides dependent and deferred jobs; each update recalculates their priority by its difference."""
    first = submit("--hold")
    ids = [submit(f"--dependency=afterok:{first}"), submit("--begin=now+1hour")]
    seen = []
    for factor in (0, 123, -45, 0):
        assert all(r.applied for r in client.update([JobUpdate(job_id=i, site_factor=factor) for i in ids]))
        jobs = {j.job_id: j for j in client.snapshot().jobs}
        assert [jobs[i].site_factor for i in ids] == [None, None]
        seen.append([jobs[i].priority for i in ids])
    base = seen[0]
    assert [[now - before for now, before in zip(row, base, strict=True)] for row in seen] == [
        [0, 0],
        [123, 123],
        [-45, -45],
        [0, 0],
    ]


def test_a_huge_comment_does_not_reach_a_snapshot(client: CliClient, submit: Submit, slurm: Lab) -> None:
    """Slurm bounds what users write at 1,024 bytes; an administrator's comment it does not."""
    job_id = submit("--hold")
    with pytest.raises(SlurmError, match="too long"):
        slurm.run("sbatch", "--comment=" + "c" * 2000, "--wrap=true")
    slurm.run("scontrol", "update", f"JobId={job_id}", "AdminComment=" + "c" * 120_000)
    assert len(client.commands.run(*squeue.command(client.release().traits, separator()))) < 4000
    assert [j.job_id for j in client.snapshot().jobs] == [job_id]


def test_refusals_are_reported_job_by_job(client: CliClient, submit: Submit) -> None:
    submit("--nodes=2", "--gpus-per-node=a100:8")
    good = submit("--nodes=2", "--gpus-per-node=a100:8")
    bad = submit("--nodes=2", "--gpus-per-node=a100:8")
    results = client.update(
        [
            JobUpdate(job_id=bad, features="nosuch"),
            JobUpdate(job_id=4_000_000, site_factor=1),
            JobUpdate(job_id=good, site_factor=9),
        ]
    )
    assert [r.status for r in results] == [UpdateStatus.REFUSED, UpdateStatus.REFUSED, UpdateStatus.APPLIED]
    assert "feature" in results[0].message
    assert "Invalid job id" in results[1].message


def test_a_user_without_rights_may_read_but_is_refused_clearly(submit: Submit, slurm: Lab) -> None:
    job_id = submit("--hold")
    nobody = CliClient(slurm.slurm_conf, user="nobody")
    assert [j.job_id for j in nobody.snapshot().jobs] == [job_id]
    with pytest.raises(SlurmError, match=r"may not change others' jobs.*AdminLevel=Operator"):
        nobody.update([JobUpdate(job_id=job_id, site_factor=1)])


def test_history_tells_what_ran(client: CliClient, submit: Submit) -> None:
    began = time.time()
    done = submit("--job-name=done", "--gpus=v100:2", "--mem=1G", "--time=5", seconds=0.5)
    submit("--job-name=array", "--array=1-2", "--gpus=t4:1", seconds=0.5)

    def finished() -> dict[str, object]:
        jobs = client.history(began - 5, time.time() + 5)
        return {j.display_id: j for j in jobs if j.state == "COMPLETED" and (j.submit_time or 0) >= began - 5}

    wait_until(lambda: len(finished()) >= 3, "three jobs are in the accounting")
    (job,) = [j for j in client.history(began - 5, time.time() + 5) if j.job_id == done]
    assert (job.name, job.user, job.account, job.partition) == ("done", "root", "root", "batch")
    assert job.gpus_requested == {"v100": 2}
    assert job.gpus_allocated == {"v100": 2}
    assert (job.time_limit, job.nodes, job.mem_mb, job.exit_code) == (300, 1, 1024, 0)
    assert job.start_time is not None
    assert job.end_time is not None
    assert job.elapsed == job.end_time - job.start_time
    assert job.node_list[0].startswith("v100-")


def test_the_doctor_finds_the_lab_healthy(slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(tmp_path / "none.toml")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--slurm-conf", str(slurm.slurm_conf), "--config", config, "--json"])
    value = json.loads(capsys.readouterr().out)
    found = {f["code"]: f["severity"] for f in value["findings"]}
    assert ended.value.code == 0, found
    assert value["worst"] == "info"
    assert {"release", "priority-type", "weights", "gpus", "rights"} <= {c for c, s in found.items() if s == "ok"}


def test_the_default_client_here_is_the_command_line(slurm: Lab) -> None:
    chosen: SlurmClient = connect(slurm.slurm_conf)
    assert isinstance(chosen, CliClient)


@pytest.mark.releases("24.11", "26.05")  # Debian 12 has no scrontab
def test_jobs_of_scrontab_are_told_from_others(start_lab: Callable[..., Lab]) -> None:
    """They refuse updates; squeue has a field for them from 25.05 on, before that scontrol alone tells."""
    lab = start_lab("a100:8*1", run_nodes=False)
    lab.slurm_conf.write_text("ScronParameters=enable\n" + lab.slurm_conf.read_text())
    lab.run("scontrol", "reconfigure")
    lab.run("scrontab", "-", stdin="0 3 * * * /bin/true\n")
    plain = sbatch(lab, "--hold")
    client = CliClient(lab.slurm_conf)
    jobs = {j.job_id: j.cron for j in client.snapshot().jobs}
    assert sorted(jobs.values()) == [False, True]
    assert not jobs[plain]
    as_json = jsonform.jobs(client.commands.run("squeue", "-a", "--json").encode(), {})
    assert {j.job_id: j.cron for j in as_json} == jobs
