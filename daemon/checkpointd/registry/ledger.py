"""The drain's steps on the store: the lease protocol, one method for each row of its table."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from checkpointd.domain.errors import (
    AlreadyMigratedError,
    CommitRefusedError,
    CorruptRecordError,
    LeaseBusyError,
    LeaseLostError,
    UnknownCheckpointError,
)
from checkpointd.domain.refs import Lease, MigrationLink, from_us
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import FailureReason, Hold, RefState, ReplayOutcome, WriterLine
from checkpointd.registry.codec import (
    HOLD_LETTERS,
    LINE_LETTERS,
    clean,
    decode_boundary,
    decode_claimed,
    decode_link,
    decode_record,
    microseconds,
)
from checkpointd.registry.keys import member, split_member
from checkpointd.registry.store import Store
from checkpointd.registry.together import Together

Named = tuple[str, str]
"""A ref: thread and checkpoint."""

Taken = tuple[str, str, str]
"""A ref and the token, or the whole value, of its lease."""


@dataclass(frozen=True, slots=True)
class Peek:
    """What is due in a partition, and the word that a claim would be given."""

    word: str
    """``go``, ``not_frozen``, ``paused``, ``halted`` or ``canary``."""
    canary: str
    due: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """What one claim took."""

    word: str
    leases: tuple[Lease, ...] = ()
    busy: int = 0
    quarantined: tuple[RefRecord, ...] = ()
    """Refs that had spent their attempts."""
    corrupt: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """A link, and whether this commit made it."""

    link: MigrationLink
    outcome: ReplayOutcome
    """``migrated`` or ``already_migrated``."""


def unattended(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that ends well for everybody: whoever began it may be gone when it fails.

    ``asyncio.shield`` alone would leave the error of a release whose time was over to be
    reported as forgotten.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class DrainLedger:
    """Peek, claim, renew, release, fail and commit."""

    def __init__(self, store: Store, *, actor: str, lease_ttl: timedelta) -> None:
        self._store = store
        self._actor = clean(actor, 120)
        self._ttl_ms = lease_ttl // timedelta(milliseconds=1)
        self._commits = Together(store, "commit", self._actor)

    async def with_work(self) -> list[int]:
        """The partitions whose counters show refs that may be claimed, now or later."""
        words = [f"legacy:{s}" for s in (RefState.PENDING, RefState.RETRYABLE, RefState.REPLAYING)]
        rows = await self._store.read_many(
            [("HMGET", keys.counters, *words) for keys in self._store.keys.all]
        )
        return [p for p, row in enumerate(rows) if any(int(n or 0) > 0 for n in row)]

    async def peek(self, partition: int, most: int) -> Peek:
        """What may be claimed now in this partition, earliest first; nothing is written."""
        word, *due = await self._store.at(partition, "peek", [], [most])
        text, _, epoch = word.decode().partition(":")
        return Peek(text, epoch, tuple(split_member(raw) for raw in due))

    @staticmethod
    def drawn(refs: Sequence[Named]) -> tuple[Taken, ...]:
        """Each ref with a token of its own: 128 random bits, never shared, never used again."""
        return tuple((thread, checkpoint, secrets.token_hex(16)) for thread, checkpoint in refs)

    async def claim(
        self,
        partition: int,
        wanted: Sequence[Taken],
        *,
        most: int,
        max_attempts: int,
        canary: str = "",
    ) -> Claim:
        """Take up to ``most`` of these refs, their attempts counted and fences issued.

        Again with the same tokens: what it holds is given again, without another attempt.
        If the call is cancelled or fails, hand ``wanted`` to ``release_tokens``.
        """
        keys = self._store.keys
        more_keys: list[str] = []
        args: list[str | int] = [self._ttl_ms, max_attempts, self._actor, canary, most]
        for thread, checkpoint, token in wanted:
            more_keys += (keys.thread(thread), keys.lease(thread, checkpoint))
            args += (member(thread, checkpoint), token)
        word, *rest = await self._store.at(partition, "claim", more_keys, args)
        if word != b"go":
            return Claim(word.decode())
        now, frozen_at = from_us(int(rest[0])), from_us(int(rest[1]))
        leases: list[Lease] = []
        quarantined: list[RefRecord] = []
        busy = corrupt = 0
        for answer in rest[2:]:
            index = int(answer[0])
            thread, checkpoint, _ = wanted[index]
            match answer[1]:
                case b"busy":
                    busy += 1
                case b"corrupt":
                    corrupt += 1
                case b"quarantined" | b"held":
                    try:
                        if answer[1] == b"held":
                            leases.append(_lease(wanted[index], answer, now, frozen_at))
                        else:
                            quarantined.append(decode_record(thread, checkpoint, answer[2]))
                    except CorruptRecordError:
                        # The others' leases must not be lost over it. Its own runs out, and its
                        # attempts are counted, so a claim takes it to quarantine in the end.
                        corrupt += 1
        return Claim("go", tuple(leases), busy, tuple(quarantined), corrupt)

    async def acquire(self, thread_id: str, checkpoint_id: str, *, token: str) -> Lease:
        """Take one ref's lease; again with the same token: the same lease, prolonged.

        ``LeaseBusyError``, ``AlreadyMigratedError``, ``UnknownCheckpointError``, or
        ``CommitRefusedError`` where the ref is not to be replayed at all.
        """
        word, *rest = await self._store.on_thread(
            "acquire",
            thread_id,
            thread_id,
            checkpoint_id,
            token,
            self._ttl_ms,
            self._actor,
            lease_of=checkpoint_id,
        )
        match word:
            case b"busy":
                raise LeaseBusyError(f"{thread_id}/{checkpoint_id}", int(rest[0]) / 1000)
            case b"unknown":
                raise UnknownCheckpointError(thread_id, checkpoint_id)
            case b"corrupt":
                raise CorruptRecordError(f"{checkpoint_id!a} of {thread_id!a}", "unknown layout")
            case b"refused":
                record = decode_record(thread_id, checkpoint_id, rest[0])
                legacy = record.ref.writer_line is WriterLine.LEGACY
                reason = FailureReason.NOT_AUTHORITATIVE if legacy else FailureReason.WRITER_LINE
                raise CommitRefusedError(thread_id, checkpoint_id, reason)
            case b"migrated":
                record = decode_record(thread_id, checkpoint_id, rest[0])
                became = record.link.checkpoint_id if record.link else ""
                raise AlreadyMigratedError(thread_id, checkpoint_id, became)
        record = decode_record(thread_id, checkpoint_id, rest[1])
        return Lease(
            thread_id=thread_id,
            checkpoint_id=checkpoint_id,
            fence=int(rest[0]),
            token=token,
            attempt=record.attempts,
            created_at=record.ref.created_at,
            stands_in_for=record.stands_in_for,
            confirmed=record.confirmed_at is not None,
        )

    async def renew(self, lease: Lease) -> bool:
        """Hold the lease for another TTL; ``False`` if it is not ours any more."""
        keys = self._store.keys
        reply = await self._store.at(
            keys.index(lease.thread_id),
            "renew",
            [keys.lease(lease.thread_id, lease.checkpoint_id)],
            [lease.value, self._ttl_ms, member(lease.thread_id, lease.checkpoint_id)],
        )
        return bool(reply == b"held")

    async def release(
        self, lease: Lease, *, again_in: timedelta = timedelta(0), hold: Hold = Hold.NONE
    ) -> bool:
        """Give the lease and its attempt back; ``False`` if it was not ours. Again: ``False``."""
        released = await self._release(
            [(lease.thread_id, lease.checkpoint_id, lease.value)], again_in, hold
        )
        return released == 1

    async def release_tokens(self, taken: Sequence[Taken]) -> int:
        """Give back what a claim took whose reply was never seen: thread, checkpoint, token."""
        return await self._release(taken, timedelta(0), Hold.NONE)

    async def _release(self, taken: Sequence[Taken], again_in: timedelta, hold: Hold) -> int:
        keys = self._store.keys
        by_partition: dict[int, tuple[list[str], list[str | int]]] = {}
        for thread, checkpoint, value in taken:
            more_keys, args = by_partition.setdefault(
                keys.index(thread), ([], [self._actor, microseconds(again_in), HOLD_LETTERS[hold]])
            )
            more_keys += (keys.thread(thread), keys.lease(thread, checkpoint))
            args += (member(thread, checkpoint), value)
        released = 0
        for partition, (more_keys, args) in by_partition.items():
            released += int(await self._store.at(partition, "release", more_keys, args))
        return released

    async def fail(
        self,
        lease: Lease,
        *,
        reason: FailureReason,
        detail: str,
        permanent: bool,
        again_in: timedelta,
        max_attempts: int,
        own_fault: bool = True,
    ) -> RefState | None:
        """Say that the replay failed; the ref's new state, or ``None`` if the lease was lost.

        ``retryable`` after ``again_in``; ``quarantined`` if permanent or its attempts are spent.
        """
        reply = await self._store.on_thread(
            "fail",
            lease.thread_id,
            lease.thread_id,
            lease.checkpoint_id,
            lease.value,
            reason,
            clean(detail),
            "permanent" if permanent else "transient",
            microseconds(again_in),
            max_attempts,
            self._actor,
            "own" if own_fault else "",
            lease_of=lease.checkpoint_id,
        )
        return None if reply == b"stale" else RefState(reply.decode())

    async def commit(
        self, lease: Lease, checkpoint_id: str, line: WriterLine, boundary_id: str
    ) -> Committed:
        """Register and link in one step, if the lease is held.

        ``LeaseLostError`` or ``CommitRefusedError``; nothing was written then. After
        ``StoreUnreachableError`` the outcome is unknown: read the link, never assume.
        """
        keys = self._store.keys
        thread = lease.thread_id
        word, told = await self._commits.run(
            keys.index(thread),
            (keys.thread(thread), keys.lease(thread, lease.checkpoint_id)),
            (
                thread,
                lease.checkpoint_id,
                lease.value,
                checkpoint_id,
                LINE_LETTERS[line],
                boundary_id,
            ),
        )
        match word:
            case b"stale":
                raise LeaseLostError(lease.name, lease.fence)
            case b"refused":
                raise CommitRefusedError(lease.thread_id, lease.checkpoint_id, told.decode())
        link = decode_link(thread, lease.checkpoint_id, told)
        if link is None:
            raise CorruptRecordError(lease.name, "it is migrated and has no link")
        return Committed(link, ReplayOutcome(word.decode()))


def _lease(wanted: Taken, answer: Sequence[bytes], now: datetime, frozen_at: datetime) -> Lease:
    """The lease that a claim's answer grants, or ``CorruptRecordError``."""
    thread, checkpoint, token = wanted
    _, _, fence, attempts, raw, boundary, boundary_id = answer
    claimed = decode_claimed(thread, checkpoint, raw)
    return Lease(
        thread_id=thread,
        checkpoint_id=checkpoint,
        fence=int(fence),
        token=token,
        attempt=int(attempts),
        created_at=claimed.created_at,
        boundary=decode_boundary(thread, boundary_id.decode(), boundary) if boundary else None,
        own_boundary=bool(boundary) and bool(claimed.boundary_id),
        stands_in_for=claimed.stands_in_for,
        confirmed=claimed.confirmed_at is not None and claimed.confirmed_at >= frozen_at,
        acquired_at=now,
    )
