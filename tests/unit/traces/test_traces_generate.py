"""Generated workloads: load, determinism, habits, regimes; imitation of a trace; the bundled samples."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.cli.app import main
from slurm_rl.domain.cluster import Cluster, read_cluster
from slurm_rl.errors import InputError
from slurm_rl.traces.arrivals import DAY, HOUR, fitted_rate, rate_of
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl.traces.like import distances, imitate
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.regimes import DEFAULT_NODES, REGIMES, nodes, regime
from slurm_rl.traces.summary import offered_load
from slurm_rl.traces.trace import Trace, make_trace

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "traces"


@pytest.fixture(scope="module")
def hetero() -> tuple[Trace, Cluster]:
    cluster = nodes(DEFAULT_NODES)
    return generate(WorkloadSpec(seed=1), cluster), cluster


def test_a_load_out_of_reach_is_approached_and_breaks_nothing() -> None:
    """Five jobs of at most five days cannot fill 512 GPUs for ten years; once the scale ran into infinity."""
    trace = generate(WorkloadSpec(jobs=5, days=3650, load=5.0, seed=3), nodes("64xA100:8:64:512"))
    assert (trace.run_time > 0).all()
    assert (trace.time_limit >= trace.run_time).all()
    assert trace.run_time.max() == 5 * DAY


class TestHetero:
    def test_the_load_is_met(self, hetero: tuple[Trace, Cluster]) -> None:
        trace, cluster = hetero
        assert (len(trace), trace.submit_time[0]) == (12_000, 0)
        assert offered_load(trace, cluster) == pytest.approx(0.95, rel=0.01)

    def test_every_job_fits_the_cluster(self, hetero: tuple[Trace, Cluster]) -> None:
        trace, cluster = hetero
        types = trace.gpu_type.strings()
        for i in range(len(trace)):
            k = max(int(trace.num_nodes[i]), 1)
            allowed = types[i].split("|") if types[i] else cluster.gpu_types
            room = sum(
                c.count
                for c in cluster.classes
                if (not trace.num_gpus[i] or c.gpu_type in allowed)
                and c.gpus >= trace.num_gpus[i] / k
                and (c.cpus or 0) >= trace.cpus[i] / k
                and (c.mem_gb or 0) >= trace.mem_gb[i] / k
            )
            assert room >= k, (i, types[i], trace.num_gpus[i])

    def test_what_makes_scheduling_hard_is_in(self, hetero: tuple[Trace, Cluster]) -> None:
        trace, _ = hetero
        typed = trace.gpu_type.strings()
        assert set(typed) == {"", "A100", "A100|V100", "T4"}
        assert 0.5 < typed.count("") / len(typed) < 0.9
        assert trace.num_gpus.max() == 64
        assert 0.05 < (trace.num_gpus == 0).mean() < 0.2
        assert (trace.time_limit >= trace.run_time).all()
        assert 0.08 < np.median(trace.run_time / trace.time_limit) < 0.3
        assert 0.2 < (trace.deadline >= 0).mean() < 0.4
        assert set(trace.priority.tolist()) == {1.0, 2.0, 3.0}
        assert len(trace.user.names) == 60
        assert 8 <= len(trace.account.names) <= 10

    def test_days_and_weeks_have_their_cycle(self, hetero: tuple[Trace, Cluster]) -> None:
        trace, _ = hetero
        hour = np.bincount(trace.submit_time // HOUR % 24, minlength=24)
        assert hour[14:17].mean() > 3 * hour[2:5].mean()
        day = np.bincount(trace.submit_time // DAY % 7, minlength=7)
        assert day[:5].mean() > 1.5 * day[5:].mean()

    def test_users_repeat_themselves(self, hetero: tuple[Trace, Cluster]) -> None:
        trace, _ = hetero
        again = (trace.user.codes[1:] == trace.user.codes[:-1]) & (
            trace.job_name.codes[1:] == trace.job_name.codes[:-1]
        )
        assert again.mean() > 0.3
        # Run times differ less within a user's job name than among all jobs.
        key = trace.user.codes.astype(np.int64) * 1000 + trace.job_name.codes
        log = np.log(np.maximum(trace.run_time, 1))
        inside = np.mean([log[key == k].var() for k in np.unique(key) if (key == k).sum() > 20])
        assert inside < 0.75 * log.var()

    def test_the_seed_decides_everything(self, tmp_path: Path) -> None:
        small = nodes("2xV100:4:32:128")
        for name, seed in (("a", 5), ("b", 5), ("c", 6)):
            write_native(generate(WorkloadSpec(jobs=500, days=1, seed=seed), small), tmp_path / f"{name}.csv.gz")
        a, b, c = ((tmp_path / f"{n}.csv.gz").read_bytes() for n in "abc")
        assert a == b
        assert a != c


class TestRegimes:
    def test_there_are_48_and_8(self) -> None:
        assert len(REGIMES) == 56
        assert sum("-x1.5-" in name for name in REGIMES) == 8
        assert {"base-x1-g2", "bursty-x2-g8", "shifted-x4-g16", "diurnal-x1.5-g4"} <= set(REGIMES)

    @pytest.mark.parametrize("name", ["base-x1-g2", "bursty-x2-g8", "diurnal-x4-g16", "bursty-x1.5-g4"])
    def test_rate_and_load(self, name: str) -> None:
        workload, cluster = regime(name, jobs=2000, seed=4)
        shape, intensity, gpus = REGIMES[name]
        trace = generate(workload, cluster)
        assert cluster.gpus == gpus
        per_minute = 60 * len(trace) / (trace.span()[1] - trace.span()[0])
        assert per_minute == pytest.approx(intensity, rel=0.05)
        assert offered_load(trace, cluster) == pytest.approx(0.5 * intensity, rel=0.05)
        assert trace.num_gpus.max() <= gpus
        assert (trace.num_gpus > 1).mean() > 0.2
        assert shape in name

    def test_bursts_alternate_every_five_minutes(self) -> None:
        workload, cluster = regime("bursty-x1-g4", jobs=4000)
        submit = generate(workload, cluster).submit_time
        busy = (submit // 300 % 2 == 0).mean()
        assert 0.8 < busy < 0.95  # 3 : 0.3 is 0.91

    def test_an_unknown_one_names_the_nearest(self) -> None:
        with pytest.raises(InputError, match="did you mean 'bursty-x2-g8'"):
            regime("burst-x2-g8")

    @pytest.mark.parametrize("text", ["A100:8", "0xA100:8", "2xA100", "2xcpu:4", "x"])
    def test_bad_nodes(self, text: str) -> None:
        with pytest.raises(InputError, match="nodes"):
            nodes(text)


class TestRates:
    def test_diurnal_swings_between_half_and_one_and_a_half(self) -> None:
        values = rate_of("diurnal").values
        assert (round(values.min(), 3), round(values.max(), 3)) == (0.5, 1.5)
        np.testing.assert_allclose(np.roll(values, -72), rate_of("shifted").values)  # a quarter of 288 steps

    def test_place_and_shares_are_inverse(self) -> None:
        rate, shares = rate_of("work"), np.linspace(0, 1, 50)
        np.testing.assert_allclose(rate.shares(rate.place(shares, 10 * DAY), 10 * DAY), shares, atol=1e-12)

    def test_a_fitted_rate_finds_the_cycle(self) -> None:
        times = rate_of("work").times(50_000, 28 * DAY, np.random.default_rng(0))
        fitted = fitted_rate(times, 28 * DAY).values
        assert np.corrcoef(fitted, rate_of("work").values)[0, 1] > 0.97


class TestLike:
    def test_venus(self) -> None:
        path = SHARED / "helios_venus_sept2020.csv.gz"
        if not path.exists():
            pytest.skip("the real traces are not here")
        venus, cluster = read_trace(path), read_cluster(SHARED / "helios_venus_sept2020.cluster.json")
        made = imitate(venus, seed=11)
        real = offered_load(venus, cluster)
        assert real is not None
        assert offered_load(made, cluster) == pytest.approx(real, rel=0.05)
        found = distances(venus, made)
        assert found["run_time"] < 0.03
        assert found["size"] < 0.01
        assert found["gap"] < 0.05
        assert sorted(made.gpu_type.names) == sorted(venus.gpu_type.names)
        assert not set(made.user.names) & set(venus.user.names)
        assert (made.run_time[:2000] != venus.run_time[:2000]).mean() > 0.9
        hours = [np.bincount(t.submit_time // HOUR % 24, minlength=24) / len(t) for t in (venus, made)]
        assert np.corrcoef(*hours)[0, 1] > 0.95
        harder = imitate(venus, seed=11, days=10, load=1.2, cluster=cluster)
        assert offered_load(harder, cluster) == pytest.approx(1.2, rel=0.01)
        assert harder.span()[1] / DAY == pytest.approx(10, rel=0.15)

    def test_limits_keep_their_ratio(self, hetero: tuple[Trace, Cluster]) -> None:
        trace, cluster = hetero
        made = imitate(trace, seed=2, jobs=6000)
        assert len(made) == 6000
        assert offered_load(made, cluster) == pytest.approx(0.95, rel=0.05)
        ratios = [np.median(t.run_time / t.time_limit) for t in (trace, made)]
        assert ratios[1] == pytest.approx(ratios[0], rel=0.35)
        assert not any("synthesised" in n.what and n.rows > 60 for n in made.notes)

    def test_too_little_to_imitate(self) -> None:
        with pytest.raises(InputError, match="too little to imitate"):
            imitate(make_trace("t", [0, 5], run_time=[1, 1]))


class TestSamples:
    """The bundled samples are what their README says makes them."""

    COMMANDS = re.findall(r"^    slurm-rl (traces generate .*)$", (ROOT / "traces" / "README.md").read_text(), re.M)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_the_command_makes_the_same_file(self, command: str, tmp_path: Path) -> None:
        (tmp_path / "traces").mkdir()
        words = [w.replace("traces/", f"{tmp_path}/traces/") for w in shlex.split(command)]
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (0, None)
        made = sorted((tmp_path / "traces").iterdir())
        assert len(made) == 2
        for path in made:
            bundled = (ROOT / "traces" / path.name).read_bytes()
            if path.suffix == ".gz":  # another zlib may pack otherwise, but what is packed must be the same
                assert gzip.decompress(bundled) == gzip.decompress(path.read_bytes())
            else:
                assert bundled == path.read_bytes()

    def test_they_are_small(self) -> None:
        assert len(self.COMMANDS) == 2 + 10
        assert (ROOT / "traces" / "hetero.csv.gz").stat().st_size < 400_000
