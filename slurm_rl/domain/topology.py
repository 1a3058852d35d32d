"""Blocks and leaf switches of nodes: from topology.conf, topology.yaml or what `scontrol show topology` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.hosts import expand_hosts
from slurm_rl.errors import InputError

_PAIR = re.compile(r"(\w+)=(\S+)")
_KEY = re.compile(r"[\s-]*(\w+)\s*:\s*(.*?)\s*$")


def blocks_of(text: str) -> dict[str, str]:
    """The innermost block or switch of each node, by the node's name.

    Lines of topology.conf and of scontrol name a switch or block and its nodes; higher switches, which name switches,
    and aggregated blocks are left out.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        values = {key.lower(): value for key, value in _PAIR.findall(line.partition("#")[0])}
        name = values.get("switchname") or values.get("blockname")
        if name and "nodes" in values and "switches" not in values and int(values.get("level", "0")) == 0:
            found.update(dict.fromkeys(expand_hosts(values["nodes"]), name))
    return found


def blocks_of_yaml(text: str) -> dict[str, str]:
    """Likewise of topology.yaml: the topology that is the cluster's default, else the first."""
    topologies: list[tuple[bool, dict[str, str]]] = []
    name, default = "", False
    nodes: dict[str, str] = {}
    for line in text.splitlines():
        match = _KEY.match(line.partition("#")[0])
        if match is None:
            continue
        key, value = match[1].lower(), match[2].strip("'\"")
        if key == "topology":
            if nodes or default:
                topologies.append((default, nodes))
            default, nodes = False, {}
        elif key == "cluster_default":
            default = value.lower() in ("true", "yes")
        elif key in ("switch", "block") and value:
            name = value
        elif key == "nodes" and name:
            nodes.update(dict.fromkeys(expand_hosts(value), name))
    topologies.append((default, nodes))
    return next((found for first, found in topologies if first), topologies[0][1])


def read_topology(path: Path) -> dict[str, str]:
    """Reads topology.conf, topology.yaml, or a file with what `scontrol show topology` printed."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path), field="--topology") from None
    try:
        found = blocks_of_yaml(text) if path.suffix in (".yaml", ".yml") else blocks_of(text)
    except InputError as error:
        raise InputError(error.message, file=str(path)) from None
    if not found:
        raise InputError(
            "names no switch and no block with nodes",
            file=str(path),
            remedy="give a topology.conf, a topology.yaml or what scontrol show topology printed",
        )
    return found


def with_topology(cluster: Cluster, blocks: Mapping[str, str], where: str) -> Cluster:
    """The cluster with each node in its block; its classes must name their nodes (key `nodes`)."""
    classes: list[NodeClass] = []
    for i, c in enumerate(cluster.classes, 1):
        names = expand_hosts(c.names)
        if not names:
            raise InputError(
                f"node class {i} of the cluster file names no nodes, so that {where} cannot be applied",
                remedy='add the key "nodes": "gpu[1-4]", or give "block" in the cluster file',
            )
        members: dict[str, list[str]] = {}
        for name in names:
            members.setdefault(blocks.get(name, ""), []).append(name)
        classes += [replace(c, count=len(own), block=block, names=",".join(own)) for block, own in members.items()]
    return Cluster(cluster.name, tuple(classes))
