"""Whatever happens to the queue and to the controllers: undo leaves nothing of ours."""

from __future__ import annotations

import structlog
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from reference.undo_machine import Machine, ModelSite


class OnTheModel(Machine):
    site_of = ModelSite


def test_whatever_happens_nothing_of_ours_is_left_behind() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        run_state_machine_as_test(
            OnTheModel,
            settings=settings(
                max_examples=40,
                stateful_step_count=60,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
    finally:
        structlog.reset_defaults()
    print(f"{OnTheModel.steps} steps, {OnTheModel.undone} undos")
    assert OnTheModel.steps > 1000
