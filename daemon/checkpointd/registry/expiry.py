"""Expiring overdue refs, a bounded batch a script, and the brake that doubts a mass of them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from checkpointd.domain.refs import CheckpointRef, from_us, to_us
from checkpointd.domain.states import HoldReason
from checkpointd.registry.codec import clean, decode_expired, decode_ref, microseconds
from checkpointd.registry.keys import split_member
from checkpointd.registry.store import Store

BATCH = 250
"""Refs in one script: one or two milliseconds of the store's time, and under five where it is busy."""

_STAYS = frozenset({b"closed", b"young", b"unknown", b"corrupt"})
"""What the script answers of a ref that this pass has not expired."""

HEARTBEAT_GAP = timedelta(minutes=10)
"""So long without a heartbeat, and nobody was watching, or this is yesterday's store."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat learns."""

    at: datetime
    held: HoldReason | None
    until: datetime | None


class Expiry:
    """The expiry steps of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @staticmethod
    def pass_actor(replica: str) -> str:
        """The name under which one pass expires: a step sent again finds its own work by it."""
        return f"reconcile {clean(replica, 120)} {secrets.token_hex(4)}"

    @property
    def partitions(self) -> int:
        """How many partitions there are to go round."""
        return self._store.keys.partitions

    async def now(self) -> datetime:
        """The store's clock."""
        return await self._store.now()

    async def would_expire(
        self, *, grace: timedelta, now: datetime, most: int = 1000
    ) -> tuple[CheckpointRef, ...]:
        """Up to ``most`` refs that a pass at ``now`` would expire; nothing is written."""
        limit_us = to_us(now) - microseconds(grace)
        found: list[CheckpointRef] = []
        for partition in range(self.partitions):
            members = await self.due_in(partition, limit_us=limit_us, skip=0, most=most)
            pairs = [split_member(m) for m in members[: most - len(found)]]
            raws = await self._store.read_many(
                [("HGET", self._store.keys.thread(t), f"c{c}") for t, c in pairs]
            )
            found += [
                decode_ref(t, c, raw)
                for (t, c), raw in zip(pairs, raws, strict=True)
                if raw is not None
            ]
        return tuple(found)

    async def open_refs(self) -> int:
        """How many crash windows are open."""
        return sum(
            await self._store.read_many([("ZCARD", keys.open) for keys in self._store.keys.all])
        )

    async def overdue(self, *, grace: timedelta, now: datetime) -> tuple[int, int]:
        """How many windows are open, and how many of them are overdue at ``now``."""
        limit = to_us(now) - microseconds(grace)
        commands: list[tuple[str | int | bytes, ...]] = []
        for keys in self._store.keys.all:
            commands.append(("ZCARD", keys.open))
            commands.append(("ZCOUNT", keys.open, "-inf", str(limit)))
        counts = await self._store.read_many(commands)
        return sum(counts[0::2]), sum(counts[1::2])

    async def due_in(self, partition: int, *, limit_us: int, skip: int, most: int) -> list[bytes]:
        """Members of the open index whose window began at ``limit_us`` or before."""
        key = self._store.keys.all[partition].open
        found: list[bytes] = await self._store.read(
            lambda c: c.zrangebyscore(key, "-inf", limit_us, start=skip, num=most)
        )
        return found

    async def expire_overdue(
        self,
        partition: int,
        *,
        now: datetime,
        grace: timedelta,
        actor: str,
        reason: str,
        most: int | None = None,
    ) -> AsyncIterator[list[CheckpointRef]]:
        """Expire a partition's refs overdue at ``now``, lot by lot: what this pass expired.

        ``most`` bounds them all. A ref that stays (its record cannot be read) is stepped over.
        """
        grace_us = microseconds(grace)
        limit_us = to_us(now) - grace_us
        done = skip = 0
        while most is None or done < most:
            wanted = BATCH if most is None else min(BATCH, most - done)
            members = await self.due_in(partition, limit_us=limit_us, skip=skip, most=wanted)
            if not members:
                return
            refs = await self.expire_members(
                partition, members, grace_us=grace_us, actor=actor, reason=reason
            )
            done += len(refs)
            skip += len(members) - len(refs)
            yield refs
            if len(members) < wanted:
                return

    async def expire_members(
        self, partition: int, members: list[bytes], *, grace_us: int, actor: str, reason: str
    ) -> list[CheckpointRef]:
        """Expire those of ``members`` that are still open and old enough; return them.

        Again with the same actor: the same refs.
        """
        pairs = [split_member(member) for member in members]
        reason = clean(reason)
        now, *answers = await self._store.at(
            partition,
            "expire_overdue",
            [self._store.keys.thread_in(partition, thread) for thread, _ in pairs],
            [grace_us, actor, reason, *members],
        )
        expired_at = from_us(int(now))
        return [
            decode_expired(thread, checkpoint, answer, reason, expired_at)
            for (thread, checkpoint), answer in zip(pairs, answers, strict=True)
            if answer not in _STAYS
        ]

    # The brake -----------------------------------------------------------------------------------

    async def beat(self, *, grace: timedelta) -> Beat:
        """Say that somebody watches; after a gap, hold expiry for one grace."""
        now, held, until = await self._store.meta(
            "heartbeat", microseconds(HEARTBEAT_GAP), microseconds(grace)
        )
        return Beat(
            at=from_us(int(now)),
            held=HoldReason(held.decode()) if held else None,
            until=from_us(int(until)) if until else None,
        )

    async def hold_mass(self, overdue: int) -> bool:
        """Hold expiry since too much is overdue; ``False`` while an allowance lasts."""
        return bool(await self._store.meta("expiry_hold", overdue) == b"held")

    async def release_hold(self, reason: HoldReason) -> bool:
        """End a hold whose cause has gone."""
        return bool(await self._store.meta("expiry_release", reason) == b"released")

    async def allow(self, *, count: int, reason: str, actor: str) -> int:
        """Let ``count`` expiries happen, whatever holds them."""
        by, token = clean(actor, 120), secrets.token_hex(8)
        return int(await self._store.meta("expiry_allow", count, clean(reason), by, token))

    async def take_allowed(self, want: int) -> int:
        """Take from the operator's allowance; 0 when it is used up."""
        return int(await self._store.meta("take_allowance", "allowed", want))

    async def give_allowed(self, unused: int) -> None:
        """Give back what was taken and not used."""
        if unused > 0:
            token = secrets.token_hex(8)
            await self._store.meta("give_allowance", "allowed", unused, "", token)
