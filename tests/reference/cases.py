"""Random small cases: a few jobs on a few nodes, dense with ties, zero run times, short limits and odd requests."""

from __future__ import annotations

import random
from dataclasses import dataclass

from builders import Event, Job

from slurm_rl.domain.cluster import Cluster, NodeClass

POLICIES = (
    "fcfs lcfs sjf ljf saf sjf-age smith srpt f1 wfp3 unicef edf static-priority static-equal dynamic multifactor "
    "sjf@user sjf@oracle ljf@user saf@oracle sjf-age@user smith@limit smith@oracle srpt@oracle srpt@user f1@user "
    "wfp3@user unicef@oracle dynamic@user dynamic@oracle"
).split()
BACKFILLS = ("none", "firstfit", "easy", "conservative", "slurm")
PLACEMENTS = ("first-fit", "best-fit", "spread", "round-robin", "tier", "slurm")


@dataclass(frozen=True)
class Case:
    """A cluster, its jobs, and nodes that fail."""

    cluster: Cluster
    jobs: list[Job]
    events: list[Event]


def a_case(seed: int, *, failures: bool = False, many: bool = False) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    style = rng.choice(("one", "cpu", "memory", "gpu", "typed", "shares", "partitions", "overlapping"))
    cluster = _cluster(rng, style)
    count = rng.randint(12, 40) if many else rng.randint(2, 12)
    scale = rng.choice((1, 1, 1, 7, 40, 4000))
    horizon = rng.choice((1, count, 4 * count))
    jobs = [_job(rng, style, i, scale, horizon) for i in range(count)]
    rng.shuffle(jobs)
    events: list[Event] = []
    if failures:
        for _ in range(rng.randint(1, 3)):
            node, at = rng.randrange(cluster.nodes), rng.randint(0, 2 * horizon) * scale
            events.append(Event(at, node, False))
            events.append(Event(at + rng.randint(1, 20) * scale, node, True))
    return Case(cluster, jobs, events)


def _cluster(rng: random.Random, style: str) -> Cluster:
    def cpus() -> int:
        return rng.randint(1, 4)

    match style:
        case "one":
            classes = [NodeClass(1, cpus=rng.randint(1, 6))]
        case "cpu":
            classes = [NodeClass(rng.randint(1, 3), cpus=cpus()), NodeClass(rng.randint(1, 2), cpus=cpus())]
        case "memory":
            classes = [NodeClass(rng.randint(1, 3), cpus=cpus(), mem_gb=rng.randint(1, 6))]
        case "gpu":
            classes = [
                NodeClass(rng.randint(1, 3), gpus=rng.randint(1, 4), cpus=rng.choice((None, 4, 8))),
                NodeClass(1, gpus=rng.randint(0, 3), cpus=rng.choice((2, 4))),
            ]
        case "typed":
            classes = [
                NodeClass(rng.randint(1, 2), "A", rng.randint(1, 3), 4, mem_gb=8, speed=rng.choice((1.0, 2.0))),
                NodeClass(rng.randint(1, 2), "B", rng.randint(1, 3), 4, speed=rng.choice((0.5, 1.0, 1.3))),
                NodeClass(1, cpus=cpus()),
            ]
        case "shares":
            classes = [NodeClass(rng.randint(1, 2), rng.choice(("", "A")), rng.randint(1, 3), cpus=rng.choice((3, 8)))]
        case "partitions":
            classes = [
                NodeClass(rng.randint(1, 2), cpus=cpus(), partition="p"),
                NodeClass(rng.randint(1, 2), cpus=cpus(), partition="q"),
                NodeClass(1, cpus=cpus(), partition="p"),
            ]
        case _:
            classes = [
                NodeClass(1, cpus=cpus(), partition="p"),
                NodeClass(1, cpus=cpus(), partition="r"),
                NodeClass(1, cpus=cpus(), partition="p,q"),
                NodeClass(1, cpus=cpus(), partition="q"),
            ]
    return Cluster("case", tuple(classes))


def _job(rng: random.Random, style: str, number: int, scale: int, horizon: int) -> Job:
    run = rng.choice((0, 1, 2, 2, 3, 5, 8, 13)) * scale
    limit = run if rng.random() < 0.3 else rng.choice((1, 2, 3, 5, 8, 10, 20)) * scale
    fields: dict[str, object] = {
        "submit": rng.randint(0, horizon) * scale,
        "run": run,
        "limit": max(limit, 1),
        "cpus": rng.choice((1, 1, 2, 2, 3, 4)),
        "nodes": rng.choice((0, 0, 0, 1, 2)),
        "user": rng.choice(("u", "v", "w", "")),
        "account": rng.choice(("g", "h", "")),
        "name": rng.choice(("", "n", "m")),
        "priority": rng.choice((None, 0.0, 1.0, 1.0, 5.0)),
        "deadline": rng.choice((-1, rng.randint(0, 40) * scale)),
    }
    if style == "memory":
        fields["mem_gb"] = rng.choice((None, 0.5, 1, 2.25, 4))
    if style in ("gpu", "typed", "shares"):
        fields["gpus"] = rng.choice((0, 1, 1, 2, 2, 3, 4))
        fields["cpus"] = rng.choice((None, None, 1, 2, 3))
    if style == "typed":
        fields["gpu_type"] = rng.choice(("", "A", "B", "A|B", "b"))
        fields["mem_gb"] = rng.choice((None, None, 3))
    if style == "shares":
        fields["gpus"] = rng.choice((0, 0.25, 0.3, 0.5, 0.5, 0.7, 1, 2))
        fields["gpu_type"] = rng.choice(("", "A"))
    if style == "partitions":
        fields["partition"] = rng.choice(("p", "q", "", "p", "q", "nowhere"))
    if style == "overlapping":
        fields["partition"] = rng.choice(("p", "q", "r", ""))
    return Job(id=number + 1, **fields)  # type: ignore[arg-type]  # each field by its name


GRES_STYLES = ("mixed", "slices", "shards", "features", "partitions", "whole nodes", "everything")


def a_gres_case(seed: int, *, failures: bool = False) -> Case:
    """The case of a seed: nodes with several GRES kinds, and jobs that ask for them, for features and partitions."""
    rng = random.Random(seed)
    style = rng.choice(GRES_STYLES)
    cluster = _gres_cluster(rng, style)
    count = rng.randint(2, 14)
    scale = rng.choice((1, 1, 7, 40))
    horizon = rng.choice((1, count, 4 * count))
    jobs = [_gres_job(rng, style, i, scale, horizon) for i in range(count)]
    rng.shuffle(jobs)
    events: list[Event] = []
    if failures:
        node, at = rng.randrange(cluster.nodes), rng.randint(0, 2 * horizon) * scale
        events = [Event(at, node, False), Event(at + rng.randint(1, 20) * scale, node, True)]
    return Case(cluster, jobs, events)


def _gres_cluster(rng: random.Random, style: str) -> Cluster:
    every = style == "everything"
    classes = []
    for _ in range(rng.randint(1, 3)):
        gres: dict[str, int] = {}
        if style in ("mixed", "slices") or every:
            for kind in rng.sample(("A", "B", "A_1g.5gb", "A_3g.20gb"), rng.randint(1, 3)):
                if style == "slices" or every or "g." not in kind:
                    gres[f"gpu:{kind}"] = rng.randint(1, 3)
        else:
            gres["gpu:A"] = rng.randint(0, 3)
        if (style == "shards" or every) and any(name in gres and gres[name] for name in ("gpu:A", "gpu:B")):
            gres[rng.choice(("shard", "mps"))] = rng.randint(1, 9)
        if rng.random() < 0.3:
            gres["fpga"] = rng.randint(1, 2)
        classes.append(
            NodeClass(
                rng.randint(1, 2),
                cpus=rng.choice((None, 3, 4, 8)),
                mem_gb=rng.choice((None, 4)),
                partition=rng.choice(("p", "q", "p,q")) if style == "partitions" or every else "p",
                speed=rng.choice((1.0, 1.0, 2.0)),
                gres=tuple(gres.items()),
                features=tuple(f for f in ("fast", "big", "ib") if rng.random() < 0.5),
            )
        )
    return Cluster("gres", tuple(classes))


def _gres_job(rng: random.Random, style: str, number: int, scale: int, horizon: int) -> Job:
    every = style == "everything"
    run = rng.choice((0, 1, 2, 3, 5, 8)) * scale
    fields: dict[str, object] = {
        "submit": rng.randint(0, horizon) * scale,
        "run": run,
        "limit": max(rng.choice((run, 2, 3, 5, 10)) * (1 if scale == 1 else scale), 1),
        "cpus": rng.choice((None, 1, 1, 2)),
        "nodes": rng.choice((0, 0, 1, 2)),
        "mem_gb": rng.choice((None, None, 1, 3)),
        "user": rng.choice(("u", "v")),
        "priority": rng.choice((None, 0.0, 1.0, 5.0)),
    }
    asks = ["", "", "gpu:1", "gpu:2", "gpu:A", "gpu:A:2", "fpga:1", "gpu:1,fpga"]
    if style in ("mixed", "slices") or every:
        asks += ["gpu:B:1", "gpu:a_1g.5gb:2", "gpu:A:1,gpu:B:1", "gpu:A_3g.20gb", "gpu:A:1,gpu:1", "gpu:none"]
    if style == "shards" or every:
        asks += ["shard:1", "shard:2", "shard:3", "mps:1", "mps:2,fpga", "shard:1,gpu:1"]
    fields["gres"] = rng.choice(asks)
    if not fields["gres"]:
        fields["gpus"] = rng.choice((0, 1, 2, 3, 0.5, 0.3) if style == "shards" or every else (0, 1, 2, 3))
        fields["gpu_type"] = rng.choice(("", "", "A", "B", "A|B", "A_1g.5gb"))
    if style == "features" or every:
        fields["constraint"] = rng.choice(
            ("", "fast", "fast&big", "fast|big", "(fast|big)&ib", "[fast|big]", "[fast*1&big*1]")
        )
        fields["prefer"] = rng.choice(("", "", "ib", "fast&ib"))
    if style == "partitions" or every:
        fields["partition"] = rng.choice(("", "p", "q", "p,q", "q,p", "r,p"))
    if style == "whole nodes" or every:
        shared = any(name in str(fields["gres"]) for name in ("shard", "mps"))
        fields["exclusive"] = rng.random() < 0.3 and not shared
    return Job(id=number + 1, **fields)  # type: ignore[arg-type]  # each field by its name


def a_block_case(seed: int, *, failures: bool = False) -> Case:
    """The case of a seed: nodes in blocks, gangs, and jobs that insist on switches or segments."""
    rng = random.Random(seed)
    gpus = rng.random() < 0.7
    classes = [
        NodeClass(
            rng.randint(1, 6),
            name if gpus else "",
            rng.randint(1, 3) if gpus else 0,
            cpus=rng.choice((2, 4)),
            speed=rng.choice((1.0, 1.0, 2.0)) if gpus else 1.0,
            block=rng.choice((1, 2, 2, 3, f"block {name}", "")),
            span_speed=rng.choice((1.0, 0.9, 0.5)),
        )
        for name in rng.sample(("A", "B", "C"), rng.randint(1, 2))
    ]
    count = rng.randint(2, 12)
    scale = rng.choice((1, 1, 7, 40))
    horizon = rng.choice((1, count, 4 * count))
    jobs = []
    for i in range(count):
        run = rng.choice((0, 1, 2, 3, 5, 8, 13)) * scale
        nodes = rng.choice((0, 0, 1, 2, 2, 3, 4))
        jobs.append(
            Job(
                id=i + 1,
                submit=rng.randint(0, horizon) * scale,
                run=run,
                limit=max(rng.choice((run, 2 * run, 5 * scale, 20 * scale)), 1),
                cpus=rng.choice((None, None, 1, 2, 4)) if gpus else rng.choice((1, 2, 3, 6)),
                gpus=rng.choice((0, 1, 2, 3, 4, 6, 8)) if gpus else 0,
                gpu_type=rng.choice(("", "", "A", "A|B")) if gpus else "",
                nodes=nodes,
                user=rng.choice(("u", "v")),
                priority=rng.choice((None, 1.0, 5.0)),
                exclusive=rng.random() < 0.1,
                switches=rng.choice((0, 0, 0, 1, 2)),
                segment=rng.choice((0, 0, 0, 0, 1, 2)),
            )
        )
    rng.shuffle(jobs)
    cluster = Cluster("blocks", tuple(classes))
    events: list[Event] = []
    if failures:
        node, at = rng.randrange(cluster.nodes), rng.randint(0, 2 * horizon) * scale
        events = [Event(at, node, False), Event(at + rng.randint(1, 20) * scale, node, True)]
    return Case(cluster, jobs, events)
