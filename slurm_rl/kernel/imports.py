"""Names from outside: `module:name`, `FILE.py:name`, or an entry point of an installed package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from slurm_rl.errors import InputError, unknown_name

MARK = "__slurm_rl__"  # attribute of a decorated function: the name it was registered by


def is_file(text: str) -> bool:
    return text.partition(":")[0].endswith(".py")


def module_of(text: str) -> ModuleType:
    """Imports the module or the file before the colon; its errors are told as one line."""
    where = text.partition(":")[0]
    try:
        return _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except InputError:
        raise
    except Exception as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        at = f" (line {last.tb_lineno} of {last.tb_frame.f_code.co_filename})" if last is not None else ""
        raise InputError(f"{where} cannot be imported: {type(error).__name__}: {error}{at}") from error


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InputError("no such file", file=str(path))
    name = f"_slurm_rl_{path.stem}_{abs(hash(str(path))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError("is no Python file", file=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # what it defines may be looked up by it
    spec.loader.exec_module(module)
    return module


def attribute(module: ModuleType, name: str, where: str) -> Any:
    """What a module has by that name."""
    if not hasattr(module, name):
        raise unknown_name(f"name in {where.partition(':')[0]}", name, [n for n in vars(module) if n[:1] != "_"])
    return getattr(module, name)


def entry_names(group: str) -> tuple[str, ...]:
    """What installed packages offer."""
    return tuple(point.name for point in entry_points(group=group))


def load_entry(group: str, name: str) -> Any:
    """What an installed package offers by that name; None: none does."""
    for point in entry_points(group=group):
        if point.name == name:
            try:
                return point.load()
            except Exception as error:
                raise InputError(
                    f"{name} of the package {point.dist.name if point.dist else point.value} cannot be loaded: "
                    f"{type(error).__name__}: {error}"
                ) from error
    return None
