"""The summary says who wins, who pays and what to mind, and only what the figures say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from builders import a_cluster, a_job
from report_cases import Case, a_case

from slurm_rl.domain.cluster import NodeClass
from slurm_rl.report.measured import Comparison, size_groups
from slurm_rl.report.summary import Summary, moved, summarise
from slurm_rl.traces.trace import Note


def summary_of(case: Case) -> Summary:
    measured = Comparison(*case)
    return summarise(measured, size_groups(measured))


def finding(summary: Summary, heading: str) -> str:
    return next(f.text for f in summary.findings if f.heading == heading)


def short_before_long(policies: str) -> Case:
    """Slowdowns by hand: fcfs 1, (90 + 1000)/1000, (1080 + 100)/100; sjf 1, (190 + 1000)/1000, (80 + 100)/100."""
    jobs = [
        a_job(0, 100, gpus=4, user="first"),
        a_job(10, 1000, gpus=4, user="long"),
        a_job(20, 100, gpus=2, user="short"),
    ]
    return a_case(jobs, policies)


def test_the_winner_is_named_with_its_gain() -> None:
    # fcfs (1 + 1.09 + 11.8) / 3 = 4.63, sjf (1 + 1.19 + 1.8) / 3 = 1.33: 71% less.
    summary = summary_of(short_before_long("fcfs,sjf"))
    assert summary.headline == "sjf cuts the mean slowdown by 71%, from 4.63 to 1.33."
    assert "Jobs wait 1.5 min on average instead of 6.5 min under fcfs (×0.23)." in finding(summary, "Who wins")


def test_who_pays_is_named() -> None:
    text = finding(summary_of(short_before_long("fcfs,sjf")), "Who pays")
    assert text.startswith("Of 3 users, 1 wait noticeably less than under fcfs and 1 noticeably longer")
    assert "Most of the added waiting falls on long, whose 1 job wait 3.2 min on average instead of 1.5 min." in text
    assert "jobs of 3–4 GPUs pay most" not in text  # on average 95 s instead of 45 s: under a minute more


def test_a_change_is_noticeable_beyond_a_tenth_and_a_minute() -> None:
    before, after = np.array([100.0, 100, 10000, 10000, 0]), np.array([150.0, 170, 10500, 8000, 60])
    gained, lost = moved(before, after)
    assert gained.tolist() == [False, False, False, True, False]
    assert lost.tolist() == [False, True, False, False, False]


def test_the_longest_wait_is_told_whether_it_grew_or_not() -> None:
    assert finding(summary_of(short_before_long("fcfs,sjf")), "Longest wait") == (
        "It did not grow: 3.2 min under sjf, 18.0 min under fcfs."
    )
    # A stream of short jobs overtakes a long one: in order of arrival it waits 9 s and each of them 108 s, with the
    # shortest first they wait 8 s each and it waits for the last of them, 309 s.
    stream = [a_job(2 + 10 * i, 10, gpus=4) for i in range(30)]
    jobs = [a_job(0, 10, gpus=4), a_job(1, 100, gpus=4), *stream]
    assert finding(summary_of(a_case(jobs, "fcfs,sjf")), "Longest wait") == (
        "It grew, from 1.8 min under fcfs to 5.2 min under sjf (×2.86)."
    )


def test_the_oracle_is_a_limit_and_never_the_winner() -> None:
    summary = summary_of(short_before_long("fcfs,sjf@oracle"))
    assert summary.headline == "No contender beats fcfs at a mean slowdown of 4.63."
    text = finding(summary, "Out of reach")
    assert text.startswith("sjf@oracle knows true run times in advance, which no scheduler can.")
    assert "a limit, not a contender" in text


def test_the_way_to_the_limit_is_measured_from_the_baseline() -> None:
    text = finding(summary_of(short_before_long("fcfs,sjf,sjf@oracle")), "Out of reach")
    assert text.endswith("sjf goes 100% of the way to it from fcfs.")  # limits are exact here


def test_one_policy_is_not_compared() -> None:
    summary = summary_of(short_before_long("fcfs"))
    assert summary.headline == "Under fcfs, jobs wait 6.5 min on average and are slowed down 4.63-fold."
    assert summary.findings == []


def test_equal_policies_are_called_equal() -> None:
    assert summary_of(a_case([a_job(0, 10, gpus=1)], "fcfs,sjf")).headline == (
        "All policies come out the same, at a mean slowdown of 1.00."
    )


def test_only_an_oracle_wins_nothing() -> None:
    assert summary_of(short_before_long("sjf@oracle")).headline == (
        "Only policies that know true run times were replayed."
    )


def test_rejected_jobs_killed_jobs_and_made_up_limits_are_noted() -> None:
    jobs = [a_job(0, 10, gpus=1), a_job(0, 10, gpus=9, id=77), a_job(0, 50, limit=20, gpus=1)]
    prepared, runs = a_case(jobs, "fcfs", a_cluster(NodeClass(1, gpus=4)))
    notes = (Note("time limit synthesised", 3), Note("no submit time", 2, (4, 5), dropped=True))
    prepared = replace(prepared, trace=replace(prepared.trace, notes=notes))
    text = "\n".join(summary_of((prepared, runs)).notes)
    assert "3 jobs had no time limit in the trace. Limits were synthesised" in text
    assert "Trace: 2 rows: no submit time (lines 4, 5)." in text
    assert "1 job never ran and is in no average, e.g. job 77: asks for 9 × (1 GPU)" in text
    assert "Jobs killed at their time limit, as Slurm does: 1." in text


def test_a_window_is_noted() -> None:
    prepared, runs = short_before_long("fcfs,sjf")
    prepared = replace(prepared, measured=np.array([False, True, True]))
    assert summary_of((prepared, runs)).notes[0].startswith("2 of 3 jobs are measured")
