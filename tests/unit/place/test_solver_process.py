"""A solver in a process of its own answers as one in ours does, and may crash or hang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from placement_cases import a_problem, an_ask

from slurm_rl.errors import EnvironmentMissing
from slurm_rl.place import solver_process
from slurm_rl.place.mip import solve
from slurm_rl.place.problem import Job, NodeKind, NodeState, PlacementProblem, violations
from slurm_rl.place.solver_process import SolverProcess

# The first job is worth less on the fast node than the second, which greedy finds taken.
CONTENDED = PlacementProblem(
    [Job(an_ask(4, kinds=(0, 1)), (10.0, 12.0)), Job(an_ask(4, kinds=(0, 1)), (10.0, 100.0))],
    [NodeKind(0, 4), NodeKind(1, 4)],
    {NodeState(0, 4, 8, 8): 1, NodeState(1, 4, 8, 8): 1},
)


@pytest.fixture
def solver() -> Iterator[SolverProcess]:
    made = SolverProcess()
    yield made
    made.end()


def pid_of(solver: SolverProcess) -> int:
    assert solver._process is not None
    return solver._process.pid


def test_it_answers_as_a_solver_in_our_process_does(solver: SolverProcess) -> None:
    asked = 0
    for seed in range(120):
        problem, _ = a_problem(seed)
        ours, there = solve(problem, gap=0.0), solve(problem, gap=0.0, ask=solver.ask)
        assert there.cost == pytest.approx(ours.cost)
        assert (there.where, there.winner, there.note) == (ours.where, ours.winner, ours.note)
        assert not violations(problem, there.where)
        asked += there.winner == "cbc"
    assert asked > 3


def test_a_solver_that_crashes_leaves_greedys_answer_and_the_next_one_is_solved(
    solver: SolverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert solve(CONTENDED, ask=solver.ask).winner == "cbc"
    before, pipe = pid_of(solver), solver._pipe
    assert pipe is not None
    send = pipe.send

    class Deadly:
        def __reduce__(self) -> tuple[object, tuple[()]]:
            return os.abort, ()  # whoever reads it dies of what a double free ends in

    monkeypatch.setattr(pipe, "send", lambda question: send(Deadly()))
    found = solve(CONTENDED, seconds=10.0, ask=solver.ask)
    assert found.winner == "greedy"
    assert "SIGABRT" in found.note
    assert solve(CONTENDED, ask=solver.ask).winner == "cbc"
    assert pid_of(solver) != before


def test_a_solver_that_dies_while_it_answers_is_told(solver: SolverProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert solve(CONTENDED, ask=solver.ask).winner == "cbc"
    pid, pipe = pid_of(solver), solver._pipe

    def cut_short() -> None:
        os.kill(pid, signal.SIGKILL)
        raise OSError("got end of file during message")  # what multiprocessing says of half an answer

    monkeypatch.setattr(pipe, "recv", cut_short)
    found = solve(CONTENDED, ask=solver.ask)
    assert (found.winner, found.note) == ("greedy", "cbc failed: SolverLost: its process ended with SIGKILL")


def test_a_solver_that_hangs_is_ended_in_time(solver: SolverProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert solve(CONTENDED, ask=solver.ask).winner == "cbc"
    before = pid_of(solver)
    monkeypatch.setattr(solver_process, "_GRACE", 0.2)
    os.kill(before, signal.SIGSTOP)
    began = time.monotonic()
    found = solve(CONTENDED, seconds=0.2, ask=solver.ask)
    assert time.monotonic() - began < 5.0
    assert found.winner == "greedy"
    assert "no answer" in found.note
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_one_that_died_while_idle_is_started_anew(solver: SolverProcess) -> None:
    solve(CONTENDED, ask=solver.ask)
    os.kill(pid_of(solver), signal.SIGKILL)
    assert solver._process is not None
    solver._process.wait()
    assert solve(CONTENDED, ask=solver.ask).winner == "cbc"


def test_a_slow_import_costs_the_first_question_none_of_its_time(
    solver: SolverProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mip.py").write_text(
        "import sys, time\n"
        "time.sleep(1.5)\n"
        f"sys.path.remove({str(tmp_path)!r})\n"
        "del sys.modules['mip']\n"
        "import mip\n"  # the real one, which takes this one's place
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = solve(CONTENDED, seconds=1.0, ask=solver.ask)
    assert (found.winner, found.note) == ("cbc", "")


def test_a_missing_solver_is_said(solver: SolverProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mip.py").write_text("raise ImportError('not here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvironmentMissing, match="python-mip is not installed"):
        solve(CONTENDED, ask=solver.ask)


def test_it_ends_with_its_owner(solver: SolverProcess) -> None:
    solve(CONTENDED, ask=solver.ask)
    process, pipe = solver._process, solver._pipe
    assert process is not None
    assert pipe is not None
    pipe.close()
    assert process.wait(10) == 0
