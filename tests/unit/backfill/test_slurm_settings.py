"""A site's settings from a slurm.conf, from what scontrol shows, and one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.backfill.slurm_settings import SlurmSettings, config_values, read_slurm_conf, settings_from, with_options
from slurm_rl.errors import InputError

CONF = """
# a comment
SchedulerType=sched/backfill
SchedulerParameters=bf_continue,bf_interval=5,bf_window=2880,\\
bf_max_job_user=20,default_queue_depth=50,sched_min_interval=2000000
SelectTypeParameters=CR_Core_Memory,CR_LLN
KillWait=2
OverTimeLimit=1
PriorityMaxAge=14-0
PriorityDecayHalfLife=2-12:00:00
PriorityCalcPeriod=1
PriorityWeightAge=1000
PriorityWeightTRES=CPU=100,GRES/gpu=2000
PriorityFlags=MAX_TRES,NO_FAIR_TREE
NodeName=a[1-2] CPUs=64 Weight=5
"""


def test_a_slurm_conf_is_read(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF)
    read = read_slurm_conf(path)
    assert (read.bf_interval, read.bf_window, read.bf_max_job_user) == (5, 2 * 86400, 20)
    assert read.bf_continue
    assert (read.default_queue_depth, read.sched_min_interval) == (50, 2)
    assert read.least_loaded
    assert not read.pack_nodes
    assert (read.kill_wait, read.over_time_limit) == (2, 60)
    assert (read.priority_max_age, read.priority_decay_half_life, read.priority_calc_period) == (14 * 86400, 216000, 60)
    assert read.weights == {"age": 1000, "tres": 2100}
    assert read.tres_weights == {"CPU": 100, "GRES/gpu": 2000}
    assert read.priority_flags == ("MAX_TRES", "NO_FAIR_TREE")


def test_what_is_not_said_is_slurms_default() -> None:
    assert settings_from({}) == SlurmSettings()
    assert SlurmSettings().bf_interval == 30
    assert SlurmSettings().scheduler_parameters == ""


def test_what_scontrol_shows_is_read_likewise() -> None:
    shown = (
        "Configuration data as of 2026-11-17T10:00:00\n"
        "KillWait                = 30 sec\n"
        "OverTimeLimit           = 0 min\n"
        "PriorityCalcPeriod      = 00:05:00\n"
        "PriorityDecayHalfLife   = 7-00:00:00\n"
        "SchedulerParameters     = bf_interval=60\n"
        "SelectTypeParameters    = CR_CORE_MEMORY\n"
        "PriorityFlags           = \n"
        "PriorityWeightTRES      = (null)\n"
    )
    assert settings_from(config_values(shown)) == with_options(SlurmSettings(), ["bf_interval=60"])


def test_options_one_by_one() -> None:
    read = with_options(SlurmSettings(), ["BF_Interval=5", "killwait=2", "start_overhead=4", "PriorityWeightQOS=7"])
    assert (read.bf_interval, read.kill_wait, read.start_overhead, read.weights) == (5, 2, 4, {"qos": 7})
    assert read.scheduler_parameters == "bf_interval=5"


@pytest.mark.parametrize("option", ["bf_intervall=5", "bf_interval", "bf_interval=soon", "bf_interval=0"])
def test_a_wrong_option_names_itself(option: str) -> None:
    with pytest.raises(InputError, match="bf_interval"):
        with_options(SlurmSettings(), [option])
