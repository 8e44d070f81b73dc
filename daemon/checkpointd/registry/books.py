"""Adoption's steps on the store: bringing a thread's books up to its head, and the scan's record."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from checkpointd.domain.errors import CorruptRecordError, WrongStoreError
from checkpointd.domain.ids import check_id
from checkpointd.domain.legacy import LegacyState
from checkpointd.domain.refs import Lease, SafeBoundaryMarker, from_us, to_us
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import Hold, RefState, WriterLine
from checkpointd.registry.codec import HOLD_LETTERS, clean, decode_record, encode_boundary
from checkpointd.registry.keys import split_member
from checkpointd.registry.store import Store

LOT = 500
"""Refs looked at in one round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What the books say after one thread was brought up to its head."""

    word: str
    """``new``, ``closed``, ``unchanged``, ``stale`` or ``corrupt``."""
    fallback: bool
    superseded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRecord:
    """Where the scan of the source stands, as the replicas share it."""

    started: datetime | None = None
    completed: datetime | None = None
    """When the last complete scan ended."""
    completed_start: datetime | None = None
    """When that one had begun."""
    cursor: str | None = None
    """Where the scan under way goes on; ``None`` if none is."""
    clean_start: datetime | None = None
    """When the last clean scan began."""
    clean_births: int | None = None
    """Legacy births and supersessions that it had seen; more of them void it."""
    unregistrable: int = 0
    young: int = 0
    counts: Mapping[str, int] | None = None
    """What the scan under way has found so far."""


def scan_record(raw: Mapping[str, str]) -> ScanRecord:
    """The scan's part of the store-wide record."""

    def at(field: str) -> datetime | None:
        return from_us(int(raw[field])) if raw.get(field) else None

    return ScanRecord(
        started=at("scan_started"),
        completed=at("scan_completed"),
        completed_start=at("scan_completed_start"),
        cursor=raw["scan_cursor"][1:] if raw.get("scan_cursor") else None,
        clean_start=at("clean_start"),
        clean_births=int(raw["clean_births"]) if raw.get("clean_births") else None,
        unregistrable=int(raw.get("unregistrable") or 0),
        young=int(raw.get("scan_young") or 0),
    )


class AdoptionBooks:
    """What adoption reads and writes in the registry."""

    TURN = "adopt"
    TURN_TTL = timedelta(seconds=30)

    def __init__(self, store: Store, *, actor: str) -> None:
        self._store = store
        self._actor = clean(actor, 120)

    async def bind_source(self, identity: str) -> None:
        """Bind the registry to the source that it accounts for; ``WrongStoreError`` if to another."""
        key = self._store.keys.meta
        raw = await self._store.read(lambda c: c.hget(key, "source"))
        if raw is None:
            await self._store.write(lambda c: c.hsetnx(key, "source", identity))
            raw = await self._store.read(lambda c: c.hget(key, "source"))
        if raw.decode() != identity:
            raise WrongStoreError(
                f"the registry {self._store.keys.namespace!r} at {self._store.where} accounts for "
                f"the source {raw.decode()!r} and source.url names {identity!r}; use another "
                "registry.namespace for another source"
            )

    async def known(self, thread_ids: Sequence[str]) -> dict[str, dict[str, RefRecord] | None]:
        """The records of these threads by checkpoint id; ``None`` where one cannot be read."""
        keys = self._store.keys
        replies = await self._store.read_many([("HGETALL", keys.thread(t)) for t in thread_ids])
        found: dict[str, dict[str, RefRecord] | None] = {}
        for thread, fields in zip(thread_ids, replies, strict=True):
            pairs = fields.items() if isinstance(fields, dict) else _pairs(fields)
            try:
                found[thread] = {
                    field[1:].decode(): decode_record(thread, field[1:].decode(), raw)
                    for field, raw in pairs
                    if field.startswith(b"c")
                }
            except CorruptRecordError:
                found[thread] = None
        return found

    async def adopt(
        self,
        head: LegacyState,
        *,
        hold: Hold,
        confirming: bool,
        fallback: LegacyState | None = None,
        moved_on: Sequence[str] = (),
        guard: Lease | None = None,
    ) -> Adopted:
        """Bring the books of a thread up to its head, in one step.

        Registers the head, or closes its window, or leaves it; registers or holds its
        fallback; expires what the thread moved on from. With ``guard``, only while that
        lease is held. Again: ``unchanged``.
        """
        thread = head.thread_id
        check_id(thread, what="thread_id")
        check_id(head.checkpoint_id, what="checkpoint_id")
        keys = self._store.keys
        guarded = guard.checkpoint_id if guard else head.checkpoint_id
        word, registered, superseded, _ = await self._store.at(
            keys.index(thread),
            "adopt",
            [
                keys.thread(thread),
                keys.lease(thread, guarded),
                *(keys.lease(thread, old) for old in moved_on),
            ],
            [
                thread,
                head.checkpoint_id,
                to_us(head.created_at),
                "settled" if head.verdict.is_settled else "open",
                HOLD_LETTERS[hold],
                "1" if confirming else "",
                self._actor,
                *_boundary_args(head),
                guarded,
                guard.value if guard else "",
                fallback.checkpoint_id if fallback else "",
                to_us(fallback.created_at) if fallback else "",
                *(_boundary_args(fallback) if fallback else ("", "", "")),
                *moved_on,
            ],
        )
        return Adopted(word=word.decode(), fallback=registered == 1, superseded=int(superseded))

    async def held_pauses(self) -> AsyncIterator[tuple[str, str]]:
        """Thread and checkpoint of each pause that waits for its confirmation, by an index.

        Only partitions whose counters show more waiting refs than due ones are looked into.
        """
        words = [f"legacy:{s}" for s in (RefState.PENDING, RefState.RETRYABLE, RefState.REPLAYING)]
        for keys in self._store.keys.all:
            counted, due = await self._store.read_many(
                [("HMGET", keys.counters, *words), ("ZCARD", keys.due)]
            )
            if sum(int(n or 0) for n in counted) <= due:
                continue
            at = 0
            while members := await self._lot_of(keys.unfinished, at):
                at += len(members)
                pairs = [split_member(raw) for raw in members]
                raws = await self._store.read_many(
                    [("HGET", self._store.keys.thread(t), f"c{c}") for t, c in pairs]
                )
                for (thread, checkpoint), raw in zip(pairs, raws, strict=True):
                    if raw and decode_record(thread, checkpoint, raw).hold is Hold.PAUSED:
                        yield thread, checkpoint

    async def _lot_of(self, key: str, at: int) -> list[bytes]:
        found: list[bytes] = await self._store.read(lambda c: c.zrange(key, at, at + LOT - 1))
        return found

    async def let_go(self, thread_id: str, checkpoint_id: str) -> bool:
        """End a pause's wait, since the source has it no more; ``False`` if it did not wait."""
        reply = await self._store.on_thread(
            "let_go", thread_id, thread_id, checkpoint_id, self._actor
        )
        return bool(reply == b"due")

    # The scan's record ---------------------------------------------------------------------------

    async def take_turn(self, token: str) -> bool:
        """Be the replica that scans, for ``TURN_TTL``; again with the token: prolonged."""
        ttl_ms = self.TURN_TTL // timedelta(milliseconds=1)
        reply = await self._store.meta("take_turn", token, ttl_ms, turn=self.TURN)
        return bool(reply == b"held")

    async def give_turn(self, token: str) -> None:
        """Let another replica scan. Again: nothing."""
        await self._store.meta("give_turn", token, turn=self.TURN)

    async def note(self, token: str, **fields: str | int) -> bool:
        """Write fields of the scan's record while the turn is ours; ``@now`` is the store's clock."""
        args: list[str | int] = [token]
        for name, value in fields.items():
            args += (name, value)
        return bool(await self._store.meta("meta_put", *args, turn=self.TURN) == b"written")

    async def now(self) -> datetime:
        """The store's clock."""
        return await self._store.now()

    async def births(self) -> int:
        """Legacy births and supersessions so far, store-wide; only rises."""
        rows = await self._store.read_many(
            [("HGET", keys.counters, "births") for keys in self._store.keys.all]
        )
        return sum(int(row or 0) for row in rows)

    @staticmethod
    def token() -> str:
        """A token for a turn."""
        return secrets.token_hex(16)


def boundary_of(state: LegacyState) -> SafeBoundaryMarker | None:
    """The boundary that a legacy state is, or ``None`` if it is none."""
    if not state.verdict.is_settled or state.blocker is not None or not state.digest:
        return None
    return SafeBoundaryMarker(
        SafeBoundaryMarker.derive_id(state.thread_id, state.sequence, state.digest),
        state.thread_id,
        state.sequence,
        state.digest,
        WriterLine.LEGACY,
        state.created_at,
    )


def _boundary_args(state: LegacyState) -> tuple[str, str, str]:
    marker = boundary_of(state)
    if marker is None:
        return ("", "", "")
    return (marker.boundary_id, encode_boundary(marker), str(marker.sequence))


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[0::2], flat[1::2], strict=True))
