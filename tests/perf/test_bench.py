"""The benchmark: every promise about speed and memory, measured in one run; see docs/performance.md."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from perf import peer
from perf.conftest import ROOT
from perf.inputs import CORES, COUNTS, NODES, Load, generate
from perf.measure import Cost, Report, Row, best_of, command
from perf.placement import a_batch, packed, packed_by_dot_product, shuffled_pods
from perf.reference import on_counts, on_nodes
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import GPU, NEVER, NOW
from slurm_rl.place.greedy import place_greedily
from slurm_rl.place.kernels import place
from slurm_rl.place.mip import solve
from slurm_rl.place.problem import parse_weights
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.machines import machine
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import Prepared, find_cluster, prepare
from slurm_rl_sim.result import result_of
from slurm_rl_sim.simulation import ReplayState

pytestmark = pytest.mark.perf

BIG = 1_000_000
SIDE_BY_SIDE = 100_000  # jobs that the plain Python reference replays
PEER = 4_000  # jobs that AccaSim replays


def simulation(prepared: Prepared, policy: str, backfill: str, placement: str = "first-fit") -> ReplayState:
    spec = parse_policy(policy)
    return ReplayState(prepared.workload, prepared.trace.run_time, spec, backfill=backfill, placement=placement)


def engine(prepared: Prepared, policy: str, backfill: str, placement: str = "first-fit", times: int = 3) -> Cost:
    """What the engine alone costs: no reading, no preparing, no metrics."""
    return best_of(times, lambda: simulation(prepared, policy, backfill, placement).run)


@pytest.fixture(scope="module")
def big(folder: Path) -> Path:
    """The SWF file of a million jobs."""
    return generate(BIG).write_swf(folder / "big.swf")


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    return generate(1_000).write_swf(folder / "small.swf")


@pytest.fixture(scope="module")
def reference_rates() -> dict[tuple[str, str], tuple[float, float]]:
    """Jobs a second of the plain Python reference and of the engine on the same input, by (cluster, backfill)."""
    work = generate(SIDE_BY_SIDE)
    jobs = work.lists()
    rates = {}
    for cluster, count in ((COUNTS, SIDE_BY_SIDE), (NODES, SIDE_BY_SIDE // 10)):
        part = Load(*(getattr(work, name)[:count] for name in Load.__slots__))
        jobs, prepared = part.lists(), part.prepared(cluster)
        for backfill in ("none", "easy"):
            easy = backfill == "easy"
            if cluster is COUNTS:
                plain = best_of(3, lambda jobs=jobs, easy=easy: lambda: on_counts(jobs, CORES, easy=easy))
            else:
                plain = best_of(3, lambda jobs=jobs, easy=easy: lambda: on_nodes(jobs, [8] * 256, easy=easy))
            rates[cluster.name, backfill] = count / plain.cpu, count / engine(prepared, "fcfs", backfill, times=15).cpu
    return rates


@pytest.fixture(scope="module")
def peer_rates(folder: Path, report: Report) -> dict[tuple[str, str], tuple[float, float]]:
    """Jobs a second of AccaSim and of the engine on the same input; empty where AccaSim cannot be installed."""
    try:
        python = peer.install(folder / "accasim")
    except peer.Unavailable as reason:
        report.skipped.append(f"AccaSim: {reason}")
        return {}
    work = generate(PEER)
    swf = work.write_swf(folder / "peer.swf")
    rates = {}
    for cluster, nodes in ((COUNTS, 1), (NODES, 256)):
        prepared = work.prepared(cluster)
        for backfill, dispatcher in (("none", "FirstInFirstOut"), ("easy", "EASYBackfilling")):
            other = peer.run(python, swf, nodes, CORES // nodes, dispatcher)
            assert len(other.start) == PEER
            ours = simulation(prepared, "fcfs", backfill)
            ours.run()
            if backfill == "none":  # strict FCFS has one answer; EASY's rules differ by design
                assert [other.start[j + 1] for j in range(PEER)] == ours.world["live"]["start"].tolist()
            # A few milliseconds each: the best of three would be chance.
            rates[cluster.name, backfill] = PEER / other.cpu, PEER / engine(prepared, "fcfs", backfill, times=30).cpu
    return rates


def test_start_up(report: Report, small: Path, cache: Path) -> None:
    """Runs first: the cache is empty only once."""
    replay = ("replay", small, "--policy", "fcfs", "--json")
    first = command(*replay, cache=cache)
    report.add(Row("first run, kernels compiled", "s", first.wall, 45, first.cpu))
    later = min((command(*replay, cache=cache) for _ in range(5)), key=lambda c: c.wall)
    report.add(Row("later runs, 1,000 jobs", "s", later.wall, 1.5, later.cpu))
    help_text = min((command("--help", cache=cache) for _ in range(5)), key=lambda c: c.wall)
    assert "replay" in help_text.out
    report.add(Row("slurm-rl --help", "s", help_text.wall, 0.3, help_text.cpu))


def test_whole_command(report: Report, big: Path, small: Path, cache: Path) -> None:
    if not (cache / "slurm-rl" / "kernels").exists():
        command("replay", small, "--policy", "fcfs", "--json", cache=cache)  # as if run before
    replay = ("replay", big, "--policy", "fcfs", "--json")
    cold, warm = [], []
    for _ in range(3):
        shutil.rmtree(cache / "slurm-rl" / "traces", ignore_errors=True)
        cold.append(command(*replay, cache=cache))
        warm.append(command(*replay, cache=cache))
    assert json.loads(cold[0].out)["runs"][0]["metrics"]["jobs"] == BIG
    for label, runs in (("file never seen", cold), ("file seen before", warm)):
        best = min(runs, key=lambda c: c.wall)
        report.add(Row(f"replay of 1M jobs, {label}", "s", best.wall, 8, best.cpu))
    peak = max(c.peak_mb for c in cold + warm)
    report.add(Row("replay of 1M jobs, peak memory", "MB", peak, 300 + 500 * BIG / 2**20))


def test_engine(
    report: Report,
    big: Path,
    reference_rates: dict[tuple[str, str], tuple[float, float]],
    peer_rates: dict[tuple[str, str], tuple[float, float]],
) -> None:
    trace = read_trace(big, cache=False)
    cases = [
        (COUNTS, "none", "first-fit", 1_000_000),
        (COUNTS, "easy", "first-fit", 1_000_000),
        (NODES, "none", "first-fit", 500_000),
        (NODES, "easy", "first-fit", 500_000),
        (NODES, "easy", "best-fit", None),
    ]
    prepared = {c.name: prepare(trace, c) for c in (COUNTS, NODES)}
    for cluster, backfill, placement, target in cases:
        cost = engine(prepared[cluster.name], "fcfs", backfill, placement, times=5)
        label = f"{'FCFS' if backfill == 'none' else 'EASY'}, 1M jobs, {cluster.name}"
        row = Row(label, "jobs/s", BIG / cost.cpu, target, BIG / cost.wall)
        if placement == "first-fit":
            plain, ours = reference_rates[cluster.name, backfill]
            row.to_reference = ours / plain
            if peer_rates:
                other, ours = peer_rates[cluster.name, backfill]
                row.to_accasim = ours / other
        else:
            row.what = f"{label}, {placement}".replace(" of 8 cores", "")
        report.add(row)
    rates = [{"": "Python", **_named(reference_rates)}] + (
        [{"": "AccaSim", **_named(peer_rates)}] if peer_rates else []
    )
    report.tables["others, jobs/s (FCFS and EASY on counts, on 256 nodes)"] = rates


def _named(rates: dict[tuple[str, str], tuple[float, float]]) -> dict[str, float]:
    return {
        f"{'FCFS' if backfill == 'none' else 'EASY'} {'counts' if cluster == COUNTS.name else 'nodes'}": theirs
        for (cluster, backfill), (theirs, _) in rates.items()
    }


def test_venus(report: Report, traces: Path) -> None:
    path = traces / "helios_venus_sept2020.csv.gz"
    trace = read_trace(path)
    venus = prepare(trace, find_cluster(trace, path, None))
    cost = engine(venus, "fcfs", "easy", "best-fit", times=7)
    jobs = len(venus.trace)
    report.add(Row("Venus, EASY, best-fit (15 VCs)", "jobs/s", jobs / cost.cpu, 250_000, jobs / cost.wall))


def test_bundled_trace(report: Report) -> None:
    path = ROOT / "traces" / "hetero.csv.gz"
    trace = read_trace(path)
    hetero = prepare(trace, find_cluster(trace, path, None))
    cost = engine(hetero, "fcfs", "easy", "best-fit")
    jobs = len(hetero.trace)
    report.add(Row("traces/hetero, EASY, best-fit", "jobs/s", jobs / cost.cpu, None, jobs / cost.wall))


def test_slurm_backfill(report: Report, traces: Path) -> None:
    """In slices, so that a run that is far too slow is cut off rather than waited for."""
    path = traces / "pwa_ricc_2010.csv.gz"
    trace = read_trace(path)
    ricc = prepare(trace, find_cluster(trace, path, None))
    submit = ricc.trace.submit_time
    for backfill, placement, target in (("slurm", "slurm", 90.0), ("easy", "best-fit", None)):
        run = simulation(ricc, "fcfs", backfill, placement)
        wall, cpu = time.perf_counter(), time.process_time()
        done, slices = False, 200
        for part in range(1, slices + 1):
            done = run.run(int(submit[len(submit) * part // slices - 1])) if part < slices else run.run()
            if time.process_time() - cpu > 180:
                break
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        row = Row(f"RICC, 448k jobs, FCFS+{backfill}, {placement}", "s", cpu, target, wall)
        if not done:
            row.what, row.note = f"RICC, FCFS+{backfill}, {part / slices:.1%} of 448k jobs", "> "
        report.add(row)


def test_overload(report: Report) -> None:
    """Load 1.2: the queue grows to the end of the trace, to a mean of about a thousand jobs."""
    for cluster in (COUNTS, NODES):
        work = generate(37_000, load=1.2)
        prepared = work.prepared(cluster)
        cost = engine(prepared, "fcfs", "easy")
        queue = _mean_queue(prepared, "fcfs", "easy")
        jobs = len(work.submit)
        what = "counts" if cluster is COUNTS else "256 nodes"
        label = f"EASY, load 1.2, queue {queue:,.0f}, {what}"
        report.add(Row(label, "jobs/s", jobs / cost.cpu, 100_000, jobs / cost.wall))


def _mean_queue(prepared: Prepared, policy: str, backfill: str) -> float:
    run = simulation(prepared, policy, backfill)
    run.run()
    return float(metrics(result_of(run, prepared.trace, prepared.measured))["queue_mean"] or 0.0)


def test_growth(report: Report) -> None:
    """Microseconds a job: flat in the number of jobs, and at most q log q in the length q of the queue."""
    rows: list[dict[str, float | str]] = []
    for jobs in (10_000, 30_000, 100_000, 300_000, BIG):
        work = generate(jobs)
        row: dict[str, float | str] = {"jobs": jobs}
        for cluster, what in ((COUNTS, "counts"), (NODES, "nodes")):
            prepared = work.prepared(cluster)
            for backfill in ("none", "easy"):
                cost = engine(prepared, "fcfs", backfill, times=7 if jobs < 100_000 else 3)
                row[f"{'FCFS' if backfill == 'none' else 'EASY'} {what}"] = cost.cpu / jobs * 1e6
        rows.append(row)
    report.tables["microseconds a job by number of jobs, load 0.85"] = rows
    for name in list(rows[0])[1:]:
        growth = float(rows[-1][name]) / float(rows[0][name])
        report.add(Row(f"cost a job, 1M to 10k, {name}", "×", growth, 2.0))
    lengths = (4_000, 13_000, 42_000, 130_000)
    rows = [{} for _ in lengths]
    for row, jobs in zip(rows, lengths, strict=True):
        prepared = generate(jobs, load=1.2).prepared(COUNTS)
        row["mean queue"] = _mean_queue(prepared, "fcfs", "easy")
        for policy in ("fcfs", "sjf", "sjf@user", "multifactor"):
            if jobs == lengths[-1] and policy in ("sjf@user", "multifactor"):
                row[policy] = "–"  # sorted anew at every pass: too long to wait for
            else:
                row[policy] = engine(prepared, policy, "easy", times=3 if jobs < 40_000 else 1).cpu / jobs * 1e6
    report.tables["microseconds a job by mean length of the queue, EASY on counts, load 1.2"] = rows
    for policy in list(rows[0])[1:]:
        known = [(float(r["mean queue"]), float(r[policy])) for r in rows if r[policy] != "–"]
        (short, before), (long, after) = known[0], known[-1]
        allowed = long * np.log(long) / (short * np.log(short))
        report.add(Row(f"{policy}, queue {long:,.0f} to {short:,.0f}", "×", after / before, float(allowed)))


@pytest.mark.parametrize(
    ("name", "rule", "placement", "least"),
    [
        ("leadership", "easy", "best-fit", 50_000.0),
        ("exascale", "easy", "best-fit", 20_000.0),
        ("leadership", "slurm", "slurm", 5_000.0),
    ],
)
def test_large_machines(report: Report, name: str, rule: str, placement: str, least: float) -> None:
    """Wide jobs, by runs of nodes that are alike; node by node on the first of them, in the same process."""
    trace, cluster = machine(name)
    prepared = prepare(trace, cluster)

    def ran(index: str, until: int) -> float:
        run = ReplayState(
            prepared.workload,
            trace.run_time.astype(np.float64),
            parse_policy("fcfs"),
            backfill=rule,
            placement=placement,
            index=index,
        )
        began = time.process_time()
        run.run(until)
        return run.ended / (time.process_time() - began)

    ran("runs", int(trace.submit_time[100]))  # compiled, or read from disk
    by_runs = max(ran("runs", int(NEVER) - 1) for _ in range(3))
    by_nodes = ran("", int(trace.submit_time[len(trace) // 20]))
    what = "EASY" if rule == "easy" else f"FCFS+{rule}"
    report.add(
        Row(f"{name}: {cluster.nodes:,} nodes, {what}", "jobs/s", by_runs, least, note=f"{by_nodes:,.0f} by nodes")
    )
    report.add(Row(f"{name}, {what}: time by runs to time by nodes", "×", by_nodes / by_runs, 0.05))


def test_tier_placement(report: Report) -> None:
    """A 128-GPU job on 256 mixed, partly used nodes: the slowest of many states of the cluster."""
    classes = (NodeClass(96, "A100", 8, 64), NodeClass(96, "V100", 8, 48), NodeClass(64, "T4", 4, 32))
    trace = make_trace("one job", np.zeros(1, np.int64), run_time=np.ones(1, np.int64), num_gpus=np.full(1, 128.0))
    run = simulation(prepare(trace, Cluster("mixed", classes)), "fcfs", "easy", "tier")
    world, most = run.world, run.workload.nodes["gpu"]
    rng = np.random.default_rng(3)
    slowest = 0.0
    for _ in range(40):
        free = rng.integers(0, most + 1)
        world["free"][NOW, :, GPU] = free
        world["total"][NOW, 0, GPU] = free.sum()
        assert place(world.record[0], 0, 0) > 0
        assert world["spot"]["units"][: place(world.record[0], 0, 0)].sum() == 128
        cost = best_of(5, lambda: lambda: place(world.record[0], 0, 0))
        slowest = max(slowest, cost.cpu)
    report.add(Row("tier: 128 GPUs on 256 nodes, slowest", "ms", slowest * 1e3, 1.0))


def test_mip_placement(report: Report) -> None:
    """64 jobs on nodes of seven types, from half empty to nearly full: greedy, and building and solving the model."""
    rows: list[dict[str, float | str]] = []
    solved: list[float] = []
    greedy: list[float] = []
    for nodes in (100, 1_000, 10_000):
        times, first, optimal = [], [], 0
        for seed in range(20):
            full = (0.5, 0.8, 0.92, 0.96)[seed % 4]
            problem = a_batch(nodes, 64, seed, full)
            first.append(best_of(3, partial(partial, place_greedily, problem)).cpu)
            problem = a_batch(nodes, 64, seed, full)
            used = time.process_time()
            optimal += solve(problem).is_optimal
            times.append(time.process_time() - used)
        p95 = float(np.percentile(times, 95))
        worst = float(np.percentile(first, 95)) * 1e3
        rows.append({"nodes": nodes, "greedy ms": worst, "solve p95 s": p95, "within 1% of 20": float(optimal)})
        if nodes == 1_000:
            solved, greedy = times, first
    report.tables["placing 64 jobs, by number of nodes of seven types"] = rows
    report.add(Row("mip: 64 jobs, 1,000 nodes, p95", "s", float(np.percentile(solved, 95)), 1.0))
    report.add(Row("its greedy start, p95", "ms", float(np.percentile(greedy, 95)) * 1e3, 5.0))


def test_mip_replay(report: Report, traces: Path) -> None:
    """Venus, whose nodes are all alike, with plans for every pass."""
    path = traces / "helios_venus_sept2020.csv.gz"
    trace = read_trace(path)
    prepared = prepare(trace, find_cluster(trace, path, None))
    run = simulation(prepared, "sjf-age@user", "easy", "mip")
    wall, cpu = time.perf_counter(), time.process_time()
    run.run()
    cpu = time.process_time() - cpu
    report.add(Row("Venus, sjf-age@user, EASY, mip", "s", cpu, 300.0, time.perf_counter() - wall))


def test_packing(report: Report, traces: Path) -> None:
    """openb's pods in random order on openb's cluster: GPUs given out, in percent."""
    rows: list[dict[str, float | str]] = []
    for name in ("best-fit", "spread", "round-robin", "first-fit", "dot product", "mip", "mip, blocked=60"):
        shares = []
        for seed in range(2):
            trace, cluster = shuffled_pods(traces, seed)
            if name == "dot product":
                shares.append(packed_by_dot_product(trace, cluster))
            else:
                placement, _, weights = name.partition(", ")
                shares.append(packed(trace, cluster, placement, parse_weights(weights, "weights")))
        rows.append({"placement": name} | {k: 100 * float(np.mean([s[k] for s in shares])) for k in shares[0]})
    report.tables["openb gpuspec33 in random order, % of GPUs given out (pods refused × 100)"] = rows


def test_targets_are_met(report: Report) -> None:
    """Shows what the tests before have measured, keeps it, and fails if a promise is broken."""
    if not report.rows:
        pytest.skip("nothing was measured")
    report.write(ROOT / "out" / "bench.json")
    print("\n\n" + "\n".join(report.lines()) + "\n")
    assert not report.missed(), "missed: " + "; ".join(report.missed())
