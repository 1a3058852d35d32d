"""`slurm-rl serve`: the service on its unix socket, and the controller beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

slurm-rl serve                                   settings from /etc/slurm-rl/slurm-rl.toml

SLURM_RL_MODE=enforce slurm-rl serve --config my.toml

slurm-rl serve --once --json                     one tick of the controller, without the service"""


@app.command(epilog=_EPILOG)
def serve(
    config: Annotated[Path | None, typer.Option(help="The configuration file.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Make one tick and end, without the service.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write to an unknown release of Slurm too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print one JSON value.")] = False,
) -> None:
    """Run the service, and the controller that reorders the pending queue (in enforce mode)."""
    import dataclasses
    import json
    import threading
    from contextlib import suppress

    from slurm_rl.config import load
    from slurm_rl.controller.live import ControllerLive, warm_up
    from slurm_rl.controller.tick import Controller
    from slurm_rl.domain.keys import parse_keys
    from slurm_rl.errors import InputError
    from slurm_rl.obs import logs, systemd
    from slurm_rl.obs.journal import Journal
    from slurm_rl.slurm.connect import connect
    from slurm_rl.telemetry.store import FILE, Store

    settings = load(config).config
    logs.configure(settings.log_level)
    conf = Path(settings.slurm_conf) if settings.slurm_conf else None
    force = force or settings.write_unknown_release
    keys = parse_keys(settings.estimate_keys, "estimate_keys")
    client = connect(conf, settings.client, settings.slurm_timeout, force=force, keys=keys)
    journal = Journal(settings.journal)
    controller = Controller(settings, client, journal)
    if once:
        with suppress(InputError):  # no agent was ever asked
            controller.learning.gpus.measured = Store(Path(settings.state_dir) / FILE, read_only=True)
        with journal:
            tick = dataclasses.asdict(controller.tick())
        print(json.dumps(tick) if as_json else "  ".join(f"{k}={v}" for k, v in tick.items()))
        return

    from slurm_rl.serve import run
    from slurm_rl.telemetry.measured import MeasuredJobs

    live = ControllerLive(controller, Journal(settings.journal, durable=False), config)
    live.measurements = MeasuredJobs(settings, live.metrics.registry)
    controller.learning.gpus.measured = live.measurements

    controller.choose_with = ["--from-slurm", *(["--config", str(config)] if config else [])]

    def control() -> None:
        warm_up(live)
        systemd.notify("READY=1")
        controller.run()

    thread = threading.Thread(target=control, name="controller")
    watch = systemd.Watchdog(lambda: thread.is_alive() and live.lively())

    def listening() -> None:
        thread.start()
        watch.start()

    try:
        run.serve(settings, live, listening)
    finally:
        systemd.notify("STOPPING=1")
        live.measurements.close()
        controller.stop()
        if thread.ident is not None:
            thread.join(timeout=settings.slurm_timeout + 5)
        watch.stop()
