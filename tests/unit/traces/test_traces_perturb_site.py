"""Perturbations, each with its level; traces of a live site; node lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from trace_builders import a_file, jobs

from slurm_rl.errors import InputError
from slurm_rl.traces.nodelists import read_nodes
from slurm_rl.traces.perturb import Step, capacity_dips, perturb, read_outages, write_outages
from slurm_rl.traces.regimes import nodes
from slurm_rl.traces.site import anonymised, history_trace, site_cluster
from slurm_rl.traces.trace import Note, Trace, make_trace


def a_trace(n: int = 2000) -> Trace:
    generator = np.random.default_rng(3)
    submit = np.cumsum(generator.integers(1, 120, n))
    return make_trace(
        "t",
        submit,
        run_time=generator.integers(60, 5000, n),
        time_limit=np.full(n, 7200),
        num_gpus=np.ones(n),
        deadline=submit + 9000,
    )


def after(*texts: str, seed: int = 0) -> Trace:
    return perturb(a_trace(), [Step.parse(t) for t in texts], seed)


class TestPerturb:
    def test_arrival_noise_keeps_the_span_and_moves_deadlines_along(self) -> None:
        before, made = a_trace(), after("arrival-noise=0.2")
        assert made.span() == before.span()
        change = np.diff(made.submit_time) / np.diff(before.submit_time) - 1
        assert 0.15 < change[np.diff(before.submit_time) > 60].std() < 0.25
        assert (made.deadline - made.submit_time == 9000).all()
        np.testing.assert_array_equal(made.run_time, before.run_time)

    def test_durations(self) -> None:
        ratio = np.log(after("duration=0.5").run_time / a_trace().run_time)
        assert ratio.std() == pytest.approx(0.5, rel=0.1)
        assert abs(ratio.mean()) < 0.05

    def test_phase_shift_turns_the_trace(self) -> None:
        before, made = a_trace(), after("phase-shift=0.25")
        first, last = before.span()
        expected = np.sort(first + (before.submit_time - first + 21_600) % (last - first + 1))
        np.testing.assert_array_equal(made.submit_time, expected)

    def test_bursts_gather_at_the_hour(self) -> None:
        made = after("burst=3")
        assert (made.submit_time % 3600).max() <= 1200
        np.testing.assert_array_equal(np.bincount(made.submit_time // 3600), np.bincount(a_trace().submit_time // 3600))

    def test_estimate_errors_never_undercut_the_run(self) -> None:
        made = after("estimate-error=1")
        assert len(set(made.time_limit.tolist())) > 5
        assert (made.time_limit >= made.run_time).all()
        np.testing.assert_array_equal(made.run_time, a_trace().run_time)

    def test_drift_doubles_the_last(self) -> None:
        before, made = a_trace(), after("drift=1")
        assert (made.run_time[0], made.run_time[-1]) == (before.run_time[0], 2 * before.run_time[-1])

    def test_steps_compose_and_are_seeded(self) -> None:
        texts = ("arrival-noise=0.1", "duration=0.3", "burst=2")
        one, two, other = after(*texts, seed=1), after(*texts, seed=1), after(*texts, seed=2)
        np.testing.assert_array_equal(one.submit_time, two.submit_time)
        np.testing.assert_array_equal(one.run_time, two.run_time)
        assert (one.run_time != other.run_time).any()
        assert [n.what for n in one.notes] == [f"perturbed by {t}" for t in texts]

    def test_level_zero_changes_nothing(self) -> None:
        made = after("arrival-noise=0", "duration=0", "phase-shift=0", "burst=1", "drift=0")
        np.testing.assert_array_equal(made.run_time, a_trace().run_time)
        np.testing.assert_array_equal(made.submit_time, a_trace().submit_time)

    @pytest.mark.parametrize("text", ["burst=0.5", "duration", "duration=x", "capacity-dip=1", "arrival-noise=nan"])
    def test_bad_levels(self, text: str) -> None:
        with pytest.raises(InputError, match="needs a level from"):
            Step.parse(text)

    def test_bad_kinds(self) -> None:
        with pytest.raises(InputError, match="did you mean 'drift'"):
            Step.parse("drft=1")

    def test_capacity_dips(self, tmp_path: Path) -> None:
        outages = capacity_dips(nodes("10xV100:8"), 0, 86_400, 0.3, seed=1)
        assert len(outages.time) == 2 * 2 * 3  # two dips of three nodes, down and up
        assert sorted(set(outages.time.tolist())) == [21_600, 28_800, 64_800, 72_000]
        assert set(outages.node[outages.time == 21_600]) == set(outages.node[outages.time == 28_800])
        write_outages(outages, tmp_path / "o.csv")
        again = read_outages(tmp_path / "o.csv")
        for name in ("time", "node", "up"):
            np.testing.assert_array_equal(getattr(outages, name), getattr(again, name))

    def test_bad_outages(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="line 3: expected a time"):
            read_outages(a_file(tmp_path, "o.csv", "time,node,up", "1,2,0", "1,2,5"))


@dataclass(frozen=True)
class Row:
    """A record as the Slurm client gives it."""

    job_id: int = 1
    display_id: str = "1"
    name: str = "train"
    user: str = "ann"
    account: str = "lab"
    partition: str = "gpu"
    qos: str = "normal"
    state: str = "COMPLETED"
    submit_time: int | None = 1000
    start_time: int | None = 1100
    elapsed: int = 50
    time_limit: int | None = 3600
    nodes: int = 1
    cpus: int = 8
    mem_mb: int = 2048
    gpus_requested: dict[str, int] = field(default_factory=lambda: {"a100": 2})
    gpus_allocated: dict[str, int] = field(default_factory=lambda: {"a100": 2})
    priority: int = 7


class TestSite:
    def test_jobs(self) -> None:
        rows = [
            Row(),
            Row(job_id=2, display_id="2", partition="cpu"),
            Row(job_id=3, display_id="3", start_time=None, elapsed=0, state="CANCELLED"),
            Row(job_id=5, display_id="4_1", submit_time=1010, gpus_requested={"": 1}, time_limit=None),
            Row(job_id=6, display_id="6", state="NODE_FAIL"),
            Row(job_id=6, display_id="6", submit_time=1300, start_time=1400, elapsed=70),
        ]
        trace = history_trace(rows, "site", ["gpu"])
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "gpu_type", "mem_gb") == [
            (1, 0, 50, 3600, 2.0, "a100", 2.0),
            (6, 0, 70, 3600, 2.0, "a100", 2.0),
            (5, 10, 50, -1, 1.0, "", 2.0),
        ]
        assert trace.name == "site"
        assert Note("in another partition", 1, (2,), dropped=True) in trace.notes
        assert Note("never started", 1, (3,), dropped=True) in trace.notes

    def test_anonymised_names_say_nothing(self) -> None:
        trace = history_trace([Row(), Row(job_id=2, display_id="2", user="bob", account="ann")], "site")
        hidden = anonymised(trace, "secret")
        assert not {"ann", "bob", "lab", "train"} & {*hidden.user.names, *hidden.account.names, *hidden.job_name.names}
        assert hidden.user.names[0][1:] != hidden.account.names[1][1:]  # both are "ann"
        assert anonymised(trace, "secret").user.strings() == hidden.user.strings()
        assert anonymised(trace, "other").user.names != hidden.user.names
        assert hidden.partition.names == ("gpu",)

    def test_nothing_ran(self) -> None:
        with pytest.raises(InputError, match="never started"):
            history_trace([Row(start_time=None, elapsed=0, state="CANCELLED")], "site")

    def test_cluster(self) -> None:
        @dataclass(frozen=True)
        class Node:
            gpus: dict[str, int]
            partitions: tuple[str, ...]
            cpus: int = 64
            mem_mb: int = 262_144

        found = [Node({"a100": 8}, ("gpu", "all")), Node({"a100": 8}, ("gpu", "all")), Node({}, ("cpu",))]
        cluster, mixed = site_cluster([*found, Node({"t4": 2, "v100": 2}, ("gpu",))], "site", ["gpu", "all"])
        assert [(c.count, c.gpu_type, c.gpus, c.cpus, c.mem_gb, c.partition) for c in cluster.classes] == [
            (2, "a100", 8, 64, 256.0, "gpu,all"),
            (1, "t4", 4, 64, 256.0, "gpu"),
        ]
        assert (cluster.classes[0].speed, mixed) == (2.0, 1)


class TestNodeLists:
    def test_openb(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path, "n.csv", "sn,cpu_milli,memory_mib,gpu,model", *(f"n{i},96000,393216,8,V100M32" for i in range(3)),
            "x,32000,262144,0,",
        )  # fmt: skip
        classes = read_nodes(path).classes
        assert [(c.count, c.gpu_type, c.gpus, c.cpus, c.mem_gb) for c in classes] == [
            (3, "V100M32", 8, 96, 384.0),
            (1, "", 0, 32, 256.0),
        ]

    def test_pai_and_philly(self, tmp_path: Path) -> None:
        pai = read_nodes(a_file(tmp_path, "pai.csv", "m1,T4,96,512,2", "m2,CPU,96,512,0"))
        assert sorted((c.gpu_type, c.gpus, c.cpus) for c in pai.classes) == [("", 0, 96), ("T4", 2, 96)]
        philly = read_nodes(a_file(tmp_path, "philly.csv", "machineId, number of GPUs, single GPU mem", "m31,8, 24GB"))
        assert [(c.gpu_type, c.gpus, c.cpus) for c in philly.classes] == [("GPU-24GB", 8, None)]

    def test_unreadable(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="line 2: unreadable node"):
            read_nodes(a_file(tmp_path, "n.csv", "a,b,c,d,e", "1,2"))
