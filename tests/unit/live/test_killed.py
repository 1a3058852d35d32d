"""kill -9 of a controller, or of an undo, at any statement of the journal and at any write: undo is complete."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_SCRIPT = """
import os, pickle, signal, sys, time, warnings
from pathlib import Path
time.sleep = lambda s: None  # the model of Slurm needs no pause
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from reference.slurm_model import ModelSlurm
from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.obs import journal as journals
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

here = Path(sys.argv[2])


class Killing:
    '''Counts statements and writes; at the given one the process is gone. What Slurm has is in a file all along.'''

    def __init__(self, slurm, file, at):
        self.slurm, self.file, self.at, self.count = slurm, file, at, 0
        slurm.before_write = self.step

    def step(self, *what):
        self.count += 1
        self.file.write_bytes(pickle.dumps({**vars(self.slurm), "before_write": None}))
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path):
        journal = journals.Journal.__new__(journals.Journal)
        connect = journals.sqlite3.connect

        def traced(*a, **k):
            db = connect(*a, **k)
            db.set_trace_callback(self.step)
            return db

        journals.sqlite3.connect = traced
        try:
            journal.__init__(path)
        finally:
            journals.sqlite3.connect = connect
        return journal


def scenario(slurm, kill, path):
    journal = kill.open(path)
    config = Config(mode="enforce", policy="sjf@limit", updates_per_second=1e4, placement_lever="features")
    c = Controller(config, slurm, journal, clock=lambda: slurm.now)
    c.start_forecasts.seconds = 0.0  # forecasts write neither to Slurm nor to this journal
    for i in range(4):
        slurm.submit(limit=600 * (9 - i))
    array = slurm.submit(tasks=3, limit=60)
    c.tick()
    journal.advise(slurm.now, 0, 333)
    slurm.submit(site=333, held=True)
    slurm.hold(1)
    slurm.start(2)
    slurm.requeue(2)
    slurm.start(array)
    slurm.priority(3, 77)
    slurm.submit(limit=30)
    slurm.now += 70
    c.tick()
    c.command("shadow", "test")
    c.tick()
    c.command("enforce", "test")
    c.tick()
    assert any(r.features for r in slurm.alive()), "jobs were steered to a type"
    undo(slurm, journal, clock=lambda: slurm.now, sleep=lambda s: None)
    kill.step()


def run(at):
    path, file = here / f"{at}.sqlite", here / f"{at}.slurm"
    slurm = ModelSlurm()
    kill = Killing(slurm, file, at)
    pid = os.fork()
    if pid == 0:
        try:
            scenario(slurm, kill, path)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, f"at {at}: the scenario failed"
    vars(slurm).update(pickle.loads(file.read_bytes()))
    slurm.before_write = lambda update: None
    with journals.Journal(path) as journal:
        slurm.now += 1
        done = undo(slurm, journal, clock=lambda: slurm.now, sleep=lambda s: None)
        assert done.complete, (at, done)
        left = {r.job_id: r.site for r in slurm.alive() if r.site}
        assert not left, (at, left)
        steered = {r.job_id: r.state for r in slurm.alive() if r.features}
        known = {job for job, _ in journal.steered()}
        assert all(state != "PENDING" and job in known for job, state in steered.items()), (at, steered, known)
    for name in here.glob(f"{at}.*"):
        name.unlink()
    return killed


warm = ModelSlurm()  # everything is compiled and loaded once, before the forks
scenario(warm, Killing(warm, here / "warm.slurm", 0), here / "warm.sqlite")
at = 1
while run(at):
    at += 1
print(at - 1)
"""


def test_undo_is_complete_after_a_kill_at_any_statement_and_any_write() -> None:
    memory = Path("/dev/shm")  # hundreds of journals, each of which waits for its disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        command = [sys.executable, "-c", _SCRIPT, str(Path(__file__).parents[2]), directory]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"killed at each of {done.stdout.strip()} steps")
    assert int(done.stdout) > 150
