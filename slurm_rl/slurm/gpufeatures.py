"""The node features of GPU types: planned types reach Slurm under these names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from slurm_rl.domain.pairs import parse_texts
from slurm_rl.slurm.findings import Finding, Severity, SiteFacts
from slurm_rl.slurm.model import SlurmNode
from slurm_rl.slurm.release import prefer_is_sound, sound_prefer


def feature_names(setting: str) -> dict[str, str]:
    """GPU type -> feature, from `a100=gpu_a100,t4=gpu_t4`; a type that is not named is its own feature."""
    pairs = parse_texts(setting, "gpu_features", "TYPE=FEATURE,…")
    return {kind.lower(): feature for kind, feature in pairs.items()}


def lacking(nodes: Iterable[SlurmNode], names: Mapping[str, str]) -> dict[str, list[str]]:
    """Features that GPU types are called by, with the nodes of those types that do not have them."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for kind, count in node.gpus.items():
            feature = names.get(kind.lower(), kind)
            if kind and count and feature not in node.features:
                found.setdefault(feature, []).append(node.name)
    return found


def examine_lever(site: SiteFacts, lever: str, setting: str) -> Iterator[Finding]:
    """Findings about `placement_lever` and `gpu_features` on a site."""
    if lever == "off":
        return
    if lever == "prefer" and not prefer_is_sound(site.release):
        yield Finding(
            "placement-lever",
            Severity.ERROR,
            f'placement_lever is "prefer", and Slurm {site.release} does not keep Prefer= apart from a constraint',
            "nothing is steered: a user's --constraint could be lost",
            f'placement_lever = "features", or Slurm {sound_prefer(site.release)}',
        )
    names = feature_names(setting)
    kinds = {kind.lower() for node in site.nodes for kind in node.gpus if kind}
    unknown = sorted(set(names) - kinds)
    if unknown:
        yield Finding(
            "gpu-features-named",
            Severity.WARNING,
            f"gpu_features names {', '.join(unknown)}, and no node has such GPUs",
            "a name that is misspelt leaves its type without a feature",
            f"gpu_features with {', '.join(sorted(kinds))}",
        )
    missing = lacking(site.nodes, names)
    for feature, nodes in missing.items():
        yield Finding(
            "gpu-features-missing",
            Severity.ERROR,
            f"no feature {feature} on {nodes[0]}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""),
            "a job that is steered to it could not start there: nothing is steered",
            f"NodeName={nodes[0]} Features={feature}, or gpu_features with the names that nodes have",
        )
    if not missing:
        yield Finding("gpu-features-named", Severity.OK, f"every GPU type has its feature; placement_lever is {lever}")
