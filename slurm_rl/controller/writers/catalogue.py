"""Every writer, in the order in which a tick writes; undo goes the other way."""

from __future__ import annotations

from typing import Any

from slurm_rl.controller.writers.gpu_type import GpuTypeWriter
from slurm_rl.controller.writers.protocol import Writer
from slurm_rl.controller.writers.site_factor import SiteFactorWriter
from slurm_rl.controller.writers.start_time import StartTimeWriter

WRITERS: tuple[type[Writer[Any]], ...] = (SiteFactorWriter, GpuTypeWriter, StartTimeWriter)
