"""A second look at a queue reads only what is printed anew, and never sees anything that a first look would not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import msgspec
import pytest
from recordings import MARK, Recording

from slurm_rl.slurm import scontrol, squeue, squeue_more
from slurm_rl.slurm.command import UNIT, NotPlain, split_records
from slurm_rl.slurm.model import PriorityFactors, SlurmJob, SlurmNode
from slurm_rl.slurm.sprio import factors as read_factors

RELEASES = ("22.05", "24.11", "26.05")


def first_look(recording: Recording, said: str, sprio: str, **more: object) -> list[SlurmJob]:
    return squeue.jobs(said, MARK, read_factors(sprio, MARK), recording.traits, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_printed_as_before_is_the_object_that_it_was(release: str) -> None:
    recording = Recording(release)
    known = squeue.KnownJobs()
    terms: dict[str, tuple[int, PriorityFactors]] = {}
    said, sprio = recording("squeue.txt"), recording("sprio.txt")
    looks = []
    for mark in (MARK, "\x1f0a1b2c3dx"):  # each look draws another separator
        factors = read_factors(sprio.replace(MARK, mark), mark, terms)
        looks.append(squeue.jobs(said.replace(MARK, mark), mark, factors, recording.traits, known=known))
    assert looks[0]
    assert looks[0] == first_look(recording, said, sprio)
    assert all(a is b for a, b in zip(*looks, strict=True))


@pytest.mark.parametrize("release", RELEASES)
def test_a_second_look_equals_a_first_one_after_any_change(release: str) -> None:
    recording, rng = Recording(release), random.Random(7)
    said, sprio = recording("squeue.txt"), recording("sprio.txt")
    waiting = {} if recording.traits.array_unique else squeue.arrays(recording("arrays.txt"), MARK)
    known = squeue.KnownJobs()
    terms: dict[str, tuple[int, PriorityFactors]] = {}
    width = len(squeue.job_fields(recording.traits))
    for _ in range(40):
        lines = said.split(f"{MARK}\n")[:-1]
        for line in rng.sample(range(len(lines)), 3):
            values = lines[line].split(MARK)
            assert len(values) == width
            field = rng.choice(("Name", "Comment", "Reason", "StartTime", "PriorityLong", "Account"))
            values[squeue.job_fields(recording.traits).index(field)] = str(rng.randrange(1, 9))
            lines[line] = MARK.join(values)
        rng.shuffle(lines)
        now = "".join(f"{line}{MARK}\n" for line in lines[rng.randrange(3) :])
        prios = sprio.split("\n")
        some = "\n".join(prios[rng.randrange(2) :])
        details = {rng.randrange(1, 40): squeue_more.RequestDetails(excluded=("n1",)) for _ in range(3)}
        cron = frozenset(rng.sample(range(1, 40), 2))
        factors = read_factors(some, MARK, terms)
        more: dict[str, object] = {"waiting": waiting, "details": details, "cron": cron}
        again = squeue.jobs(now, MARK, factors, recording.traits, known=known, **more)  # type: ignore[arg-type]
        assert again == first_look(recording, now, some, **more)


def test_a_name_with_line_breaks_and_separators_is_read_each_time() -> None:
    recording = Recording("22.05")
    whole = recording("squeue.txt")
    first = whole.split(f"{MARK}\n")[0]
    forged = whole.replace(first, first.replace("cpuonly", "\n7\x00|\x1f"))
    known = squeue.KnownJobs()
    for _ in range(2):
        (job,) = (j for j in squeue.jobs(forged, MARK, {}, recording.traits, known=known) if j.job_id == 23)
        assert job.name == "\n7\ufffd|\x1f"
        assert job.user == "root"


@pytest.mark.parametrize("release", RELEASES)
def test_nodes_are_read_again_for_what_matters_alone(release: str) -> None:
    said = Recording(release)("nodes.txt")
    known: dict[str, SlurmNode] = {}
    first = scontrol.nodes(said, known)
    assert first == scontrol.nodes(said)
    busier = said.replace("CPULoad=", "CPULoad=9").replace("FreeMem=", "FreeMem=1")
    assert busier != said
    assert all(a is b for a, b in zip(first, scontrol.nodes(busier, known), strict=True))
    drained = said.replace("State=", "State=DRAIN+", 1)
    changed = scontrol.nodes(drained, known)
    assert changed == scontrol.nodes(drained)
    assert [a is b for a, b in zip(first, changed, strict=True)].count(False) == 1


def test_other_priorities_change_nothing_but_the_factors() -> None:
    recording = Recording("22.05")
    known = squeue.KnownJobs()
    said, sprio = recording("squeue.txt"), recording("sprio.txt")
    before = squeue.jobs(said, MARK, read_factors(sprio, MARK), recording.traits, known=known)
    factors = {i: msgspec.structs.replace(f, age=f.age + 1) for i, f in read_factors(sprio, MARK).items()}
    after = squeue.jobs(said, MARK, factors, recording.traits, known=known)
    assert [j.factors for j in after] == [factors.get(j.job_id) for j in before]
    assert after == squeue.jobs(said, MARK, factors, recording.traits)


@pytest.mark.parametrize("release", RELEASES)
def test_a_mark_at_the_end_of_records_tells_the_same_as_one_at_each_field(release: str) -> None:
    recording = Recording(release)
    said, sprio = recording("squeue.txt"), recording("sprio.txt")
    lean = [text.replace(f"{MARK}\n", "\0").replace(MARK, UNIT).replace("\0", f"{MARK}\n") for text in (said, sprio)]
    factors = read_factors(lean[1], MARK, plain=True)
    assert squeue.jobs(lean[0], MARK, factors, recording.traits, plain=True) == first_look(recording, said, sprio)
    assert sum(map(len, lean)) < 0.8 * (len(said) + len(sprio))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("plain", [True, False])
def test_portions_may_end_anywhere(release: str, plain: bool) -> None:
    recording, rng = Recording(release), random.Random(5)
    said = recording("squeue.txt")
    if plain:
        said = said.replace(f"{MARK}\n", "\0").replace(MARK, UNIT).replace("\0", f"{MARK}\n")
    fields = squeue.job_fields(recording.traits)
    whole = split_records(said, fields, MARK, plain=plain)
    for size in (1, 7, 100, 5000):
        cuts = sorted({0, len(said), *(rng.randrange(len(said)) for _ in range(len(said) // size))})
        portions = tuple(said[a:b] for a, b in itertools.pairwise(cuts))
        assert split_records(portions, fields, MARK, plain=plain) == whole


@pytest.mark.parametrize(
    "forge", [lambda s: s.replace("cpuonly", f"cpu{UNIT}only"), lambda s: s[:-3], lambda s: s[40:]]
)
def test_what_a_lean_answer_cannot_tell_is_said(forge: Callable[[str], str]) -> None:
    recording = Recording("22.05")
    lean = recording("squeue.txt").replace(f"{MARK}\n", "\0").replace(MARK, UNIT).replace("\0", f"{MARK}\n")
    with pytest.raises(NotPlain):
        squeue.jobs(forge(lean), MARK, {}, recording.traits, plain=True)
