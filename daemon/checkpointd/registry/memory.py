"""The registry in memory: the model that the Redis one is held against, and for embedding.

It promises what the port promises to every task of one event loop, and nothing to other
processes. No step awaits, so each is as atomic as a script is in the store.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from typing_extensions import override

from checkpointd.domain import standing
from checkpointd.domain.errors import (
    AlreadyMigratedError,
    CheckpointExpiredError,
    CommitRefusedError,
    IssuanceFrozenError,
    LeaseBusyError,
    LeaseLostError,
    UnknownCheckpointError,
    WriterLineChangedError,
)
from checkpointd.domain.ids import check_id
from checkpointd.domain.refs import (
    CheckpointRef,
    Explanation,
    IssuanceFreeze,
    Lease,
    MigrationLink,
    ReconciliationReport,
    SafeBoundaryMarker,
    from_us,
    to_us,
)
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import (
    ALL_LINES,
    CRASH_EXPIRY_REASON,
    FailureReason,
    Hold,
    RefState,
    WriterLine,
)
from checkpointd.registry.codec import clean
from checkpointd.registry.port import CheckpointRegistry

_CLAIMABLE = (RefState.PENDING, RefState.RETRYABLE)


def utc_now() -> datetime:
    """The machine's wall clock, in whole microseconds as it is everywhere here."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Held:
    """A lease that was given out: its value, and when it runs out by the clock."""

    value: str
    until: datetime


class MemoryRegistry(CheckpointRegistry):
    """``CheckpointRegistry`` over dictionaries, ages judged by ``clock``."""

    def __init__(
        self,
        clock: Callable[[], datetime] = utc_now,
        *,
        lease_ttl: timedelta = timedelta(seconds=15),
        actor: str = "memory",
    ) -> None:
        self._clock = clock
        self._lease_ttl = lease_ttl
        self._actor = actor
        self._threads: dict[str, dict[str, RefRecord]] = {}
        self._boundaries: dict[str, dict[str, SafeBoundaryMarker]] = {}
        self._leases: dict[tuple[str, str], _Held] = {}
        self._requested: dict[tuple[str, str], None] = {}
        self._freeze: IssuanceFreeze | None = None
        self._fence = 0

    # What is known ------------------------------------------------------------------------

    def records_of(self, thread_id: str) -> tuple[RefRecord, ...]:
        """The thread's refs with their stories, oldest first."""
        return tuple(reversed(standing.newest_first(self._records(thread_id))))

    def counts(self) -> Mapping[tuple[WriterLine, RefState], int]:
        """How many refs are in which state; a state without refs is absent."""
        return Counter(
            (record.ref.writer_line, record.state)
            for thread in self._threads.values()
            for record in thread.values()
        )

    def due(self) -> tuple[CheckpointRef, ...]:
        """The legacy refs that a drain may take, in the order in which it should.

        Those asked for by ``request_replay`` come first, then the oldest.
        """
        claimable = [
            record.ref
            for thread in self._threads.values()
            for record in thread.values()
            if record.state in _CLAIMABLE and record.hold is Hold.NONE
        ]
        return tuple(
            sorted(
                claimable,
                key=lambda r: ((r.thread_id, r.checkpoint_id) not in self._requested, r.order),
            )
        )

    @override
    async def is_authoritative(self, thread_id: str, checkpoint_id: str) -> bool:
        return self._find(thread_id, checkpoint_id) is not None

    @override
    async def is_resumable(self, thread_id: str, checkpoint_id: str) -> bool:
        record = self._find(thread_id, checkpoint_id)
        return record is not None and record.is_resumable

    @override
    async def refs_for(self, thread_id: str) -> tuple[CheckpointRef, ...]:
        return tuple(record.ref for record in self.records_of(thread_id))

    @override
    async def resolve(self, thread_id: str) -> CheckpointRef | None:
        return standing.resolve(self._records(thread_id))

    @override
    async def explain(self, thread_id: str) -> Explanation:
        return standing.explain(thread_id, self._records(thread_id))

    @override
    async def migration_of(self, thread_id: str, legacy_checkpoint_id: str) -> MigrationLink | None:
        record = self._find(thread_id, legacy_checkpoint_id)
        return record.link if record else None

    @override
    async def boundaries_for(self, thread_id: str) -> tuple[SafeBoundaryMarker, ...]:
        check_id(thread_id, what="thread_id")
        return tuple(
            sorted(
                self._boundaries.get(thread_id, {}).values(),
                key=lambda marker: (marker.sequence, marker.created_at, marker.boundary_id),
            )
        )

    @override
    async def freeze_in_force(self) -> IssuanceFreeze | None:
        return self._freeze

    @override
    async def now(self) -> datetime:
        return self._now()

    # The crash window ---------------------------------------------------------------------

    @override
    async def register(
        self, ref: CheckpointRef, *, finalized: bool = True, issuance: bool = True
    ) -> CheckpointRef:
        if not finalized:
            ref = replace(ref, finalized=False)
        known = self._known_as(ref)
        if known is not None:
            return known.ref
        if issuance and self._freeze and ref.writer_line in self._freeze.lines:
            raise IssuanceFrozenError(
                ref.thread_id, ref.checkpoint_id, ref.writer_line, self._freeze.reason
            )
        return self._enter(ref).ref

    @override
    async def register_replay(
        self, ref: CheckpointRef, *, legacy_checkpoint_id: str
    ) -> CheckpointRef:
        replayed = self._find(ref.thread_id, legacy_checkpoint_id)
        known = self._known_as(ref)
        if known is not None:
            return known.ref
        if self._freeze and replayed is None:
            raise IssuanceFrozenError(
                ref.thread_id,
                ref.checkpoint_id,
                ref.writer_line,
                self._freeze.reason,
                replay_of=legacy_checkpoint_id,
            )
        return self._enter(ref, replay_of=legacy_checkpoint_id).ref

    @override
    async def finalize(self, thread_id: str, checkpoint_id: str) -> CheckpointRef:
        record = self._get(thread_id, checkpoint_id)
        if record.state is RefState.EXPIRED:
            if record.late_at is None and record.opened_at is not None:
                self._put(replace(record, late_at=self._now()))
            raise _expired(record.ref)
        if record.state is not RefState.OPEN:
            return record.ref
        whole = record.ref.finalize()
        return self._move(
            replace(record, ref=whole, opened_at=None), standing.first_state(whole)
        ).ref

    @override
    async def extend(self, thread_id: str, checkpoint_id: str) -> CheckpointRef:
        record = self._get(thread_id, checkpoint_id)
        if record.state is RefState.EXPIRED:
            raise _expired(record.ref)
        if record.state is RefState.OPEN:
            self._put(replace(record, opened_at=self._now()))
        return record.ref

    @override
    async def expire(self, thread_id: str, checkpoint_id: str, reason: str) -> CheckpointRef:
        record = self._get(thread_id, checkpoint_id)
        if record.state in (RefState.EXPIRED, RefState.MIGRATED):
            return record.ref
        return self._expire(record, reason).ref

    @override
    async def reconcile_crash_expiry(self, *, grace: timedelta) -> ReconciliationReport:
        if grace <= timedelta(0):
            raise ValueError(
                f"a grace of {grace.total_seconds():g} s would expire turns that are running; "
                "give a positive one"
            )
        now = self._now()
        windows = [
            record
            for thread in self._threads.values()
            for record in thread.values()
            if record.state is RefState.OPEN
        ]
        expired = [
            self._expire(record, CRASH_EXPIRY_REASON, grace_s=grace.total_seconds()).ref
            for record in windows
            if record.outlived(grace=grace, now=now)
        ]
        return ReconciliationReport(
            at=now,
            grace_seconds=grace.total_seconds(),
            expired=tuple(sorted(expired, key=lambda ref: ref.order)),
            inspected=len(windows),
        )

    # Issuance -----------------------------------------------------------------------------

    @override
    async def freeze_issuance(
        self, *, reason: str, lines: tuple[WriterLine, ...] = ALL_LINES
    ) -> IssuanceFreeze:
        if not lines:
            raise ValueError("a freeze names no line; give at least one")
        if self._freeze is None:
            self._freeze = IssuanceFreeze(
                reason=clean(reason),
                at=self._now(),
                lines=tuple(line for line in ALL_LINES if line in lines),
            )
        return self._freeze

    @override
    async def thaw_issuance(self, *, reason: str) -> None:
        self._freeze = None

    # Migration ----------------------------------------------------------------------------

    @override
    async def mark_safe_boundary(
        self,
        thread_id: str,
        *,
        sequence: int,
        digest: str,
        writer_line: WriterLine,
        boundary_id: str | None = None,
    ) -> SafeBoundaryMarker:
        check_id(thread_id, what="thread_id")
        if digest:
            check_id(digest, what="digest")
        if boundary_id is None:
            boundary_id = SafeBoundaryMarker.derive_id(thread_id, sequence, digest)
        check_id(boundary_id, what="boundary_id")
        marker = SafeBoundaryMarker(
            boundary_id, thread_id, sequence, digest, WriterLine(writer_line), self._now()
        )
        return self._boundaries.setdefault(thread_id, {}).setdefault(boundary_id, marker)

    @override
    def migration_lock(
        self, thread_id: str, legacy_checkpoint_id: str
    ) -> AbstractAsyncContextManager[Lease]:
        return self._locked(thread_id, legacy_checkpoint_id)

    @asynccontextmanager
    async def _locked(self, thread_id: str, checkpoint_id: str) -> AsyncIterator[Lease]:
        lease = self._acquire(thread_id, checkpoint_id)
        try:
            yield lease
        finally:
            self._release(lease)

    def _acquire(self, thread_id: str, checkpoint_id: str) -> Lease:
        record, now = self._get(thread_id, checkpoint_id), self._now()
        if record.link is not None:
            raise AlreadyMigratedError(thread_id, checkpoint_id, record.link.checkpoint_id)
        held = self._alive(thread_id, checkpoint_id)
        if held is not None:
            raise LeaseBusyError(f"{thread_id}/{checkpoint_id}", (held.until - now).total_seconds())
        _demand_claimable(record.ref, record.state)
        self._fence += 1
        lease = Lease(
            thread_id=thread_id,
            checkpoint_id=checkpoint_id,
            fence=self._fence,
            token=secrets.token_hex(16),
            attempt=record.attempts + 1,
            created_at=record.ref.created_at,
            boundary=self._boundary_of(record),
            stands_in_for=record.stands_in_for,
            confirmed=record.confirmed_at is not None,
            acquired_at=now,
        )
        self._leases[thread_id, checkpoint_id] = _Held(lease.value, now + self._lease_ttl)
        self._move(replace(record, attempts=lease.attempt, lease=lease.value), RefState.REPLAYING)
        return lease

    def _release(self, lease: Lease) -> None:
        """Give the ref and its attempt back, unless the lease is another's by now."""
        held = self._alive(lease.thread_id, lease.checkpoint_id)
        if held is None or held.value != lease.value:
            return
        del self._leases[lease.thread_id, lease.checkpoint_id]
        record = self._get(lease.thread_id, lease.checkpoint_id)
        attempts = record.attempts - 1
        self._move(
            replace(record, attempts=attempts, lease=""),
            RefState.RETRYABLE if attempts else RefState.PENDING,
        )

    @override
    async def record_migration(
        self, thread_id: str, legacy_checkpoint_id: str, *, checkpoint_id: str, boundary_id: str
    ) -> MigrationLink:
        check_id(checkpoint_id, what="checkpoint_id")
        check_id(boundary_id, what="boundary_id")
        legacy = self._get(thread_id, legacy_checkpoint_id)
        _demand_line(legacy.ref, WriterLine.LEGACY)
        if legacy.link is not None:
            return legacy.link
        if legacy.state is RefState.EXPIRED:
            raise _expired(legacy.ref)
        new = self._get(thread_id, checkpoint_id)
        _demand_line(new.ref, WriterLine.KERNEL)
        if new.replay_of not in ("", legacy_checkpoint_id):
            raise CommitRefusedError(thread_id, legacy_checkpoint_id, FailureReason.ID_CONFLICT)
        return self._link(legacy, new, boundary_id)

    @override
    async def commit_replay(
        self, lease: Lease, ref: CheckpointRef, boundary_id: str
    ) -> MigrationLink:
        check_id(boundary_id, what="boundary_id")
        legacy = self._find(lease.thread_id, lease.checkpoint_id)
        if legacy is not None and legacy.link is not None:
            return legacy.link
        held = self._alive(lease.thread_id, lease.checkpoint_id)
        if held is None or held.value != lease.value:
            raise LeaseLostError(lease.name, lease.fence)
        new = self._find(ref.thread_id, ref.checkpoint_id)
        refusal = _refusal(legacy, ref, new)
        if refusal is not None or legacy is None:
            raise CommitRefusedError(
                lease.thread_id, lease.checkpoint_id, refusal or FailureReason.NOT_AUTHORITATIVE
            )
        if new is None:
            whole = CheckpointRef(
                ref.thread_id, ref.checkpoint_id, ref.writer_line, legacy.ref.created_at
            )
            new = self._enter(whole, replay_of=lease.checkpoint_id)
        return self._link(legacy, new, boundary_id)

    @override
    async def request_replay(self, thread_id: str) -> int:
        moved = [
            (thread_id, record.ref.checkpoint_id)
            for record in self._records(thread_id)
            if record.state in _CLAIMABLE and record.hold is Hold.NONE
        ]
        self._requested.update(dict.fromkeys(moved))
        return len(moved)

    # One step each ------------------------------------------------------------------------

    def _now(self) -> datetime:
        return from_us(to_us(self._clock()))

    def _records(self, thread_id: str) -> tuple[RefRecord, ...]:
        check_id(thread_id, what="thread_id")
        return tuple(self._threads.get(thread_id, {}).values())

    def _find(self, thread_id: str, checkpoint_id: str) -> RefRecord | None:
        check_id(thread_id, what="thread_id")
        check_id(checkpoint_id, what="checkpoint_id")
        return self._threads.get(thread_id, {}).get(checkpoint_id)

    def _get(self, thread_id: str, checkpoint_id: str) -> RefRecord:
        record = self._find(thread_id, checkpoint_id)
        if record is None:
            raise UnknownCheckpointError(thread_id, checkpoint_id)
        return record

    def _known_as(self, ref: CheckpointRef) -> RefRecord | None:
        """The record of ``ref``, if there is one and of its line."""
        known = self._find(ref.thread_id, ref.checkpoint_id)
        if known is not None:
            _demand_line(known.ref, ref.writer_line)
        return known

    def _put(self, record: RefRecord) -> RefRecord:
        self._threads.setdefault(record.ref.thread_id, {})[record.ref.checkpoint_id] = record
        return record

    def _move(self, record: RefRecord, state: RefState) -> RefRecord:
        """Store ``record`` in ``state``, dated and signed."""
        if state not in _CLAIMABLE and state is not RefState.REPLAYING:
            self._requested.pop((record.ref.thread_id, record.ref.checkpoint_id), None)
        return self._put(replace(record, state=state, changed_at=self._now(), by=self._actor))

    def _enter(self, ref: CheckpointRef, *, replay_of: str = "") -> RefRecord:
        state = standing.first_state(ref)
        ref = replace(ref, created_at=from_us(to_us(ref.created_at)))
        if state is RefState.EXPIRED and ref.expired_at is None:
            ref = replace(ref, expired_at=self._now())
        record = RefRecord(
            ref=ref,
            state=state,
            reason=ref.expired_reason,
            opened_at=None if ref.finalized else ref.created_at,
            replay_of=replay_of,
        )
        return self._move(record, state)

    def _expire(self, record: RefRecord, reason: str, *, grace_s: float | None = None) -> RefRecord:
        self._leases.pop((record.ref.thread_id, record.ref.checkpoint_id), None)
        reason = clean(reason)
        gone = replace(
            record,
            ref=record.ref.expire(reason, self._now()),
            reason=reason,
            code=None,
            lease="",
            hold=Hold.NONE,
            grace_s=grace_s,
        )
        return self._move(gone, RefState.EXPIRED)

    def _link(self, legacy: RefRecord, new: RefRecord, boundary_id: str) -> MigrationLink:
        thread_id, legacy_id = legacy.ref.thread_id, legacy.ref.checkpoint_id
        link = MigrationLink(thread_id, legacy_id, new.ref.checkpoint_id, boundary_id, self._now())
        self._leases.pop((thread_id, legacy_id), None)
        self._put(replace(new, replay_of=legacy_id))
        linked = replace(
            legacy,
            ref=legacy.ref.finalize(),
            link=link,
            boundary_id=boundary_id,
            opened_at=None,
            code=None,
            detail="",
            lease="",
            hold=Hold.NONE,
        )
        self._move(linked, RefState.MIGRATED)
        return link

    def _boundary_of(self, record: RefRecord) -> SafeBoundaryMarker | None:
        """The boundary to replay a ref from: its own, else the newest of its line."""
        markers = self._boundaries.get(record.ref.thread_id, {})
        if record.boundary_id:
            return markers.get(record.boundary_id)
        of_line = [m for m in markers.values() if m.writer_line is record.ref.writer_line]
        return max(of_line, key=lambda m: (m.sequence, m.created_at), default=None)

    def _alive(self, thread_id: str, checkpoint_id: str) -> _Held | None:
        """The lease on a ref, while it has not run out."""
        held = self._leases.get((thread_id, checkpoint_id))
        return held if held is not None and self._now() < held.until else None


def _demand_line(ref: CheckpointRef, line: WriterLine) -> None:
    if ref.writer_line is not line:
        raise WriterLineChangedError(ref.thread_id, ref.checkpoint_id, ref.writer_line, line)


def _demand_claimable(ref: CheckpointRef, state: RefState) -> None:
    """Raise unless a migrator may take this ref: whole, of line legacy, given up by nobody."""
    if ref.writer_line is not WriterLine.LEGACY:
        raise CommitRefusedError(ref.thread_id, ref.checkpoint_id, FailureReason.WRITER_LINE)
    if state not in (*_CLAIMABLE, RefState.REPLAYING):
        raise CommitRefusedError(ref.thread_id, ref.checkpoint_id, FailureReason.NOT_AUTHORITATIVE)


def _expired(ref: CheckpointRef) -> CheckpointExpiredError:
    return CheckpointExpiredError(
        ref.thread_id, ref.checkpoint_id, ref.expired_reason, ref.expired_at
    )


def _refusal(
    legacy: RefRecord | None, ref: CheckpointRef, new: RefRecord | None
) -> FailureReason | None:
    """Why a replay of ``legacy`` into ``ref`` may not be linked; ``new`` is what bears its id."""
    if legacy is None or legacy.state is not RefState.REPLAYING:
        return FailureReason.NOT_AUTHORITATIVE
    if ref.thread_id != legacy.ref.thread_id:
        return FailureReason.BINDING_MISMATCH
    if legacy.ref.writer_line is not WriterLine.LEGACY:
        return FailureReason.WRITER_LINE
    if ref.writer_line is not WriterLine.KERNEL:
        return FailureReason.WRITER_LINE
    if new is None:
        return None
    if new.ref.writer_line is not WriterLine.KERNEL:
        return FailureReason.WRITER_LINE
    if new.state is not RefState.FINALIZED:
        return FailureReason.ID_CONFLICT
    if new.replay_of not in ("", legacy.ref.checkpoint_id):
        return FailureReason.ID_CONFLICT
    return None
