from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from checkpointd.domain.refs import IssuanceFreeze
from checkpointd.domain.states import (
    LEGACY_STATES,
    AdoptOutcome,
    DrainState,
    ExpiryKind,
    FailureReason,
    HoldReason,
    PassName,
    PassOutcome,
    RefState,
    ReplayOutcome,
    StallCause,
    ThrottleReason,
    WriterLine,
)
from checkpointd.domain.tally import TTF_BOUNDS_S, DrainStatus, StoreTally
from checkpointd.telemetry.metrics import Metrics

Scrape = Callable[[], dict[str, float]]
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
DRAINING = DrainStatus(state=DrainState.DRAINING)

DESIGNED: dict[str, tuple[str, dict[str, set[str]]]] = {
    "build_info": ("gauge", {"version": {"1.2.3"}}),
    "pass_runs": ("counter", {"pass": set(PassName), "outcome": set(PassOutcome)}),
    "pass_duration_seconds": ("histogram", {"pass": set(PassName)}),
    "pass_interval_seconds": ("gauge", {"pass": set(PassName)}),
    "pass_last_success_timestamp_seconds": ("gauge", {"pass": set(PassName)}),
    "redis_up": ("gauge", {}),
    "redis_errors": ("counter", {"operation": {"read", "write", "lease"}}),
    "redis_memory_ratio": ("gauge", {}),
    "clock_offset_seconds": ("gauge", {}),
    "event_loop_lag_seconds": ("gauge", {}),
    "expiry_refs_expired": ("counter", {"reason": set(ExpiryKind)}),
    "expiry_open_refs": ("gauge", {"age": {"in_grace", "overdue", "future"}}),
    "expiry_oldest_open_timestamp_seconds": ("gauge", {}),
    "expiry_grace_seconds": ("gauge", {}),
    "expiry_held": ("gauge", {"reason": set(HoldReason)}),
    "expiry_late_finalizations": ("counter", {}),
    "expiry_time_to_finalize_seconds": ("histogram", {}),
    "issuance_frozen": ("gauge", {"line": set(WriterLine)}),
    "freeze_partitions": ("gauge", {"copy": {"declared", "carrying"}}),
    "issuance_refused": ("counter", {}),
    "adopt_refs": ("counter", {"outcome": set(AdoptOutcome)}),
    "adopt_scan_started_timestamp_seconds": ("gauge", {}),
    "adopt_scan_completed_timestamp_seconds": ("gauge", {}),
    "adopt_unregistrable_threads": ("gauge", {}),
    "drain_state": ("gauge", {"state": set(DrainState)}),
    "drain_stalled": ("gauge", {"cause": set(StallCause)}),
    "drain_refs": ("gauge", {"state": set(LEGACY_STATES)}),
    "drain_blocked_refs": ("gauge", {"reason": set(FailureReason)}),
    "drain_baseline_refs": ("gauge", {}),
    "drain_discovered_refs": ("counter", {"source": {"catch_up", "written_after_freeze"}}),
    "drain_reopened": ("counter", {}),
    "drain_replays": ("counter", {"outcome": set(ReplayOutcome)}),
    "drain_replay_failures": ("counter", {"reason": set(FailureReason)}),
    "drain_replay_duration_seconds": ("histogram", {"outcome": {"migrated", "failed"}}),
    "drain_lease_acquisitions": ("counter", {"outcome": {"acquired", "busy", "error"}}),
    "drain_leases_lost": ("counter", {"phase": {"before_commit", "at_commit"}}),
    "drain_replays_stuck": ("counter", {}),
    "drain_leases_held": ("gauge", {}),
    "drain_concurrency_limit": ("gauge", {}),
    "drain_throttled": ("gauge", {"reason": set(ThrottleReason)}),
    "drain_throttled_seconds": ("counter", {"reason": set(ThrottleReason)}),
    "drain_frozen_timestamp_seconds": ("gauge", {}),
    "drain_last_progress_timestamp_seconds": ("gauge", {}),
    "drain_completed_timestamp_seconds": ("gauge", {}),
    "drain_oldest_pending_timestamp_seconds": ("gauge", {}),
    "drain_eta_seconds": ("gauge", {}),
}
"""The interface: dashboards and alerts elsewhere rely on these names, types and words."""


class TestTheMetrics:
    def test_are_those_that_were_promised(
        self, metrics: Metrics, registry: CollectorRegistry
    ) -> None:
        metrics.store.show(StoreTally(), DRAINING)
        seen: dict[str, tuple[str, dict[str, set[str]]]] = {}
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            if not family.name.startswith("checkpointd_"):
                continue
            labels: dict[str, set[str]] = {}
            for sample in family.samples:
                for key, value in sample.labels.items():
                    if key != "le":
                        labels.setdefault(key, set()).add(value)
            seen[family.name.removeprefix("checkpointd_")] = (family.type, labels)
        assert seen == DESIGNED

    def test_of_this_replica_are_there_at_zero_from_the_start(
        self, metrics: Metrics, scraped: Scrape
    ) -> None:
        samples = scraped()
        assert samples['checkpointd_pass_runs_total{outcome="overrun",pass="adopt"}'] == 0
        assert samples['checkpointd_drain_replay_failures_total{reason="timeout"}'] == 0
        assert samples['checkpointd_drain_throttled{reason="window"}'] == 0
        assert samples['checkpointd_drain_replay_duration_seconds_count{outcome="failed"}'] == 0

    def test_have_no_series_of_when_they_were_created(
        self, metrics: Metrics, registry: CollectorRegistry
    ) -> None:
        metrics.store.show(StoreTally(), DRAINING)
        assert b"_created" not in generate_latest(registry)
        assert b"_created" not in generate_openmetrics(registry)

    def test_include_the_process(self, metrics: Metrics, scraped: Scrape) -> None:
        assert scraped()["process_resident_memory_bytes"] > 0

    def test_are_at_most_400_series_whatever_is_stored(
        self, metrics: Metrics, scraped: Scrape
    ) -> None:
        metrics.store.show(StoreTally(), DRAINING)
        few = set(scraped())
        metrics.store.show(
            StoreTally(
                legacy=dict.fromkeys(LEGACY_STATES, 100_000),
                blocked=dict.fromkeys(FailureReason, 100_000),
                expired=dict.fromkeys(ExpiryKind, 100_000),
                ttf_buckets=dict.fromkeys(TTF_BOUNDS_S, 100_000),
            ),
            DRAINING,
        )
        assert set(scraped()) == few
        assert len(few) <= 400

    @pytest.mark.parametrize("stage", ["new", "shown", "lost"])
    def test_satisfy_promtool(
        self,
        metrics: Metrics,
        registry: CollectorRegistry,
        needs: Callable[[str], str],
        stage: str,
    ) -> None:
        if stage != "new":
            metrics.store.show(StoreTally(), DRAINING)
        if stage == "lost":
            metrics.store.lose()
        checked = subprocess.run(
            [needs("promtool"), "check", "metrics"],
            input=generate_latest(registry),
            capture_output=True,
            check=False,
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

    def test_can_be_scraped_by_name(self, metrics: Metrics, registry: CollectorRegistry) -> None:
        metrics.store.show(StoreTally(), DRAINING)
        text = generate_latest(registry.restricted_registry(["checkpointd_drain_reopened_total"]))
        assert b"checkpointd_drain_reopened_total 0.0" in text
        assert b"drain_state" not in text


class TestTheStoresNumbers:
    def test_are_those_of_the_last_census(self, metrics: Metrics, scraped: Scrape) -> None:
        metrics.store.show(
            StoreTally(
                legacy={RefState.PENDING: 3, RefState.QUARANTINED: 1},
                blocked={FailureReason.UNANSWERED_CALL: 1},
                open_overdue=2,
                expired={ExpiryKind.CRASH: 7},
                refused={WriterLine.LEGACY: 2, WriterLine.KERNEL: 1},
                frozen=IssuanceFreeze("moving", AT, (WriterLine.LEGACY,)),
                freeze_in_force_at=AT,
                copies_declared=16,
                copies_carrying=16,
                held=HoldReason.MASS,
                grace=timedelta(hours=1),
                baseline=26,
                discovered={"catch_up": 4},
                reopened=1,
                memory_ratio=0.5,
            ),
            DrainStatus(state=DrainState.STALLED, cause=StallCause.QUARANTINE, eta_s=90),
        )
        samples = scraped()
        for name, value in {
            'drain_refs{state="pending"}': 3,
            'drain_refs{state="migrated"}': 0,
            'drain_blocked_refs{reason="unanswered_call"}': 1,
            'expiry_open_refs{age="overdue"}': 2,
            'expiry_refs_expired_total{reason="crash"}': 7,
            "issuance_refused_total": 3,
            'issuance_frozen{line="legacy"}': 1,
            'issuance_frozen{line="kernel"}': 0,
            'freeze_partitions{copy="carrying"}': 16,
            'expiry_held{reason="mass"}': 1,
            'expiry_held{reason="store_gap"}': 0,
            "expiry_grace_seconds": 3600,
            "drain_baseline_refs": 26,
            'drain_discovered_refs_total{source="catch_up"}': 4,
            "drain_reopened_total": 1,
            'drain_state{state="stalled"}': 1,
            'drain_state{state="draining"}': 0,
            'drain_stalled{cause="quarantine"}': 1,
            "drain_frozen_timestamp_seconds": AT.timestamp(),
            "drain_eta_seconds": 90,
            "redis_memory_ratio": 0.5,
        }.items():
            assert samples[f"checkpointd_{name}"] == value, name

    def test_a_freeze_that_some_partitions_do_not_carry_is_not_in_force(
        self, metrics: Metrics, scraped: Scrape
    ) -> None:
        metrics.store.show(
            StoreTally(frozen=IssuanceFreeze("x", AT), copies_declared=16, copies_carrying=9),
            DRAINING,
        )
        samples = scraped()
        assert samples['checkpointd_issuance_frozen{line="legacy"}'] == 0
        assert samples['checkpointd_freeze_partitions{copy="carrying"}'] == 9

    def test_what_there_is_none_of_is_not_a_number(self, metrics: Metrics, scraped: Scrape) -> None:
        metrics.store.show(StoreTally(), DRAINING)
        samples = scraped()
        for name in (
            "drain_eta_seconds",
            "drain_completed_timestamp_seconds",
            "redis_memory_ratio",
        ):
            assert math.isnan(samples[f"checkpointd_{name}"])

    def test_times_to_finalize_are_a_histogram_of_the_stores_buckets(
        self, metrics: Metrics, scraped: Scrape
    ) -> None:
        metrics.store.show(
            StoreTally(ttf_buckets={1.0: 2, 60.0: 3, inf: 1}, ttf_sum_s=999), DRAINING
        )
        samples = scraped()
        name = "checkpointd_expiry_time_to_finalize_seconds"
        assert samples[f'{name}_bucket{{le="1.0"}}'] == 2
        assert samples[f'{name}_bucket{{le="30.0"}}'] == 2
        assert samples[f'{name}_bucket{{le="60.0"}}'] == 5
        assert samples[f'{name}_bucket{{le="+Inf"}}'] == 6
        assert samples[f"{name}_count"] == 6
        assert samples[f"{name}_sum"] == 999


class TestAStoreThatCannotBeRead:
    def test_turns_its_gauges_to_nan_and_the_drain_to_unknown(
        self, metrics: Metrics, scraped: Scrape
    ) -> None:
        metrics.store.show(
            StoreTally(legacy={RefState.PENDING: 3}), DrainStatus(state=DrainState.DRAINED)
        )
        metrics.store.lose()
        samples = scraped()
        assert math.isnan(samples['checkpointd_drain_refs{state="pending"}'])
        assert math.isnan(samples['checkpointd_drain_state{state="drained"}'])
        assert samples['checkpointd_drain_state{state="unknown"}'] == 1

    def test_leaves_totals_as_they_were(self, metrics: Metrics, scraped: Scrape) -> None:
        metrics.store.show(StoreTally(reopened=2), DRAINING)
        metrics.store.lose()
        metrics.store.lose()
        assert scraped()["checkpointd_drain_reopened_total"] == 2

    def test_shows_its_numbers_again_when_it_is_back(
        self, metrics: Metrics, scraped: Scrape
    ) -> None:
        metrics.store.lose()
        metrics.store.show(StoreTally(), DRAINING)
        samples = scraped()
        assert samples['checkpointd_drain_state{state="unknown"}'] == 0
        assert samples['checkpointd_drain_state{state="draining"}'] == 1

    def test_a_restart_does_not_show_totals_as_a_rise_from_zero(
        self, metrics: Metrics, scraped: Scrape
    ) -> None:
        samples = scraped()
        assert not any(name.startswith("checkpointd_expiry_refs_expired") for name in samples)
        assert math.isnan(samples['checkpointd_drain_refs{state="pending"}'])
        assert math.isnan(samples['checkpointd_drain_state{state="unknown"}'])
