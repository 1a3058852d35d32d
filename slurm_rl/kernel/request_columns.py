"""Requests beyond CPUs, memory and GPUs of one type: GRES of each node, features, whole nodes.

Each distinct text is read once. Where no job says any of this, nothing is added to a request but what a cluster with
several GPU types in one node needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from slurm_rl.domain.constraint import Term, parse_constraint
from slurm_rl.domain.gres import SHARINGS, GresRequest, parse_request
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array

if TYPE_CHECKING:
    from slurm_rl.kernel.build import Requests
    from slurm_rl.kernel.devices import Devices

T = TypeVar("T")
NOTHING = GresRequest()


class RequestColumns:
    """The columns `gres`, `constraint`, `prefer` and `exclusive` of a workload, read."""

    def __init__(self, requests: Requests, devices: Devices) -> None:
        jobs = len(requests.submit)
        none = np.full(jobs, -1, dtype=np.int32)
        self.devices = devices
        self.gres_code = none if requests.gres is None else requests.gres
        self.constraint_code = none if requests.constraint is None else requests.constraint
        self.prefer_code = none if requests.prefer is None else requests.prefer
        self.exclusive = np.zeros(jobs, dtype=bool) if requests.exclusive is None else requests.exclusive.astype(bool)
        zero = np.zeros(jobs, dtype=np.int64)
        self.switches = zero if requests.switches is None else requests.switches.astype(np.int64)
        self.segment = zero if requests.segment is None else requests.segment.astype(np.int64)
        self._gres, self._gres_wrong = _read(requests.gres_names, parse_request)
        self._terms, self._terms_wrong = _read(requests.constraint_names, parse_constraint)
        self._blocks = bool(self.switches.any() or self.segment.any())
        self.any = any(c is not None for c in (requests.gres, requests.constraint, requests.prefer)) or bool(
            self.exclusive.any()
        )
        asked = [g or NOTHING for g in self._gres]
        self._gpus = np.array([*(g.gpu_count for g in asked), 0], dtype=np.int64)
        self._shares = np.array([*(devices.share_of(g) if g.shares else 0 for g in asked), 0], dtype=np.int64)
        self.on_nodes = (self.gres_code >= 0) | self.exclusive  # a request for each node

    @property
    def of_kind(self) -> tuple[Array, ...]:
        """Columns that say which nodes will do, besides partition and GPU type; none if nobody asks for anything."""
        return (self.gres_code, self.constraint_code, self.prefer_code) if self.any else ()

    @property
    def of_request(self) -> tuple[Array, ...]:
        """Columns in which requests differ that are equal otherwise."""
        return ((self.exclusive,) if self.any else ()) + ((self.switches, self.segment) if self._blocks else ())

    @property
    def tracked(self) -> bool:
        """Whether GPUs must be told apart one by one because of what jobs ask for."""
        others = any(g is not None and g.others for g in self._gres)
        return bool(self._shares.any()) or bool(self.exclusive.any()) or others

    def gpus(self, asked: Array, nodes: Array) -> Array:
        """GPUs of each job in total, with those of the column `gres`."""
        if not self.any:
            return asked
        here = self._gpus[self.gres_code] + self._shares[self.gres_code] / 1000
        return np.where(self.gres_code >= 0, here * np.maximum(nodes, 1), asked)

    def gpu_type(self, requests: Requests) -> dict[str, Any]:
        """The columns of GPU types, with the type that a job's `gres` names."""
        if not self.any:
            return {}
        names = dict.fromkeys(requests.gpu_type_names)
        named = [g.types[0][0] if g is not None and len(g.types) == 1 else "" for g in self._gres]
        names |= dict.fromkeys(filter(None, named))
        index = {name: i for i, name in enumerate(names)}
        codes = np.array([*(index.get(name, -1) for name in named), -1], dtype=np.int32)[self.gres_code]
        return {"gpu_type": np.where(codes >= 0, codes, requests.gpu_type), "gpu_type_names": tuple(names)}

    def by_node(self, request: dict[str, Array], whole: Array, cpus: Array, mem: Array, nodes: Array) -> None:
        """Makes jobs that ask for something of each node consist of one unit a node."""
        mine = self.on_nodes
        if not mine.any():
            return
        units = np.maximum(nodes, 1)
        given = self.gres_code >= 0
        gpu = np.where(given, self._gpus[self.gres_code], -(-np.maximum(whole, request["share"] > 0) // units))
        share = np.where(given, self._shares[self.gres_code], 0)
        new = {
            "units": units,
            "per_node": np.ones_like(units),
            "gpu": np.where(self.exclusive & (share > 0), 1, gpu),
            "share": np.where(self.exclusive, 0, share),
            "cpu": -(-cpus // units),
            "mem": -(-mem // units),
        }
        for name, column in new.items():
            request[name] = np.where(mine, column, request[name])

    def gres(self, job: int) -> GresRequest:
        """What a job asks for of each node; nothing if that was not understood."""
        code = int(self.gres_code[job])
        return (self._gres[code] if code >= 0 else None) or NOTHING

    def terms(self, job: int, *, wish: bool = False) -> tuple[Term, ...]:
        """The ways to meet a job's constraint, or its wish."""
        code = int((self.prefer_code if wish else self.constraint_code)[job])
        return (self._terms[code] if code >= 0 else None) or ()

    def problem(self, job: int) -> str:
        """What of a job's request was not understood, "" if all was."""
        gres, constraint = int(self.gres_code[job]), int(self.constraint_code[job])
        wrong = self._gres_wrong[gres] if gres >= 0 else ""
        return wrong or (self._terms_wrong[constraint] if constraint >= 0 else "")

    def demand(self, jobs: Array, type_names: Sequence[str]) -> Array:
        """The table [requests, GPU types + other GRES] for a job of each request; empty if all is zero."""
        if not self.any:
            return np.zeros((0, 0), dtype=np.int64)
        names, others = [n.upper() for n in type_names], self.devices.other_names
        table = np.zeros((len(jobs), len(names) + len(others)), dtype=np.int64)
        for row, job in enumerate(jobs.tolist()):
            ask = self.gres(job)
            if len(ask.types) > 1:
                for kind, count in ask.types:
                    if kind.upper() in names:
                        table[row, names.index(kind.upper())] = count
            for name, count in ask.others:
                if name in others:
                    table[row, len(names) + others.index(name)] = count
        exact = any(g is not None and len(g.types) > 1 for g in self._gres)
        return table if exact or table.any() else np.zeros((0, 0), dtype=np.int64)


def sharing_code(ask: GresRequest) -> int:
    """The number of the way in which a request shares a GPU."""
    return SHARINGS.index(ask.sharing)


def _read(texts: Sequence[str], read: Callable[[str], T]) -> tuple[list[T | None], list[str]]:
    """What each text says, None if it was not understood; and why it was not."""
    found: list[T | None] = []
    wrong = []
    for text in texts:
        try:
            found.append(read(text))
            wrong.append("")
        except InputError as error:
            found.append(None)
            wrong.append(error.message)
    return found, wrong
