"""What an operator does by hand: look, release, waive, restore, read the audit, verify.

Bulk actions go ref by ref, each one a script that checks again what it acts on, so what
changed since the look is left alone and counted as skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from checkpointd.domain.errors import CorruptRecordError
from checkpointd.domain.refs import from_us, to_us
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import (
    KERNEL_STATES,
    LEGACY_STATES,
    UNFINISHED,
    FailureReason,
    Hold,
    RefState,
    WriterLine,
)
from checkpointd.registry.codec import clean, decode_record
from checkpointd.registry.keys import SEP, PartitionKeys, member, split_member
from checkpointd.registry.store import Store

LOT = 200

NEXT_REF = "\x1e"
"""Between the refs of one entry of the audit. Ids hold no control characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One transition, as the audit kept it."""

    at: datetime
    event: str
    thread_id: str = ""
    checkpoint_id: str = ""
    was: str = ""
    became: str = ""
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Audit entries in order of time, and how many older ones the bound has trimmed."""

    entries: tuple[AuditEntry, ...]
    trimmed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What a bulk action did."""

    done: tuple[RefRecord, ...]
    skipped: int = 0
    """Refs that had changed since the look."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that ``verify`` found wrong."""

    thread_id: str
    checkpoint_id: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a walk over all refs found."""

    refs: int
    threads: int
    findings: tuple[Finding, ...]
    more: int = 0
    """Findings beyond those listed."""
    counted: Mapping[str, int] = field(default_factory=dict)


class Operations:
    """An operator's hands in the registry."""

    FINDINGS_SHOWN = 100

    def __init__(self, store: Store, *, actor: str) -> None:
        self._store = store
        self._actor = clean(actor, 120)

    # Looking -------------------------------------------------------------------------------------

    async def quarantined(
        self, *, thread: str | None = None, blocked_by: FailureReason | None = None
    ) -> AsyncIterator[RefRecord]:
        """The quarantined refs, by the quarantine's own index, in lots."""
        async for record in self._indexed("quarantined"):
            if record.state is not RefState.QUARANTINED:
                continue
            if thread is not None and record.ref.thread_id != thread:
                continue
            if blocked_by is None or record.code is blocked_by:
                yield record

    async def in_state(self, state: RefState | None) -> AsyncIterator[RefRecord]:
        """Every ref in this state, or every ref. Unfinished ones come by an index, others by a walk."""
        index = {RefState.OPEN: "open", RefState.QUARANTINED: "quarantined"}.get(
            state or RefState.MIGRATED
        )
        if index is None and state in UNFINISHED:
            index = "unfinished"
        if index is not None:
            async for record in self._indexed(index):
                if record.state is state:
                    yield record
            return
        seen: set[str] = set()
        async for lot in self._store.threads(LOT):
            fresh = [t for t in dict.fromkeys(lot) if t not in seen]
            seen.update(fresh)
            for record in await self._records(fresh):
                if state is None or record.state is state:
                    yield record

    async def _indexed(self, index: str) -> AsyncIterator[RefRecord]:
        for keys in self._store.keys.all:
            key = getattr(keys, index)
            members = await self._store.members(key)
            for at in range(0, len(members), LOT):
                pairs = [split_member(m) for m in members[at : at + LOT]]
                raws = await self._store.read_many(
                    [("HGET", self._store.keys.thread(t), f"c{c}") for t, c in pairs]
                )
                for (thread, checkpoint), raw in zip(pairs, raws, strict=True):
                    if raw is not None:
                        yield decode_record(thread, checkpoint, raw)

    async def _records(self, threads: Sequence[str]) -> list[RefRecord]:
        replies = await self._store.read_many(
            [("HGETALL", self._store.keys.thread(t)) for t in threads]
        )
        return [
            decode_record(thread, name[1:].decode(), raw)
            for thread, reply in zip(threads, replies, strict=True)
            for name, raw in _items(reply)
            if name.startswith(b"c")
        ]

    async def has_boundary(self, thread_id: str) -> bool:
        """Whether the thread has a legacy boundary that a ref without its own is replayed from."""
        key = self._store.keys.thread(thread_id)
        return bool(await self._store.read(lambda c: c.hexists(key, ">l")))

    # Quarantine ----------------------------------------------------------------------------------

    async def release(
        self, records: Sequence[RefRecord], *, reason: str, dry_run: bool = False
    ) -> BulkResult:
        """Give quarantined refs back to the drain, attempts reset."""
        return await self._bulk("release_quarantined", records, reason, dry_run=dry_run)

    async def waive(
        self, records: Sequence[RefRecord], *, reason: str, dry_run: bool = False
    ) -> BulkResult:
        """Let the drain end without these quarantined refs; they are not resumable then."""
        return await self._bulk("waive", records, reason, dry_run=dry_run)

    async def unwaive(
        self, records: Sequence[RefRecord], *, reason: str, dry_run: bool = False
    ) -> BulkResult:
        """Take waivers back."""
        return await self._bulk("unwaive", records, reason, dry_run=dry_run)

    async def _bulk(
        self, verb: str, records: Sequence[RefRecord], reason: str, *, dry_run: bool
    ) -> BulkResult:
        if dry_run:
            return BulkResult(done=tuple(records), dry_run=True)
        done = []
        for record in records:
            reply = await self._store.on_thread(
                verb,
                record.ref.thread_id,
                record.ref.thread_id,
                record.ref.checkpoint_id,
                clean(reason),
                self._actor,
                record.code or "",
            )
            if reply != b"other":
                done.append(record)
        return BulkResult(done=tuple(done), skipped=len(records) - len(done))

    async def late(self, *, since: datetime) -> AsyncIterator[RefRecord]:
        """Refs that the reconciler expired and whose writer came back since then; by a walk."""
        async for record in self.in_state(RefState.EXPIRED):
            if record.late_at is not None and record.late_at >= since:
                yield record

    async def restore_late(
        self, *, since: datetime, reason: str, dry_run: bool = False
    ) -> BulkResult:
        """Bring back exactly the refs whose writers came back since then."""
        found = [record async for record in self.late(since=since)]
        if dry_run:
            return BulkResult(done=tuple(found), dry_run=True)
        done = []
        for record in found:
            reply = await self._store.on_thread(
                "restore_late",
                record.ref.thread_id,
                record.ref.thread_id,
                record.ref.checkpoint_id,
                to_us(since),
                clean(reason),
                self._actor,
            )
            if reply == b"restored":
                done.append(record)
        return BulkResult(done=tuple(done), skipped=len(found) - len(done))

    # Audit ---------------------------------------------------------------------------------------

    async def audit(
        self, *, since: datetime | None = None, thread: str | None = None, most: int = 1000
    ) -> AuditPage:
        """The newest ``most`` transitions since then, of all or of one thread, oldest first."""
        if thread is not None:
            return await self._audit_of(thread, since=since, most=most)
        floor = f"{to_us(since) // 1000}" if since else "-"
        keys = self._store.keys
        commands: list[tuple[str | int | bytes, ...]] = [
            ("XREVRANGE", stream, "+", floor, "COUNT", most)
            for stream in (*(p.audit for p in keys.all), keys.meta_audit)
        ]
        commands += [("XLEN", keys.meta_audit), ("HGET", keys.meta, "audited")]
        for partition in keys.all:
            commands += _trimming_of(partition)
        replies = await self._store.read_many(commands)
        streams, (kept, written), oldest = (
            replies[: keys.partitions + 1],
            replies[keys.partitions + 1 : keys.partitions + 3],
            replies[keys.partitions + 3 :],
        )
        rows = sorted(
            (
                (_stream_order(entry_id), fields)
                for stream in streams
                for entry_id, fields in stream or ()
                if fields
            ),
            key=lambda row: row[0],  # two partitions may give one id in one millisecond
        )
        entries = [entry for order, fields in rows for entry in _entries(order[0], fields)]
        trimmed = sum(map(_trimmed, oldest[0::2], oldest[1::2])) + int(written or 0) - kept
        return AuditPage(entries=tuple(entries[-most:]), trimmed=trimmed)

    async def _audit_of(self, thread: str, *, since: datetime | None, most: int) -> AuditPage:
        keys = self._store.keys.of(thread)
        floor = f"{to_us(since) // 1000}" if since else "-"
        rows, *oldest = await self._store.read_many(
            [("XRANGE", keys.audit, floor, "+"), *_trimming_of(keys)]
        )
        mine = [
            entry
            for entry_id, fields in rows
            for entry in _entries(_stream_order(entry_id)[0], fields)
            if entry.thread_id == thread
        ]
        return AuditPage(entries=tuple(mine[-most:]), trimmed=_trimmed(*oldest))

    # Verify --------------------------------------------------------------------------------------

    async def verify(self) -> Verification:
        """Walk all refs and hold them against their indexes, links and counters.

        Meant for a registry at rest: what changes while it walks may be reported once and
        be gone on the next run.
        """
        findings: list[Finding] = []
        counted: dict[str, int] = {}
        per_partition: dict[int, dict[str, int]] = {}
        threads = refs = 0
        seen: set[str] = set()
        async for lot in self._store.threads(LOT):
            fresh = [t for t in dict.fromkeys(lot) if t not in seen]
            seen.update(fresh)
            threads += len(fresh)
            replies = await self._store.read_many(
                [("HGETALL", self._store.keys.thread(t)) for t in fresh]
            )
            for thread, reply in zip(fresh, replies, strict=True):
                records = {}
                for name, raw in _items(reply):
                    if not name.startswith(b"c"):
                        continue
                    refs += 1
                    checkpoint = name[1:].decode()
                    try:
                        records[checkpoint] = decode_record(thread, checkpoint, raw)
                    except CorruptRecordError as error:
                        findings.append(
                            Finding(thread_id=thread, checkpoint_id=checkpoint, what=str(error))
                        )
                partition = self._store.keys.index(thread)
                tally = per_partition.setdefault(partition, {})
                for record in records.values():
                    word = f"{record.ref.writer_line}:{record.state}"
                    tally[word] = tally.get(word, 0) + 1
                    counted[word] = counted.get(word, 0) + 1
                findings += _link_findings(thread, records)
                findings += await self._index_findings(list(records.values()))
        findings += await self._counter_findings(per_partition)
        findings += await self._stray_members()
        shown = tuple(islice(findings, self.FINDINGS_SHOWN))
        return Verification(
            refs=refs,
            threads=threads,
            findings=shown,
            more=len(findings) - len(shown),
            counted=counted,
        )

    async def _index_findings(self, records: Sequence[RefRecord]) -> list[Finding]:
        names = ("open", "due", "unfinished", "quarantined")
        commands: list[tuple[str | int | bytes, ...]] = []
        for record in records:
            keys = self._store.keys.of(record.ref.thread_id)
            name = member(record.ref.thread_id, record.ref.checkpoint_id)
            commands += [("ZSCORE", getattr(keys, index), name) for index in names]
        replies = await self._store.read_many(commands)
        findings = []
        for i, record in enumerate(records):
            is_in = {
                n for n, r in zip(names, replies[4 * i : 4 * i + 4], strict=True) if r is not None
            }
            should = expected_indexes(record)
            if is_in != should:
                what = (
                    f"its state is {record.state} and it is in the indexes "
                    f"{sorted(is_in) or 'none'} instead of {sorted(should) or 'none'}"
                )
                findings.append(_finding(record, what))
        return findings

    async def _stray_members(self) -> list[Finding]:
        findings = []
        for keys in self._store.keys.all:
            for index in ("open", "due", "unfinished", "quarantined"):
                key = getattr(keys, index)
                members = await self._store.members(key)
                for at in range(0, len(members), LOT):
                    pairs = [split_member(m) for m in members[at : at + LOT]]
                    there = await self._store.read_many(
                        [("HEXISTS", self._store.keys.thread(t), f"c{c}") for t, c in pairs]
                    )
                    findings += [
                        Finding(
                            thread_id=t,
                            checkpoint_id=c,
                            what=f"the index {index} names it and no record is there",
                        )
                        for (t, c), exists in zip(pairs, there, strict=True)
                        if not exists
                    ]
        return findings

    async def _counter_findings(self, found: Mapping[int, Mapping[str, int]]) -> list[Finding]:
        words = [f"legacy:{s}" for s in LEGACY_STATES] + [f"kernel:{s}" for s in KERNEL_STATES]
        rows = await self._store.read_many(
            [("HMGET", keys.counters, *words) for keys in self._store.keys.all]
        )
        findings = []
        for partition, row in enumerate(rows):
            for word, raw in zip(words, row, strict=True):
                is_there = found.get(partition, {}).get(word, 0)
                if int(raw or 0) != is_there:
                    what = (
                        f"partition {partition} counts {int(raw or 0)} refs as {word} and "
                        f"{is_there} are there"
                    )
                    findings.append(Finding(thread_id="", checkpoint_id="", what=what))
        return findings


def expected_indexes(record: RefRecord) -> set[str]:
    """The indexes that a record in this state belongs to."""
    should = set()
    if record.state is RefState.OPEN:
        should.add("open")
    if record.ref.writer_line is WriterLine.LEGACY and record.state in UNFINISHED:
        should.add("unfinished")
        if record.state is RefState.QUARANTINED:
            should.add("quarantined")
        elif record.state is not RefState.OPEN and record.hold is Hold.NONE:
            should.add("due")
    return should


def _link_findings(thread: str, records: Mapping[str, RefRecord]) -> list[Finding]:
    findings = []
    for record in records.values():
        if record.link is not None:
            target = records.get(record.link.checkpoint_id)
            if record.state is not RefState.MIGRATED:
                findings.append(_finding(record, f"it has a link and is {record.state}"))
            if target is None:
                what = f"its link leads to {record.link.checkpoint_id!a}, which is not registered"
                findings.append(_finding(record, what))
            elif target.replay_of != record.ref.checkpoint_id:
                what = f"its link leads to {record.link.checkpoint_id!a}, which is another's replay"
                findings.append(_finding(record, what))
        elif record.state is RefState.MIGRATED:
            findings.append(_finding(record, "it is migrated and has no link"))
    return findings


def _finding(record: RefRecord, what: str) -> Finding:
    return Finding(
        thread_id=record.ref.thread_id, checkpoint_id=record.ref.checkpoint_id, what=what
    )


def _items(reply: Mapping[bytes, bytes] | Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    if isinstance(reply, Mapping):
        return list(reply.items())
    return list(zip(reply[0::2], reply[1::2], strict=True))


def _stream_order(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.decode().partition("-")
    return int(ms), int(seq)


def _entries(ms: int, fields: Mapping[bytes, bytes] | Sequence[bytes]) -> list[AuditEntry]:
    """What one entry of a stream tells: one transition for each of its refs."""
    f = {k.decode(): v.decode("utf-8", "replace") for k, v in _items(fields)}
    at = from_us(ms * 1000)
    return [
        AuditEntry(
            at=at,
            event=f.get("event", ""),
            thread_id=thread,
            checkpoint_id=checkpoint,
            was=f.get("from", ""),
            became=f.get("to", ""),
            by=f.get("by", ""),
            reason=f.get("reason", ""),
        )
        for thread, _, checkpoint in (
            name.partition(SEP) for name in f.get("refs", "").split(NEXT_REF)
        )
    ]


def _trimming_of(keys: PartitionKeys) -> list[tuple[str | int | bytes, ...]]:
    """The reads that ``_trimmed`` takes the answers of."""
    return [("XRANGE", keys.audit, "-", "+", "COUNT", 1), ("HGET", keys.counters, "audited")]


def _trimmed(oldest: Sequence[Any], written: bytes | None) -> int:
    """How many transitions came before the oldest entry of a partition that is still there."""
    if not oldest:
        return int(written or 0)
    fields = dict(_items(oldest[0][1]))
    return int(fields[b"audited"]) - fields[b"refs"].count(NEXT_REF.encode()) - 1
