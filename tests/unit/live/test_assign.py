"""Factors that bring a queue into order: within bounds, with few writes, and stable."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.controller.advice import _Line
from slurm_rl.controller.assign import _inversions, assign
from slurm_rl.controller.diff import in_safe_write_order
from slurm_rl.obs.journal import Change

queues = st.lists(st.tuples(st.integers(300, 700), st.integers(-900, 900)), min_size=1, max_size=40)


def places(base: list[int], factors: list[int]) -> list[int]:
    return [b + f for b, f in zip(base, factors, strict=True)]


def test_equal_jobs_are_spread_over_the_whole_range() -> None:
    # The last one keeps its 0; the others take quarters of 433: the bound of 400 and a gap of 400 / (4 · 3) above it.
    assert assign([500] * 4, [0] * 4, [0] * 4, [400] * 4) == [324, 216, 108, 0]


def test_a_queue_in_order_is_left_as_it_is() -> None:
    assert assign([500] * 3, [300, 100, -50], [-400] * 3, [400] * 3) == [300, 100, -50]


def test_one_job_out_of_place_moves_alone() -> None:
    assert assign([500] * 4, [300, -300, 0, -100], [-400] * 4, [400] * 4) == [300, 150, 0, -100]


def test_bounds_rule_over_the_order() -> None:
    """The first cannot climb above the second, which cannot sink below 480."""
    assert assign([100, 500], [0, 0], [-20, -20], [20, 20]) == [20, -20]


@given(queues, st.sampled_from([450, 700, 5000]))
def test_order_bounds_and_rest(jobs: list[tuple[int, int]], bound: int) -> None:
    base = [own for own, _ in jobs]
    site = [max(-bound, min(bound, factor)) for _, factor in jobs]
    low = [max(-bound, 1 - b) for b in base]
    high = [bound] * len(base)
    factors = assign(base, site, low, high)
    assert all(a <= f <= b for a, f, b in zip(low, factors, high, strict=True))
    assert all(a > b for a, b in itertools.pairwise(places(base, factors)))
    assert assign(base, factors, low, high) == factors


def test_with_few_writes_the_head_comes_first_and_leaves_room_for_the_rest() -> None:
    """Twelve equal jobs in reverse, four writes at a time: each round adds four to the head, and none is wasted."""
    base, low, high, site = [500] * 12, [-400] * 12, [400] * 12, [0] * 12
    for done in (4, 8):
        before, site = site, assign(base, site, low, high, 4)
        assert sum(a != b for a, b in zip(before, site, strict=True)) == 4
        assert all(a > b for a, b in itertools.pairwise(site[:done]))
        assert min(site[:done]) > 0
        assert site[done:] == [0] * (12 - done)
    site = assign(base, site, low, high, 4)
    assert all(a > b for a, b in itertools.pairwise(site))


@given(queues, st.sampled_from([450, 700, 5000]), st.integers(1, 12))
def test_a_limit_on_writes_is_kept_and_the_order_is_reached(
    jobs: list[tuple[int, int]], bound: int, writes: int
) -> None:
    base = [own for own, _ in jobs]
    low, high = [max(-bound, 1 - b) for b in base], [bound] * len(base)
    site = [max(a, min(b, factor)) for a, b, (_, factor) in zip(low, high, jobs, strict=True)]
    for _ in range(60):
        found = assign(base, site, low, high, writes)
        assert all(a <= f <= b for a, f, b in zip(low, found, high, strict=True))
        changed = [i for i, (a, b) in enumerate(zip(found, site, strict=True)) if a != b]
        if not changed:
            break
        assert len(changed) <= writes
        assert _inversions(base, found) <= _inversions(base, site), "no tick makes it worse"
        site = found
    assert all(a > b for a, b in itertools.pairwise(places(base, site)))


@pytest.mark.parametrize("seed", range(4))
def test_a_tick_of_two_hundred_writes_mends_most_of_a_badly_advised_queue(seed: int) -> None:
    dice = random.Random(seed)
    base = [500 + dice.randrange(60) for _ in range(500)]
    advised = [i / 500 + (dice.uniform(-0.8, 0.8) if dice.random() < 0.25 else dice.gauss(0, 0.02)) for i in range(500)]
    site = [round(750 - 1500 * min(max(place, 0.0), 1.0)) for place in advised]
    wrong = _inversions(base, site)
    after = assign(base, site, [-750] * 500, [750] * 500, 200)
    assert sum(a != b for a, b in zip(after, site, strict=True)) <= 200
    assert _inversions(base, after) < 0.2 * wrong
    last = assign(base, after, [-750] * 500, [750] * 500, 400)
    assert _inversions(base, last) == 0


class Advised:
    """Five hundred jobs, advised one by one as they come; ticks of at most 200 writes bring them into order."""

    def __init__(self, seed: int, *, tick_after: int = 500, missed: float = 0.0) -> None:
        dice = random.Random(seed)
        self.jobs: list[int] = []
        self.limits, self.own, self.site = {}, {}, {}
        self.line = _Line()
        for job in sorted(range(500), key=lambda i: i + 4 * dice.random()):
            self.limits[job], self.own[job] = 1 + (job * 7919) % 3000, 525 if job % 5 == 0 else 512
            advice = self.line.enter(-float(self.limits[job]), 750, self.own[job], 1)[1]
            self.site[job] = 0 if dice.random() < missed else advice
            self.jobs.append(job)
            if len(self.jobs) == tick_after:
                self.tick()

    def columns(self) -> tuple[list[int], list[int], list[int]]:
        order = sorted(self.jobs, key=self.limits.__getitem__)
        return order, [self.own[i] for i in order], [self.site[i] for i in order]

    def wrong(self) -> int:
        return _inversions(*self.columns()[1:])

    def tick(self) -> int:
        """How many factors it writes."""
        order, base, site = self.columns()
        after = assign(base, site, [1 - b for b in base], [750] * len(base), 200)
        self.site.update(zip(order, after, strict=True))
        self.line = _Line([float(self.limits[i]) for i in order], places(base, after))
        return sum(a != b for a, b in zip(after, site, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_a_few_jobs_without_advice_cost_few_writes_though_the_queue_is_crowded(seed: int) -> None:
    """One in twenty stands at 0: to put them in their places needs no room that others would have to make."""
    queue = Advised(seed, missed=0.05)
    before = queue.wrong()
    assert 0 < queue.tick() <= 200
    assert queue.wrong() < 0.15 * before


@pytest.mark.parametrize("seed", range(4))
def test_no_tick_makes_it_worse_and_three_or_four_bring_it_into_order(seed: int) -> None:
    for after in range(20, 500, 40):
        queue = Advised(seed, tick_after=after)
        wrong = [queue.wrong()]
        while queue.tick():
            wrong.append(queue.wrong())
            assert wrong[-1] < wrong[-2], (after, wrong)
        assert wrong[-1] == 0
        assert len(wrong) <= 5


@given(queues, st.sampled_from([3, 8, 20]), st.integers(1, 12))
def test_where_bounds_leave_no_room_it_still_comes_to_rest(
    jobs: list[tuple[int, int]], bound: int, writes: int
) -> None:
    base, site = [own // 50 for own, _ in jobs], [factor for _, factor in jobs]
    low, high = [-bound] * len(base), [bound] * len(base)
    for _ in range(len(base) + 1):
        before, site = site, assign(base, site, low, high, writes)
        assert sum(a != b for a, b in zip(before, site, strict=True)) <= writes
    assert before == site
    assert all(abs(factor) <= bound for factor in site)


def test_while_changes_are_written_no_more_pairs_go_wrong() -> None:
    """Five hundred jobs as they were advised one by one, written twenty at a time: no portion makes it worse."""
    limits = [1 + (i * 7919) % 3000 for i in range(500)]
    own = [525 if i % 5 == 0 else 513 for i in range(500)]
    line = _Line()
    advised = [line.enter(-float(limits[i]), 750, own[i], 1)[1] for i in range(500)]
    order = sorted(range(500), key=limits.__getitem__)
    base, site = [own[i] for i in order], [advised[i] for i in order]
    low, high = [1 - b for b in base], [750] * 500
    in_plan_order = (
        0  # how often a portion would have made it worse if the head's changes came first, whatever they are
    )
    for _ in range(4):
        factors = assign(base, site, low, high, 200)
        batch = [(i, Change(i, 0, site[i], factors[i], "")) for i in range(500) if factors[i] != site[i]]
        for changes, plain in ((batch, True), (in_safe_write_order(batch), False)):
            now, wrong = list(site), _inversions(base, site)
            for at in range(0, len(changes), 20):
                for i, change in changes[at : at + 20]:
                    now[i] = change.new
                worse = _inversions(base, now) > wrong
                in_plan_order += plain and worse
                assert plain or not worse
                wrong = _inversions(base, now)
            assert now == factors
        site = factors
    assert in_plan_order > 0
