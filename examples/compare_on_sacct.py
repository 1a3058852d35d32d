"""Three schedulers on your own history: an sacct export and a cluster file in, a table and a report out.

    sacct -a -P -X --starttime 2026-01-01 --format=JobID,User,Account,Partition,Submit,Start,End,Elapsed,Timelimit,\\
        State,NNodes,NCPUS,ReqMem,ReqTRES,QOS,JobName > jobs.txt
    python examples/compare_on_sacct.py jobs.txt cluster.json out/compare.html
"""

import sys

import slurm_rl


def main(export, cluster, report):
    trace = slurm_rl.read_trace(export)
    for note in trace.notes:
        print("note:", note)
    results = slurm_rl.replay(trace, cluster, policies=["multifactor", "sjf@user", "rl:default"], backfill="slurm")
    print(results.table("mean_wait", "p99_wait", "mean_bsld", "user_bsld").round(1))
    print("report:", results.report(report))
    return results


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
