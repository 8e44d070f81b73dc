from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from checkpointd.domain.errors import ConfigError, StoreUnreachableError
from checkpointd.domain.refs import CheckpointRef, IssuanceFreeze
from checkpointd.domain.reports import AdoptReport, DrainReport, ReconcileReport, ReplayEnd
from checkpointd.domain.states import (
    AdoptOutcome,
    DrainState,
    ExpiryKind,
    FailureReason,
    HoldReason,
    PassName,
    PassOutcome,
    ReplayOutcome,
    StallCause,
    ThrottleReason,
    WriterLine,
)
from checkpointd.domain.tally import DrainStatus, StoreTally
from checkpointd.telemetry.metrics import Metrics
from checkpointd.telemetry.record import Recorder

Scrape = Callable[[], dict[str, float]]
Lines = list[dict[str, Any]]
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
REF = CheckpointRef("t", "c", WriterLine.LEGACY, AT, finalized=False).expire("crash-expiry", AT)


@pytest.fixture
def record(metrics: Metrics, lines: Lines) -> Recorder:
    return Recorder(metrics)


def told(lines: Lines) -> list[tuple[str, str]]:
    """Level and event of each line, without the debug ones."""
    return [(e["log_level"], e["event"]) for e in lines if e["log_level"] != "debug"]


def end(outcome: ReplayOutcome, **facts: Any) -> ReplayEnd:
    return ReplayEnd(thread_id="t", checkpoint_id="c", outcome=outcome, took_s=0.5, **facts)


def reconciled(**facts: Any) -> ReconcileReport:
    return ReconcileReport(at=AT, grace_s=60, **facts)


class TestARunOfAPass:
    def test_that_ended_is_counted_with_its_time(self, record: Recorder, scraped: Scrape) -> None:
        record.pass_scheduled(PassName.ADOPT, timedelta(minutes=5))
        record.pass_ended(PassName.ADOPT, PassOutcome.SUCCESS, took_s=2, at=AT)
        samples = scraped()
        assert samples['checkpointd_pass_runs_total{outcome="success",pass="adopt"}'] == 1
        assert samples['checkpointd_pass_duration_seconds_sum{pass="adopt"}'] == 2
        assert samples['checkpointd_pass_interval_seconds{pass="adopt"}'] == 300
        assert (
            samples['checkpointd_pass_last_success_timestamp_seconds{pass="adopt"}']
            == AT.timestamp()
        )

    @pytest.mark.parametrize("outcome", [PassOutcome.SKIPPED, PassOutcome.HELD])
    def test_that_another_replica_did_or_that_was_held_is_good(
        self, record: Recorder, scraped: Scrape, outcome: PassOutcome
    ) -> None:
        record.pass_ended(PassName.ADOPT, outcome, took_s=0, at=AT)
        name = 'checkpointd_pass_last_success_timestamp_seconds{pass="adopt"}'
        assert scraped()[name] == AT.timestamp()

    def test_that_met_trouble_is_not_good(self, record: Recorder, scraped: Scrape) -> None:
        record.pass_ended(PassName.ADOPT, PassOutcome.ERROR, took_s=0, at=AT)
        assert scraped()['checkpointd_pass_last_success_timestamp_seconds{pass="adopt"}'] == 0

    def test_that_found_no_store_is_one_line_without_a_traceback(
        self, record: Recorder, lines: Lines, scraped: Scrape
    ) -> None:
        record.pass_failed(PassName.DRAIN, StoreUnreachableError("h:1", "refused"), took_s=1)
        (line,) = lines
        assert (line["log_level"], line["event"], line["pass"]) == (
            "warning",
            "pass_failed",
            "drain",
        )
        assert "exc_info" not in line
        assert scraped()['checkpointd_pass_runs_total{outcome="error",pass="drain"}'] == 1

    def test_that_met_a_surprise_is_an_error_with_a_traceback(
        self, record: Recorder, lines: Lines
    ) -> None:
        record.pass_failed(PassName.DRAIN, ZeroDivisionError("x"), took_s=1)
        assert told(lines) == [("error", "pass_failed")]
        assert isinstance(lines[0]["exc_info"], ZeroDivisionError)

    def test_that_was_missed_or_overran_is_counted(self, record: Recorder, scraped: Scrape) -> None:
        record.pass_missed(PassName.CENSUS)
        record.pass_overran(PassName.DRAIN)
        samples = scraped()
        assert samples['checkpointd_pass_runs_total{outcome="missed",pass="census"}'] == 1
        assert samples['checkpointd_pass_runs_total{outcome="overrun",pass="drain"}'] == 1

    def test_a_rehearsal_moves_nothing(
        self, record: Recorder, lines: Lines, scraped: Scrape
    ) -> None:
        before = scraped()
        record.report(reconciled(expired=(REF,), dry_run=True))
        record.report(AdoptReport(at=AT, outcomes={AdoptOutcome.NEW: 3}, dry_run=True))
        record.report(DrainReport(at=AT, acquired=3, dry_run=True))
        after = scraped()
        assert [n for n in after if n.startswith("checkpointd_adopt_refs") and after[n]] == []
        assert before.keys() == after.keys()
        assert lines == []

    @pytest.mark.parametrize(
        "report",
        [reconciled(), AdoptReport(at=AT, threads=3, complete=True), DrainReport(at=AT)],
        ids=["reconcile", "adopt", "drain"],
    )
    def test_that_did_nothing_is_one_debug_line(
        self, record: Recorder, lines: Lines, report: Any
    ) -> None:
        record.report(report)
        assert [line["log_level"] for line in lines] == ["debug"]

    @pytest.mark.parametrize(
        "report",
        [
            reconciled(troubles=("partition 3",)),
            AdoptReport(at=AT, troubles=("page 3",)),
            DrainReport(at=AT, troubles=("partition 3",)),
        ],
        ids=["reconcile", "adopt", "drain"],
    )
    def test_that_met_trouble_says_so(self, record: Recorder, lines: Lines, report: Any) -> None:
        record.report(report)
        (line,) = lines
        assert line["log_level"] == "warning"
        assert line["troubles"] == report.troubles


class TestExpiry:
    def test_is_the_same_line_by_a_pass_and_by_hand(self, record: Recorder, lines: Lines) -> None:
        record.report(reconciled(expired=(REF,)))
        record.ref_expired(REF, kind=ExpiryKind.OPERATOR, by="ann@host")
        by_pass, _, by_hand = lines
        assert by_pass["event"] == by_hand["event"] == "ref_expired"
        assert by_pass.keys() == by_hand.keys()
        assert (by_pass["by"], by_hand["by"]) == ("reconcile", "ann@host")

    def test_held_is_said_once_and_its_end_once(self, record: Recorder, lines: Lines) -> None:
        for held in (HoldReason.MASS, HoldReason.MASS, None, None):
            record.report(reconciled(held=held, overdue=9))
        assert told(lines) == [("error", "expiry_held"), ("info", "expiry_resumed")]

    def test_a_paused_pass_says_nothing_of_the_hold(self, record: Recorder, lines: Lines) -> None:
        record.report(reconciled(held=HoldReason.STORE_GAP))
        record.report(reconciled(skipped="paused"))
        record.report(reconciled(held=HoldReason.STORE_GAP))
        assert told(lines) == [("warning", "expiry_held")]


class TestAdoption:
    def test_counts_heads_by_what_was_found(
        self, record: Recorder, lines: Lines, scraped: Scrape
    ) -> None:
        found = {AdoptOutcome.NEW: 25, AdoptOutcome.UNCHANGED: 4}
        record.report(AdoptReport(at=AT, threads=29, outcomes=found, fallbacks=1, complete=True))
        assert scraped()['checkpointd_adopt_refs_total{outcome="new"}'] == 25
        (line,) = lines
        assert (line["log_level"], line["new"], line["fallbacks"]) == ("info", 25, 1)

    def test_says_of_unregistrable_threads_when_their_number_changes(
        self, record: Recorder, lines: Lines
    ) -> None:
        report = AdoptReport(
            at=AT,
            complete=True,
            outcomes={AdoptOutcome.UNREGISTRABLE: 2},
            samples={"unregistrable": ("x",)},
        )
        record.report(report)
        record.report(report)
        assert told(lines) == [("error", "threads_refused")]


class TestAReplay:
    @pytest.mark.parametrize(
        ("outcome", "level", "event", "timed"),
        [
            (ReplayOutcome.MIGRATED, "info", "ref_migrated", "migrated"),
            (ReplayOutcome.ALREADY_MIGRATED, "info", "ref_found_migrated", ""),
            (ReplayOutcome.SUPERSEDED, "info", "ref_superseded", ""),
            (ReplayOutcome.RETRYABLE, "warning", "replay_failed", "failed"),
            (ReplayOutcome.REFUSED, "warning", "commit_refused", "failed"),
            (ReplayOutcome.LEASE_LOST, "warning", "lease_lost", "failed"),
            (ReplayOutcome.QUARANTINED, "error", "ref_quarantined", "failed"),
        ],
    )
    def test_is_counted_and_told_by_its_end(
        self,
        record: Recorder,
        lines: Lines,
        scraped: Scrape,
        outcome: ReplayOutcome,
        level: str,
        event: str,
        timed: str,
    ) -> None:
        record.replay_ended(end(outcome))
        samples = scraped()
        assert told(lines) == [(level, event)]
        assert samples[f'checkpointd_drain_replays_total{{outcome="{outcome}"}}'] == 1
        name = "checkpointd_drain_replay_duration_seconds_count"
        counts = {o: samples[f'{name}{{outcome="{o}"}}'] for o in ("migrated", "failed")}
        assert [o for o, n in counts.items() if n] == ([timed] if timed else [])

    def test_that_failed_counts_its_reason(self, record: Recorder, scraped: Scrape) -> None:
        record.replay_ended(end(ReplayOutcome.RETRYABLE, reason=FailureReason.TIMEOUT))
        record.replay_ended(end(ReplayOutcome.QUARANTINED))
        samples = scraped()
        assert samples['checkpointd_drain_replay_failures_total{reason="timeout"}'] == 1
        assert samples['checkpointd_drain_replay_failures_total{reason="other"}'] == 1

    def test_that_lost_its_lease_counts_the_phase_and_no_reason(
        self, record: Recorder, scraped: Scrape
    ) -> None:
        record.replay_ended(end(ReplayOutcome.LEASE_LOST, lost_phase="at_commit"))
        samples = scraped()
        assert samples['checkpointd_drain_leases_lost_total{phase="at_commit"}'] == 1
        assert not any(
            v for k, v in samples.items() if k.startswith("checkpointd_drain_replay_failures")
        )

    def test_is_not_counted_again_by_the_pass_report(
        self, record: Recorder, scraped: Scrape
    ) -> None:
        record.replay_ended(end(ReplayOutcome.MIGRATED))
        record.report(
            DrainReport(
                at=AT, outcomes={ReplayOutcome.MIGRATED: 1}, acquired=1, busy=2, claim_errors=3
            )
        )
        samples = scraped()
        assert samples['checkpointd_drain_replays_total{outcome="migrated"}'] == 1
        assert samples['checkpointd_drain_lease_acquisitions_total{outcome="acquired"}'] == 1
        assert samples['checkpointd_drain_lease_acquisitions_total{outcome="busy"}'] == 2
        assert samples['checkpointd_drain_lease_acquisitions_total{outcome="error"}'] == 3


class TestThePace:
    def test_a_throttle_is_told_when_it_begins_and_ends_and_its_time_is_counted(
        self, record: Recorder, lines: Lines, scraped: Scrape
    ) -> None:
        record.paced(limit=16, throttled=None, for_s=5)
        record.paced(limit=1, throttled=ThrottleReason.SOURCE, for_s=5)
        during = scraped()
        record.paced(limit=1, throttled=ThrottleReason.SOURCE, for_s=5)
        record.paced(limit=16, throttled=None, for_s=2)
        after = scraped()
        assert during['checkpointd_drain_throttled{reason="source"}'] == 1
        assert during["checkpointd_drain_concurrency_limit"] == 1
        assert after['checkpointd_drain_throttled{reason="source"}'] == 0
        assert after['checkpointd_drain_throttled_seconds_total{reason="source"}'] == 7
        assert told(lines) == [("warning", "drain_throttled"), ("info", "drain_unthrottled")]

    def test_the_leases_held_are_shown(self, record: Recorder, scraped: Scrape) -> None:
        record.leases_held(3)
        assert scraped()["checkpointd_drain_leases_held"] == 3


class TestACensus:
    DRAINING = DrainStatus(state=DrainState.DRAINING)

    def test_shows_the_store_and_the_clock(self, record: Recorder, scraped: Scrape) -> None:
        record.census(StoreTally(clock_offset_s=7200, baseline=3), self.DRAINING)
        samples = scraped()
        assert samples["checkpointd_redis_up"] == 1
        assert samples["checkpointd_clock_offset_seconds"] == 7200
        assert samples["checkpointd_drain_baseline_refs"] == 3

    def test_that_failed_takes_the_numbers_away(
        self, record: Recorder, lines: Lines, scraped: Scrape
    ) -> None:
        record.census(StoreTally(), self.DRAINING)
        lines.clear()
        record.pass_failed(PassName.CENSUS, StoreUnreachableError("h:1", "refused"), took_s=1)
        samples = scraped()
        assert samples["checkpointd_redis_up"] == 0
        assert samples['checkpointd_drain_state{state="unknown"}'] == 1
        assert told(lines) == [("warning", "pass_failed")]

    def test_tells_the_drains_state_when_it_changes(self, record: Recorder, lines: Lines) -> None:
        stalled = DrainStatus(
            state=DrainState.STALLED, cause=StallCause.QUARANTINE, sentence="one ref waits"
        )
        for status in (self.DRAINING, self.DRAINING, stalled, stalled):
            record.census(StoreTally(), status)
        assert told(lines) == [("info", "drain_state_changed"), ("error", "drain_state_changed")]
        last = [e for e in lines if e["event"] == "drain_state_changed"][-1]
        assert (last["before"], last["state"], last["cause"]) == (
            "draining",
            "stalled",
            "quarantine",
        )
        assert last["sentence"] == "one ref waits"

    @pytest.mark.parametrize(
        ("now", "level", "event"),
        [
            (
                StoreTally(frozen=IssuanceFreeze("moving", AT), freeze_in_force_at=AT),
                "info",
                "issuance_frozen",
            ),
            (StoreTally(discovered={"written_after_freeze": 2}), "error", "legacy_written"),
            (StoreTally(reopened=1), "error", "drain_reopened"),
            (StoreTally(late_finalizations=1), "warning", "finalization_refused"),
        ],
        ids=["freeze", "written", "reopened", "late"],
    )
    def test_tells_what_is_new_in_the_store(
        self, record: Recorder, lines: Lines, now: StoreTally, level: str, event: str
    ) -> None:
        record.census(StoreTally(), self.DRAINING)
        lines.clear()
        record.census(now, self.DRAINING)
        record.census(now, self.DRAINING)
        assert told(lines) == [(level, event)]

    def test_tells_of_a_thaw(self, record: Recorder, lines: Lines) -> None:
        frozen = StoreTally(frozen=IssuanceFreeze("x", AT), freeze_in_force_at=AT)
        record.census(frozen, self.DRAINING)
        lines.clear()
        record.census(StoreTally(), self.DRAINING)
        assert told(lines) == [("info", "issuance_thawed")]

    def test_the_first_one_after_a_start_calls_nothing_new(
        self, record: Recorder, lines: Lines
    ) -> None:
        record.census(StoreTally(reopened=5, late_finalizations=5), self.DRAINING)
        assert told(lines) == [("info", "drain_state_changed")]


def test_a_failed_command_is_counted(record: Recorder, scraped: Scrape) -> None:
    record.redis_failed("write")
    assert scraped()['checkpointd_redis_errors_total{operation="write"}'] == 1


class TestAReload:
    def test_names_what_needs_a_restart(self, record: Recorder, lines: Lines) -> None:
        record.config_reloaded(refused=["lease.ttl"])
        record.config_reloaded(refused=[])
        assert told(lines) == [("warning", "config_reloaded"), ("info", "config_reloaded")]
        assert lines[0]["refused"] == ["lease.ttl"]

    def test_that_was_refused_gives_every_complaint(self, record: Recorder, lines: Lines) -> None:
        record.config_refused(ConfigError(["a", "b"], where="f"))
        assert told(lines) == [("error", "config_refused")]
        assert lines[0]["complaints"] == ("a", "b")
