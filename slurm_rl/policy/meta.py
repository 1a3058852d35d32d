"""Meta-policies by name: `meta:MODEL` and `bandit:KIND[/POLICY/…]`, their members, their tables, and why one rules."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_tensors

from slurm_rl.errors import InputError, ModelError, unknown_name
from slurm_rl.kernel.arrays import CHOOSER, SWITCHES, Array
from slurm_rl.kernel.tables import World
from slurm_rl.policy import contract
from slurm_rl.policy.bandits import ARM, COUNT, MEAN, new_arms
from slurm_rl.policy.catalogue import BY_LIMIT, BY_USER, POLICIES, Policy
from slurm_rl.policy.checkpoint import (
    MANIFEST,
    WEIGHTS,
    Model,
    find_model,
    flat_tensors,
    flatten,
    load_model,
    put_model,
    read_weights,
)
from slurm_rl.policy.meta_network import META_LAYOUT, META_LENGTH, MOST_MEMBERS, WIDTH
from slurm_rl.policy.regime import REGIME_COUNT, REGIME_FEATURES, REGIME_VERSION, look_at
from slurm_rl.policy.registry import PolicySpec, parse_policy

# The five heuristics that meta-schedulers were first built on, and what does best here.
DEFAULT_SET = (
    "srpt",
    "edf",
    "static-priority",
    "static-equal",
    "dynamic",
    "sjf-age@user",
    "saf@user",
    "wfp3",
    "rl:default",
)
BANDITS = {"egreedy": 0.1, "exp3": 0.1, "linucb": 0.0}  # by kind: how much is drawn at random
STATE = ("choosers", "regime", "worth", "arms")  # tables that a meta-policy changes while it runs


@dataclass(frozen=True, slots=True)
class Meta:
    """A set of policies, and how one of them is chosen."""

    members: tuple[PolicySpec, ...]
    net: Array | None = field(default=None, repr=False, compare=False)  # of META_LAYOUT; None: a bandit
    interval: float = 60.0  # seconds from one choice to the next, at least
    margin: float = 0.0  # by which another member must be worth more
    switches: int = 6  # an hour, at most
    explore: float = 0.0
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(m.name for m in self.members)

    @property
    def rows(self) -> tuple[Policy, ...]:
        """The members' rows; those that take a time limit at its word see limits in place of estimates."""
        return tuple(
            replace(m.row, score_queue="order:score_each_at_limit")
            if m.row.uses_estimate and m.source == BY_LIMIT
            else m.row
            for m in self.members
        )

    @property
    def settings(self) -> dict[str, float]:
        """Of a World."""
        return {
            "decide_every": self.interval,
            "switch_margin": self.margin,
            "switch_limit": self.switches,
            "explore": self.explore,
            "forced": 0,
            "choices_made": 0,
        }


def parse_members(names: Sequence[str]) -> tuple[PolicySpec, ...]:
    """The members of a set; refuses what cannot be chosen among."""
    given = [name.strip() for name in names if name.strip()]
    if not given:
        raise InputError(
            "an empty set leaves nothing to choose", field="candidates", remedy="name two policies or more"
        )
    members = tuple(parse_policy(name) for name in given)
    problems = [
        (len(members) < 2, f"a set of {given[0]!r} alone leaves nothing to choose"),
        (len(members) > MOST_MEMBERS, f"{len(members)} policies are too many: at most {MOST_MEMBERS}"),
        (len({m.name for m in members}) < len(members), "a policy stands twice"),
        (sum(m.net is not None for m in members) > 1, "at most one network (rl:MODEL) can be in a set"),
    ]
    for m in members:
        problems += [
            (m.meta is not None, f"{m.name!r} chooses itself: it cannot be chosen"),
            (m.outside is not None, f"{m.name!r} is Python: only compiled policies can be chosen"),
            (not m.reachable, f"{m.name!r} needs true run times, which nobody knows"),
        ]
    for wrong, told in problems:
        if wrong:
            raise InputError(told, field="candidates")
    return members


def parse_bandit(text: str) -> PolicySpec:
    """`KIND` or `KIND/POLICY/POLICY/…`."""
    kind, slash, names = text.partition("/")
    if kind not in BANDITS:
        raise unknown_name("bandit", kind, BANDITS)
    members = parse_members(names.split("/") if slash else DEFAULT_SET)
    # A choice every five minutes keeps within the bound on switches by itself: no draw is ever overruled.
    meta = Meta(members, interval=300.0, switches=SWITCHES, explore=BANDITS[kind])
    return _spec(f"bandit:{text}", f"bandit-{kind}", meta)


def parse_meta(name: str) -> PolicySpec:
    """The policy of a model that chooses."""
    return load_meta(find_model(name, "meta")).policy(f"meta:{name}")


def _spec(name: str, row: str, meta: Meta, digest: str = "") -> PolicySpec:
    network = next((m for m in meta.members if m.net is not None), None)
    spec = PolicySpec(name, POLICIES.code(row), BY_USER, meta=meta, digest=digest)
    if network is None:
        return spec
    return replace(
        spec, net=network.net, booking_size=network.booking_size, starve_drain=network.starve_drain
    )  # its cap, while it rules: nobody else looks at the backlog


# -- models ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetaModel:
    """A checked model of a meta-policy."""

    path: Path
    manifest: Mapping[str, Any]
    meta: Meta
    digest: str

    def tensors(self) -> dict[str, Array]:
        """As the file has them."""
        return load_tensors((self.path / WEIGHTS).read_bytes())

    def policy(self, name: str = "") -> PolicySpec:
        return _spec(name or f"meta:{self.path.name}", "meta", self.meta, self.digest)


def untrained(members: tuple[PolicySpec, ...], tensors: Mapping[str, Array], **settings: Any) -> PolicySpec:
    """A meta-policy in training: a set, and weights that were not saved yet."""
    return _spec("meta:training", "meta", Meta(members, flatten(_padded(tensors), META_LAYOUT), **settings))


def load_any(path: Path) -> Model | MetaModel:
    """A model of either kind, checked."""
    try:
        chooses = "meta" in tomllib.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        chooses = False
    return load_meta(path) if chooses else load_model(path)


def load_meta(path: Path) -> MetaModel:
    """Reads the model of a meta-policy and refuses it, with the reason, unless all of it is as it should be."""
    path = Path(path).resolve()
    manifest = _manifest(path)
    raw, digest = read_weights(path, manifest["weights"]["sha256"])
    features = manifest["features"]
    why = contract.compare(features, REGIME_VERSION, regime_values())
    if why:
        raise ModelError(f"{path}: {why}: retrain it")
    said = manifest["meta"]
    try:
        members = parse_members(said["candidates"])
    except (InputError, ModelError) as error:
        raise ModelError(f"{path}: its set cannot be used: {error}") from None
    for m in members:
        made_with = said.get("networks", {}).get(m.name)
        if m.net is not None and made_with != m.digest:
            raise ModelError(f"{path}: was made for another {m.name} ({str(made_with)[:12]}…): retrain it")
    tensors = flat_tensors(path / WEIGHTS, raw, _layout(len(members)), _other_set(path, len(members)))
    net = flatten(_padded(tensors), META_LAYOUT)
    settings = {"interval": float(said["interval"]), "margin": float(said["margin"]), "switches": said["switches"]}
    return MetaModel(path, manifest, Meta(members, net, **settings), digest)


def _layout(members: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a file: the last layer has a column a member."""
    return META_LAYOUT | {"last": (WIDTH, members), "last_bias": (members,)}


def _other_set(path: Path, members: int) -> dict[str, str]:
    told = f"{path}: its weights are of another set than the {members} policies that its manifest names"
    return {"last": told, "last_bias": told}


def _padded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors as the compiled network reads them: columns for as many members as there may be."""
    found = dict(tensors)
    for name in ("last", "last_bias"):
        table = np.asarray(tensors[name], dtype=np.float32)
        empty = np.zeros((*table.shape[:-1], MOST_MEMBERS - table.shape[-1]), dtype=np.float32)
        found[name] = np.concatenate([table, empty], axis=-1)
    return found


def _manifest(path: Path) -> dict[str, Any]:
    place = path / MANIFEST
    try:
        manifest = tomllib.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{place}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelError(f"{place}: no TOML: {error}") from None
    if "meta" not in manifest:
        raise ModelError(f"{path}: orders jobs itself, it does not choose a policy: write rl:{path.name}")
    try:
        said = manifest["meta"]
        complete = (
            isinstance(manifest["weights"]["sha256"], str)
            and isinstance(manifest["features"]["version"], int)
            and all(isinstance(v, int | float) for v in manifest["features"]["values"].values())
            and isinstance(said["candidates"], list)
            and all(isinstance(name, str) for name in said["candidates"])
            and isinstance(said["interval"], int | float)
            and said["interval"] >= 1
            and isinstance(said["margin"], int | float)
            and 0 <= said["margin"] < math.inf
            and isinstance(said["switches"], int)
            and 1 <= said["switches"] <= SWITCHES
        )
    except (KeyError, TypeError, AttributeError):
        complete = False
    if not complete:
        raise ModelError(
            f"{place}: lacks weights.sha256, features, or meta.candidates, interval (≥ 1), margin (≥ 0) or switches "
            f"(1 … {SWITCHES}), or has a bad one"
        )
    return manifest


def save_meta(path: Path, tensors: Mapping[str, Array], manifest: Mapping[str, Any], meta: Meta) -> MetaModel:
    """Writes a model beside its place, checks it, and only then puts it there."""
    said = {
        "candidates": list(meta.names),
        "interval": float(meta.interval),
        "margin": float(meta.margin),
        "switches": int(meta.switches),
    }
    networks = {m.name: m.digest for m in meta.members if m.net is not None}
    full = dict(manifest) | {
        "meta": said | ({"networks": networks} if networks else {}),
        "features": {"version": REGIME_VERSION, "values": dict(regime_values())},
    }
    put_model(path, {name: tensors[name] for name in META_LAYOUT}, full, load_meta)  # [WIDTH, members] at last
    return load_meta(path)


@cache
def regime_values() -> dict[str, float]:
    """By figure: its value on the fixed snapshot that models and code must agree on."""
    world, now, queue = contract.fixed_world()
    for name, table in state_tables(1, 1).items():
        world[name] = table
    look_at(world.record, now, queue)
    return {name: float(f"{value:.7g}") for name, value in zip(REGIME_FEATURES, world["regime"][0], strict=False)}


# -- tables ------------------------------------------------------------------------------------------------------


def state_tables(pools: int, members: int, seed: int = 0) -> dict[str, Array]:
    """A meta-policy that has not chosen yet."""
    choosers = np.zeros(pools, dtype=CHOOSER)
    choosers["decided"] = -math.inf
    choosers["dice"] = [int(d) | 1 for d in np.random.default_rng([seed, 29]).integers(1 << 62, size=pools)]
    return {
        "choosers": choosers,
        "regime": np.zeros((pools, REGIME_COUNT), dtype=np.float32),
        "worth": np.zeros((pools, members)),
        "arms": new_arms(pools, members),
    }


def meta_tables(policy: PolicySpec, pools: int, before: World | None = None) -> dict[str, Array]:
    """The tables of a World that a meta-policy needs; its state continues from a World of the same policy."""
    meta = policy.meta
    if meta is None:
        return {}
    members = len(meta.members)
    goes_on = (
        before is not None
        and before["code"] == policy.code
        and before["arms"].shape == (pools, members, ARM)
        and len(before["choosers"]) == pools
    )
    made = {
        "caps": np.array([math.inf if m.net is None else policy.starve_drain for m in meta.members]),
        "chooser_net": np.zeros(META_LENGTH, dtype=np.float32) if meta.net is None else meta.net,
    }
    return made if goes_on else made | state_tables(pools, members, meta.seed)


# -- why ---------------------------------------------------------------------------------------------------------


def why_it_rules(meta: Meta, world: World, pool: int) -> str:
    """Why the member that rules a pool does, in one line."""
    state, worth = world["choosers"][pool], world["worth"][pool]
    current = int(state["current"])
    if not state["decisions"]:
        return "no pass has had a choice yet"
    if meta.net is None:
        arm = world["arms"][pool, current]
        tried = f"tried {int(arm[COUNT])} times, mean reward {arm[MEAN]:.2f}" if arm[COUNT] else "not tried before"
        return f"{tried}; {int(state['decisions'])} choices so far"
    others = [k for k in range(len(worth)) if k != current]
    rival = max(others, key=lambda k: worth[k])
    gap = float(worth[current] - worth[rival])
    if gap < 0:
        return f"{meta.names[rival]} looks {-gap:.3g} better: not enough to switch, or the hour's switches are used"
    seen = world["regime"][pool].astype(np.float64)
    moved = _attributions(meta.net, seen, current, rival)
    told = ", ".join(f"{name} {seen[REGIME_FEATURES.index(name)]:.2f}" for name, share in moved if share > 0)
    return f"{gap:.3g} ahead of {meta.names[rival]}" + (f", for {told}" if told else "")


def _attributions(net: Array, seen: Array, current: int, rival: int, most: int = 3) -> list[tuple[str, float]]:
    """What speaks most for the one over the other: how much smaller the gap is with a figure at its usual value."""
    rows = np.repeat(seen[None, :], len(REGIME_FEATURES) + 1, axis=0)
    shift = net[:REGIME_COUNT].astype(np.float64)
    for f in range(len(REGIME_FEATURES)):
        rows[f + 1, f] = shift[f]
    worth = evaluate(net, rows)
    gap = worth[:, current] - worth[:, rival]
    found = sorted(zip(REGIME_FEATURES, (gap[0] - gap[1:]).tolist(), strict=True), key=lambda row: -row[1])
    return found[:most]


def evaluate(net: Array, rows: Array) -> Array:
    """The network in numpy: what each of the columns is worth for each row of figures."""
    tensors, at = {}, 0
    for name, shape in META_LAYOUT.items():
        size = math.prod(shape)
        tensors[name] = net[at : at + size].reshape(shape).astype(np.float64)
        at += size
    x = (rows - tensors["shift"]) * tensors["scale"]
    x = np.maximum(x @ tensors["first"] + tensors["first_bias"], 0.0)
    x = np.maximum(x @ tensors["second"] + tensors["second_bias"], 0.0)
    found: Array = x @ tensors["last"] + tensors["last_bias"]
    return found


def digest_of_set(meta: Meta) -> str:
    """What must be equal for a kept state to be taken up again: the members, and the weights that choose."""
    text = "\n".join((*meta.names, "" if meta.net is None else hashlib.sha256(meta.net.tobytes()).hexdigest()))
    return hashlib.sha256(text.encode()).hexdigest()
