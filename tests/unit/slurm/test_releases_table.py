"""docs/releases.md tells how many tests run on each release: the count is pytest's own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RELEASES = {"installed": "22.05", "22.05": "22.05", "24.11": "24.11", "26.05": "26.05"}


def table() -> dict[tuple[str, ...], dict[str, int]]:
    """Files of a row, and its counts."""
    found = {}
    for row in (ROOT / "docs" / "releases.md").read_text().splitlines():
        files = tuple(re.findall(r"`([\w/]+/test_\w+\.py)`", row))
        cells = row.split("|")
        if files and len(cells) == 7:
            found[files] = dict(zip(("22.05", "24.11", "26.05"), map(int, cells[2:5]), strict=True))
    return found


def test_the_table_counts_what_pytest_collects() -> None:
    told = table()
    assert len(told) > 10
    files = [f"tests/{file}" for row in told for file in row]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--releases", "all"]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    seen: dict[str, Counter[str]] = {file: Counter() for file in files}
    for line in done.stdout.splitlines():
        file, _, rest = line.partition("::")
        if file in seen:
            seen[file].update({RELEASES[t] for t in re.split(r"[\[\]-]", rest) if t in RELEASES})
    counted = {row: sum((seen[f"tests/{file}"] for file in row), Counter()) for row in told}
    assert {row: {r: counts[r] for r in told[row]} for row, counts in counted.items()} == told
