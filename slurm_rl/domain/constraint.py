"""A job's `--constraint`: features of nodes with and, or, parentheses, and `[a|b]`: one of them for all nodes."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from slurm_rl.errors import InputError

_TOKEN = re.compile(r"\s*([&|()]|[^&|()\[\]*\s]+)")


@dataclass(frozen=True, slots=True)
class Feature:
    """A node has this feature."""

    name: str


@dataclass(frozen=True, slots=True)
class Both:
    """`left & right`."""

    left: Term
    right: Term


@dataclass(frozen=True, slots=True)
class Either:
    """`left | right`."""

    left: Term
    right: Term


Term = Feature | Both | Either


def holds(term: Term, features: Collection[str]) -> bool:
    """Whether a node with these features will do."""
    match term:
        case Feature(name):
            return name in features
        case Both(left, right):
            return holds(left, features) and holds(right, features)
        case Either(left, right):
            return holds(left, features) or holds(right, features)


@lru_cache(maxsize=4096)
def parse_constraint(text: str) -> tuple[Term, ...]:
    """The ways in which it can be met: all nodes of a job in one of them; () for no constraint.

    Operators bind equally and from the left, as Slurm reads them. Counts (`a*2`) are refused with InputError. Features
    before a semicolon, `a,b;EXPRESSION`, are required besides.
    """
    required, semicolon, rest = text.rpartition(";")
    if semicolon:
        features = [Feature(name) for name in required.split(",") if name]
        found: list[Term] = []
        for way in parse_constraint(rest) or (None,):
            term: Term | None = way
            for feature in features:
                term = feature if term is None else Both(term, feature)
            if term is not None:
                found.append(term)
        return tuple(found)
    text = text.strip()
    if not text:
        return ()
    if "*" in text:
        raise InputError(f"constraint {text!r}: counts of features are not understood")
    if text.startswith("[") and text.endswith("]") and "[" not in text[1:]:
        inner = text[1:-1]
        if "|" in inner and "&" not in inner and "(" not in inner:
            return tuple(_parse(part, text) for part in inner.split("|"))
    if "[" in text or "]" in text:
        raise InputError(f"constraint {text!r}: brackets are understood as [a|b] alone")
    return (_parse(text, text),)


@lru_cache(maxsize=4096)
def names_in(text: str) -> frozenset[str]:
    """All features that an expression names."""
    return frozenset(re.findall(r"[^&|()\[\]*\s]+", text))


def _parse(text: str, whole: str) -> Term:
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InputError(f"constraint {whole!r} is not understood")
        tokens.append(match[1])
        at = match.end()

    def operand() -> Term:
        if not tokens:
            raise InputError(f"constraint {whole!r} ends too early")
        word = tokens.pop(0)
        if word == "(":
            found = expression()
            if not tokens or tokens.pop(0) != ")":
                raise InputError(f"constraint {whole!r}: a parenthesis is not closed")
            return found
        if word in "&|)":
            raise InputError(f"constraint {whole!r} is not understood")
        return Feature(word)

    def expression() -> Term:
        left = operand()
        while tokens and tokens[0] in "&|":
            operator = tokens.pop(0)
            right = operand()
            left = Both(left, right) if operator == "&" else Either(left, right)
        return left

    found = expression()
    if tokens:
        raise InputError(f"constraint {whole!r} is not understood")
    return found
