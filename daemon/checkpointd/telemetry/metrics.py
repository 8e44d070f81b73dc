"""Every metric, declared once, in a class that is given its registry.

Here are the numbers of this replica; those that all replicas agree on are ``Metrics.store``.
Who moves them is ``record``, and ``heartbeat`` for the loop's lag.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from checkpointd.domain.states import (
    AdoptOutcome,
    FailureReason,
    PassName,
    PassOutcome,
    ReplayOutcome,
    ThrottleReason,
)
from checkpointd.telemetry.store_series import StoreSeries

PASS_SECONDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
"""From an idle census to the first scan of a large source."""
REPLAY_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Up to the default ``replay.timeout``, past which a replay is cancelled."""

REDIS_OPERATIONS = ("read", "write", "lease")
ACQUISITIONS = ("acquired", "busy", "error")
LOSS_PHASES = ("before_commit", "at_commit")
REPLAY_ENDS = ("migrated", "failed")


class Metrics:
    """Names: ``checkpointd_<noun>_<unit>``; the client adds ``_total`` to counters.

    Every label value is there from the start, at 0: an alert on a rate needs a series to
    compare with. At most 400 series in all, whatever is stored.
    """

    def __init__(self, registry: CollectorRegistry, *, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self.store = StoreSeries(registry)
        ProcessCollector(registry=registry)

        self.build_info = Gauge(
            "checkpointd_build_info",
            "Always 1; the version is in the label.",
            ["version"],
            registry=registry,
        )
        self.build_info.labels(version).set(1)

        self.pass_runs = Counter(
            "checkpointd_pass_runs",
            "Runs of a pass by how they ended; moves when a run ends, or is found not to have begun.",
            ["pass", "outcome"],
            registry=registry,
        )
        self.pass_duration = Histogram(
            "checkpointd_pass_duration_seconds",
            "Wall time of one run of a pass, however it ended.",
            ["pass"],
            buckets=PASS_SECONDS,
            registry=registry,
        )
        self.pass_interval = Gauge(
            "checkpointd_pass_interval_seconds",
            "How often the pass is due; changes with the configuration.",
            ["pass"],
            registry=registry,
        )
        self.pass_last_success = Gauge(
            "checkpointd_pass_last_success_timestamp_seconds",
            "When the pass last did what it should, which may be nothing; 0 before it has.",
            ["pass"],
            registry=registry,
        )

        self.redis_up = Gauge(
            "checkpointd_redis_up",
            "1 while the last census could read the store.",
            registry=registry,
        )
        self.redis_errors = Counter(
            "checkpointd_redis_errors",
            "Commands of this replica that the store refused or did not answer.",
            ["operation"],
            registry=registry,
        )
        self.clock_offset = Gauge(
            "checkpointd_clock_offset_seconds",
            "This process's clock minus the store's, at the last census. The store's judges ages.",
            registry=registry,
        )
        self.event_loop_lag = Gauge(
            "checkpointd_event_loop_lag_seconds",
            "How late the event loop is, as of the scrape.",
            registry=registry,
        )

        self.adopt_refs = Counter(
            "checkpointd_adopt_refs",
            "Heads that this replica's scans looked at, by what they found.",
            ["outcome"],
            registry=registry,
        )

        self.drain_replays = Counter(
            "checkpointd_drain_replays",
            "Claimed refs by how they left this replica's hands.",
            ["outcome"],
            registry=registry,
        )
        self.drain_replay_failures = Counter(
            "checkpointd_drain_replay_failures",
            "Replays that ended without a link, by reason; each attempt counts.",
            ["reason"],
            registry=registry,
        )
        self.drain_replay_duration = Histogram(
            "checkpointd_drain_replay_duration_seconds",
            "Wall time of one replay with its commit, by whether it ended in a link.",
            ["outcome"],
            buckets=REPLAY_SECONDS,
            registry=registry,
        )
        self.drain_lease_acquisitions = Counter(
            "checkpointd_drain_lease_acquisitions",
            "Leases that this replica asked for, by the answer.",
            ["outcome"],
            registry=registry,
        )
        self.drain_leases_lost = Counter(
            "checkpointd_drain_leases_lost",
            "Leases lost while a replay ran, by when it was noticed. Nothing was written.",
            ["phase"],
            registry=registry,
        )
        self.drain_replays_stuck = Counter(
            "checkpointd_drain_replays_stuck",
            "Replays that went on a lease's TTL after they were cancelled. Each keeps its place.",
            registry=registry,
        )
        self.drain_leases_held = Gauge(
            "checkpointd_drain_leases_held",
            "Leases that this replica holds now.",
            registry=registry,
        )
        self.drain_concurrency_limit = Gauge(
            "checkpointd_drain_concurrency_limit",
            "Replays that this replica allows itself at once now; falls while throttled.",
            registry=registry,
        )
        self.drain_throttled = Gauge(
            "checkpointd_drain_throttled",
            "1 while this replica claims less than it could, by reason.",
            ["reason"],
            registry=registry,
        )
        self.drain_throttled_seconds = Counter(
            "checkpointd_drain_throttled_seconds",
            "Time for which this replica claimed less than it could, by reason.",
            ["reason"],
            registry=registry,
        )
        self._create_children()

    def _create_children(self) -> None:
        for name in PassName:
            for outcome in PassOutcome:
                self.pass_runs.labels(name, outcome)
        by_label: tuple[tuple[Counter | Gauge | Histogram, Iterable[str]], ...] = (
            (self.pass_duration, PassName),
            (self.pass_interval, PassName),
            (self.pass_last_success, PassName),
            (self.redis_errors, REDIS_OPERATIONS),
            (self.adopt_refs, AdoptOutcome),
            (self.drain_replays, ReplayOutcome),
            (self.drain_replay_failures, FailureReason),
            (self.drain_replay_duration, REPLAY_ENDS),
            (self.drain_lease_acquisitions, ACQUISITIONS),
            (self.drain_leases_lost, LOSS_PHASES),
            (self.drain_throttled, ThrottleReason),
            (self.drain_throttled_seconds, ThrottleReason),
        )
        for metric, words in by_label:
            for word in words:
                metric.labels(word)
