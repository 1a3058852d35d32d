"""What a job used, added up by hand: energy by counter and by power, gaps, faults."""

from __future__ import annotations

import json
import math

import pytest

from slurm_rl.telemetry.account import Account
from slurm_rl.telemetry.use import Tick, Use, pack, unpack


def fed(*uses: Use | list[Use], step: float = 1.0) -> Account:
    """An account after one sample a step; each is a use, or several."""
    account = Account()
    for i, u in enumerate(uses):
        feed(account, i + 1, i * step, u)
    return account


def feed(account: Account, number: int, at: float, uses: Use | list[Use], boot: int = 1) -> None:
    listed = tuple(uses) if isinstance(uses, list) else (uses,)
    account.feed(Tick(number, round(at * 1e9), 1000.0 + at, boot, listed))


def use(job: int = 5, gpu: int = 0, **values: object) -> Use:
    return Use(gpu, job=job, **({"util": 50, "milliwatts": 100_000} | values))  # type: ignore[arg-type]


def record(account: Account, job: int = 5) -> dict:
    found = account.close(job, "n1")
    assert found is not None
    return found


def test_the_counter_tells_the_energy() -> None:
    account = fed(*[use(millijoules=1_000_000 + 250_000 * i) for i in range(11)])
    assert record(account)["energy_j"] == 2500.0


def test_without_a_counter_power_is_integrated() -> None:
    account = fed(use(milliwatts=100_000), use(milliwatts=200_000), use(milliwatts=200_000))
    assert record(account)["energy_j"] == 350.0


@pytest.mark.parametrize("counter", [True, False])
def test_a_scripted_profile_is_within_one_percent(counter: bool) -> None:
    """Ramps, bursts of 7 s and a swing around 250 W for an hour; the truth is the integral."""

    def watts(t: float) -> float:
        return 60 + 240 * (int(t) % 20 < 7) + 50 * math.sin(t / 13) + 30 * min(t / 1800, 1)

    account, truth, number = Account(), 0.0, 0
    for i in range(36_001):  # ten steps of the truth a second
        t = i / 10
        if i % 10 == 0:
            number += 1
            millijoules = round(truth * 1000) if counter else None
            feed(account, number, t, use(milliwatts=round(watts(t) * 1000), millijoules=millijoules))
        truth += watts(t + 0.05) / 10
    assert record(account)["energy_j"] == pytest.approx(truth, rel=0.001 if counter else 0.01)


def test_utilization_idle_time_and_memory() -> None:
    loads = [0, 0, 0, 100, 100, 100, 100, 100, 40, 40, 40]
    account = fed(*[use(util=u, memory_mb=100 * i, processes=u > 0) for i, u in enumerate(loads)])
    r = record(account)
    assert r["util_mean"] == 62.0  # 0 0 100×5 40×3 over ten seconds
    assert r["util_p95"] == 100
    assert r["idle_gpu_minutes"] == pytest.approx(2 / 60, abs=1e-3)
    assert r["memory_peak_mb"] == 1000
    assert r["gpu_seconds"] == 10.0
    assert r["complete"]


def test_the_95th_percentile_by_hand() -> None:
    r = record(fed(*[use(util=90 if i > 95 else 10) for i in range(101)]))
    assert r["util_p95"] == 10
    r = record(fed(*[use(util=90 if i > 94 else 10) for i in range(101)]))
    assert r["util_p95"] == 90


def test_two_of_eight_gpus_used() -> None:
    samples = [[use(gpu=g, util=44 if g < 2 else 0, processes=g < 2) for g in range(8)] for _ in range(61)]
    r = record(fed(*samples))
    assert (r["gpus"], r["gpus_used"], r["util_mean"]) == (8, 2, 11.0)
    assert r["idle_gpu_minutes"] == 6.0
    assert r["places"]["0"]["util"] == 44.0


def test_sharers_get_their_shares_and_together_all_of_it() -> None:
    samples = [[use(5, share=0.25, millijoules=i * 400_000), use(6, share=0.75)] for i in range(11)]
    account = fed(*samples)
    assert (record(account)["energy_j"], record(account, 6)["energy_j"]) == (1000.0, 3000.0)


def test_after_a_gap_the_counter_still_tells_if_the_holders_are_the_same() -> None:
    account = fed(use(millijoules=0), use(millijoules=100_000))
    feed(account, 3, 301.0, use(millijoules=30_100_000))
    r = record(account)
    assert r["energy_j"] == 30_100.0
    assert r["gpu_seconds"] == 301.0
    assert r["unmeasured_seconds"] == 0.0
    assert r["util_mean"] == 50.0  # of the second that was seen


def test_after_a_gap_without_a_counter_the_time_is_called_unmeasured() -> None:
    account = fed(use(), use())
    feed(account, 3, 301.0, use())
    r = record(account)
    assert (r["energy_j"], r["unmeasured_seconds"], r["complete"]) == (100.0, 300.0, False)


def test_a_gap_in_which_the_holder_changed_is_nobodys() -> None:
    account = fed(use(5, millijoules=0), use(5, millijoules=100_000))
    feed(account, 3, 301.0, use(6, millijoules=30_100_000))
    feed(account, 4, 302.0, use(6, millijoules=30_200_000))
    assert (record(account)["energy_j"], record(account, 6)["energy_j"]) == (100.0, 100.0)


def test_a_counter_that_was_reset_or_is_mad_gives_way_to_power() -> None:
    account = fed(use(millijoules=5_000_000), use(millijoules=100), use(millijoules=10**15), use(millijoules=10**15))
    assert record(account)["energy_j"] == 200.0  # the last second's counter stood still, and is believed


def test_a_lost_gpu_is_held_but_not_measured() -> None:
    lost = Use(0, job=5, lost=True)
    account = fed(use(), *[lost] * 60, use(), use())
    r = record(account)
    assert r["gpu_seconds"] == 62.0
    assert r["unmeasured_seconds"] == 61.0
    assert r["energy_j"] == 100.0


def test_a_clock_that_jumps_changes_labels_only() -> None:
    account = Account()
    for i in range(11):
        wall = 1e9 + i if i < 5 else -5e8 + i
        account.feed(Tick(i + 1, i * 10**9, wall, 1, (use(millijoules=i * 100_000),)))
    assert record(account)["energy_j"] == 1000.0


def test_nothing_is_counted_across_a_boot() -> None:
    account = fed(use(millijoules=10), use(millijoules=20))
    feed(account, 3, 5.0, use(millijoules=5000), boot=2)
    feed(account, 4, 6.0, use(millijoules=105_000), boot=2)
    assert record(account)["energy_j"] == pytest.approx(100.01)


def test_slowed_clocks_are_counted() -> None:
    r = record(fed(use(throttle=0), use(throttle=0x40), use(throttle=0x4), use(throttle=0x8)))
    assert r["slowed_seconds"] == 2.0


def test_the_clock_counts_while_kernels_run() -> None:
    r = record(fed(use(util=90), use(util=50, sm_mhz=1000), use(util=0, sm_mhz=210), use(util=100, sm_mhz=1300)))
    assert r["sm_mhz"] == 1200, "(50 × 1000 + 100 × 1300) / 150"
    assert record(fed(use(util=0, sm_mhz=210), use(util=0, sm_mhz=210)))["sm_mhz"] is None
    assert record(fed(use(util=50), use(util=50)))["sm_mhz"] is None, "a driver that does not tell"


def test_watts_of_a_type_held_and_free() -> None:
    account = Account()
    account.types = {0: "a100", 1: "a100"}
    for i in range(11):
        feed(account, i + 1, i, [use(5, 0, milliwatts=300_000), use(0, 1, milliwatts=55_000)])
    watts = account.watts["a100"]
    assert (watts.held_joules / watts.held_seconds, watts.free_joules / watts.free_seconds) == (300.0, 55.0)


def test_a_kept_account_goes_on_as_if_nothing_had_been() -> None:
    samples = [[use(5, 0, util=i % 101, millijoules=i * 90_000), use(6, 1, instance=7)] for i in range(200)]
    whole, broken = fed(*samples), fed(*samples[:77])
    broken = Account.load(json.loads(json.dumps(broken.dump())))
    for i, s in enumerate(samples[77:], 77):
        feed(broken, i + 1, i, s)
    assert broken.dump() == whole.dump()
    assert record(broken) == record(whole)


def test_samples_come_back_from_their_records() -> None:
    tick = Tick(
        9,
        12_345_678_901,
        1_800_000_000.25,
        77,
        (
            Use(3, 9, 12345, 0.25, 99, 12, 40_000, 399_500, 2**50, 1980, 2619, 85, 0x4, True, False, True),
            Use(4, lost=True),
        ),
    )
    assert list(unpack(pack(tick))) == [tick]


def test_a_sample_of_which_a_record_is_missing_is_left_out() -> None:
    ticks = [Tick(n, n, float(n), 1, tuple(Use(g) for g in range(4))) for n in range(1, 5)]
    records = [r for t in ticks for r in pack(t)]
    for missing in range(len(records)):
        left = list(unpack(records[:missing] + records[missing + 1 :]))
        assert left == [t for i, t in enumerate(ticks) if i != missing // 4]
