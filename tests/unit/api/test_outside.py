"""Policies and placements from outside: they enter by name, and what they do wrong is caught."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import a_cluster, a_job, a_simulation, outcome, starts

import slurm_rl
from slurm_rl.cli import main
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.promote import Promotions
from slurm_rl.decide import Guardrails, decide
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.errors import InputError
from slurm_rl.kernel import imports
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.policy import outside
from slurm_rl.policy.catalogue import POLICIES
from slurm_rl.policy.registry import parse_policy

from .test_public_api import CLUSTER, some_jobs

OWN = """
import slurm_rl

@slurm_rl.heuristic
def short_one(estimate):
    return -estimate

@slurm_rl.policy("waits-most")
def waits_most(queue):
    return queue.wait

@slurm_rl.placement
def last_node(node):
    return node

def plain(queue):
    return -queue.size
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is gone after it."""
    for catalogue in (POLICIES, PLACEMENTS):
        monkeypatch.setattr(catalogue, "_rows", dict(catalogue._rows))
    monkeypatch.setattr(outside, "_registered", {})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN, encoding="utf-8")
    return file


def starts_of(*policies: object, **options: object) -> list[list[int]]:
    found = slurm_rl.replay(some_jobs(), CLUSTER, policies=list(policies), **options)  # type: ignore[arg-type]
    return [run.result.start.tolist() for run in found.runs]


# ---- formulas ----


def test_a_formula_schedules_as_the_same_heuristic_of_ours() -> None:
    @slurm_rl.heuristic
    def my_sjf(estimate: float) -> float:
        return -estimate

    @slurm_rl.heuristic("my-wfp3")
    def cubed(wait: float, estimate: float, size: float, power: int = 3) -> float:
        return (wait / estimate) ** power * size

    assert parse_policy("my-sjf").fixed_order
    assert not parse_policy("my-wfp3").fixed_order
    for mine, ours in (("my-sjf", "sjf"), ("my-sjf@user", "sjf@user"), ("my-wfp3@user", "wfp3@user")):
        assert starts_of(mine) == starts_of(ours)
        assert starts_of(mine, backfill="slurm") == starts_of(ours, backfill="slurm")


def test_every_figure_of_a_formula_is_that_of_the_queue() -> None:
    for name in slurm_rl.FIGURES:
        scope: dict[str, object] = {}
        exec(f"def formula({name}): return {name}", scope)
        slurm_rl.heuristic(f"by-{name}")(scope["formula"])  # type: ignore[call-overload]

        @slurm_rl.policy(f"py-{name}")
        def by_array(queue: slurm_rl.Queue, name: str = name) -> np.ndarray:
            return np.broadcast_to(np.asarray(getattr(queue, name), dtype=float), len(queue)) + 0.0

    trace = some_jobs(30)
    simulation = slurm_rl.Simulation(trace, CLUSTER, "fcfs")
    while len(simulation.pending) < 5:
        simulation.step()
    simulation.to_next_pass()
    snapshot = simulation.engine.snapshot()
    for name in slurm_rl.FIGURES:
        spec = parse_policy(f"by-{name}@user" if POLICIES[f"by-{name}"].uses_estimate else f"by-{name}")
        plan = decide(snapshot, spec)
        scores = {j: r.score for j, r in zip(plan.order, plan.reasons, strict=True)}
        live = load_policy(f"py-{name}")
        assert live.score is not None
        given = live.score(snapshot)
        if np.isfinite(given).all() and len(np.unique(given)) > 1:
            assert [scores[j] for j in snapshot.pending.tolist()] == pytest.approx(given.tolist(), rel=1e-6)


def test_a_kernel_of_ours_form_is_taken_as_it_is() -> None:
    from slurm_rl.kernel import tables as t

    @slurm_rl.heuristic("raw")
    def raw(w, now, j):  # type: ignore[no-untyped-def]
        return -float(t.jobs(w).limit[j])

    assert starts_of("raw") == starts_of("sjf")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def f(wiat): return wiat", "did you mean 'wait'"),
        ("def f(wait): return str(wait)", "must give a number"),
        ("def f(wait): return undefined_name + wait", "cannot be compiled"),
        ("def f(*wait): return 1.0", "name its figures"),
        ("def f(): return 1.0", "looks at nothing"),
    ],
)
def test_what_is_wrong_with_a_formula_is_told_where_it_stands(source: str, complaint: str) -> None:
    scope: dict[str, object] = {}
    exec(source, scope)
    with pytest.raises(InputError, match=complaint):
        slurm_rl.heuristic("wrong")(scope["f"])  # type: ignore[call-overload]


def test_names_of_ours_stay_ours_and_own_ones_may_be_written_again() -> None:
    with pytest.raises(InputError, match="one of ours"):
        slurm_rl.heuristic("fcfs")(lambda wait: wait)
    with pytest.raises(InputError, match="cannot be called"):
        slurm_rl.policy("fcfs")(lambda queue: queue.wait)
    slurm_rl.heuristic("again")(lambda wait: wait)
    first = starts_of("again")
    slurm_rl.heuristic("again")(lambda limit: -limit)
    assert starts_of("again") == starts_of("sjf") != first


# ---- Python ----


@pytest.mark.parametrize("backfill", ["easy", "slurm", "conservative"])
def test_a_python_policy_schedules_as_the_same_formula(backfill: str) -> None:
    @slurm_rl.policy("py")
    def py(queue: slurm_rl.Queue) -> np.ndarray:
        return np.log1p(queue.wait / queue.estimate) - np.log(queue.estimate)

    mine, ours = starts_of("py", "sjf-age@user", backfill=backfill)
    assert mine == ours


def test_a_network_as_python_schedules_as_the_compiled_one() -> None:
    """The features of a Queue are those that our own network sees."""
    from slurm_rl.policy.checkpoint import unflatten

    net = unflatten(slurm_rl.load_model("default").net)
    skip = net["skip"].ravel()[: len(slurm_rl.JOB_FEATURES)]

    @slurm_rl.policy("linear")
    def linear(queue: slurm_rl.Queue) -> np.ndarray:
        assert queue.pool.shape == (len(slurm_rl.POOL_FEATURES),)
        assert np.allclose(queue.features[:, slurm_rl.JOB_FEATURES.index("estimate")], np.log(queue.estimate))
        return queue.features @ skip

    run = slurm_rl.replay(some_jobs(), CLUSTER, policies=["linear"]).runs[0]
    assert run.outside is not None
    assert run.outside["failures"].get("exception", 0) == 0
    assert run.outside["calls"] > 10
    assert run.outside["p50_ms"] > 0


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        (lambda queue: 1 / 0, "exception"),
        (lambda queue: np.full(len(queue), np.nan), "not finite"),
        (lambda queue: np.zeros(len(queue) + 1), "shape"),
        (lambda queue: "high", "shape"),
        (lambda queue: np.zeros(len(queue)), "all the same"),
    ],
)
def test_what_a_python_policy_does_wrong_leaves_slurms_order(does: object, kind: str) -> None:
    slurm_rl.policy("bad")(does)  # type: ignore[arg-type]
    found = slurm_rl.replay(some_jobs(), CLUSTER, policies=["bad", "multifactor"])
    bad, slurm = found.runs
    assert bad.result.start.tolist() == slurm.result.start.tolist()
    assert found.failures["bad"]["failures"].get(kind, 0) > 10
    assert "gave no usable scores" in found._repr_html_()


def test_an_answer_that_takes_too_long_is_not_used() -> None:
    slurm_rl.policy("slow", seconds=0.0)(lambda queue: -queue.estimate)
    slow, slurm = slurm_rl.replay(some_jobs(), CLUSTER, policies=["slow", "multifactor"]).runs
    assert slow.result.start.tolist() == slurm.result.start.tolist()
    assert slow.outside is not None
    assert set(slow.outside["failures"]) == {"slow"}


def test_a_policy_that_never_answers_holds_up_no_live_cycle() -> None:
    stuck, asked = threading.Event(), []

    def never(queue: slurm_rl.Queue) -> np.ndarray:
        asked.append(len(queue))
        stuck.wait(60)
        return -queue.estimate

    slurm_rl.policy("never", seconds=0.05)(never)
    live, snapshot = load_policy("never"), _a_snapshot()
    for _ in range(3):
        plan = live.plan(snapshot, Guardrails(), {})
        assert all(r.fallback for r in plan.reasons)
    assert len(asked) == 1  # while it is busy it is not asked again
    assert live.calls is not None
    assert live.calls.failures["slow"] == 3
    stuck.set()
    for _ in range(200):  # and once it answers it is
        if not live.plan(snapshot, Guardrails(), {}).reasons[0].fallback:
            break
        threading.Event().wait(0.02)
    assert len(asked) > 1


def _a_snapshot(policy: str = "fcfs"):  # type: ignore[no-untyped-def]
    simulation = slurm_rl.Simulation(some_jobs(), CLUSTER, policy)
    while len(simulation.pending) < 5:
        simulation.step()
    simulation.to_next_pass()
    return simulation.engine.snapshot()


def test_live_a_formula_that_raises_or_gives_nan_leaves_slurms_order() -> None:
    @slurm_rl.heuristic("raises")
    def raises(wait: float) -> float:
        if wait >= 0:
            raise ValueError("no")
        return wait

    slurm_rl.heuristic("nan")(lambda wait: wait * np.nan)
    snapshot = _a_snapshot()
    slurm = decide(snapshot, parse_policy("multifactor"))
    for name in ("raises", "nan"):
        plan = load_policy(name).plan(snapshot, Guardrails(), {})
        assert all(r.fallback for r in plan.reasons)
        assert plan.order == slurm.order


def test_the_engine_starts_what_decide_plans_with_a_python_policy() -> None:
    slurm_rl.policy("py")(lambda queue: -queue.estimate * queue.size)
    simulation = slurm_rl.Simulation(some_jobs(), CLUSTER, "py").engine
    live, passes = load_policy("py"), 0
    assert live.score is not None
    while simulation.to_next_pass():
        before = simulation.world["live"]["held"] > 0
        snapshot = simulation.snapshot()
        plan = decide(snapshot, live.spec, scores=live.score(snapshot))
        simulation.finish_pass()
        started = np.flatnonzero((simulation.world["live"]["held"] > 0) & ~before).tolist()
        assert sorted(s.job for s in plan.starts) == started
        passes += 1
    assert passes > 20


# ---- names ----


def test_policies_of_a_file_and_of_a_module_enter_by_name(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short,) = starts_of(f"{own}:short_one@user")
    assert short == starts_of("sjf@user")[0]
    assert slurm_rl.replay(some_jobs(), CLUSTER, policies=f"{own}:waits_most").labels == ["waits-most"]
    assert starts_of(f"{own}:plain+firstfit") != starts_of("fcfs+firstfit")
    monkeypatch.syspath_prepend(str(own.parent))
    assert starts_of("own:plain") == starts_of(f"{own}:plain")
    monkeypatch.delitem(sys.modules, "own")
    with pytest.raises(InputError, match="unknown name in own"):
        parse_policy("own:nothing")
    with pytest.raises(InputError, match="2 policies"):
        parse_policy(str(own))
    one = own.with_name("one.py")
    one.write_text("import slurm_rl\nslurm_rl.heuristic('only')(lambda wait: wait)\n", encoding="utf-8")
    with pytest.raises(InputError, match="no policy"):
        parse_policy(str(one))  # nothing by a name of the file's own
    one.write_text("import slurm_rl\n@slurm_rl.heuristic\ndef only(limit): return -limit\n", encoding="utf-8")
    assert starts_of(str(one)) == starts_of("sjf")
    one.write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"ZeroDivisionError.*line 1"):
        parse_policy(str(one))


def test_the_commands_take_them_and_show_their_speed(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from slurm_rl.traces.native import write_native

    trace, cluster = tmp_path / "t.csv", tmp_path / "t.cluster.json"
    write_native(some_jobs(), trace)
    cluster.write_text(json.dumps([{"count": 2, "gpu_type": "A100", "gpus": 4}]), encoding="utf-8")
    asked = ["replay", str(trace), "--policy", f"multifactor,{own}:waits_most", "--placement", f"{own}:last_node"]
    runs = json.loads(_printed(capsys, *asked, "--json"))["runs"]
    assert [r["policy"] for r in runs] == ["multifactor", "waits-most"]
    assert runs[1]["placement"] == "last-node"
    assert runs[1]["outside"]["calls"] > 0
    assert "outside" not in runs[0]
    assert "waits-most: asked" in _printed(capsys, *asked, "--report", str(tmp_path / "r.html"))
    assert "waits-most" in (tmp_path / "r.html").read_text(encoding="utf-8")
    own_one = f"{own}:short_one@user"
    asked = ["evaluate", "--trace", str(trace), "--policy", own_one, "--no-opponents", "--json"]
    standings = json.loads(_printed(capsys, *asked))["standings"]
    assert [s["policy"] for s in standings] == ["multifactor", "short-one@user"]


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.fixture
def installed(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers a policy and a placement, installed beside ours."""
    site = own.parent / "site"
    info = site / "their_scheduler-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "their_scheduler.py").write_text(OWN, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-scheduler\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[slurm_rl.policies]\ntheirs = their_scheduler:plain\nbroken = their_scheduler:nothing\n"
        "[slurm_rl.placements]\ntheir-place = their_scheduler:last_node\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("their_scheduler", None)


def test_an_installed_package_offers_policies_and_placements(installed: None) -> None:
    assert "theirs" in outside.names()
    (theirs,) = starts_of("theirs", placement="their-place")
    slurm_rl.policy("plain")(lambda queue: -queue.size)
    assert [theirs] == starts_of("plain", placement="their-place")
    with pytest.raises(InputError, match=r"broken of the package their-scheduler cannot be loaded"):
        parse_policy("broken")
    with pytest.raises(InputError, match="did you mean 'theirs'"):
        parse_policy("their")
    assert imports.entry_names("slurm_rl.policies")


# ---- placements ----


def test_a_placement_takes_the_nodes_with_the_highest_values() -> None:
    slurm_rl.placement("last")(lambda node: node)
    slurm_rl.placement("fast")(lambda speed: speed)
    slurm_rl.placement("nowhere")(lambda node: node * np.nan)
    cluster = a_cluster(NodeClass(1, "T4", 4, 32, 256.0, "gpu", 0.5), NodeClass(1, "A100", 4, 32, 256.0, "gpu", 2.0))
    jobs = [a_job(0, 10, gpus=2.0), a_job(0, 10, gpus=6.0)]
    for name, nodes in (("last", ((1, 2),)), ("fast", ((1, 2),)), ("nowhere", ((0, 2),))):
        simulation, ids = a_simulation(cluster, jobs[:1], "fcfs", "easy", name)
        simulation.run()
        assert outcome(simulation, ids)[ids[0]].nodes == nodes, name
    simulation, ids = a_simulation(cluster, jobs[1:], "fcfs", "easy", "fast")
    simulation.run()
    assert outcome(simulation, ids)[ids[0]].nodes == ((0, 2), (1, 4))


# ---- the live side ----


def test_live_a_policy_from_outside_must_be_promoted(own: Path, tmp_path: Path) -> None:
    promotions = Promotions(tmp_path)
    spec = parse_policy(f"{own}:waits_most")
    assert not promotions.permitted(spec)
    assert promotions.permitted(parse_policy("sjf@user"))
    promotions.permit(spec)
    assert promotions.permitted(parse_policy(f"{own}:waits_most"))
    own.write_text(OWN + "\n# changed\n", encoding="utf-8")
    assert not promotions.permitted(parse_policy(f"{own}:waits_most"))
    formula = parse_policy(f"{own}:short_one")
    assert not formula.ours
    assert not promotions.permitted(formula)
    slurm_rl.policy("cell")(eval("lambda queue: queue.wait"))
    cell = parse_policy("cell")
    with pytest.raises(InputError, match="is in no file"):
        promotions.permit(cell)


def test_nobody_imports_code_through_the_services_questions(tmp_path: Path) -> None:
    from slurm_rl.controller.live import SAMPLE
    from slurm_rl.controller.ranking import rank

    for name in ("os:getcwd", "onnx:x", "evil.py:f"):
        with pytest.raises(InputError, match="no code is imported"):
            rank(SAMPLE | {"policy": name}, "fcfs", tmp_path)


def test_small_example_by_hand() -> None:
    slurm_rl.policy("widest")(lambda queue: queue.size)
    jobs = [a_job(0, 10, cpus=4), a_job(1, 10, cpus=1), a_job(2, 10, cpus=3), a_job(3, 10, cpus=2)]
    assert starts(a_cluster(1, cpus=4), jobs, "widest") == [0, 20, 10, 20]
