"""What the store counts, read in two round trips whatever the number of refs."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from checkpointd.domain.errors import StoreRefusedError
from checkpointd.domain.refs import from_us, to_us
from checkpointd.domain.states import (
    ALL_LINES,
    KERNEL_STATES,
    LEGACY_STATES,
    ExpiryKind,
    FailureReason,
    HoldReason,
    PassName,
    RefState,
    ThrottleReason,
)
from checkpointd.domain.tally import DISCOVERY_SOURCES, TTF_BOUNDS_S, StoreTally
from checkpointd.registry.books import scan_record
from checkpointd.registry.codec import clean, decode_record
from checkpointd.registry.control import ControlWord, control_word
from checkpointd.registry.store import Store

THROTTLE_STALE = timedelta(seconds=60)
"""A replica's word that it is throttled holds so long; it is said again at every census."""

_RECOUNTED = LEGACY_STATES


class Tallies:
    """Reads the counters, keeps what passes say of themselves, and recounts."""

    RECOUNT_TTL_MS = 60_000

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, *, grace: timedelta | None = None) -> StoreTally:
        """The whole store at one instant, summed over the partitions; O(P), never a scan."""
        keys = self._store.keys
        commands: list[tuple[str | int | bytes, ...]] = [("HGETALL", keys.meta)]
        for part in keys.all:
            commands += [("HGETALL", part.counters), ("HGETALL", part.control)]
        seconds, micros = await self._store.time()
        offset_s = time.time() - (seconds + micros / 1e6)
        now = from_us(seconds * 1_000_000 + micros)
        meta_row, *rows = await self._store.read_many(commands)
        word = control_word(_mapping(meta_row))
        counters = [_numbers(row) for row in rows[0::2]]
        copies = [_mapping(row) for row in rows[1::2]]
        sums: Counter[str] = Counter()
        for row in counters:
            sums.update(row)
        ages = await self._ages(counters, now=now, grace=grace)
        scan = scan_record(word.raw)
        seen = {
            source: sum(int(copy.get(f"seen_{source}".encode()) or 0) for copy in copies)
            for source in DISCOVERY_SOURCES
        }
        discovered = {source: sums[f"discovered:{source}"] for source in DISCOVERY_SOURCES}
        since_freeze = {s: discovered[s] - seen[s] if word.in_force_at else 0 for s in discovered}
        last_us = max((row.get("last_migrated", 0) for row in counters), default=0)
        claimable = sum(
            sums[f"legacy:{s}"] for s in (RefState.PENDING, RefState.RETRYABLE, RefState.REPLAYING)
        )
        return StoreTally(
            at=now,
            clock_offset_s=offset_s,
            legacy={s: sums[f"legacy:{s}"] for s in LEGACY_STATES},
            kernel={s: sums[f"kernel:{s}"] for s in KERNEL_STATES},
            blocked={r: sums[f"blocked:{r}"] for r in FailureReason},
            due=ages["due"],
            on_hold=max(0, claimable - ages["indexed"]),
            open_in_grace=max(0, ages["open"] - ages["overdue"] - ages["future"]),
            open_overdue=ages["overdue"],
            open_future=ages["future"],
            oldest_open=from_us(ages["oldest_open"]) if ages["oldest_open"] else None,
            oldest_pending=from_us(ages["oldest_pending"]) if ages["oldest_pending"] else None,
            expired={k: sums[f"expired:{k}"] for k in ExpiryKind},
            late_finalizations=sums["late"],
            ttf_buckets=_histogram(sums),
            ttf_sum_s=sums["ttf_sum"] / 1e6,
            grace=grace,
            held=HoldReason(word.raw["held"]) if word.raw.get("held") else None,
            refused={line: sums[f"refused:{line}"] for line in ALL_LINES},
            frozen=word.freeze,
            freeze_in_force_at=word.in_force_at,
            copies_declared=keys.partitions,
            copies_carrying=sum(_carries(copy, word) for copy in copies),
            baseline=sum(int(copy.get(b"baseline") or 0) for copy in copies)
            if word.in_force_at
            else 0,
            discovered=discovered,
            discovered_since_freeze=sum(since_freeze.values()),
            written_since_freeze=since_freeze["written_after_freeze"],
            reopened=int(word.raw.get("reopened") or 0),
            last_progress=from_us(last_us) if last_us else None,
            drained_at=_moment(word.raw, "drained_at"),
            drained_births=int(word.raw.get("drained_births") or 0),
            reopened_at=_moment(word.raw, "reopened_at"),
            resumed_at=_moment(word.raw, "resumed_at"),
            throttled=_throttle(word.raw, now),
            paused=word.paused,
            halted_reason=word.halted,
            scan_started=scan.started,
            scan_completed=scan.completed,
            scan_young=scan.young,
            unregistrable=scan.unregistrable,
            clean_scan_start=scan.clean_start,
            clean_scan_births=scan.clean_births,
            births=sums["births"],
            transitions=sums["transitions"],
            recounted=all(row.get("recounted", 0) == row.get("transitions", 0) for row in counters),
            memory_ratio=await self._memory_ratio(),
            replays_failed=sums["replays:failed"] - int(word.raw.get("breaker_failed") or 0),
            replays_ended=sums["replays:failed"]
            + sums["replays:migrated"]
            - int(word.raw.get("breaker_ended") or 0),
            epoch=word.epoch,
        )

    async def _ages(
        self, counters: Sequence[Mapping[str, int]], *, now: datetime, grace: timedelta | None
    ) -> dict[str, int]:
        """Counts by age, asked only of partitions whose counters show something to ask about."""
        now_us = to_us(now)
        names: list[str] = []
        commands: list[tuple[str | int | bytes, ...]] = []

        def ask(name: str, *command: str | int | bytes) -> None:
            names.append(name)
            commands.append(command)

        for part, row in zip(self._store.keys.all, counters, strict=True):
            if row.get("legacy:open", 0) + row.get("kernel:open", 0):
                ask("open", "ZCARD", part.open)
                ask("future", "ZCOUNT", part.open, f"({now_us}", "+inf")
                ask("oldest_open", "ZRANGE", part.open, 0, 0, "WITHSCORES")
                if grace is not None:
                    limit = now_us - grace // timedelta(microseconds=1)
                    ask("overdue", "ZCOUNT", part.open, "-inf", limit)
            if any(row.get(f"legacy:{s}", 0) for s in ("pending", "retryable", "replaying")):
                ask("indexed", "ZCARD", part.due)
                ask("due", "ZCOUNT", part.due, "-inf", now_us)
            if any(
                row.get(f"legacy:{s}", 0)
                for s in ("open", "pending", "retryable", "replaying", "quarantined")
            ):
                ask("oldest_pending", "ZRANGE", part.unfinished, 0, 0, "WITHSCORES")
        found: dict[str, int] = dict.fromkeys(
            ("open", "future", "overdue", "indexed", "due", "oldest_open", "oldest_pending"), 0
        )
        for name, reply in zip(names, await self._store.read_many(commands), strict=True):
            if name.startswith("oldest"):
                score = _first_score(reply)
                if score and (not found[name] or score < found[name]):
                    found[name] = score
            else:
                found[name] += int(reply)
        return found

    async def _memory_ratio(self) -> float | None:
        try:
            info = await self._store.info("memory")
        except StoreRefusedError:  # INFO may be denied to this user; the rest is still true
            return None
        limit = int(info.get("maxmemory") or 0)
        return int(info.get("used_memory") or 0) / limit if limit else None

    # What passes say of themselves ---------------------------------------------------------------

    async def note_pass(
        self, which: PassName, *, at: datetime, outcome: str, duration_s: float, by: str
    ) -> None:
        """Keep how a pass last ended, for ``status``. Again: the newer one."""
        row = {
            "last_run": at.isoformat().replace("+00:00", "Z"),
            "outcome": outcome,
            "duration_s": round(duration_s, 4),
            "by": clean(by, 120),
        }
        key = self._store.keys.meta_passes
        await self._store.write(lambda c: c.hset(key, str(which), json.dumps(row)))

    async def passes(self) -> dict[str, dict[str, Any]]:
        """How each pass last ended; a pass that never ran is not there."""
        key = self._store.keys.meta_passes
        rows = await self._store.read(lambda c: c.hgetall(key))
        return {str(p): json.loads(rows[p.encode()]) for p in PassName if p.encode() in rows}

    async def note_throttle(self, reason: ThrottleReason | None, *, at: datetime) -> None:
        """Say that this replica is throttled; the word goes stale by itself."""
        key = self._store.keys.meta
        if reason is not None:
            value = f"{reason}|{to_us(at)}"
            await self._store.write(lambda c: c.hset(key, "throttle", value))

    async def mark(self, word: str, *, transitions: int, births: int) -> bool:
        """Record that the drain ended (``drained``) or began again (``reopened``), once."""
        return bool(await self._store.meta("drain_mark", word, transitions, births) == b"marked")

    # The recount ---------------------------------------------------------------------------------

    async def recount(self, token: str) -> dict[str, int] | None:
        """Count all legacy refs by walking them, and compare with the counters, per partition.

        One replica at a time (``None`` if another is at it). A partition that moved meanwhile is
        left for the next time; one that differs is set right and audited. Returns how many
        partitions ``agree``, ``differ`` and ``moved``.
        """
        turn = await self._store.meta("take_turn", token, self.RECOUNT_TTL_MS, turn="recount")
        if turn != b"held":
            return None
        try:
            return await self._recount(token)
        finally:
            await self._store.meta("give_turn", token, turn="recount")

    async def _recount(self, token: str) -> dict[str, int]:
        keys = self._store.keys
        before = await self._store.read_many(
            [("HMGET", part.counters, "transitions", "recounted") for part in keys.all]
        )
        stale = {p for p, (now, then) in enumerate(before) if int(now or 0) != int(then or 0)}
        found: dict[int, Counter[RefState]] = {p: Counter() for p in stale}
        seen: set[str] = set()
        if stale:
            async for lot in self._store.threads():
                await self._store.meta("take_turn", token, self.RECOUNT_TTL_MS, turn="recount")
                fresh = [t for t in dict.fromkeys(lot) if t not in seen and keys.index(t) in stale]
                seen.update(fresh)
                replies = await self._store.read_many([("HGETALL", keys.thread(t)) for t in fresh])
                for thread, reply in zip(fresh, replies, strict=True):
                    states = found[keys.index(thread)]
                    for name, raw in _mapping(reply).items():
                        if name.startswith(b"c"):
                            record = decode_record(thread, name[1:].decode(), raw)
                            if record.ref.writer_line == "legacy":
                                states[record.state] += 1
        told: Counter[str] = Counter()
        for partition in sorted(stale):
            counts = [found[partition][state] for state in _RECOUNTED]
            transitions = int(before[partition][0] or 0)
            answer = await self._store.at(partition, "recount_note", [], [transitions, *counts])
            told[answer.decode()] += 1
        return {word: told[word] for word in ("agrees", "differs", "moved")}


def _carries(copy: Mapping[bytes, bytes], word: ControlWord) -> bool:
    """Whether a partition is up to the control word, both rounds of a freeze included."""
    if int(copy.get(b"epoch") or 0) < word.epoch:
        return False
    return word.in_force_at is None or copy.get(b"in_force") == b"1"


def _mapping(reply: Any) -> dict[bytes, bytes]:
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[0::2], reply[1::2], strict=True))


def _numbers(reply: Any) -> dict[str, int]:
    return {k.decode(): int(v) for k, v in _mapping(reply).items()}


def _first_score(reply: Any) -> int:
    """The score in ZRANGE … WITHSCORES, in either protocol's shape."""
    if not reply:
        return 0
    first = reply[0]
    return int(float(first[1] if isinstance(first, list | tuple) else reply[1]))


def _histogram(sums: Mapping[str, int]) -> dict[float, int]:
    return {
        bound: sums.get("ttf:inf" if math.isinf(bound) else f"ttf:{int(bound * 1e6)}", 0)
        for bound in TTF_BOUNDS_S
    }


def _moment(raw: Mapping[str, str], field: str) -> datetime | None:
    return from_us(int(raw[field])) if raw.get(field) else None


def _throttle(raw: Mapping[str, str], now: datetime) -> ThrottleReason | None:
    reason, _, at = raw.get("throttle", "").partition("|")
    if not reason or now - from_us(int(at)) > THROTTLE_STALE:
        return None
    return ThrottleReason(reason)
