"""Dry runs: what adoption would find and what the drain would do, with nothing changed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from checkpointd.domain.errors import InvalidIdError
from checkpointd.domain.ids import check_id
from checkpointd.domain.reports import AdoptReport, DrainReport
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import AdoptOutcome, FailureReason, Hold, RefState, ReplayOutcome
from checkpointd.passes.adopt import Findings
from checkpointd.registry.operations import Operations
from checkpointd.sources.port import LegacySource

CLAIMABLE = (RefState.PENDING, RefState.RETRYABLE)


async def rehearse_adoption(
    source: LegacySource, *, page: int, source_settle: timedelta
) -> AdoptReport:
    """Read every head and say what a first adoption would make of it. Needs no store."""
    began, at = time.monotonic(), datetime.now(UTC)
    findings = Findings()
    after: str | None = ""
    while after is not None:
        found = await source.page(after, page)
        for sketch in found.threads:
            findings.threads += 1
            try:
                check_id(sketch.thread_id, what="thread_id")
                check_id(sketch.head_id, what="checkpoint_id")
            except InvalidIdError:
                findings.outcomes[AdoptOutcome.UNREGISTRABLE] += 1
                findings.note(AdoptOutcome.UNREGISTRABLE, ascii(sketch.thread_id)[:80])
                continue
            reading = await source.head(sketch.thread_id)
            if reading is None:
                continue
            findings.read(reading)
            if at - reading.head.created_at < source_settle:
                findings.too_young += 1
                findings.note("too_young", sketch.thread_id)
                continue
            findings.outcomes[AdoptOutcome.NEW] += 1
            findings.fallbacks += reading.ancestor is not None
        after = found.next_after
    return findings.report(at, complete=True, took_s=time.monotonic() - began, dry_run=True)


async def rehearse_drain(
    operations: Operations, source: LegacySource | None, *, truncate_unanswered: bool
) -> DrainReport:
    """Look at every claimable ref as the drain would; no claim, no replayer, no freeze needed."""
    began, at = time.monotonic(), datetime.now(UTC)
    outcomes: dict[ReplayOutcome, int] = {}
    failures: dict[FailureReason, int] = {}
    for state in CLAIMABLE:
        async for record in operations.in_state(state):
            if record.hold is Hold.FALLBACK:
                continue  # it comes due only if its head expires
            outcome, reason = await _foretold(
                record, source, operations, truncate_unanswered=truncate_unanswered
            )
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if reason is not None:
                failures[reason] = failures.get(reason, 0) + 1
    return DrainReport(
        at=at,
        outcomes=outcomes,
        failures=failures,
        took_s=time.monotonic() - began,
        dry_run=True,
    )


async def _foretold(
    record: RefRecord,
    source: LegacySource | None,
    operations: Operations,
    *,
    truncate_unanswered: bool,
) -> tuple[ReplayOutcome, FailureReason | None]:
    """What would become of a ref if it were claimed now."""
    if source is None:
        marked = bool(record.boundary_id) or await operations.has_boundary(record.ref.thread_id)
        blocked = None if marked else FailureReason.NO_SAFE_BOUNDARY
        return (ReplayOutcome.MIGRATED if marked else ReplayOutcome.QUARANTINED), blocked
    reading = await source.head(record.ref.thread_id)
    if reading is None:
        return ReplayOutcome.QUARANTINED, FailureReason.ABSENT
    ref = record.ref.checkpoint_id
    if reading.head.checkpoint_id != (record.stands_in_for or ref) or (
        record.stands_in_for and reading.head.verdict.is_settled
    ):
        return ReplayOutcome.SUPERSEDED, None
    state = reading.head
    if record.stands_in_for:
        ancestor = await source.state(record.ref.thread_id, ref)
        if ancestor is None:
            return ReplayOutcome.QUARANTINED, FailureReason.ABSENT
        state = ancestor
    if not state.verdict.is_settled:
        return ReplayOutcome.RETRYABLE, FailureReason.NO_SAFE_BOUNDARY
    if state.blocker is None or (
        truncate_unanswered and state.blocker is FailureReason.UNANSWERED_CALL
    ):
        return ReplayOutcome.MIGRATED, None
    return ReplayOutcome.QUARANTINED, state.blocker
