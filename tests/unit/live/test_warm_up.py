"""After warm-up nothing is compiled or loaded any more: a tick, a forecast and an answer take their own time alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import sys, tempfile, warnings
from pathlib import Path
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from numba.core.dispatcher import Dispatcher
import structlog
from reference.slurm_model import ModelSlurm
from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive, warm_up
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.journal import Journal
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
loaded = []
whole = Dispatcher.compile


def compile(self, signature):
    before = len(self.overloads)
    done = whole(self, signature)
    if len(self.overloads) > before:
        loaded.append(f"{self.py_func.__module__}.{self.py_func.__name__}")
    return done


Dispatcher.compile = compile
with tempfile.TemporaryDirectory() as directory:
    path = Path(directory) / "journal.sqlite"
    settings = dict(mode="enforce", state_dir=directory, updates_per_second=1e6, updates_per_tick=1000)
    slurm = ModelSlurm()
    with Journal(path) as journal, Journal(path, durable=False) as other:
        config = Config(**settings, **eval(sys.argv[2]))
        controller = Controller(config, slurm, journal, clock=lambda: slurm.now)
        live = ControllerLive(controller, other)
        warm_up(live)
        assert len(loaded) > 10, loaded
        loaded.clear()

        def tick():
            controller.start_forecasts._rested = 0.0
            slurm.now += 70
            assert controller.tick().outcome == "done"
            for job in (2, 3):
                live.place_in_queue(job)
                live.around(job)
            live.advise({"user_id": 0, "time_limit_min": 3, "gpus": 1})
            live.when({"limit": 600, "gpus": 1})
            print(len(slurm.alive()), controller.mode, *loaded)
            assert not loaded, loaded

        controller.tick()
        for count in (4, 330):
            for i in range(count):
                slurm.submit(limit=60 + i)
            tick()
            slurm.start(1)
            tick()
        controller.command("shadow", "test")
        tick()
"""

PROMISE = "p99 wait of any partition ≤ 1.2 × Slurm's own order"


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "sjf@limit"},
        {"policy": "auto"},
        {"policy": "rl:default", "placement_lever": "features", "starvation": "lane", "promise": PROMISE},
    ],
    ids=lambda settings: str(settings["policy"]),
)
def test_nothing_is_compiled_after_warm_up(settings: dict[str, object]) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(Path(__file__).parents[2]), repr(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
