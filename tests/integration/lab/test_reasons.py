"""There are words for every reason that a release of Slurm can give."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from slurm_rl.lab import roots
from slurm_rl.slurm.reasons import known

pytestmark = [pytest.mark.slurm, pytest.mark.releases]

# Slurm's own library names its reasons by number; beyond the last it gives the number back.
_LIST = """
import ctypes
library = ctypes.CDLL("/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so")
names = ("slurm_job_reason_string", "job_state_reason_string", "slurm_job_state_reason_string")
name = getattr(library, next(n for n in names if hasattr(library, n)))
name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_int]
print(*(name(i).decode() for i in range(300)), sep="\\n")
"""


def test_every_reason_of_the_release_has_words(slurm_release: str) -> None:
    python = shlex.split(roots.find(slurm_release).in_namespace("python3")) if slurm_release else [sys.executable]
    said = subprocess.run([*python, "-c", _LIST], capture_output=True, text=True, check=True, timeout=120).stdout
    codes = {code for code in said.split("\n") if code and not code.isdigit() and code != "?"}
    assert len(codes) > 150
    assert sorted(code for code in codes if not known(code)) == []
