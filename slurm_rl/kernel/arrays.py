"""Jobs, nodes and pools as arrays of records: the one representation that live scheduling, replay and training share.

Kernels read `t.jobs(w).submit[j]` (see tables.py), Python reads `world["jobs"]["submit"]`. Indices that are handed
from kernel to kernel are 64 bits wide, lest each kernel be compiled once for each width. A job's index is its place in
(submit time, id) order, so that comparing indices breaks ties as every policy promises. What a scheduler may not know,
a job's true run time, is not here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_rl.domain import sizes
from slurm_rl.domain.keys import KEY_LEVELS

Array = npt.NDArray[Any]
Record = Any  # a World's record as kernels see it (tables.py)

UNLIMITED = (1 << 20) - 1  # CPUs of a node whose class leaves them blank
UNLIMITED_MB = 1 << 30  # likewise its memory
NEVER = np.int64(1) << 62
GPU_MILLI = sizes.GPU_MILLI
LEVELS = len(sizes.GROUP_LEVELS) + KEY_LEVELS  # of the run-time estimator (see policy/estimate.py)
LATENCY_BUCKETS = 64 * 8  # of what passes cost: eight to each power of two cycles

# What is known of a job at submission. No field may be named as an attribute of arrays is (shape, size, mean …).
JOB = np.dtype(
    [
        ("submit", "i8"),
        ("limit", "i8"),  # seconds, > 0
        ("deadline", "i8"),  # -1: none
        ("priority", "f8"),  # the submitter's own, or 0
        ("request", "i4"),  # row in the requests: what it asks for
        ("user", "i4"),
        ("account", "i4"),
        ("partition", "i4"),
        ("qos", "i4"),
        ("nice", "i4"),
        ("speed_row", "i4"),
        ("group", "i4", (LEVELS,)),  # of the run-time estimator, -1: none
    ],
    align=True,
)
# A distinct request: `units` equal units, at most `per_node` of them on one node.
REQUEST = np.dtype(
    [
        ("volume", "f8"),  # GPUs; for jobs without, their CPUs (scaled to GPUs where the pool has any)
        ("misfit", "i8"),  # stamp of the last pass in which it did not fit what is free
        ("misfit_both", "i8"),  # … did not fit beside EASY's reservation
        ("fitted", "i8"),  # backfill `slurm`: the cycle at the beginning of which it was found to fit
        ("late_stamp", "i8"),  # backfill `slurm`: the cycle in which one like it could not start …
        ("late_limit", "i8"),  # … with this limit, or a longer one
        ("vain_stamp", "i8"),  # backfill `slurm`: the cycle in which one like it found no place at any time …
        ("vain_limit", "i8"),  # … with this limit …
        ("vain_plan", "i8"),  # … behind so many plans
        ("sight", "i8"),  # features: the observation that the next three belong to
        ("ways", "f8"),  # share of its nodes with room for a unit …
        ("tight", "f8"),  # … that it would fill to the brim
        ("spare", "f8"),  # share of its nodes' GPUs (or CPUs) that are free
        ("units", "i8"),
        ("per_node", "i8"),
        ("cpu", "i8"),  # a unit
        ("mem", "i8"),  # MB a unit
        ("gpu", "i8"),  # whole GPUs a unit
        ("share", "i8"),  # thousandths of one GPU a unit; 0 unless the request is below one GPU
        ("shards", "i8"),  # … in parts of a GPU that its node cuts into shards; 0: in thousandths
        ("sharing", "i8"),  # which way of sharing these parts are of; 0: none
        ("accept", "i8"),  # GPU types that will do, as bits; read where `careful`
        ("careful", "i8"),  # 1: a node's GPUs must be looked at one by one, or its other GRES
        ("exact", "i8"),  # 1: the table `demand` says how many GPUs of which type
        ("exclusive", "i8"),  # 1: it takes whole nodes
        ("switches", "i8"),  # blocks or leaf switches that it may span; 0: any number
        ("segment", "i8"),  # units that must lie in one block; 0: no such
        ("wide", "i8"),  # 1: no node could hold all of it
        ("chain", "i8"),  # row in `node_sets`: sets of nodes that are tried one after the other; -1: its kind alone
        ("kind", "i8"),  # which nodes it may use
        ("row", "i8"),  # of the speed table
        ("alone", "i8"),  # 1: nodes of a single GPU type could hold it
        ("pool", "i8"),
    ],
    align=True,
)
NODE = np.dtype(
    [
        ("cpu", "i8"),
        ("mem", "i8"),
        ("gpu", "i8"),
        ("type", "i8"),
        ("pool", "i8"),
        ("klass", "i8"),
        ("number", "i8"),  # its place in the order of the cluster file
        ("weight", "i8"),  # Slurm's Weight: lighter nodes are taken first
        ("block", "i8"),  # its block or leaf switch; nodes of one are neighbours within a pool
        ("span", "f8"),  # speed of a gang in several blocks, as a share of its speed within one
        ("down", "i8"),
        ("watts", "f8"),  # that a busy GPU of it draws above idle
    ],
    align=True,
)
CPU, MEM, GPU, OTHER = range(4)  # columns of what is free; other GRES from OTHER on
TYPE, PARTS, SHARING, NAME = range(4)  # columns of the table `devices`; NAME: the first type of the same name
# What has happened in a pool since its last pass, the greater the more: jobs arrived behind the head, there is a new
# head, something was released.
ARRIVED, NEW_HEAD, RELEASED = np.arange(1, 4)
# Partitions that share nodes are one pool; its nodes are neighbours, and so are the places of its jobs in lists.
POOL = np.dtype(
    [
        ("volume", "f8"),  # what `volume` of a request for the whole pool would be
        ("first_job", "i8"),
        ("last_job", "i8"),
        ("queue_first", "i8"),
        ("queue_last", "i8"),
        ("shadow", "i8"),  # EASY: when the head will fit; -1: not planned
        ("stamp", "i8"),
        ("first_node", "i8"),
        ("last_node", "i8"),
        ("running", "i8"),  # how many jobs run
        ("cursor", "i8"),  # where round-robin goes on
        ("change", "i8"),  # since the last pass: ARRIVED, NEW_HEAD or RELEASED; 0: nothing
        ("fresh", "i8"),  # arrivals since the last pass
        ("head", "i8"),  # EASY: the job that the reservation is for
        ("extra_known", "i8"),  # whether the view EXTRA is planned, or only its sums
        ("both_known", "i8"),  # whether the view BOTH is up to date
        ("planned", "i8"),  # whether EASY's reservation still stands
        ("due", "i8"),  # whether a backfill cycle is due at the next tick
        ("parts", "i8"),  # how many partitions it has
        ("learned", "i8"),  # how many jobs had ended when estimates were last renewed; -1: never
        ("last_full", "i8"),  # backfill `slurm`: when the main scheduler last looked at the whole queue
        ("cpu_only", "i8"),  # 1: none of its nodes has a GPU
        ("lane_job", "i8"),  # 1 + the job that the lane lets go first; 0: none
        ("lane_work", "f8"),  # that the lane let start, older work counting less …
        ("started_work", "f8"),  # … and all that was started
        ("lane_time", "f8"),  # when these two were last counted
        ("distrust", "f8"),  # share of its influence that the policy has lost here (controller/promise.py)
    ],
    align=True,
)
# Who holds what: chains of entries in one arena; entry 0 heads the chain of spare ones.
# `more`: so many nodes behind the named one hold the same; 0 unless the World has runs (place/runs.py).
ENTRY = np.dtype([("gpus", "i8"), ("node", "i8"), ("units", "i8"), ("next", "i8"), ("more", "i8")], align=True)
# What becomes of a job.
LIVE = np.dtype(
    [
        ("start", "i8"),  # of the last run, -1: never
        ("end", "i8"),
        ("expected_end", "i8"),  # start + limit
        ("booked_start", "i8"),  # conservative: -1: none
        # What passes read of each waiting job lies together:
        ("score", "f8"),
        ("expected", "f8"),  # estimated run time
        ("version", "i4"),  # of the user's knowledge behind the estimate
        ("inverse", "f4"),  # E[1/r]
        ("spread", "f4"),  # standard deviation of log r
        ("seen", "f4"),  # finished jobs of its closest group
        ("done", "f8"),  # seconds it ran before a preemption, at speed 1
        ("log_first", "i8"),
        ("held", "i8"),  # chain of entries, 0: holds nothing
        ("booked", "i8"),  # chain of entries
        ("log_count", "i4"),
        ("state", "i4"),
    ],
    align=True,
)
USER = np.dtype(
    [("usage", "f8"), ("rate", "f8"), ("time", "f8"), ("fairshare", "f8"), ("account", "i8"), ("version", "i8")],
    align=True,
)
ACCOUNT = np.dtype([("usage", "f8"), ("rate", "f8"), ("time", "f8")], align=True)
# Finished jobs of a kind, as the estimator remembers them, and those of its jobs that are in sight of a network.
GROUP = np.dtype(
    [
        ("weight", "f8"),  # decayed count
        ("center", "f8"),  # mean and variance of log run time
        ("variance", "f8"),
        ("latest", "f8"),  # log run time of the last one
        ("sight", "i8"),  # the observation that the next three belong to
        ("run_count", "f8"),  # running now
        ("run_elapsed", "f8"),  # seconds that these have run, in sum
        ("wait_count", "f8"),  # waiting now
    ],
    align=True,
)
# One recorded scheduling pass of a network, for training: rows of the tape, and the order that was tried.
TURN = np.dtype(
    [("time", "i8"), ("pool", "i8"), ("first", "i8"), ("count", "i8"), ("lead", "i8", (8,)), ("job", "i8", (8,))],
    align=True,
)
# A meta-policy's, for each pool: what it has heard of arrivals, who rules, and since when (policy/choice.py).
SWITCHES = 12  # in an hour, at most
CHOOSER = np.dtype(
    [
        ("born", "f8"),  # since when arrivals are counted
        ("heard", "f8"),  # until when; 0: not yet
        ("fast", "f8"),  # decayed count of arrivals, over minutes …
        ("slow", "f8"),  # … and over hours
        ("offered", "f8"),  # decayed work that arrived: size × estimate
        ("arrival", "f8"),  # the last one
        ("gap", "f8"),  # decayed mean of the time between two …
        ("gap_square", "f8"),  # … and of its square
        ("urgency", "f8"),  # sum of 1 / estimate over the jobs that waited at the last choice …
        ("entered", "f8"),  # … and over those that came since
        ("current", "i8"),  # who rules, by its place among the candidates
        ("since", "f8"),
        ("decided", "f8"),  # the last choice
        ("decisions", "i8"),
        ("switches", "i8"),
        ("held_back", "i8"),  # switches that the bound or the margin kept from happening
        ("recent", "f8", (SWITCHES,)),  # when the last switches were
        ("chance", "f8"),  # of the arm that was drawn; 0: none was
        ("dice", "u8"),
    ],
    align=True,
)
ROW = np.dtype([("time", "i8"), ("row", "i8")], align=True)
# Backfill `slurm`: what units of requests are like, whatever their number; nodes have the same room for them.
SHAPE = np.dtype(
    [
        ("cpu", "i8"),
        ("mem", "i8"),
        ("gpu", "i8"),
        ("most", "i8"),  # units on one node
        ("kind", "i8"),
        ("request", "i8"),  # one of the requests
        ("stamp", "i8"),  # the cycle in which it was given …
        ("slot", "i8"),  # … this row of `avail`
    ],
    align=True,
)
# Backfill `slurm` on large machines: neighbouring nodes that the same jobs hold (backfill/pieces.py).
PIECE = np.dtype([("node", "i8"), ("count", "i8"), ("next", "i8")], align=True)
# Backfill `slurm`: running jobs in the order of their expected ends, node by node.
LEAVER = np.dtype([("due", "i8"), ("piece", "i8")], align=True)
LEFT = np.dtype(
    [
        ("count", "i8"),  # nodes
        ("request", "i8"),  # of the job that leaves …
        ("units", "i8"),  # … and how many on each node
        ("cpu", "i8"),  # free on each node when it has left
        ("mem", "i8"),
        ("gpu", "i8"),
    ],
    align=True,
)
EVENT = np.dtype([("time", "i8"), ("node", "i8"), ("up", "i8")], align=True)
LOG = np.dtype([("node", "i4"), ("units", "i4")], align=True)
# A node that a plan has chosen, units on it, and the type of the GPUs there.
HINT = np.dtype([("node", "i4"), ("units", "i4"), ("gpu_type", "i4")], align=True)
# A request, and its share of the jobs that wait or run.
MIX = np.dtype([("portion", "f8"), ("request", "i8")], align=True)
RECENT = 64  # jobs that came last: what a placement that weighs goes by

# Settings and counters of a World.
SCALARS = [
    ("code", "i8"),  # of the policy, by its place in the catalogue
    ("source", "i8"),  # where estimates come from
    ("by_remaining", "i8"),  # 1: preemption compares remaining run times, 0: priorities
    ("placer", "i8"),  # of the placement, by its place in the catalogue
    ("indexed", "i8"),  # 1: nodes are not walked one by one, and whoever changes what is free calls a kernel to do it:
    ("by_runs", "i8"),  # 1: … nodes that are alike are counted (place/runs.py), and `free` is kept for NOW alone
    ("gpu_levels", "i8"),  # … or nodes are looked up by what is free (place/levels.py): rows of bits for free GPUs …
    ("cpu_levels", "i8"),  # … and for free CPUs …
    ("cpu_base", "i8"),  # … of which the first is for so many, and fewer
    ("within", "i8"),  # 1: a placement by runs keeps to the nodes in ALLOWED (backfill/bitmaps.py)
    ("mixed", "i8"),  # 1: some node has GPUs of several types
    ("by_block", "i8"),  # 1: the placement keeps gangs within blocks
    ("blocks", "i8"),  # of nodes: blocks or leaf switches; 1: there is nothing to keep within
    ("by_type", "i8"),  # 1: the placement prefers GPU types, which changes with the queue
    ("planned", "i8"),  # 1: the placement follows hints
    ("weighs", "i8"),  # 1: the placement fills the table `mix` with the last arrivals; 2: it goes by what is there
    ("backfill", "i8"),  # of the rule, by its place in the catalogue
    ("books_many", "i8"),  # 1: the rule holds nodes for many jobs, not for the first alone
    ("head_blocks", "i8"),  # 1: jobs behind one that does not fit start only if the rule lets them
    ("interval", "i8"),  # seconds from one backfill cycle to the next; 0: the rule has none
    # Backfill `slurm` (backfill/slurm_settings.py):
    ("bf_resolution", "i8"),
    ("bf_window", "i8"),
    ("bf_window_linear", "i8"),
    ("bf_depth", "i8"),  # bf_max_job_test
    ("bf_starts", "i8"),  # bf_max_job_start; 0: no limit, and so below
    ("bf_user", "i8"),  # bf_max_job_user
    ("bf_part", "i8"),  # bf_max_job_part
    ("main_depth", "i8"),  # default_queue_depth
    ("main_interval", "i8"),  # sched_interval
    ("least_loaded", "i8"),  # 1: CR_LLN
    ("limit_check", "i8"),  # seconds between looks for jobs over their limit; 0: a job ends at its limit
    ("over_limit", "i8"),  # seconds beyond its limit that a job may run (OverTimeLimit)
    ("over_reservation", "i8"),  # … and beyond the end of its reservation (ResvOverRun)
    ("start_overhead", "i8"),  # seconds of start-up and clean-up by which each run is longer
    ("clean_up", "i8"),  # seconds from a job's end until its nodes are free
    ("counted", "i8"),  # 1: a node is CPUs, MB and GPUs that are alike, and a request has one set of nodes
    ("slots", "i8"),  # rows of `avail` in use
    ("mark", "i8"),  # which rows of `then` and `gain` are of use
    ("first_word", "i8"),  # of sets of nodes: the first …
    ("last_word", "i8"),  # … and the one behind the last
    ("piece_count", "i8"),  # of `pieces` in use; 0: a node is a piece
    ("leaver_count", "i8"),  # rows of `leavers` in use …
    ("leaving", "i8"),  # … and how many of the running jobs they are of
    ("sum_count", "i8"),  # rows of `sums` in use; -1: they are not made yet
    ("last_cycle", "i8"),  # when the last backfill cycle was
    ("due_pools", "i8"),  # pools for which a backfill cycle is due
    ("fixed_order", "i8"),  # 1: the order of two waiting jobs never changes, so that a sorted queue is kept
    ("scores_only", "i8"),  # 1: a queue is scored, not sorted: the pass sorts as far as it looks
    ("steady", "i8"),  # 1: a score changes only with the estimate, and is kept until then
    ("preempt", "i8"),  # 1: a blocked job may take the nodes of running jobs that rank below it
    ("track_usage", "i8"),  # 1: the policy looks at what users hold or have used
    ("influence", "f8"),  # 1: the policy's order alone; below: a site factor of at most this share of the weights
    ("wake", "i8"),  # when the first of the jobs that were deferred may start; NEVER: none is
    ("starve_age", "f8"),  # seconds of waiting after which a job may be promoted; inf = never
    ("starve_factor", "f8"),  # … if it has also waited this many times its estimate
    ("starve_drain", "f8"),  # … or if it has waited this many times as long as its pool's backlog takes to drain
    ("lane_share", "f8"),  # of the work started that the lane may have; 0: there is no lane
    ("lane_age", "f8"),  # backlogs that its job must have waited
    ("lane_half_life", "f8"),  # seconds after which work that was started counts half
    # A network's:
    ("booking_size", "f8"),  # added to its weight of the size in pools without GPUs
    ("observation", "i8"),  # counts observations of queues
    ("drain", "f8"),  # seconds that the observed pool's backlog takes
    ("temperature", "f8"),  # > 0: orders are drawn (Plackett-Luce), for training
    ("dice", "u8"),  # state of the random numbers for that
    ("taping", "i8"),  # 1: passes are recorded in `tape` and `turns`
    ("taped", "i8"),  # rows so far
    ("turned", "i8"),  # passes so far
    # A meta-policy's:
    ("decide_every", "f8"),  # seconds from one choice of a pool to the next, at least
    ("switch_margin", "f8"),  # by which another member must be worth more than the one that rules
    ("switch_limit", "i8"),  # switches in an hour, at most
    ("explore", "f8"),  # chance of a draw at random: of epsilon-greedy and EXP3, and in training
    ("forced", "i8"),  # 1 + the member that rules whatever happens, for training; 0: none
    ("choices_made", "i8"),  # rows of `choices` so far
    # Slurm's PriorityWeight*, PriorityMaxAge, PriorityDecayHalfLife and PriorityCalcPeriod:
    ("weight_age", "f8"),
    ("weight_fairshare", "f8"),
    ("weight_job_size", "f8"),
    ("weight_partition", "f8"),
    ("weight_qos", "f8"),
    ("weight_tres", "f8"),
    ("max_age", "f8"),
    ("half_life", "f8"),
    ("calc_period", "f8"),
    ("calculated", "f8"),  # when fairshare factors were last calculated
    # The replay engine's:
    ("clock", "i8"),
    ("arrived", "i8"),  # the next job to arrive
    ("fresh", "i8"),  # the first job that arrived at this instant
    ("heap_count", "i8"),
    ("next_event", "i8"),
    ("tick", "i8"),  # the next backfill cycle
    ("stamp", "i8"),
    ("touched", "i8"),  # pools with a change
    ("pass_due", "i8"),
    ("logged", "i8"),
    ("passes", "i8"),
    ("ended", "i8"),
    ("requeued", "i8"),
    ("longest", "i8"),  # queue so far
    ("long_queue", "i8"),  # from which length on jobs of a fixed order are grouped (sim/slurm_rl_sim/alike.py)
]

# Views of what is free: now; at EASY's shadow time beside the head; in both; scratch; and the rows of a profile.
# (Numpy's own numbers: for Python's, numba would compile a kernel once for each constant it is called with.)
NOW, EXTRA, BOTH, SCRATCH, FIRST_ROW = np.arange(5)
TAKE, GIVE = np.int64(-1), np.int64(1)
YES, NO = np.bool_(True), np.bool_(False)


def make_entries(count: int) -> Array:
    """An arena for that many (job, node) pairs at a time."""
    entries = np.zeros(count + 1, dtype=ENTRY)
    entries["next"][:-1] = np.arange(1, count + 1)
    return entries
