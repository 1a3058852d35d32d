"""From agents to the service's store: pulled over HTTP, or read from a shared directory; then watts and words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_nvml.node import Node

from slurm_rl.cli.app import main
from slurm_rl.domain.cluster import Cluster, NodeClass, read_cluster, write_cluster
from slurm_rl.errors import InputError
from slurm_rl.telemetry.account import Watts
from slurm_rl.telemetry.collect import Collector, agent_urls
from slurm_rl.telemetry.endpoint import Access, Endpoint
from slurm_rl.telemetry.fit import measured_cluster
from slurm_rl.telemetry.share import RecordFiles
from slurm_rl.telemetry.source import opened
from slurm_rl.telemetry.store import Store, match_run
from slurm_rl.telemetry.words import words

TOKEN = "t" * 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "telemetry.sqlite")
    yield made
    made.close()


@pytest.fixture
def url(node: Callable[..., Node]) -> Iterator[tuple[Node, str]]:
    n = node(2)
    endpoint = Endpoint(n.agent, "127.0.0.1:0", Access(TOKEN), None, None)
    threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.01}).start()
    yield n, f"http://127.0.0.1:{endpoint.server_address[1]}"
    endpoint.shutdown()
    endpoint.server_close()


def run_job(n: Node, job: int, *gpus: int, seconds: int = 5, util: int = 40) -> None:
    n.begin(job, *gpus)
    for g in gpus:
        n.world[g].util = util
    for _ in range(seconds + 1):
        n.step()
    n.end(job)
    n.step()
    n.step()


def a_record(job: int = 5, node: str = "n1", start: float = 100.0, **values: Any) -> dict[str, Any]:
    zeros = dict.fromkeys("unmeasured_seconds slowed_seconds idle_gpu_minutes".split(), 0.0)
    told = {"gpus": 4, "gpus_used": 4, "energy_j": 3.6e6, "memory_peak_mb": 2048, "gpu_seconds": 400.0}
    more = {"user": "ann", "gpu_type": "a100", "util_mean": 50.0, "util_p95": 50, "percents": [[50, 400.0]]}
    flags = {"shared": False, "complete": True, "number": 1, "ring": "r"}
    return {"node": node, "job_id": job, "start": start, "end": start + 100} | zeros | told | more | flags | values


def test_the_clock_of_a_run_is_its_nodes_by_the_time_of_their_kernels(store: Store) -> None:
    store.add("n1", "r", [a_record(sm_mhz=1000, util_mean=20.0)])
    store.add("n2", "r", [a_record(node="n2", sm_mhz=1400, util_mean=60.0)])
    store.add("n3", "r", [a_record(node="n3"), a_record(6, node="n3", sm_mhz="fast")])
    assert [m.sm_mhz for job in (5, 6) for m in store.runs(job)] == [1300, None]


def test_records_are_pulled_once_each(url: tuple[Node, str], store: Store) -> None:
    n, where = url
    for job in range(1, 4):
        run_job(n, job, 0)
    collector = Collector(store, [where], TOKEN)
    collector.collect()
    assert (collector.collected, collector.problems) == (3, {})
    run_job(n, 4, 1)
    collector.collect()
    collector.collect()
    assert collector.collected == 4
    [run] = store.runs(4)
    assert (run.user, run.gpus, run.nodes, run.running, run.util_mean) == ("ann", 1, ("n1",), False, 40.0)


def test_running_jobs_are_shown_until_they_end(url: tuple[Node, str], store: Store) -> None:
    n, where = url
    n.begin(5, 0)
    for _ in range(20):
        n.step()
    collector = Collector(store, [where], TOKEN)
    collector.collect()
    assert [r.running for r in store.runs(5)] == [True]
    n.end(5)
    n.step()
    n.step()
    collector.collect()
    assert [r.running for r in store.runs(5)] == [False]


def test_more_than_a_page(url: tuple[Node, str], store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    n, where = url
    monkeypatch.setattr("slurm_rl.telemetry.collect._PAGE", 2)
    for job in range(1, 8):
        run_job(n, job, 0, seconds=1)
    collector = Collector(store, [where], TOKEN)
    collector.collect()
    assert collector.collected == 7


def test_agents_that_do_not_answer_are_said_and_do_not_stop_the_rest(url: tuple[Node, str], store: Store) -> None:
    n, where = url
    run_job(n, 1, 0)
    collector = Collector(store, ["http://127.0.0.1:1", where], TOKEN)
    collector.collect()
    assert list(collector.problems) == ["http://127.0.0.1:1"]
    assert collector.collected == 1
    wrong = Collector(store, [where], "x" * 40)
    wrong.collect()
    assert wrong.problems == {where: "answers 401: is it the right token?"}


def test_records_come_by_a_shared_directory(node: Callable[..., Node], store: Store, tmp_path: Path) -> None:
    n = node(2)
    shared = tmp_path / "shared"
    share = RecordFiles(n.agent, shared)
    run_job(n, 1, 0)
    share.work()
    assert "No such file" in share.problem  # it is not mounted yet; nothing is lost by it
    shared.mkdir()
    n.begin(3, 1)
    run_job(n, 2, 0)
    share.work()
    assert share.problem == ""
    collector = Collector(store, directory=shared)
    collector.collect()
    assert (collector.collected, collector.problems) == (2, {})
    assert [r.running for r in store.runs(3)] == [True]
    assert oct((shared / "n1.jsonl").stat().st_mode)[-3:] == "640"
    # An agent that is started anew goes on after the last line, and a line that was cut short harms nothing.
    with (shared / "n1.jsonl").open("a") as file:
        file.write('{"number": 99, "job')
    n.start()
    run_job(n, 4, 0)
    RecordFiles(n.agent, shared).work()
    collector.collect()
    assert store.runs(4)


def test_a_shared_file_is_bounded(
    node: Callable[..., Node], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_rl.telemetry.share.FILE_BYTES", 2000)
    n = node(1)
    share, collector = RecordFiles(n.agent, tmp_path), Collector(store, directory=tmp_path)
    for job in range(1, 20):
        run_job(n, job, 0, seconds=1)
        share.work()
        collector.collect()
    sizes = [p.stat().st_size for p in tmp_path.glob("n1.jsonl*")]
    assert max(sizes) <= 2000
    assert len(sizes) == 2
    assert collector.collected == 19


def test_nonsense_is_left_out(store: Store) -> None:
    wrong = [
        a_record(node="other"),
        a_record(energy_j="much"),
        a_record(percents=None),
        a_record(gpus=1e300),
        {"job_id": 7},
    ]
    assert store.add("n1", "r", [*wrong, a_record()]) == 1
    assert len(store.runs(5)) == 1


def test_a_job_on_several_nodes_is_one(store: Store) -> None:
    store.add("n1", "r", [a_record(percents=[[0, 100.0], [80, 100.0]], memory_peak_mb=100)])
    store.add("n2", "r", [a_record(node="n2", start=101.5, percents=[[80, 200.0]], gpus_used=1)])
    [run] = store.runs(5)
    assert (run.nodes, run.gpus, run.gpus_used, run.energy_j) == (("n1", "n2"), 8, 5, 7.2e6)
    assert (run.util_mean, run.util_p95, run.memory_peak_mb) == (60.0, 80, 2048)


def test_the_runs_of_a_requeued_job_are_told_apart(store: Store) -> None:
    store.add("n1", "r", [a_record(), a_record(start=5000.0)])
    runs = store.runs(5)
    assert [r.start for r in runs] == [100.0, 5000.0]
    assert match_run(runs, 4998.0) == runs[1]
    assert match_run(runs, 3000.0) is None
    assert [r.start for r in store.ended(5050.0, 6000.0)] == [100.0, 5000.0]


def test_old_records_are_forgotten(store: Store) -> None:
    store.add("n1", "r", [a_record(), a_record(6, start=1000.0)])
    store.forget(500.0)
    assert store.runs(5) == []
    assert store.runs(6)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("", ()),
        ("gpu[01-02]:9410", ("http://gpu01:9410", "http://gpu02:9410")),
        ("https://a:1,b:2", ("https://a:1", "http://b:2")),
    ],
)
def test_agents_are_named_by_host_lists(text: str, urls: tuple[str, ...]) -> None:
    assert agent_urls(text) == urls


@pytest.mark.parametrize("text", ["gpu01", "ftp://gpu01:1", "gpu01:9410/x", "file:///etc:1"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        agent_urls(text)


def test_words_say_what_was_used(store: Store) -> None:
    used = {"gpus": 8, "gpus_used": 2, "percents": [[0, 300.0], [44, 100.0]], "energy_j": 7.2e6}
    store.add("n1", "r", [a_record(**used, idle_gpu_minutes=45.0)])
    [run] = store.runs(5)
    assert words(asdict(run)) == [
        "your job used 2 of 8 a100 GPUs at 11% (95% of the time at most 44%)",
        "2 kWh, at most 2 GB on one GPU, 45 GPU-minutes idle",
    ]
    store.now("n1", [a_record(6, gpus=1, gpus_used=1, percents=[])], {})
    assert words(asdict(store.runs(6)[0]))[0] == "your job has used so far 1 of 1 a100 GPU"


def test_watts_are_fitted_where_there_are_enough_measurements() -> None:
    sums = {
        "a100": Watts(held_seconds=7200, held_joules=7200 * 290.0, free_seconds=3600, free_joules=3600 * 57.0),
        "NVIDIA A100-SXM4-40GB": Watts(0, 0, 3600, 3600 * 59.0),
        "t4": Watts(100, 100 * 60.0, 100, 100 * 9.0),
    }
    classes = (NodeClass(2, "A100", 8, 64, 512.0), NodeClass(1, "T4", 4, 32, 128.0, watts_idle=190.0))
    after, fitted = measured_cluster(Cluster("c", classes), sums, 3600.0)
    assert [(f.gpu_type, f.idle, f.busy) for f in fitted] == [("A100", 58.0, 290.0)]
    assert (after.classes[0].watts_idle, after.classes[0].watts_busy) == (150 + 8 * 58, 450 + 8 * 290)
    assert after.classes[1] == classes[1]
    again, _ = measured_cluster(after, sums, 3600.0)
    assert again == after


def test_the_command_writes_a_cluster_file(
    node: Callable[..., Node], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n = node(2)
    n.slurm.types = ["a100", "a100"]
    n.step()
    n.begin(5, 0)
    n.world[0].milliwatts, n.world[1].milliwatts = 250_000, 60_000
    for g in n.world:
        g.no_energy = 1
    for _ in range(60):
        n.step()
    shared, before, after = tmp_path / "shared", tmp_path / "before.json", tmp_path / "after.json"
    shared.mkdir()
    RecordFiles(n.agent, shared).work()
    write_cluster(Cluster("c", (NodeClass(3, "a100", 2, 16, 64.0), NodeClass(1, "v100", 1, 8, 32.0))), before)
    command = ["node-agent", "fit-watts", str(before), "--out", str(after), "--telemetry", str(shared), "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--least-hours", "0.01", "--node-watts", "100:200"])
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert said["as_before"] == ["v100"]
    [a100, _] = read_cluster(after).classes
    assert a100.watts_idle == pytest.approx(100 + 2 * 60, rel=0.02)
    assert a100.watts_busy == pytest.approx(200 + 2 * 250, rel=0.02)


def test_a_place_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no records"), opened(tmp_path):
        pass
    with pytest.raises(InputError, match="no such file"), opened(tmp_path / "x.sqlite"):
        pass
    (tmp_path / "y.sqlite").write_text("nonsense that is longer than a header of a database" * 3)
    with pytest.raises(InputError, match="cannot be used"), opened(tmp_path / "y.sqlite"):
        pass
