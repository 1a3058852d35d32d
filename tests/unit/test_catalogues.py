"""Whatever has a row is listed where users look, can be linked, and says what it needs; nothing else is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.config import Config
from slurm_rl.decide import decide
from slurm_rl.errors import InputError
from slurm_rl.evaluate.paired import PolicyFigures, gap_closed
from slurm_rl.kernel.catalogue import find_kernel
from slurm_rl.kernel.links import NotLinkable, link, tables_of
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.policy.catalogue import POLICIES, policy_names
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim.metrics import as_markdown, share_of_the_way
from slurm_rl_sim.replay import parse_contenders

ROOT = Path(__file__).resolve().parents[2]
ROWS = [*POLICIES, *PLACEMENTS, *RULES]


def listed_after(text: str, words: str) -> list[str]:
    """The names in the `code` that follows these words."""
    found = re.search(re.escape(words) + r" `([^`]+)`", text)
    assert found is not None, words
    return found[1].split()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{type(row).__name__} {row.name}")
def test_a_row_names_kernels_that_are_there_and_says_what_it_is(row: object) -> None:
    kernels, help_text = row.kernels, row.help  # type: ignore[attr-defined]
    assert kernels
    for where in kernels.values():
        assert tables_of(find_kernel(where)) is not None
    assert help_text[0].isupper() or help_text[0] in "(F"
    assert help_text.endswith(".")


def test_readme_lists_what_is_there() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert listed_after(readme, "Policies:") == list(policy_names())
    assert listed_after(readme, "Backfill:") == list(RULES.names)
    assert listed_after(readme, "Placement:") == list(PLACEMENTS.names)


def test_every_rule_and_placement_has_its_clause() -> None:
    text = (ROOT / "docs" / "backfill.md").read_text(encoding="utf-8")
    sections = " ".join(line for line in text.splitlines() if line.startswith("## "))
    assert set(re.findall(r"`([\w-]+)`", sections)) == set(RULES.names)
    placement = text[text.index("## Placement") : text.index("## Estimates")]
    clauses = [name for line in placement.splitlines() if line.startswith("- **P") for name in _names(line)]
    assert sorted(clauses) == sorted(PLACEMENTS.names)


def _names(line: str) -> list[str]:
    return re.findall(r"`([\w-]+)`", line.partition(":")[0].partition("(")[0])


def test_every_kernel_of_a_rule_or_placement_cites_its_clause() -> None:
    for row in (*RULES, *PLACEMENTS):
        for where in row.kernels.values():
            text = find_kernel(where).py_func.__globals__["__doc__"]
            assert "docs/backfill.md" in text or "docs/placement.md" in text, where


def test_every_clause_is_named_by_a_kernel_and_by_a_test() -> None:
    clauses = re.findall(r"^- \*\*([A-Z]\d+)\*\* ", (ROOT / "docs" / "backfill.md").read_text(encoding="utf-8"), re.M)
    assert len(clauses) == 54
    kernels = " ".join(p.read_text() for d in ("backfill", "place") for p in (ROOT / "slurm_rl" / d).glob("*.py"))
    more = ["sim/slurm_rl_sim/engine.py", "sim/slurm_rl_sim/site_priority.py", "slurm_rl/kernel/quotas.py"]
    more += ["sim/slurm_rl_sim/reservations.py", "slurm_rl/kernel/reserved.py", "sim/slurm_rl_sim/gpu_memory.py"]
    kernels += " ".join((ROOT / name).read_text() for name in more)
    tests = " ".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py") if p.name != Path(__file__).name)
    for text in (kernels, tests):
        ranges = re.findall(r"([A-Z])(\d) to [A-Z](\d)", text)
        named = {f"{letter}{k}" for letter, low, high in ranges for k in range(int(low), int(high) + 1)}
        named |= set(re.findall(r"\b([NECSPLVM]\d+)\b", text))
        assert set(clauses) <= named


def test_choices_of_the_configuration_are_the_catalogue() -> None:
    assert Config(placement="greedy").placement == "greedy"
    field = Config.__dataclass_fields__["placement"]
    assert field.metadata["choices"] == PLACEMENTS.names


@pytest.mark.parametrize(
    ("text", "hint"),
    [("sjff", "did you mean 'sjf'"), ("learned", "known:"), ("fcfs@user", "uses no estimate"), ("sjf@usr", "'user'")],
)
def test_a_wrong_policy_gets_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        parse_policy(text)


def test_a_wrong_rule_gets_a_hint() -> None:
    with pytest.raises(InputError, match="did you mean 'easy'"):
        parse_contenders("fcfs+eas", "easy")
    with pytest.raises(InputError, match="did you mean 'slurm'"):
        parse_contenders("fcfs", "slrm")


def test_a_kernel_whose_table_is_empty_is_not_linked() -> None:
    from builders import a_cluster, a_job, a_simulation

    simulation, _ = a_simulation(a_cluster(2, cpus=2), [a_job(0)], "fcfs", "easy", "greedy")
    world = simulation.world
    world["class_ptr"] = world["class_ptr"][:0]
    kernel = find_kernel(PLACEMENTS["greedy"].kernels["place_special"])
    with pytest.raises(NotLinkable, match="place_by_type reads the table class_ptr, which is empty"):
        link(world, "place_special", kernel)
    snapshot = simulation.snapshot()
    with pytest.raises(NotLinkable, match="class_ptr"):
        decide(snapshot, parse_policy("fcfs"), placement="mip")


def test_the_docs_list_the_metrics_that_there_are() -> None:
    assert as_markdown() in (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


def test_report_and_evaluation_measure_the_way_to_the_limit_alike() -> None:
    runs = {"multifactor": 100.0, "rl:mine": 10.0, "sjf@oracle": 1.0}
    standings = [PolicyFigures(name, "easy", {"mean_bsld": value}, {}, {}, {}) for name, value in runs.items()]
    assert gap_closed(standings, "rl:mine", "multifactor") == pytest.approx(0.5)
    assert share_of_the_way(100.0, 10.0, 1.0) == pytest.approx(0.5)
    assert share_of_the_way(1.0, 1.0, 1.0) is None
