"""Documents hang together: links lead somewhere, the site lists every page, and its reference knows every command."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugin/*.md"), *ROOT.glob("traces/*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if "://" in link or name.startswith("reference/"):  # pages that the site makes from the code
            continue
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_the_site_lists_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [p.name for p in ROOT.glob("docs/*.md") if f": {p.name}\n" not in nav] == []


def test_the_site_loads_nothing_from_elsewhere() -> None:
    """The plugin `offline` brings a script from a CDN unless it is told of ours; without one, nothing is found."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (script,) = re.findall(r"polyfills: \[(\S+iframe-worker\S*)\]", config)
    assert "window.Worker=" in (ROOT / "docs" / script).read_text(encoding="utf-8")
    assert "https://" not in config


def test_the_reference_has_every_command_and_setting() -> None:
    from dataclasses import fields

    from slurm_rl.cli.app import COMMANDS
    from slurm_rl.config import Config

    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages = module.pages()
    assert [name for name in COMMANDS if f"## slurm-rl {name}" not in pages["commands"]] == []
    assert [f.name for f in fields(Config) if f"### {f.name}\n" not in pages["configuration"]] == []
    assert "`mean_wait`" in pages["metrics"]
    assert "`fcfs`" in pages["catalogues"]
