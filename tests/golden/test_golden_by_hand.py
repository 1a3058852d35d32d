"""A small case worked out by hand: five jobs of an SWF file on four processors.

    job  submit  run  processors  requested
     1      0     10       3         10
     2      1     10    4 or 3       10
     3      2      4       1          8
     4      3     20       1         20
     5      4      2       1          4

Job 2 wants four processors:
fcfs, none      1 runs 0–10. 2 waits for it and blocks the others; it runs 10–20. 3, 4, 5 start at 20.
sjf, none       3 is the shortest at 2 and runs 2–6; 5 the shortest at 6, runs 6–8; 2 runs 10–20; 4 starts at 20.
fcfs, easy      2 is reserved for 10 and leaves nothing beside it. At 2, job 3 would end at 10 ≤ 10: it starts. At 6,
                job 4 would end at 26 > 10 and waits; 5 would end at 10 ≤ 10 and starts. 2 runs 10–20, then 4.
fcfs, firstfit  3 starts at 2, 4 at 6 (until 26), 5 at 10; 2 finds four processors at 26.
Job 2 wants three:
fcfs, none      2 and 3 start at 10, 4 at 14 where 3 has ended, 5 at 20 where 2 has.
sjf, none       3 runs 2–6, 5 runs 6–8; 2 starts at 10 and leaves a processor to 4.
fcfs, easy      2 is reserved for 10 and leaves an extra of one. 3 runs 2–6. At 6, job 4 would end at 26 > 10, but
                needs no more than the extra: it starts and uses it up. 5 finds a processor when 2 ends, at 20.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.build import build
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.read import read_trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of, sorted_by_id

SWF = """\
; MaxProcs: 4
1 0 -1 10 3 -1 -1 3 10 -1 1 1 1 -1 1 1 -1 -1
2 1 -1 10 {wide} -1 -1 {wide} 10 -1 1 1 1 -1 1 1 -1 -1
3 2 -1  4 1 -1 -1 1  8 -1 1 1 1 -1 1 1 -1 -1
4 3 -1 20 1 -1 -1 1 20 -1 1 1 1 -1 1 1 -1 -1
5 4 -1  2 1 -1 -1 1  4 -1 1 1 1 -1 1 1 -1 -1
"""


@pytest.mark.parametrize(
    ("wide", "policy", "backfill", "starts"),
    [
        (4, "fcfs", "none", [0, 10, 20, 20, 20]),
        (4, "sjf", "none", [0, 10, 2, 20, 6]),
        (4, "fcfs", "easy", [0, 10, 2, 20, 6]),
        (4, "fcfs", "firstfit", [0, 26, 2, 6, 10]),
        (3, "fcfs", "none", [0, 10, 10, 14, 20]),
        (3, "sjf", "none", [0, 10, 2, 10, 6]),
        (3, "fcfs", "easy", [0, 10, 2, 6, 20]),
    ],
)
def test_five_jobs_on_four_processors(wide: int, policy: str, backfill: str, starts: list[int], tmp_path: Path) -> None:
    file = tmp_path / "five.swf"
    file.write_text(SWF.format(wide=wide))
    trace = sorted_by_id(read_trace(file, cache=False))
    workload = build(requests_of(trace), Cluster("four", (NodeClass(1, cpus=4),)))
    simulation = ReplayState(workload, trace.run_time.astype(float), parse_policy(policy), backfill=backfill)
    simulation.run()
    assert simulation.world["live"]["start"].tolist() == starts
