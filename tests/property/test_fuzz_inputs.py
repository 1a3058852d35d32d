"""Garbage in files and in Slurm's answers ends in an error of ours or in plain data, never in a traceback."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_rl.errors import SlurmRlError
from slurm_rl.obs.journal import Journal
from slurm_rl.policy.checkpoint import load_model
from slurm_rl.serve.jobid import parse
from slurm_rl.slurm import history, scontrol, sprio, squeue, squeue_more
from slurm_rl.slurm.release import parse_release

ROOT = Path(__file__).resolve().parents[2]
NASTY = st.text(alphabet=st.sampled_from(list("ab|\n\r\t\"'\\=,;:%[]()\x00\x1e\x1fé💥 ")), max_size=60)
SQUEUES = tuple(  # squeue as each of these releases prints it
    partial(lambda release, output, mark: squeue.jobs(output, mark, {}, release.traits), parse_release(name))
    for name in ("22.05.8", "24.11.5", "26.05.5")
)
quickly = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def refusal(call: Callable[[], object]) -> str:
    """What an error of ours says; "" if there is none. Any other error is a defect."""
    try:
        call()
    except SlurmRlError as error:
        return str(error)
    return ""


@quickly
@given(st.binary(max_size=3000))
def test_a_journal_of_garbage_is_refused_with_one_line(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "journal.sqlite"
        file.write_bytes(b"SQLite format 3\x00" + content)
        assert "\n" not in refusal(lambda: Journal(file).touched())


@quickly
@given(st.data())
def test_a_model_with_bytes_changed_is_refused_or_the_same(data: st.DataObject) -> None:
    shipped = next(p.parent for p in sorted((ROOT / "models").glob("*/manifest.toml")))
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        shutil.copytree(shipped, model)
        file = model / data.draw(st.sampled_from(["policy.safetensors", "manifest.toml"]))
        content = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        assert len(refusal(lambda: load_model(model))) < 2000


@quickly
@given(st.lists(NASTY, max_size=40), NASTY)
def test_what_slurm_prints_is_data_whatever_users_put_into_it(pieces: list[str], comment: str) -> None:
    mark = secrets.token_hex(4)
    output = mark.join([*pieces, comment * 50]) + "\n"
    for read in (sprio.factors, squeue_more.exclusive_jobs, squeue.arrays, history.parse, *SQUEUES):
        refusal(lambda read=read: read(output, mark))  # type: ignore[misc]
    for read_plain in (scontrol.nodes, scontrol.partitions, scontrol.config, scontrol.cron_jobs, scontrol.fairshare):
        refusal(lambda read=read_plain: read(output))  # type: ignore[misc]


def test_a_comment_of_ten_megabytes_is_read_in_time() -> None:
    mark = secrets.token_hex(4)
    output = mark.join(["1", "x" * 10_000_000, "y|\n" * 1000])
    assert len(refusal(lambda: history.parse(output, mark))) < 10_000


@settings(max_examples=500, deadline=None, database=None)
@given(st.one_of(st.text(max_size=30), st.from_regex(r"\d{1,12}(_\d+|_\[[^\]]*\]|\+\d+)?(\.\w+)?", fullmatch=True)))
def test_a_job_id_is_read_or_refused(given_text: str) -> None:
    why = refusal(lambda: parse(given_text))
    if why:
        assert "is not a job id" in why
    else:
        found = parse(given_text)
        assert 0 < found.job < 2**31
        assert parse(str(found)) == found
