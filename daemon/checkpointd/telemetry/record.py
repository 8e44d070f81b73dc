"""From reports to numbers and log lines: the one place that decides what is worth a line.

Levels: *debug* a step, or a pass that did nothing; *info* a state changed, or a pass did
something; *warning* it heals itself, and an operator may want to look; *error* someone must
act. What lasts (a hold, a stall) gets its line when it begins and when it ends, not on every
round between.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

import structlog

from checkpointd.domain.errors import CheckpointdError, ConfigError
from checkpointd.domain.refs import CheckpointRef, Lease
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
    ThrottleReason,
)
from checkpointd.domain.tally import WRITTEN_AFTER_FREEZE, DrainStatus, StoreTally
from checkpointd.telemetry.metrics import Metrics

log = structlog.stdlib.get_logger(__name__)
_levels = logging.getLogger(__name__)
"""Says whether a line would be written, before it is made."""

GOOD = frozenset({PassOutcome.SUCCESS, PassOutcome.SKIPPED, PassOutcome.HELD})
"""Ends of a run that did what it should: also one that another replica did, or that was held."""
FAILED_REPLAYS = frozenset(
    {
        ReplayOutcome.RETRYABLE,
        ReplayOutcome.QUARANTINED,
        ReplayOutcome.REFUSED,
        ReplayOutcome.LEASE_LOST,
    }
)
ENDED_WELL = frozenset(
    {ReplayOutcome.MIGRATED, ReplayOutcome.ALREADY_MIGRATED, ReplayOutcome.SUPERSEDED}
)
NEWS = (
    AdoptOutcome.NEW,
    AdoptOutcome.CLOSED,
    AdoptOutcome.SUPERSEDED,
    AdoptOutcome.UNREADABLE,
)
"""What a scan may find that changes the registry."""


class Recorder:
    """Moves ``metrics`` and writes the lines. Used from the event loop only.

    It remembers the last census, hold and unregistrable count, to tell a change from a state.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._tally: StoreTally | None = None
        self._drain: DrainStatus | None = None
        self._hold: HoldReason | None = None
        self._unregistrable = 0
        self._throttled: ThrottleReason | None = None

    # Runs of passes ----------------------------------------------------------------------------

    def pass_scheduled(self, name: PassName, every: timedelta) -> None:
        """The pass is due this often from now on."""
        self.metrics.pass_interval.labels(name).set(every.total_seconds())

    def pass_ended(
        self, name: PassName, outcome: PassOutcome, *, took_s: float, at: datetime
    ) -> None:
        """A run came back with a report. Numbers only: the report has the line."""
        self.metrics.pass_runs.labels(name, outcome).inc()
        self.metrics.pass_duration.labels(name).observe(took_s)
        if outcome in GOOD:
            self.metrics.pass_last_success.labels(name).set(at.timestamp())

    def pass_failed(self, name: PassName, error: BaseException, *, took_s: float) -> None:
        """A run raised. One line: a sentence for an error of ours, a traceback for a surprise.

        A census that failed also takes the store-wide numbers away.
        """
        self.metrics.pass_runs.labels(name, PassOutcome.ERROR).inc()
        self.metrics.pass_duration.labels(name).observe(took_s)
        if name is PassName.CENSUS:
            self.metrics.store.lose()
            self.metrics.redis_up.set(0)
        facts = {"pass": str(name), "took_s": round(took_s, 3), "error": str(error)}
        if isinstance(error, CheckpointdError):
            log.warning("pass_failed", kind=type(error).__name__, **facts)
        else:
            log.error("pass_failed", kind=type(error).__name__, exc_info=error, **facts)

    def pass_missed(self, name: PassName) -> None:
        """A run did not begin at its time; the next one does its work."""
        self.metrics.pass_runs.labels(name, PassOutcome.MISSED).inc()
        log.warning("pass_missed", **{"pass": str(name)})

    def pass_overran(self, name: PassName) -> None:
        """A run was due while the one before it went on; there are never two at once."""
        self.metrics.pass_runs.labels(name, PassOutcome.OVERRUN).inc()
        log.debug("pass_overran", **{"pass": str(name)})

    def report(self, report: ReconcileReport | AdoptReport | DrainReport) -> None:
        """Record what any pass says of itself; a rehearsal moves nothing and writes nothing."""
        if report.dry_run:
            return
        match report:
            case ReconcileReport():
                self.reconciled(report)
            case AdoptReport():
                self.adopted(report)
            case DrainReport():
                self.drained(report)
            case _:
                assert_never(report)

    # Expiry ------------------------------------------------------------------------------------

    def reconciled(self, report: ReconcileReport) -> None:
        """A reconcile pass: a line for each ref that it expired, and one for the pass."""
        for ref in report.expired:
            self.ref_expired(ref, kind=ExpiryKind.CRASH, by=PassName.RECONCILE)
        if report.held is not self._hold and not report.skipped:
            self._hold_changed(report)
        facts = _without_nothing(
            {
                "expired": len(report.expired),
                "overdue": report.overdue,
                "held": report.held,
                "skipped": report.skipped,
                "troubles": report.troubles,
            }
        )
        write = _level(bool(report.expired), report.troubles)
        write("reconcile_finished", inspected=report.inspected, grace_s=report.grace_s, **facts)

    def ref_expired(self, ref: CheckpointRef, *, kind: ExpiryKind, by: str) -> None:
        """A ref was closed for good: the same line whether a pass did it or an operator."""
        log.info(
            "ref_expired",
            thread_id=ref.thread_id,
            checkpoint_id=ref.checkpoint_id,
            line=str(ref.writer_line),
            kind=str(kind),
            reason=ref.expired_reason,
            created_at=ref.created_at,
            by=by,
        )

    def _hold_changed(self, report: ReconcileReport) -> None:
        self._hold = report.held
        match report.held:
            case HoldReason.MASS:
                log.error(
                    "expiry_held",
                    reason=str(report.held),
                    overdue=report.overdue,
                    todo="look why so many are overdue at once; then: checkpointd expiries allow",
                )
            case HoldReason.STORE_GAP:
                log.warning("expiry_held", reason=str(report.held), overdue=report.overdue)
            case None:
                log.info("expiry_resumed", overdue=report.overdue)
            case _:
                assert_never(report.held)

    # Adoption ----------------------------------------------------------------------------------

    def adopted(self, report: AdoptReport) -> None:
        """An adoption pass: heads by what was found, and one line."""
        for outcome, count in report.outcomes.items():
            self.metrics.adopt_refs.labels(outcome).inc(count)
        self._unregistrable_seen(report)
        facts = _without_nothing(
            {
                **{str(outcome): count for outcome, count in report.outcomes.items()},
                "fallbacks": report.fallbacks,
                "too_young": report.too_young,
                "losses": dict(report.losses),
                "blockers": dict(report.blockers),
                "skipped": report.skipped,
                "troubles": report.troubles,
            }
        )
        moved = report.fallbacks > 0 or any(report.outcomes.get(o, 0) for o in NEWS)
        write = _level(moved, report.troubles)
        write(
            "adopt_finished",
            threads=report.threads,
            complete=report.complete,
            clean=report.clean,
            took_s=round(report.took_s, 3),
            **facts,
        )

    def _unregistrable_seen(self, report: AdoptReport) -> None:
        count = report.outcomes.get(AdoptOutcome.UNREGISTRABLE, 0)
        if not report.complete or count == self._unregistrable:
            return
        self._unregistrable = count
        if count:
            log.error(
                "threads_refused",
                reason=str(AdoptOutcome.UNREGISTRABLE),
                threads=count,
                sample=report.samples.get(AdoptOutcome.UNREGISTRABLE, ()),
                todo="the drain does not end over them; see drain.accept_unregistrable",
            )

    # The drain ---------------------------------------------------------------------------------

    def drained(self, report: DrainReport) -> None:
        """A drain pass: what its claims were answered, and one line.

        The refs themselves were recorded by ``replay_ended`` as they happened.
        """
        asked = self.metrics.drain_lease_acquisitions
        asked.labels("acquired").inc(report.acquired)
        asked.labels("busy").inc(report.busy)
        asked.labels("error").inc(report.claim_errors)
        facts = _without_nothing(
            {
                **{str(outcome): count for outcome, count in report.outcomes.items()},
                "failures": {str(reason): n for reason, n in report.failures.items() if n},
                "busy": report.busy,
                "claim_errors": report.claim_errors,
                "waiting_for": report.waiting_for,
                "troubles": report.troubles,
            }
        )
        write = _level(any(report.outcomes.values()), report.troubles)
        write("drain_finished", acquired=report.acquired, took_s=round(report.took_s, 3), **facts)

    def replay_ended(self, end: ReplayEnd) -> None:
        """One claimed ref left the drain's hands."""
        self.metrics.drain_replays.labels(end.outcome).inc()
        if end.outcome is ReplayOutcome.MIGRATED:
            self.metrics.drain_replay_duration.labels("migrated").observe(end.took_s)
        elif end.outcome in FAILED_REPLAYS:
            self.metrics.drain_replay_duration.labels("failed").observe(end.took_s)
            if end.outcome is not ReplayOutcome.LEASE_LOST:
                reason = end.reason or FailureReason.OTHER
                self.metrics.drain_replay_failures.labels(reason).inc()
        if end.lost_phase:
            self.metrics.drain_leases_lost.labels(end.lost_phase).inc()
        self._write_end(end)

    def _write_end(self, end: ReplayEnd) -> None:
        if end.outcome in ENDED_WELL and not _levels.isEnabledFor(logging.INFO):
            return  # a busy drain has thousands of these a second, and a line is dear to make
        facts: dict[str, Any] = {
            "thread_id": end.thread_id,
            "checkpoint_id": end.checkpoint_id,
            "fence": end.fence,
            "attempt": end.attempt,
            "took_s": round(end.took_s, 3),
            **_without_nothing(
                {
                    "reason": end.reason,
                    "detail": end.detail,
                    "became": end.became,
                    "phase": end.lost_phase,
                }
            ),
        }
        match end.outcome:
            case ReplayOutcome.MIGRATED:
                log.info("ref_migrated", **facts)
            case ReplayOutcome.ALREADY_MIGRATED:
                log.info("ref_found_migrated", **facts)
            case ReplayOutcome.SUPERSEDED:
                log.info("ref_superseded", **facts)
            case ReplayOutcome.RETRYABLE:
                log.warning("replay_failed", **facts)
            case ReplayOutcome.REFUSED:
                log.warning("commit_refused", **facts)
            case ReplayOutcome.LEASE_LOST:
                log.warning("lease_lost", **facts)
            case ReplayOutcome.QUARANTINED:
                log.error("ref_quarantined", **facts)
            case _:
                assert_never(end.outcome)

    def replay_stuck(self, lease: Lease) -> None:
        """A replay goes on, a TTL after it was cancelled. Called once for each."""
        self.metrics.drain_replays_stuck.inc()
        log.error(
            "replay_stuck",
            thread_id=lease.thread_id,
            checkpoint_id=lease.checkpoint_id,
            fence=lease.fence,
            attempt=lease.attempt,
            effect="it ignores cancellation, and keeps a place until the process ends",
        )

    def leases_held(self, count: int) -> None:
        """This replica holds so many leases now."""
        self.metrics.drain_leases_held.set(count)

    def paced(self, *, limit: int, throttled: ThrottleReason | None, for_s: float = 0.0) -> None:
        """The drain allows itself ``limit`` replays at once, and why it is not more.

        ``for_s`` is the time since the last call, all of it spent under the reason that was
        given then: a throttle is counted as it passes, not when it ends.
        """
        self.metrics.drain_concurrency_limit.set(limit)
        if self._throttled is not None and for_s > 0:
            self.metrics.drain_throttled_seconds.labels(self._throttled).inc(for_s)
        for reason in ThrottleReason:
            self.metrics.drain_throttled.labels(reason).set(reason is throttled)
        if throttled is not self._throttled:
            if throttled is not None:
                log.warning("drain_throttled", reason=str(throttled), limit=limit)
            else:
                log.info("drain_unthrottled", reason=str(self._throttled), limit=limit)
            self._throttled = throttled

    # The census --------------------------------------------------------------------------------

    def census(self, tally: StoreTally, drain: DrainStatus) -> None:
        """The store was read: show its numbers, and say what has changed since the last time."""
        self.metrics.store.show(tally, drain)
        self.metrics.redis_up.set(1)
        self.metrics.clock_offset.set(tally.clock_offset_s)
        log.debug("census_taken", state=str(drain.state), due=tally.due)
        if self._tally is not None:
            self._news(self._tally, tally)
        self._drain_news(drain)
        self._tally, self._drain = tally, drain

    def redis_failed(self, operation: str) -> None:
        """A command was refused or not answered: ``read``, ``write`` or ``lease``."""
        self.metrics.redis_errors.labels(operation).inc()

    def _drain_news(self, drain: DrainStatus) -> None:
        before = self._drain
        if before is not None and (before.state, before.cause) == (drain.state, drain.cause):
            return
        match drain.state:
            case DrainState.STALLED | DrainState.HALTED:
                write = log.error
            case DrainState.UNKNOWN:
                write = log.warning
            case _:
                write = log.info
        write(
            "drain_state_changed",
            before=str(before.state) if before is not None else None,
            state=str(drain.state),
            sentence=drain.sentence,
            progress=drain.progress,
            **_without_nothing({"cause": drain.cause}),
        )

    def _news(self, before: StoreTally, now: StoreTally) -> None:
        if now.freeze_in_force_at != before.freeze_in_force_at:
            if now.frozen is not None and now.freeze_in_force_at is not None:
                log.info(
                    "issuance_frozen",
                    reason=now.frozen.reason,
                    lines=[str(line) for line in now.frozen.lines],
                    in_force_at=now.freeze_in_force_at,
                    baseline=now.baseline,
                )
            else:
                log.info("issuance_thawed")
        written = now.discovered.get(WRITTEN_AFTER_FREEZE, 0) - before.discovered.get(
            WRITTEN_AFTER_FREEZE, 0
        )
        if written > 0:
            log.error(
                "legacy_written",
                after_freeze=written,
                todo="an old writer goes on; stop it, or the drain does not end",
            )
        if now.reopened > before.reopened:
            log.error(
                "drain_reopened",
                times=now.reopened - before.reopened,
                discovered=now.discovered_since_freeze,
            )
        late = now.late_finalizations - before.late_finalizations
        if late > 0:
            log.warning(
                "finalization_refused",
                late=late,
                todo="writers came back after their refs had expired; is the grace too short?",
            )

    # The configuration -------------------------------------------------------------------------

    def config_reloaded(self, *, refused: Sequence[str]) -> None:
        """What may change while running has changed; ``refused`` are the settings that need a restart."""
        if refused:
            log.warning("config_reloaded", refused=list(refused), todo="restart to change them")
        else:
            log.info("config_reloaded")

    def config_refused(self, error: ConfigError) -> None:
        """A reload found a configuration that cannot be used; the one in force stays."""
        log.error("config_refused", complaints=error.complaints, where=error.where)


def _without_nothing(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that say something: no zeros, no empty texts, lists or tables."""
    return {key: value for key, value in facts.items() if value}


def _level(moved: bool, troubles: tuple[str, ...]) -> Any:  # noqa: FBT001  # private, two call forms
    """How loud a finished pass is: it did nothing, something, or met trouble."""
    if troubles:
        return log.warning
    return log.info if moved else log.debug
