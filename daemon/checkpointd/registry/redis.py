"""The registry on Redis or Valkey: the contract's verbs, each one atomic script or one read."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from checkpointd.domain import standing
from checkpointd.domain.errors import (
    CheckpointExpiredError,
    CommitRefusedError,
    CorruptRecordError,
    IssuanceFrozenError,
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
    to_us,
)
from checkpointd.domain.standing import RefRecord, first_state
from checkpointd.domain.states import (
    ALL_LINES,
    CRASH_EXPIRY_REASON,
    FailureReason,
    RefState,
    WriterLine,
)
from checkpointd.domain.tally import TTF_BOUNDS_S
from checkpointd.registry.codec import (
    LINE_LETTERS,
    STATE_LETTERS,
    clean,
    decode_boundary,
    decode_record,
)
from checkpointd.registry.control import Control
from checkpointd.registry.expiry import Expiry
from checkpointd.registry.ledger import DrainLedger, unattended
from checkpointd.registry.store import Store

_TTF_BOUNDS_US = tuple(int(b * 1_000_000) for b in TTF_BOUNDS_S if not math.isinf(b))


class RedisRegistry:
    """``CheckpointRegistry``, durable and shared by every process. The port says what is promised."""

    def __init__(self, store: Store, *, actor: str, lease_ttl: timedelta = timedelta(seconds=15)):
        self._store = store
        self._actor = clean(actor, 120)
        self._control = Control(store)
        self._expiry = Expiry(store)
        self._ledger = DrainLedger(store, actor=actor, lease_ttl=lease_ttl)

    # Issuing and finalizing ----------------------------------------------------------------------

    async def register(
        self, ref: CheckpointRef, *, finalized: bool = True, issuance: bool = True
    ) -> CheckpointRef:
        return await self._register(
            ref, finalized=finalized, manner="issue" if issuance else "catch_up"
        )

    async def register_replay(
        self, ref: CheckpointRef, *, legacy_checkpoint_id: str
    ) -> CheckpointRef:
        check_id(legacy_checkpoint_id, what="legacy_checkpoint_id")
        return await self._register(
            ref, finalized=True, manner="replay", replay_of=legacy_checkpoint_id
        )

    async def _register(
        self, ref: CheckpointRef, *, finalized: bool, manner: str, replay_of: str = ""
    ) -> CheckpointRef:
        state = first_state(ref)
        if not finalized and not ref.expired:
            state = RefState.OPEN
        word, raw = await self._store.on_thread(
            "register",
            ref.thread_id,
            ref.thread_id,
            ref.checkpoint_id,
            LINE_LETTERS[ref.writer_line],
            to_us(ref.created_at),
            STATE_LETTERS[state],
            manner,
            replay_of,
            clean(ref.expired_reason),
            self._actor,
            to_us(ref.expired_at) if ref.expired_at else "",
            "1" if ref.finalized else "",
        )
        match word:
            case b"frozen":
                raise IssuanceFrozenError(
                    ref.thread_id,
                    ref.checkpoint_id,
                    ref.writer_line,
                    raw.decode(),
                    replay_of=replay_of,
                )
            case b"line_changed":
                known = decode_record(ref.thread_id, ref.checkpoint_id, raw).ref.writer_line
                raise WriterLineChangedError(
                    ref.thread_id, ref.checkpoint_id, known, ref.writer_line
                )
        return self._record(word, ref.thread_id, ref.checkpoint_id, raw).ref

    async def finalize(self, thread_id: str, checkpoint_id: str) -> CheckpointRef:
        _check(thread_id, checkpoint_id)
        word, raw = await self._store.on_thread(
            "finalize", thread_id, thread_id, checkpoint_id, self._actor, *_TTF_BOUNDS_US
        )
        return self._alive(word, thread_id, checkpoint_id, raw)

    async def extend(self, thread_id: str, checkpoint_id: str) -> CheckpointRef:
        _check(thread_id, checkpoint_id)
        word, raw = await self._store.on_thread("extend", thread_id, thread_id, checkpoint_id)
        return self._alive(word, thread_id, checkpoint_id, raw)

    async def expire(self, thread_id: str, checkpoint_id: str, reason: str) -> CheckpointRef:
        _check(thread_id, checkpoint_id)
        word, raw = await self._store.on_thread(
            "expire",
            thread_id,
            thread_id,
            checkpoint_id,
            clean(reason),
            self._actor,
            lease_of=checkpoint_id,
        )
        return self._record(word, thread_id, checkpoint_id, raw).ref

    def _record(self, word: bytes, thread_id: str, checkpoint_id: str, raw: bytes) -> RefRecord:
        if word == b"unknown":
            raise UnknownCheckpointError(thread_id, checkpoint_id)
        if word == b"corrupt":
            raise CorruptRecordError(
                f"checkpoint {checkpoint_id!a} of thread {thread_id!a}",
                "it is of a layout that this build does not know",
            )
        return decode_record(thread_id, checkpoint_id, raw)

    def _alive(self, word: bytes, thread_id: str, checkpoint_id: str, raw: bytes) -> CheckpointRef:
        ref = self._record(word, thread_id, checkpoint_id, raw).ref
        if ref.expired:
            raise CheckpointExpiredError(
                thread_id, checkpoint_id, ref.expired_reason, ref.expired_at
            )
        return ref

    # Looking -------------------------------------------------------------------------------------

    async def record_of(self, thread_id: str, checkpoint_id: str) -> RefRecord | None:
        """All that is kept of one ref; ``None`` if it was never registered."""
        _check(thread_id, checkpoint_id)
        key = self._store.keys.thread(thread_id)
        raw = await self._store.read(lambda c: c.hget(key, f"c{checkpoint_id}"))
        return None if raw is None else decode_record(thread_id, checkpoint_id, raw)

    async def records_of(self, thread_id: str) -> tuple[RefRecord, ...]:
        """All that is kept of a thread's refs, oldest first."""
        check_id(thread_id, what="thread_id")
        key = self._store.keys.thread(thread_id)
        fields = await self._store.read(lambda c: c.hgetall(key))
        records = [
            decode_record(thread_id, field[1:].decode(), raw)
            for field, raw in fields.items()
            if field.startswith(b"c")
        ]
        return tuple(sorted(records, key=lambda r: r.ref.order))

    async def is_authoritative(self, thread_id: str, checkpoint_id: str) -> bool:
        _check(thread_id, checkpoint_id)
        key = self._store.keys.thread(thread_id)
        return bool(await self._store.read(lambda c: c.hexists(key, f"c{checkpoint_id}")))

    async def is_resumable(self, thread_id: str, checkpoint_id: str) -> bool:
        record = await self.record_of(thread_id, checkpoint_id)
        return record is not None and record.is_resumable

    async def refs_for(self, thread_id: str) -> tuple[CheckpointRef, ...]:
        return tuple(record.ref for record in await self.records_of(thread_id))

    async def resolve(self, thread_id: str) -> CheckpointRef | None:
        return standing.resolve(await self.records_of(thread_id))

    async def explain(self, thread_id: str) -> Explanation:
        return standing.explain(thread_id, await self.records_of(thread_id))

    async def migration_of(self, thread_id: str, legacy_checkpoint_id: str) -> MigrationLink | None:
        record = await self.record_of(thread_id, legacy_checkpoint_id)
        return record.link if record else None

    async def now(self) -> datetime:
        return await self._store.now()

    # Freezing ------------------------------------------------------------------------------------

    async def freeze_issuance(
        self, *, reason: str, lines: tuple[WriterLine, ...] = ALL_LINES
    ) -> IssuanceFreeze:
        return await self._control.freeze(reason=reason, lines=lines, actor=self._actor)

    async def thaw_issuance(self, *, reason: str) -> None:
        await self._control.thaw(reason=reason, actor=self._actor)

    async def freeze_in_force(self) -> IssuanceFreeze | None:
        word = await self._control.read()
        return word.freeze if word.in_force_at else None

    # Boundaries ----------------------------------------------------------------------------------

    async def mark_safe_boundary(
        self,
        thread_id: str,
        *,
        sequence: int,
        digest: str,
        writer_line: WriterLine,
        boundary_id: str | None = None,
        of: str = "",
    ) -> SafeBoundaryMarker:
        """As the port says; ``of`` names the checkpoint whose boundary this is, if it is known."""
        check_id(thread_id, what="thread_id")
        if digest:
            check_id(digest, what="digest")
        if boundary_id is None:
            boundary_id = SafeBoundaryMarker.derive_id(thread_id, sequence, digest)
        check_id(boundary_id, what="boundary_id")
        raw = await self._store.on_thread(
            "mark_boundary",
            thread_id,
            boundary_id,
            int(sequence),
            LINE_LETTERS[WriterLine(writer_line)],
            digest,
            of,
        )
        return decode_boundary(thread_id, boundary_id, raw)

    async def boundaries_for(self, thread_id: str) -> tuple[SafeBoundaryMarker, ...]:
        check_id(thread_id, what="thread_id")
        key = self._store.keys.thread(thread_id)
        fields = await self._store.read(lambda c: c.hgetall(key))
        markers = [
            decode_boundary(thread_id, field[1:].decode(), raw)
            for field, raw in fields.items()
            if field.startswith(b"b")
        ]
        return tuple(sorted(markers, key=lambda m: (m.sequence, m.created_at, m.boundary_id)))

    # Migrating -----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def migration_lock(
        self, thread_id: str, legacy_checkpoint_id: str
    ) -> AsyncIterator[Lease]:
        _check(thread_id, legacy_checkpoint_id)
        token = secrets.token_hex(16)
        try:
            lease = await self._ledger.acquire(thread_id, legacy_checkpoint_id, token=token)
        except BaseException:
            # The reply may be lost while the key holds our token: take it away by the token.
            with contextlib.suppress(Exception):
                taken = [(thread_id, legacy_checkpoint_id, token)]
                await asyncio.shield(unattended(self._ledger.release_tokens(taken)))
            raise
        try:
            yield lease
        finally:
            with contextlib.suppress(Exception):
                await asyncio.shield(unattended(self._ledger.release(lease)))

    async def record_migration(
        self, thread_id: str, legacy_checkpoint_id: str, *, checkpoint_id: str, boundary_id: str
    ) -> MigrationLink:
        _check(thread_id, legacy_checkpoint_id)
        check_id(checkpoint_id, what="checkpoint_id")
        check_id(boundary_id, what="boundary_id")
        word, told = await self._store.on_thread(
            "record_migration",
            thread_id,
            thread_id,
            legacy_checkpoint_id,
            checkpoint_id,
            boundary_id,
            self._actor,
            lease_of=legacy_checkpoint_id,
        )
        match word:
            case b"unknown" | b"corrupt":
                self._record(word, thread_id, told.decode(), b"")
            case b"line_changed":
                raise WriterLineChangedError(
                    thread_id, legacy_checkpoint_id, WriterLine.KERNEL, WriterLine.LEGACY
                )
            case b"new_line_changed":
                raise WriterLineChangedError(
                    thread_id, checkpoint_id, WriterLine.LEGACY, WriterLine.KERNEL
                )
            case b"id_conflict":
                raise CommitRefusedError(thread_id, legacy_checkpoint_id, "id_conflict")
        record = decode_record(thread_id, legacy_checkpoint_id, told)
        if record.link is None:
            raise CheckpointExpiredError(
                thread_id, legacy_checkpoint_id, record.reason, record.changed_at
            )
        return record.link

    async def commit_replay(
        self, lease: Lease, ref: CheckpointRef, boundary_id: str
    ) -> MigrationLink:
        check_id(boundary_id, what="boundary_id")
        if ref.thread_id != lease.thread_id:
            raise CommitRefusedError(
                lease.thread_id, lease.checkpoint_id, FailureReason.BINDING_MISMATCH
            )
        committed = await self._ledger.commit(
            lease, ref.checkpoint_id, ref.writer_line, boundary_id
        )
        return committed.link

    async def request_replay(self, thread_id: str) -> int:
        check_id(thread_id, what="thread_id")
        return int(await self._store.on_thread("request_replay", thread_id, thread_id))

    # Expiring ------------------------------------------------------------------------------------

    async def reconcile_crash_expiry(self, *, grace: timedelta) -> ReconciliationReport:
        if grace <= timedelta(0):
            raise ValueError(f"the grace is {grace}; it must be positive, or honest turns expire")
        at = await self._store.now()
        inspected = await self._expiry.open_refs()
        actor = self._expiry.pass_actor(self._actor)
        expired: list[CheckpointRef] = []
        for partition in range(self._store.keys.partitions):
            async for lot in self._expiry.expire_overdue(
                partition, now=at, grace=grace, actor=actor, reason=CRASH_EXPIRY_REASON
            ):
                expired.extend(lot)
        return ReconciliationReport(
            at=at,
            grace_seconds=grace.total_seconds(),
            expired=tuple(expired),
            inspected=inspected,
        )


def _check(thread_id: str, checkpoint_id: str) -> None:
    check_id(thread_id, what="thread_id")
    check_id(checkpoint_id, what="checkpoint_id")
