"""Heuristics from outside: a formula over figures of a job, compiled into the engine as ours are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from slurm_rl.errors import InputError
from slurm_rl.kernel import formula as made
from slurm_rl.kernel import tables
from slurm_rl.kernel.imports import MARK
from slurm_rl.policy.catalogue import POLICIES, Policy
from slurm_rl.policy.vocabulary import WORDS

Formula = Callable[..., float]
_RAW = ("w", "now", "j")  # the parameters of a kernel of ours


@overload
def heuristic(given: Formula) -> Formula: ...
@overload
def heuristic(given: str | None = None, *, help: str = "") -> Callable[[Formula], Formula]: ...


def heuristic(given: Formula | str | None = None, *, help: str = "") -> Formula | Callable[[Formula], Formula]:
    """Makes a formula a policy by its name: higher scores first, ties by submission.

    Its parameters say what it looks at (`slurm_rl.FIGURES`): `def mine(wait, estimate): …`. Those with a default are
    constants. A function of `(w, now, j)` is taken as a kernel (docs/kernels.md). The function stays as it was.
    """

    def register(function: Formula) -> Formula:
        name = given if isinstance(given, str) else function.__name__.replace("_", "-")
        POLICIES.put(row_of(function, name, help or (inspect.getdoc(function) or "A formula.").splitlines()[0]))
        setattr(function, MARK, name)
        return function

    return register(given) if callable(given) else register


def row_of(function: Formula, name: str, help: str) -> Policy:
    """The row of a formula, its kernel compiled."""
    if not name or set(name) & set("@+,: \t\n"):
        raise InputError(f"a policy cannot be called {name!r}", remedy="use letters, digits, - and _")
    what, digest = f"heuristic {name}", made.digest_of(function)
    if tuple(inspect.signature(function).parameters) == _RAW:
        kernel = made.written("def kernel(w, now, j):\n    return given(w, now, j)\n", name, given=_jitted(function))
        where = made.keep(f"heuristic:{name}", kernel)
        return Policy(name, help, where, uses_estimate=True, uses_usage=True, before_submission=False, digest=digest)
    figures = made.figures_of(function, WORDS, what)
    if not figures:
        raise InputError(f"{what} looks at nothing", remedy=f"name figures: {', '.join(WORDS)}")
    words = [WORDS[f] for f in figures]
    source = (
        "def kernel(w, now, j):\n"
        "    s = t.jobs(w).request[j]\n"
        f"    return float(formula({', '.join(word.code for word in words)}))\n"
    )
    kernel = made.written(source, name, t=tables, formula=made.compiled(function, len(figures), what))
    return Policy(
        name,
        help,
        made.keep(f"heuristic:{name}", kernel),
        uses_estimate=any(word.estimated for word in words),
        fixed_order=not any(word.changes for word in words),
        uses_usage=any(word.of_usage for word in words),
        before_submission=all(word.at_submission for word in words),
        digest=digest,
    )


def _jitted(function: Formula) -> Any:
    from slurm_rl.kernel.jit import inlined

    return inlined(function)
