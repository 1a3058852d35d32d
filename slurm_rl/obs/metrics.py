"""Prometheus metrics of the live side, all with the prefix `slurmrl_`; Slurm's own are not repeated."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry a process, so that tests can have several."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.ticks = Counter(
            "slurmrl_ticks",
            "Ticks of the controller by outcome: done, standby (another controller leads), static (it could not "
            "observe, decide or journal, and wrote nothing) or off.",
            ["outcome"],
            registry=registry,
        )
        self.tick_seconds = Histogram(
            "slurmrl_tick_seconds",
            "Seconds a tick spent in a phase: observe, decide, apply, foresee.",
            ["phase"],
            buckets=(0.01, 0.03, 0.1, 0.25, 0.5, 1, 3, 10, 30),
            registry=registry,
        )
        self.updates = Counter(
            "slurmrl_updates",
            "Job updates by outcome: applied, refused, unknown, not sent; shadow ones were only recorded.",
            ["status"],
            registry=registry,
        )
        self.jobs = Gauge(
            "slurmrl_jobs",
            "Pending jobs at the last tick: ordered, left_alone (held, dependent, cron, reserved …), promoted (waited "
            "too long), deferred (although they fit) or unsettled (their SiteFactor is not yet as "
            "decided).",
            ["kind"],
            registry=registry,
        )
        self.deferrals = Counter(
            "slurmrl_deferrals",
            "Start times written to defer a job, renewals included.",
            registry=registry,
        )
        self.deferred_ended = Counter(
            "slurmrl_deferred_ended",
            "Deferred jobs by outcome: awaited_type (started in time on the GPU type they "
            "waited for), other_type (started in time on another), late (did not start in time), gone (cancelled, or "
            "over before they were seen to run), changed (somebody else set a start time).",
            ["outcome"],
            registry=registry,
        )
        self.deferral_rate = Gauge(
            "slurmrl_deferral_rate",
            "Of the jobs deferred that started or were late since the service began: the share that started in "
            "time (allocation), and that did so on the awaited GPU type (success). NaN before the first.",
            ["kind"],
            registry=registry,
        )
        self.forecasts = Counter(
            "slurmrl_forecasts",
            "Forecasts of start times by outcome: held (the start lay in the 80% range), early, late, or "
            "gone (cancelled, or its start was not seen).",
            ["outcome"],
            registry=registry,
        )
        self.forecast_held = Gauge(
            "slurmrl_forecast_held_ratio",
            "Of the forecasts of the last seven days whose outcome is known, the share that held; 0.8 is right. NaN "
            "before the first.",
            registry=registry,
        )
        self.drift = Counter("slurmrl_drift", "SiteFactors that were not as written when read back.", registry=registry)
        self.fallbacks = Counter(
            "slurmrl_fallbacks", "Ticks in which the policy's scores were unusable.", registry=registry
        )
        self.choices = Gauge(
            "slurmrl_choices",
            "Of a policy that chooses (meta:, bandit:), by the queue's partitions: decisions so far, switches from one "
            "policy to another, and switches held_back by the margin or by the hour's bound.",
            ["partitions", "kind"],
            registry=registry,
        )
        self.models_refused = Counter(
            "slurmrl_models_refused",
            "Promoted models that were not taken over: wrong hash, shape, features or values; the last good one stays.",
            registry=registry,
        )
        self.withheld = Gauge(
            "slurmrl_promise_withheld",
            "Share of the policy's influence on a partition that is withheld to keep the promise; 1: handed back.",
            ["partition"],
            registry=registry,
        )
        self.promise_gap = Gauge(
            "slurmrl_promise_gap",
            "A wait as a share of its promised bound: above 1 the promise is broken.",
            ["kind", "name", "figure"],
            registry=registry,
        )
        self.journal_errors = Counter(
            "slurmrl_journal_errors",
            "Failures to write the journal; nothing is written to Slurm then.",
            registry=registry,
        )
        self.mode = Gauge("slurmrl_mode", "1 for the mode in effect.", ["mode"], registry=registry)
        self.leader = Gauge("slurmrl_leader", "1 while this controller holds the lease.", registry=registry)
        self.static = Gauge(
            "slurmrl_static", "1 while the last tick failed and the queue is unchanged.", registry=registry
        )
        self.last_tick = Gauge(
            "slurmrl_last_tick_timestamp_seconds", "When the last tick ended well.", registry=registry
        )
        self.budget = Gauge(
            "slurmrl_updates_per_second_allowed",
            "The present budget; it halves while slurmctld is busy.",
            registry=registry,
        )
        self.slurm_calls = Gauge(
            "slurmrl_tick_slurm_calls",
            "Slurm commands that the last tick ran to read, each at least one RPC; updates are counted by themselves.",
            registry=registry,
        )
        self.slurm_bytes = Gauge(
            "slurmrl_tick_slurm_bytes",
            "Characters that the last tick read from Slurm; beyond mb_per_tick, ticks are spaced out.",
            registry=registry,
        )
        self.requests = Counter(
            "slurmrl_requests", "Requests to the service by route and status.", ["route", "code"], registry=registry
        )
        self.request_seconds = Histogram(
            "slurmrl_request_seconds",
            "Seconds a request took in the service.",
            ["route"],
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.03, 0.1, 0.2, 0.5),
            registry=registry,
        )

    def set_mode(self, mode: str) -> None:
        for name in ("off", "shadow", "enforce"):
            self.mode.labels(name).set(name == mode)

    def text(self) -> bytes:
        """What /metrics answers."""
        return generate_latest(self.registry)
