"""priority/multifactor as slurm.conf has it: the size and TRES terms against priority_multifactor.c, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import a_cluster, a_job, a_trace, starts

from slurm_rl.backfill.conf_partitions import partition_lines
from slurm_rl.backfill.slurm_settings import SlurmSettings, read_slurm_conf, settings_from
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.limits import PartitionBounds
from slurm_rl.errors import InputError
from slurm_rl.kernel.build import Workload, build
from slurm_rl_sim.site_priority import static_points
from slurm_rl_sim.workload import requests_of

CLUSTER = Cluster("c", (NodeClass(3, cpus=8, mem_gb=16), NodeClass(1, "A100", 4, 16, mem_gb=64)))


def a_workload() -> Workload:
    jobs = [a_job(0, 600, nodes=2, cpus=8), a_job(1, 3600, gpus=2, mem_gb=8), a_job(2, 60, cpus=1)]
    return build(requests_of(a_trace(jobs)), CLUSTER)


def points(**conf: str) -> list[float]:
    settings = settings_from({"PriorityWeightJobSize": "1000"} | conf)
    return np.round(static_points(a_workload(), settings), 6).tolist()


def test_large_jobs_are_favoured_by_nodes_and_cpus() -> None:
    """M1: the mean of both shares; the cluster has 4 nodes and 40 CPUs. A GPU job without CPUs counts one a node."""
    assert points() == [
        1000 * (2 / 4 + 8 / 40) / 2,
        1000 * (1 / 4 + 1 / 40) / 2,
        1000 * (1 / 4 + 1 / 40) / 2,
    ]


def test_small_jobs_are_favoured_on_request() -> None:
    assert points(PriorityFavorSmall="YES") == [
        pytest.approx(1000 * (2 / 4 + 32 / 40) / 2),
        pytest.approx(1000 * (3 / 4 + 39 / 40) / 2),
        pytest.approx(1000 * (3 / 4 + 39 / 40) / 2),
    ]


def test_size_may_be_relative_to_the_time_limit() -> None:
    """CPUs, or nodes at 10 CPUs each, by minutes of limit and all CPUs; at most 1."""
    assert points(PriorityFlags="small_relative_to_time") == [
        pytest.approx(1000 * 20 / 10 / 40),
        pytest.approx(1000 * 10 / 60 / 40, abs=1e-5),
        pytest.approx(1000 * 10 / 1 / 40),
    ]


def test_tres_count_by_the_partition_s_share() -> None:
    """M2: job size has no weight here; memory of the partition is 112 GB."""
    said = {"PriorityWeightJobSize": "0", "PriorityWeightTRES": "CPU=400,Mem=1120,GRES/gpu=100,gres/gpu:a100=10"}
    found = points(**said)
    assert found == [80.0, pytest.approx(10 + 80 + 50 + 5), 10.0]
    raw = points(**said, PriorityFlags="NO_NORMAL_TRES")
    assert raw[0] == 8 * 400.0


def test_partitions_are_read_from_slurm_conf(tmp_path: Path) -> None:
    """M3, M5: DEFAULT holds for the lines behind it."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=c\nPriorityWeightPartition=1000\nPartitionName=a Nodes=ALL\n"
        "PartitionName=DEFAULT PriorityJobFactor=5\nPartitionName=b Nodes=ALL PriorityTier=3 # late\n"
    )
    found = read_slurm_conf(conf).partitions
    assert found == {"a": PartitionBounds(tier=1, factor=1.0), "b": PartitionBounds(tier=3, factor=5.0)}
    with pytest.raises(InputError, match="a: prioritytier: must be a whole number ≥ 0, got 'x'"):
        partition_lines("PartitionName=a PriorityTier=x")


def test_a_replay_goes_by_the_site_s_tiers_and_factors() -> None:
    cluster = a_cluster(NodeClass(1, cpus=1, partition="a,b"))
    jobs = [a_job(0, 10, partition="a"), a_job(1, 10, partition="a"), a_job(2, 10, partition="b")]
    tiers = SlurmSettings(partitions={"b": PartitionBounds(tier=2, factor=1.0)})
    assert starts(cluster, jobs, "fcfs", "slurm", slurm=tiers) == [0, 20, 10]
    factors = SlurmSettings(
        weights={"partition": 1000.0},
        has_weights=True,
        partitions={"a": PartitionBounds(tier=1, factor=1.0), "b": PartitionBounds(tier=1, factor=9.0)},
    )
    assert starts(cluster, jobs, "multifactor", "slurm", slurm=factors) == [0, 20, 10]


def test_age_counts_from_the_submission_until_priority_max_age() -> None:
    """M6."""
    cluster = a_cluster(NodeClass(1, cpus=1, partition="a,b"))
    jobs = [a_job(0, 100, partition="a"), a_job(1, 10, partition="a"), a_job(50, 10, partition="b")]
    partitions = {"a": PartitionBounds(tier=1, factor=1.0), "b": PartitionBounds(tier=1, factor=2.0)}
    for max_age, wanted in ((1000, [0, 100, 110]), (10, [0, 110, 100])):
        weights = {"age": 1000.0, "partition": 40.0}
        site = SlurmSettings(weights=weights, has_weights=True, partitions=partitions, priority_max_age=max_age)
        assert starts(cluster, jobs, "multifactor", "slurm", slurm=site) == wanted
