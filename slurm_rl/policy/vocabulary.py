"""The words for a waiting job in a formula or an array: one list for compiled formulas and Python policies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """Something that is known of a waiting job: how a kernel reads it, and what it depends on."""

    meaning: str
    code: str  # Python for a kernel over (w, now, j); `s` is the job's request
    changes: bool = False  # while the job waits: an order by it is no fixed one
    estimated: bool = False
    of_usage: bool = False
    at_submission: bool = True  # known while a job is being submitted


WORDS = {
    "now": Word("the present, in seconds", "float(now)", changes=True),
    "submit": Word("when it was submitted, in seconds", "float(t.jobs(w).submit[j])"),
    "wait": Word("seconds it has waited", "float(now - t.jobs(w).submit[j])", changes=True),
    "limit": Word("its time limit in seconds", "float(t.jobs(w).limit[j])"),
    "estimate": Word("its estimated run time in seconds", "max(t.live(w).expected[j], 1.0)", estimated=True),
    "spread": Word("standard deviation of the estimate's logarithm", "float(t.live(w).spread[j])", estimated=True),
    "seen": Word("finished jobs like it, the recent ones counting most", "float(t.live(w).seen[j])", estimated=True),
    "size": Word("GPUs; of a job without, its CPUs as a share of a GPU's", "t.requests(w).volume[s]"),
    "gpus": Word(
        "GPUs in all",
        "float(t.requests(w).units[s]) * (t.requests(w).gpu[s] + t.requests(w).share[s] / 1000.0)",
        at_submission=False,
    ),
    "cpus": Word("CPUs in all", "float(t.requests(w).units[s] * t.requests(w).cpu[s])", at_submission=False),
    "mem_gb": Word("GB in all", "t.requests(w).units[s] * t.requests(w).mem[s] / 1024.0", at_submission=False),
    "units": Word("equal units that it consists of", "float(t.requests(w).units[s])", at_submission=False),
    "priority": Word("its submitter's own priority, or 0", "t.jobs(w).priority[j]", at_submission=False),
    "deadline": Word("when it must be done, -1: whenever", "float(t.jobs(w).deadline[j])", at_submission=False),
    "user": Word("its user's number", "float(t.jobs(w).user[j])", at_submission=False),
    "account": Word("its account's number", "float(t.jobs(w).account[j])", at_submission=False),
    "partition": Word("its partition's number", "float(t.jobs(w).partition[j])", at_submission=False),
    "qos": Word("its QOS's number", "float(t.jobs(w).qos[j])", at_submission=False),
    "fairshare": Word(
        "its user's fairshare factor, 0 to 1",
        "t.users(w).fairshare[t.jobs(w).user[j]]",
        changes=True,
        of_usage=True,
        at_submission=False,
    ),
    "held": Word(
        "what its user holds now, in units of size",
        "t.users(w).rate[t.jobs(w).user[j]]",
        changes=True,
        of_usage=True,
        at_submission=False,
    ),
}
# By name: what it means.
FIGURES = {name: word.meaning for name, word in WORDS.items()}
