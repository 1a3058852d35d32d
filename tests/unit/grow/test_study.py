"""Tasks, outcome tables, policies on them, learning, ranking, and the commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slurm_rl.cli import main
from slurm_rl.errors import InputError
from slurm_rl.grow import vocabulary
from slurm_rl.grow.policies import HEURISTICS, AtPlateau, affordable, policy_of
from slurm_rl.grow.ranking import HINDSIGHT, OTHER_SEEDS, interval, rank
from slurm_rl.grow.reinforce import Lesson, learn
from slurm_rl.grow.state import GrowthStep, State, survey
from slurm_rl.grow.table import Node, StudySettings, Trainings, is_done, load_cells, save_cell, simulate_cell
from slurm_rl.grow.tasks import NAMES, data_of, task_of
from slurm_rl.grow.walk import state_at, walk

WIDEN, DEEPEN = GrowthStep("widen", "0", 8, 2.0, 0), GrowthStep("deepen", "0", 0, 1.5, 0)
SMALL = StudySettings(moments=(1.0, 2.0), longest=4.0)


def a_state(**changed: Any) -> State:
    given = {"layers": (1, 2), "choices": (WIDEN, DEEPEN), "elapsed": 10.0, "left": 100.0, "epoch_seconds": 1.0}
    return State(**given | changed)


def a_cell(task: str, seed: int, gain: float, late: float = 0.0) -> Trainings:
    """Two moments; growing by choice 1 at the first gains `gain`, and costs `late` under budgets below 10."""
    nodes = {}
    for path in [(), (0,), (1,), (2,), *((a, b) for a in range(3) for b in range(3))]:
        begin, end = ((0, 4), (4, 8), (8, 20))[len(path)]
        grew = gain if path[:1] == (1,) else -0.05 * sum(p > 0 for p in path)
        points = tuple(
            (float(t), 1.0, 0.5, 0.5 + grew - (late if t < 10 and path[:1] == (1,) else 0.0))
            for t in range(begin + 1, end + 1)
        )
        nodes[path] = Node(path, (1, 2), (WIDEN, DEEPEN), 1.0, points)
    return Trainings(task, seed, (4.0, 8.0), nodes)


def test_no_two_layers_share_an_id_and_the_vocabulary_is_pinned() -> None:
    assert len(set(vocabulary.WORDS)) == vocabulary.SIZE
    assert (vocabulary.VERSION, vocabulary.FINGERPRINT) == (1, "daf800145f2ae951"), "new words need a new version"
    layers = [nn.Linear(4, 8), nn.Conv2d(4, 8, 1), nn.Embedding(4, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.GRU(4, 8)]
    words = [vocabulary.word_of(m) for m in layers]
    assert len(set(words)) == len(words)
    assert vocabulary.word_of(nn.Linear(4, 64)) == "linear/6" != vocabulary.word_of(nn.Linear(4, 128))


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_seeded_and_split(name: str) -> None:
    first, again, other = (data_of(task_of(name), seed) for seed in (0, 0, 1))
    assert torch.equal(first.train[0], again.train[0])
    assert not torch.equal(first.train[0], other.train[0])
    assert len(first.train[0]) == 600
    assert len(first.decide[0]) == len(first.judge[0]) == 300
    assert first.classes == len(torch.unique(first.train[1]))
    task_of(name).model(first.train[0].shape[1], first.classes)(first.train[0])


def test_a_users_task_is_a_file_with_two_functions(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    with pytest.raises(InputError, match="no such task file"):
        task_of(str(file))
    file.write_text("def load(seed):\n    return 1\n")
    with pytest.raises(InputError, match="has no function model"):
        task_of(str(file))
    file.write_text("1/0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        task_of(str(file))
    file.write_text(
        "import numpy as np, torch\n"
        "def load(seed):\n"
        "    x = np.random.default_rng(seed).normal(size=(80, 3))\n"
        "    return x, x[:, 0] > 0\n"
        "def model(inputs, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(inputs, 3), torch.nn.ReLU(), torch.nn.Linear(3, classes))\n"
    )
    cell = simulate_cell(str(file), 0, SMALL)
    assert len(cell.nodes) == 1 + 3 + (3 + 3 + 5), "a new layer is a new place"


def test_a_table_has_every_plan_and_no_epoch_ends_after_the_longest_budget(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    cell = simulate_cell("checker-2", 0, SMALL)
    assert len(cell.nodes) == 1 + 5 + 25
    for path, node in cell.nodes.items():
        assert all(p[0] <= 4.0 + 1e-9 or len(path) < 2 for p in node.points)
        times = [p[0] for p in cell.points(path)]
        assert times == sorted(times)
    assert cell.nodes[(0, 0)].epoch == 1.0 < cell.nodes[(1, 0)].epoch
    again = simulate_cell("checker-2", 0, SMALL)
    assert again == cell, "a table depends on its seed alone"
    file = tmp_path / "checker-2-seed0.json"
    save_cell(file, cell, SMALL)
    (read,) = load_cells(tmp_path)
    assert read.outcome((1, 2), 4) == pytest.approx(cell.outcome((1, 2), 4), abs=1e-5)
    assert is_done(file, SMALL)
    assert not is_done(file, StudySettings())
    file.write_text(file.read_text()[:50])
    assert not is_done(file, SMALL)
    with pytest.raises(InputError, match="is not an outcome table"):
        load_cells(tmp_path)


def test_widening_starts_from_the_same_function() -> None:
    """The first point after a step is near the last one before: nothing was lost."""
    cell = simulate_cell("blobs-1", 1, SMALL)
    before = cell.points(())[-1][1]
    for i in range(1, 5):
        assert cell.nodes[(i,)].points[0][1] < before * 1.2


def test_heuristics() -> None:
    assert policy_of("never").choose(a_state()) is None
    assert policy_of("always-widen").choose(a_state()) == WIDEN
    assert policy_of("always-deepen").choose(a_state()) == DEEPEN
    assert policy_of("always-widen").choose(a_state(left=5.0)) is None, "three epochs at twice the time do not fit"
    assert affordable(a_state(left=5.0)) == [DEEPEN]
    drawn = {policy_of("random", seed).choose(a_state()) for seed in range(30)}
    assert drawn == {None, WIDEN, DEEPEN}
    rising = tuple(np.linspace(0, 1, 12))
    assert AtPlateau().choose(a_state(metrics=rising)) is None
    assert AtPlateau().choose(a_state(metrics=(*rising, *[1.0] * 8))) == WIDEN
    assert AtPlateau().choose(a_state(metrics=(*rising, *[1.0] * 8), grown=(18,))) is None, "it has just grown"
    with pytest.raises(InputError, match="did you mean 'at-plateau'"):
        policy_of("at-plato")


def test_a_survey_offers_the_ends_and_their_cost() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    words, menu = survey(net)
    assert len(words) == 3
    assert [(c.action, c.name, c.to) for c in menu] == [
        ("widen", "0", 16), ("widen", "2", 16), ("deepen", "0", 0), ("deepen", "2", 0)
    ]  # fmt: skip
    size = sum(p.numel() for p in net.parameters())
    assert menu[0].cost == pytest.approx(0.2 + 0.8 * (size + 40 + 64) / size)
    assert menu[2].cost == pytest.approx(0.2 + 0.8 * (size + 72) / size)


def test_a_policy_walks_with_what_it_would_have_seen() -> None:
    cell = a_cell("t", 0, gain=0.1)
    state = state_at(cell, (1,), 15.0)
    assert (state.elapsed, state.left, len(state.metrics), state.grown) == (8.0, 7.0, 8, (4,))
    assert walk(cell, policy_of("never"), 15.0) == (0, 0)
    assert walk(cell, policy_of("always-widen"), 15.0) == (1, 1)
    assert walk(cell, policy_of("never"), 6.0) == (0,)


def test_reinforce_finds_the_step_that_pays_and_when() -> None:
    cells = [a_cell(f"t{i}", s, gain=0.1, late=0.3) for i in range(2) for s in range(2)]
    net, course = learn(cells, [6.0, 16.0], cells, Lesson(iterations=120), seed=1)
    from slurm_rl.grow.learned import LearnedGrowth

    policy = LearnedGrowth(net)
    assert walk(cells[0], policy, 16.0)[0] == 1, "with time it pays"
    assert walk(cells[0], policy, 6.0)[0] == 0, "in a hurry it does not"
    assert max(course) > 3.0


def test_the_policy_in_numpy_scores_as_the_network_does() -> None:
    from slurm_rl.grow.learned import GrowthNet, LearnedGrowth, tensors_of

    torch.manual_seed(3)
    net = GrowthNet()
    for parameter in net.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    policy, chosen = LearnedGrowth(net), set()
    for i in range(60):
        width = 2 ** (1 + i % 6)
        model = nn.Sequential(*(m for _ in range(1 + i % 5) for m in (nn.Linear(width, width), nn.ReLU())))
        layers, menu = survey(nn.Sequential(model, nn.Linear(width, 3)))
        curve = tuple(torch.rand(1 + i % 7).tolist())
        state = State(layers, menu[: 1 + i % 4], 3.0 * i, 50.0 + i, 1.0, curve, curve, (1,) if i % 2 else ())
        for s in (state, replace(state, left=9.0, losses=(0.2,)), replace(state, layers=(), choices=())):
            *inputs, open_ = tensors_of([s])
            with torch.no_grad():
                scores = net(*inputs)[0]
            np.testing.assert_allclose(policy.scores(s), scores, atol=1e-5)
            best = int(scores.masked_fill(~open_[0], -torch.inf).argmax())
            assert policy.choose(s) == (s.choices[best - 1] if best else None)
            chosen.add(best)
    assert len(chosen) > 2, "the cases must differ in what is best"


def test_ranking_has_intervals_and_the_best_in_hindsight() -> None:
    cells = [a_cell(f"t{i}", s, gain=0.02 + 0.001 * i) for i in range(4) for s in range(3)]
    standings = {s.policy: s for s in rank(cells, [policy_of(n) for n in HEURISTICS], [16.0])}
    assert standings["never"].gain == 0.0
    assert standings["always-widen"].gain == pytest.approx(0.0215)
    assert standings["always-widen"].beats_never
    assert not standings["always-deepen"].beats_never
    assert standings[HINDSIGHT].mean >= max(s.mean for s in standings.values()) - 1e-9
    assert standings[OTHER_SEEDS].mean == pytest.approx(standings[HINDSIGHT].mean), "here every seed agrees"
    lucky = [a_cell("t", s, gain=0.1 if s == 0 else -0.1) for s in range(3)]
    judged = {s.policy: s for s in rank(lucky, [policy_of("never")], [16.0])}
    assert judged[OTHER_SEEDS].gain <= 0 <= judged[HINDSIGHT].gain
    low, high = interval(["a", "a", "b", "b"], np.array([0.1, 0.1, -0.1, -0.1]))
    assert (low, high) == (pytest.approx(-0.1), pytest.approx(0.1)), "two tasks that disagree prove nothing"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["grow", *map(str, words), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def test_the_commands_from_tables_to_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables, policy = tmp_path / "tables", tmp_path / "p.safetensors"
    make = ("simulate", "--out", tables, "--tasks", "checker-2,rings-2", "--seeds", 2, "--moments", "1", "--longest", 6)
    assert run(capsys, *make)[1] == {"out": str(tables), "tables": 4, "made": 4}
    assert run(capsys, *make)[1]["made"] == 0, "what is there is kept"
    shown = ("--tables", tables, "--budgets", "3,6")
    code, said = run(
        capsys, "learn", *shown, "--out", policy, "--tasks", "all", "--validation", "rings-2", "--iterations", 20
    )
    assert (code, said["tasks"], said["validation"]) == (0, ["checker-2"], ["rings-2"])
    code, said = run(capsys, "evaluate", *shown, "--tasks", "rings-2", "--policy", f"never,at-plateau,{policy}")
    assert (said["seeds"], len(said["standings"])) == ([0, 1], 5)
    assert run(capsys, "plot", *shown, "--tasks", "all", "--out", tmp_path)[0] == 0
    assert "<svg" in (tmp_path / "regret.svg").read_text()
    with pytest.raises(SystemExit):
        main(["grow", "evaluate", *map(str, shown), "--tasks", "all"])
    assert "best in hindsight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "--tables", "nowhere"), "has no outcome tables"),
        (("simulate", "--out", "x", "--tasks", "digit"), "did you mean 'digits'"),
        (("simulate", "--out", "x", "--moments", "5,3"), "--moments: must rise"),
        (("simulate", "--out", "x", "--executor", "cloud"), "unknown executor 'cloud'"),
        (("evaluate", "--tables", "x", "--budgets", "many"), "--budgets: must be positive numbers"),
        (("run", "nowhere.py"), "nowhere.py: no such script"),
    ],
)
def test_wrong_words_are_one_error(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, answer = run(capsys, *words)
    assert code == 2
    assert said in answer["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def test_a_script_runs_under_a_budget_and_its_growth_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "examples/grow_digits.py"
    code, said = run(capsys, "run", example, "--budget", 600, "--policy", "always-deepen", "--epochs", 3)
    events = [e["event"] for e in said["events"]]
    assert (code, said["exit_code"]) == (0, 0)
    assert events.count("grew") >= 2
    assert said["seconds"] < 600


def test_a_script_that_overstays_is_warned_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "stays.py"
    script.write_text(
        "import pathlib, signal, time\n"
        "for n in (signal.SIGUSR1, signal.SIGTERM):\n"
        "    signal.signal(n, lambda number, frame: pathlib.Path('seen').open('a').write(f'{number} '))\n"
        "while True: time.sleep(1)\n"
    )
    monkeypatch.chdir(tmp_path)
    code, said = run(capsys, "run", script, "--budget", 8, "--warn", 4)
    assert (code, said["exit_code"]) == (1, -9)
    assert (tmp_path / "seen").read_text() == "10 15 "
