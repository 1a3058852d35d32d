"""The ring on disk: bounded, whole after a kill, quiet when the disk is full."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from slurm_rl.errors import InputError
from slurm_rl.telemetry.ring import Ring


def contents(ring: Ring) -> list[tuple[int, bytes]]:
    return list(ring.after(0))


def test_records_come_back_in_order(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "r", 20, 8)
    ring.append([b"one", b"two"])
    ring.append([b"three"])
    assert contents(ring) == [(1, b"one"), (2, b"two"), (3, b"three")]
    assert list(ring.after(2)) == [(3, b"three")]


def test_the_newest_replace_the_oldest_and_the_size_never_changes(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "r", 20, 8)
    size = ring.path.stat().st_size
    assert os.stat(ring.path).st_blocks * 512 >= size  # the space is taken, not only promised
    for i in range(1, 31):
        ring.append([b"%d" % i] * 3)
    assert [n for n, _ in contents(ring)] == list(range(83, 91))
    assert contents(ring)[-1] == (90, b"30")
    assert ring.path.stat().st_size == size


def test_more_than_fits_keeps_the_newest(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "r", 20, 4)
    ring.append([b"%d" % i for i in range(1, 11)])
    assert contents(ring) == [(7, b"7"), (8, b"8"), (9, b"9"), (10, b"10")]


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    Ring(tmp_path / "r", 20, 4).append([b"a", b"b", b"c", b"d", b"e"])
    again = Ring(tmp_path / "r", 20, 4)
    assert again.last == 5
    again.append([b"f"])
    assert contents(again)[-2:] == [(5, b"e"), (6, b"f")]


def test_a_record_that_was_cut_short_or_changed_is_not_there(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "r", 20, 8)
    ring.append([b"one", b"two", b"three"])
    data = bytearray(ring.path.read_bytes())
    at = data.index(b"two")
    data[at] ^= 1
    ring.path.write_bytes(data)
    assert [p for _, p in contents(Ring(tmp_path / "r", 20, 8))] == [b"one", b"three"]


def test_another_shape_begins_anew_and_says_so_by_its_identity(tmp_path: Path) -> None:
    old = Ring(tmp_path / "r", 20, 8)
    old.append([b"one"])
    new = Ring(tmp_path / "r", 40, 8)
    assert contents(new) == []
    assert new.identity != old.identity
    assert Ring(tmp_path / "r", 40, 8).identity == new.identity


def test_a_damaged_header_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"not a ring")
    ring = Ring(tmp_path / "r", 20, 8)
    assert ring.problem == ""
    assert ring.append([b"one"])


def test_too_long_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 20 bytes"):
        Ring(tmp_path / "r", 20, 8).append([b"x" * 21])


def test_whole_records_are_left_by_a_writer_that_is_killed(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from slurm_rl.telemetry.ring import Ring
        ring = Ring(Path({str(tmp_path / "r")!r}), 64, 5000)
        i = 0
        while True:
            i += 1
            ring.append([b"%d/%d" % (i, k) for k in range(8)])
            if i == 100:
                print("going", flush=True)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()
    ring = Ring(tmp_path / "r", 64, 5000)
    found = contents(ring)
    assert len(found) >= 800
    assert [n for n, _ in found] == list(range(found[0][0], ring.last + 1))
    assert all(p == b"%d/%d" % ((n - 1) // 8 + 1, (n - 1) % 8) for n, p in found)


FULL = """
import os, sys
from pathlib import Path
from slurm_rl.telemetry.ring import Ring
where = Path(sys.argv[1])
small, large = Ring(where / "small", 100, 100), Ring(where / "large", 1000, 1000)
assert not small.problem and "No space left" in large.problem, (small.problem, large.problem)
assert not (where / "large").exists()
assert not large.append([b"x"]) and large.lost == 1
with (where / "fill").open("wb", buffering=0) as fill:
    try:
        while True:
            fill.write(b"x" * 4096)
    except OSError:
        pass
for i in range(1000):  # what it holds, it took before the disk was full
    assert small.append([b"%d" % i])
assert small.last == 1000 and small.lost == 0
(where / "fill").unlink()
os.system(f"mount -o remount,size=8m {where}")
large.open()
assert large.append([b"x"]) and not large.problem
print("well")
"""


def test_a_full_disk_loses_nothing_that_had_its_place_and_stops_nobody(tmp_path: Path) -> None:
    """On a real, full file system, mounted where only this process sees it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    mount = f"mount -t tmpfs -o size=256k none {tmp_path} && exec {sys.executable} -c '{FULL}' {tmp_path}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "well", done.stderr
