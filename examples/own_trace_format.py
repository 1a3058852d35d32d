"""A trace format of your own: a module with `sniff` and `read`, and a line in the table of formats."""

import sys

import numpy as np

import slurm_rl
from slurm_rl.traces.assemble import assemble, header_of, layout_of, require
from slurm_rl.traces.read import FORMATS
from slurm_rl.traces.table import parse

FORMATS["my-site"] = __name__ if __name__ != "__main__" else "own_trace_format"


def sniff(head):
    """Whether the first lines of a file look like this format."""
    return head.startswith("id;who;asked;came;ran")


def read(source):
    """Jobs of a made-up site: `asked` is GPUs, `came` and `ran` are seconds. Bad rows are counted and named."""
    names = header_of(source, source.raw, ";")
    require(source, names, ("id", "came", "ran"), "id;who;asked;came;ran")
    from dataclasses import replace

    layout = replace(layout_of(names, numbers=("asked", "came", "ran"), labels=("who",), ids=("id",)), separator=";")
    table = parse(source, source.raw, layout)
    return assemble(
        table.screen,
        table.checked("came"),
        table.checked("ran"),
        absolute=False,
        job_id=table.ids["id"],
        num_gpus=np.nan_to_num(table.checked("asked"), nan=0.0),
        user=table.label("who"),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    trace = slurm_rl.read_trace(sys.argv[1])
    print(f"{len(trace)} jobs, read as {trace.meta['format']}", *trace.notes, sep="\n")
