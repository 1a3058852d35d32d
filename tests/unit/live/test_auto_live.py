"""policy = "auto" and the promise on a Slurm in memory: who is in charge of which partition, and what is withheld."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from slurm_rl.config import Config, load
from slurm_rl.controller.auto import AutoFile, AutoPolicies, policy_named
from slurm_rl.controller.live import ControllerLive
from slurm_rl.controller.site_past import SitePast
from slurm_rl.controller.tick import Controller
from slurm_rl.domain.cluster import Cluster, NodeClass, write_cluster
from slurm_rl.domain.promise import DEFAULT, parse_promise
from slurm_rl.domain.trust import STEPS, Trust
from slurm_rl.errors import InputError
from slurm_rl.evaluate.promotion import pass_gate
from slurm_rl.obs.journal import Journal
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl.traces.native import write_native

from .fake_slurm import FakeSlurm, a_job, a_running_job


def a_queue(count: int = 6) -> FakeSlurm:
    """Jobs behind two that hold every GPU, the later the shorter."""
    jobs = [a_job(i, limit=1000 * (count + 1 - i), waited=500) for i in range(1, count + 1)]
    return FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"))


def chosen(tmp_path: Path, **by_partition: str) -> None:
    found = {"time": 1.0, "chosen": by_partition, "choices": [{"partitions": ["batch"], "why": "because"}]}
    AutoFile(tmp_path).write(found, tmp_path / "journal.sqlite")


def a_controller(slurm: FakeSlurm, journal: Journal, tmp_path: Path, **settings: object) -> Controller:
    usual = {"mode": "enforce", "policy": "auto", "updates_per_second": 1e4, "state_dir": str(tmp_path)}
    config = Config(**(usual | settings))  # type: ignore[arg-type]  # settings by name
    return Controller(config, slurm, journal, clock=lambda: slurm.now)


def test_auto_is_the_default_and_leaves_slurms_order_until_something_was_chosen(
    journal: Journal, tmp_path: Path
) -> None:
    assert Config().policy == "auto"
    slurm = a_queue()
    c = a_controller(slurm, journal, tmp_path)
    assert c.tick().wanted == 0
    assert slurm.order() == [1, 2, 3, 4, 5, 6]


def test_auto_ticks_while_nobody_waits(journal: Journal, tmp_path: Path) -> None:
    slurm = FakeSlurm()
    c = a_controller(slurm, journal, tmp_path)
    assert c.tick().outcome == "done"
    chosen(tmp_path, batch="sjf-age@user", other="multifactor")
    assert c.tick().outcome == "done"


def test_a_choice_is_taken_over_at_the_next_tick_and_a_broken_one_is_not(journal: Journal, tmp_path: Path) -> None:
    slurm = a_queue()
    c = a_controller(slurm, journal, tmp_path)
    c.tick()
    chosen(tmp_path, batch="sjf-age@user")
    c.tick()
    assert slurm.order() == [6, 5, 4, 3, 2, 1]
    assert c.policy.name == "sjf-age@user"
    (tmp_path / "auto.json").write_text("{")
    c.tick()
    assert c.policy.name == "sjf-age@user"
    assert c.auto is not None
    assert "cannot be read" in c.auto.trouble
    kept = [row for row in journal.promotions() if row[1] == "auto"]
    assert json.loads(kept[0][5])["chosen"] == {"batch": "sjf-age@user"}, "journaled with its table"
    live = ControllerLive(c, journal)
    assert live.auto()["chosen"] == {"batch": "sjf-age@user"}
    assert live.place_in_queue(1)["features"], "jobs are explained by the policy of their partition"
    assert live.choose() is False, "a controller without a service starts nothing"


def test_partitions_may_have_policies_of_their_own(journal: Journal, tmp_path: Path) -> None:
    policies = AutoPolicies(tmp_path)
    chosen(tmp_path, batch="sjf-age@user", other="multifactor")
    assert policies.renew()
    assert not policies.renew(), "once"
    assert policies.of("batch").name == "sjf-age@user"
    assert policies.of("other").name == policies.of("unheard of").name == "multifactor"
    slurm = a_queue()
    c = a_controller(slurm, journal, tmp_path)
    c.tick()
    assert c.observed is not None
    assert {r.policy for r in c.observed[1].reasons} == {"sjf-age@user"}


def test_names_of_candidates_become_policies() -> None:
    assert policy_named("rl:default, lane").spec.lane_share == 0.2
    assert policy_named("rl:default, wide").spec.starve_drain == 2.0
    assert policy_named("multifactor, tuned").spec.code == parse_policy("multifactor").code


def test_in_enforce_mode_a_change_passes_the_gate() -> None:
    cluster = Cluster("small", (NodeClass(4, "V100", 4, 16, 64.0, "gpu"),))
    past = generate(WorkloadSpec(jobs=400, days=2, load=1.2, users=10, max_gpus=4, seed=3), cluster)
    policies = {name: parse_policy(name) for name in ("multifactor", "lcfs", "fcfs")}
    taken, refused = pass_gate({"gpu": "lcfs"}, {}, policies, SitePast(past, cluster), 1.0)
    assert taken == {"gpu": "multifactor"}
    assert "lcfs in place of multifactor" in refused[0]
    assert pass_gate({"gpu": "multifactor"}, {"gpu": "lcfs"}, policies, SitePast(past, cluster), 1.0)[1] == []


def test_a_promise_is_parsed_or_refused_with_one_clear_error(tmp_path: Path) -> None:
    assert parse_promise(DEFAULT).bounds == {"p99": 1.2, "max": 1.5}
    assert parse_promise("mean wait of any account <= 1.1 x Slurm's own order").groups == ("account",)
    assert not parse_promise("")
    wrong = ("p98 ≤ 2", "p99 ≤ 0.5", "p99 ≤ many", "p99 ≤ 2, p99 ≤ 3", "p99 of any user ≤ 2", ",")
    for text in wrong:
        with pytest.raises(InputError, match="the clause"):
            parse_promise(text)
    file = tmp_path / "c.toml"
    file.write_text('promise = "p98 <= 2"\n')
    with pytest.raises(InputError, match="promise"):
        load(file, {})


def test_trust_falls_before_the_promise_is_broken_and_returns_slowly() -> None:
    promise, trust = parse_promise(DEFAULT), Trust()
    own = np.linspace(0, 3600, 100)
    now = 0.0
    assert trust.watch(promise, now, own * 1.05, own) == 0, "well within"
    assert trust.watch(promise, now, own * 1.19, own) == 1, "near: lowered before 1.2 is reached"
    assert trust.gaps["p99"] < 1.0
    steps = [trust.watch(promise, now + 600 * k, own * 1.3, own) for k in range(1, 6)]
    assert sum(steps) == 2
    assert trust.withheld == STEPS[-1] == 1.0
    now += 6000
    assert trust.watch(promise, now, own, own) == -1
    assert trust.watch(promise, now + 60, own, own) == 0, "not at once"
    assert trust.watch(promise, now + 3600, own, own) == -1
    assert Trust().watch(promise, 0.0, own[:5] * 9, own[:5]) == 0, "five jobs tell nothing"


def test_the_supervisor_hands_a_partition_back_before_its_jobs_lose(journal: Journal, tmp_path: Path) -> None:
    # Longest first makes the short jobs wait for all the long ones: far more than they do in Slurm's own order.
    slurm = FakeSlurm(
        *(a_job(i, limit=600 * i, waited=3000 - i, gpus=8) for i in range(1, 41)),
        a_running_job(901, "n1", limit=1200),
        a_running_job(902, "n2", limit=1200),
    )
    c = a_controller(slurm, journal, tmp_path, policy="ljf@limit", promise="mean wait of any partition <= 1.1 x")
    c.tick()
    before = slurm.order()
    assert before[0] == 40
    said = []
    for _ in range(6):
        slurm.now += 601
        for k in (901, 902):
            slurm.jobs[k] = msgspec.structs.replace(slurm.jobs[k], end_time=int(slurm.now) + 600)
        c.tick()
        said.append(c.supervisor.trust["partition", "batch"].withheld)
    assert said[-1] == 1.0
    assert said == sorted(said), "step by step"
    assert all(job.site_factor == 0 for job in slurm.jobs.values() if job.pending), "handed back"
    text = c.metrics.text().decode()
    assert 'slurmrl_promise_withheld{partition="batch"} 1.0' in text
    notes = [row[0] for row in journal._rows("SELECT note FROM tick")]
    assert any("influence on partition batch lowered" in str(n) for n in notes), "journaled"
    shown = ControllerLive(c, journal).auto()["promise"]
    assert shown["groups"][0]["withheld"] == 1.0


def test_the_service_lets_the_command_choose_and_takes_its_choice_over(journal: Journal, tmp_path: Path) -> None:
    cluster = Cluster("small", (NodeClass(2, "V100", 4, 16, 64.0, "batch"),))
    past = generate(WorkloadSpec(jobs=150, days=1, load=1.2, users=5, max_gpus=4, seed=3), cluster)
    write_native(past, tmp_path / "past.csv")
    write_cluster(cluster, tmp_path / "past.cluster.json")
    (tmp_path / "c.toml").write_text(f'state_dir = "{tmp_path}"\n')
    c = a_controller(a_queue(), journal, tmp_path)
    assert c.auto is not None
    assert c.auto.due(1e9, 7.0), "nothing was ever chosen"
    assert not c.auto.due(1e9, 0.0), "0: on demand only"
    c.choose_with = ["--trace", str(tmp_path / "past.csv"), "--config", str(tmp_path / "c.toml")]
    c.choose_with += ["--model", "", "--replicates", "1"]
    assert c.choose_policies()
    assert not c.choose_policies(), "one is being made"
    assert c.auto._running is not None
    assert c.auto._running.wait(300) == 0
    c.tick()
    assert set(c.auto.chosen.chosen) == {"batch"}
    assert c.auto.shown()["choices"][0]["table"], "with its table"
    assert not c.auto.due(c.auto.chosen.time + 6 * 86_400, 7.0)
    assert c.auto.due(c.auto.chosen.time + 8 * 86_400, 7.0)
    c.stop()
