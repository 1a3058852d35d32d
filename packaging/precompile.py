"""Fills slurm_rl/_data/kernels of an installed slurm-rl with compiled kernels: run by the Python they are for.

What is compiled is what the service, `replay` with its defaults and `explain` call. Anything else is compiled on the
machine when it is first used. The kernels are valid for these sources at this path alone, as numba has it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

_POLICIES = ("rl:default", "sjf-age@user", "multifactor")


def main() -> None:
    home = tempfile.mkdtemp()
    os.environ["XDG_CACHE_HOME"] = home
    import slurm_rl

    kernels = Path(slurm_rl.__file__).parent / "_data" / "kernels"
    shutil.rmtree(kernels, ignore_errors=True)
    kernels.mkdir()  # from now on numba compiles for the processor of shipped kernels
    import numba

    from slurm_rl.backfill.catalogue import RULES
    from slurm_rl.cli import main as slurm_rl_command
    from slurm_rl.config import Config
    from slurm_rl.controller.live import compile_kernels
    from slurm_rl.controller.live_policy import load_policy
    from slurm_rl.kernel.catalogue import find_kernel
    from slurm_rl.kernel.jit import SHIPPED_CPU
    from slurm_rl.kernel.linking import RARE
    from slurm_rl.kernel.links import compiled_at
    from slurm_rl.place.catalogue import PLACEMENTS

    if numba.config.CPU_NAME != SHIPPED_CPU:  # type: ignore[attr-defined]
        sys.exit(f"this machine cannot run what is compiled for {SHIPPED_CPU}: build the package on one that can")
    for name in _POLICIES:
        compile_kernels(load_policy(name), Config(policy=name))
    for row in (PLACEMENTS["best-fit"], RULES["easy"], RULES["slurm"]):
        for slot, where in row.kernels.items():
            if slot in RARE:
                compiled_at(slot, find_kernel(where))
    trace = kernels.parent / "traces" / "hetero.csv.gz"
    for backfill in ("easy", "slurm"):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            slurm_rl_command(["replay", str(trace), "--backfill", backfill, "--window", "0:0.1", "--json"])
        if '"runs"' not in said.getvalue():
            sys.exit(f"replay did not run: {said.getvalue()}")
    (built,) = (Path(home) / "slurm-rl" / "kernels").iterdir()
    shutil.copytree(built, kernels / built.name, ignore=shutil.ignore_patterns("*.lock"))
    drop_inner(kernels)
    shutil.rmtree(home)


def drop_inner(kernels: Path) -> None:
    """Leaves out what only other kernels call: it is part of these, and numba looks for it when it compiles alone."""
    from slurm_rl.kernel.jit import Inner

    modules = [m for name, m in list(sys.modules.items()) if name.startswith("slurm_rl")]
    found = [v.py_func for m in modules for v in vars(m).values() if isinstance(v, Inner)]
    inner = {(f"{Path(f.__code__.co_filename).stem}.{f.__qualname__}", f.__code__.co_firstlineno) for f in found}
    for path in kernels.rglob("*.nb[ci]"):
        name, _, rest = path.name.partition("-")
        if (name, int(rest.partition(".")[0])) in inner:
            path.unlink()


if __name__ == "__main__":
    main()
