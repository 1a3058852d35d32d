"""What a guide tells a reader to run: every option exists, and the line runs here or in the test that is named."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from slurm_rl.cli import main
from slurm_rl.cli.app import COMMANDS
from slurm_rl.policy.catalogue import POLICIES
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.swf import write_swf

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/tutorials/*.md")),
    *ROOT.glob("plugin/*.md"),
    *ROOT.glob("traces/*.md"),
]

# Lines that need a Slurm, a GPU, hours or a download: the tests that run such a line.
ELSEWHERE = {
    "advise-mig": "tests/unit/evaluate/test_mig.py",
    "bench": "tests/unit/bench/test_bench_core.py",
    "completion": "tests/unit/cli/test_completion.py",
    "doctor": "tests/unit/slurm/test_slurm_doctor.py",
    "explain": "tests/unit/live/test_explain.py",
    "fidelity": "tests/unit/evaluate/test_fidelity.py",
    "forecast-report": "tests/unit/evaluate/test_forecasts.py",
    "grow evaluate": "tests/unit/grow/test_study.py",
    "grow learn": "tests/unit/grow/test_study.py",
    "grow plot": "tests/unit/grow/test_study.py",
    "grow run": "tests/unit/grow/test_budget.py",
    "grow simulate": "tests/unit/grow/test_study.py",
    "install-plugin": "tests/unit/plugin/test_install_plugin.py",
    "lab": "tests/integration/lab/test_lab_lifecycle.py",
    "models fit": "tests/unit/evaluate/test_fit.py",
    "models promote": "tests/unit/live/test_promote.py",
    "models rollback": "tests/unit/live/test_promote.py",
    "node-agent": "tests/unit/telemetry/test_agent.py",
    "retrain": "tests/integration/live/test_retrain_on_slurm.py",
    "serve": "tests/unit/live/test_service.py",
    "shadow-report": "tests/integration/live/test_shadow_and_history.py",
    "study": "tests/unit/evaluate/test_study_command.py",
    "traces convert": "tests/unit/traces/test_traces_published.py",
    "traces from-slurm": "tests/integration/traces/test_from_slurm.py",
    "train": "tests/unit/train/test_trainer.py",
    "undo": "tests/unit/live/test_undo_command.py",
    "when": "tests/unit/live/test_start_forecast.py",
}
NEEDS_SLURM = ("--backend slurm", "--from-slurm", "--slurm-conf", "--sweep")  # sweeps: tests/unit/bench/test_sweep.py
HERE = ("replay", "evaluate", "traces generate", "traces info", "traces perturb", "models list", "show-conf", "version")


def lines() -> list[str]:
    """The indented and fenced lines that begin with our command, continued ones joined."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for row in re.findall(r"^(?: {4,}|\$ )(?:[A-Z_]+=\S+ )*(?:sudo )?(slurm-rl [^\n]*)", text, re.MULTILINE):
            found[re.sub(r"\s{2,}(#.*)?", " ", re.sub(r"\s+#.*", "", row)).strip()] = None
    return list(found)


def spans() -> list[str]:
    """Our commands within sentences and tables, as `code`."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = re.sub(r"^(?: {4}|```).*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for row in re.findall(r"`(?:sudo )?(slurm-rl [^`\n]+)`", text):
            found[row.replace("\\|", "|").strip()] = None
    return [row for row in found if row not in lines()]


def words_of(line: str) -> list[str]:
    """A line's words, those in [brackets] included; several commands side by side count as the first."""
    first = re.split(r"\s+(?:\||&&|;|>)\s", line)[0]
    return shlex.split(first.replace("[", "").replace("]", "").replace("…", ""))[1:]


def find(words: list[str]) -> tuple[str, Any]:
    """The command of a line, by name, and what typer knows of it."""
    module = importlib.import_module(COMMANDS[words[0]][0])
    command: Any = typer.main.get_command(module.app) if hasattr(module, "app") else None
    names = [words[0]]
    for word in words[1:]:
        if word not in (getattr(command, "commands", None) or {}):
            break
        command = command.commands[word]
        names.append(word)
    return " ".join(names), command


@pytest.mark.parametrize("line", lines())
def test_commands_and_options_exist(line: str) -> None:
    words = words_of(line)
    if not words or "|" in words[0] or words[0].isupper():
        return  # a summary of several commands
    assert words[0] in COMMANDS, line
    name, command = find(words)
    if command is None:  # a command without typer says itself what it takes
        return
    known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
    assert [w for w in words if w.startswith("--") and w.partition("=")[0] not in known] == [], name
    runs_here = name.startswith(HERE) and not any(need in line for need in NEEDS_SLURM)
    where = ELSEWHERE.get(name) or ELSEWHERE.get(name.split()[0])
    if not runs_here and not any(need in line for need in NEEDS_SLURM):
        assert where is not None, f"{line}: name the test that runs it in ELSEWHERE"
        assert (ROOT / where).exists(), where


@pytest.mark.parametrize("span", spans())
def test_commands_in_sentences_exist(span: str) -> None:
    words = words_of(span)
    assert words[0] in COMMANDS, span
    _, command = find(words)
    if command is not None:
        known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
        unknown = [w for w in words if w.startswith("--") and w.partition("=")[0] not in known]
        assert not unknown or hasattr(command, "commands"), span  # options of a group belong to its commands


def test_examples_that_are_named_exist_with_their_options() -> None:
    named = 0
    for page in PAGES:
        for row in re.findall(r"python (examples/[^`\n|;&]+)", page.read_text(encoding="utf-8")):
            words = shlex.split(re.sub(r"\s+#.*", "", row))
            source = (ROOT / words[0]).read_text(encoding="utf-8")
            assert [w for w in words[1:] if w.startswith("--") and f'"{w}"' not in source] == [], row
            named += 1
    assert named > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files by the names that the guides use."""
    at = tmp_path_factory.mktemp("reader")
    (at / "traces").mkdir()
    (at / "examples").symlink_to(ROOT / "examples")
    sample = read_trace(ROOT / "traces" / "hetero.csv.gz")
    longer = sample.take(np.arange(400, 1200))  # over 100 jobs come before the windows that auto takes
    sample = sample.take(np.arange(400, 560))
    cluster = (ROOT / "traces" / "hetero.cluster.json").read_text(encoding="utf-8").replace('"count": ', '"count": 0')
    cluster = re.sub(r'"count": 0\d+', '"count": 4', cluster)
    for name in ("traces/hetero", "trace", "spot", "TRACE", "venus", "site", "t", "blocks"):
        for suffix in (".csv", ".csv.gz"):
            write_native(sample, at / f"{name}{suffix}")
        (at / f"{name}.cluster.json").write_text(cluster, encoding="utf-8")
    for name in ("cluster.json", "openb.json", "my.cluster.json"):
        (at / name).write_text(cluster, encoding="utf-8")
    write_native(longer, at / "TRACE.csv")
    (at / "TRACE").symlink_to(at / "TRACE.csv")
    for name in ("my.swf", "my.swf.gz"):
        write_swf(sample, at / name)
    return at


def run_here() -> list[str]:
    found = []
    for line in lines():
        words = words_of(line)
        if words and words[0] in COMMANDS and "[" not in line and not any(need in line for need in NEEDS_SLURM):
            name, _ = find(words)
            if name in HERE and "NAME" not in line:
                found.append(line)
    return found


@pytest.mark.parametrize("line", run_here())
def test_the_line_runs_as_printed(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On small files; what is generated does not replace them."""
    words = words_of(line)
    if words[:2] == ["traces", "generate"]:
        for option in {"--out", "--cluster-out"} & set(words):
            out = words.index(option) + 1
            words[out] = f"made-{words[out].replace('/', '-')}"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(POLICIES, "_rows", dict(POLICIES._rows))  # a policy from outside stays no longer than its line
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, None), capsys.readouterr().err


def test_lines_are_found() -> None:
    assert len(lines()) > 60
    assert len(run_here()) > 15


@pytest.mark.parametrize("page", ["api.md", "agents.md"])
def test_python_runs_as_printed(page: str, folder: Path) -> None:
    """All blocks of a page, one after the other, in a fresh interpreter."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.M | re.S)
    if not blocks:
        return
    code = "\n".join(blocks)
    said = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-2000:]


def test_the_environment_starts_as_printed(folder: Path) -> None:
    """The indented lines of learning.md that are Python, in a fresh interpreter."""
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    code = "".join(re.sub(r"^    ", "", b, flags=re.MULTILINE) for b in blocks if re.match(r" +(import|env)", b))
    assert "gymnasium.make_vec(" in code
    small = code.replace("jobs=256", "jobs=60, train_share=1.0").replace(
        "windows=128", "windows=2, jobs=60, train_share=1.0"
    )
    said = subprocess.run([sys.executable, "-c", small], cwd=folder, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
