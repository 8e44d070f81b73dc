"""Adopt: bring the registry's books up to what the legacy source shows, thread by thread.

A scan goes through the source in pages, its cursor kept in the store, so another replica goes on
where one died. A head whose id the registry knows, and about which nothing can have changed,
costs only the id query.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from checkpointd.domain.drain import scan_owed
from checkpointd.domain.errors import InvalidIdError, SourceUnreachableError, StoreError
from checkpointd.domain.ids import check_id
from checkpointd.domain.legacy import HeadReading, ThreadSketch, Verdict
from checkpointd.domain.refs import to_us
from checkpointd.domain.reports import AdoptReport
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import (
    CRASH_EXPIRY_REASON,
    UNFINISHED,
    AdoptOutcome,
    Hold,
    PassName,
    RefState,
    WriterLine,
)
from checkpointd.registry.books import AdoptionBooks, ScanRecord, scan_record
from checkpointd.registry.control import Control, ControlWord
from checkpointd.sources.port import LegacySource

SAMPLES = 5
AT_ONCE = 32
"""Threads brought up to their heads at once: their steps share round trips."""

OWED_GAP = timedelta(seconds=5)
"""An owed scan that was not clean is not made again sooner: heads need time to settle."""


@dataclass(slots=True)
class Findings:
    """What a scan has found so far."""

    threads: int = 0
    outcomes: Counter[AdoptOutcome] = field(default_factory=Counter)
    fallbacks: int = 0
    too_young: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    blockers: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    troubles: list[str] = field(default_factory=list)

    def note(self, word: str, thread_id: str) -> None:
        """Keep a few thread ids for each word."""
        if len(self.samples[word]) < SAMPLES:
            self.samples[word].append(thread_id)

    def read(self, reading: HeadReading) -> None:
        """Count what a decoded head says."""
        head = reading.head
        self.verdicts[head.verdict] += 1
        self.note(head.verdict, head.thread_id)
        for loss in head.losses:
            self.losses[str(loss.kind)] += 1
            self.note(str(loss.kind), head.thread_id)
        if head.blocker is not None:
            self.blockers[head.blocker] += 1
            self.note(head.blocker, head.thread_id)

    def report(self, at: datetime, **more: object) -> AdoptReport:
        return AdoptReport(
            at=at,
            threads=self.threads,
            outcomes=dict(self.outcomes),
            fallbacks=self.fallbacks,
            too_young=self.too_young,
            losses=dict(self.losses),
            verdicts=dict(self.verdicts),
            blockers=dict(self.blockers),
            samples={word: tuple(ids) for word, ids in self.samples.items()},
            troubles=tuple(self.troubles),
            **more,  # type: ignore[arg-type] # names of the report's own fields, checked by tests
        )


@dataclass(slots=True)
class _Journey:
    """A scan as the replicas hand it on: where it is, and what it had found before this run."""

    started: datetime
    births: int
    """Legacy births when it began; more of them at its end, and it was not clean."""
    after: str = ""
    dirty: bool = False
    young: int = 0
    unregistrable: int = 0

    @classmethod
    def begun(cls, word: ControlWord, scan: ScanRecord, births: int, *, now: datetime) -> _Journey:
        """The scan under way, whoever began it, or a new one."""
        if not scan.cursor or scan.started is None:
            return cls(started=now, births=births)
        raw = word.raw
        return cls(
            started=scan.started,
            births=int(raw.get("scan_births") or 0),
            after=scan.cursor,
            dirty=bool(raw.get("scan_dirty")),
            young=int(raw.get("scan_young_so_far") or 0),
            unregistrable=int(raw.get("scan_unregistrable_so_far") or 0),
        )

    def opening(self) -> dict[str, str | int]:
        """The scan's record at its beginning."""
        return {
            "scan_started": to_us(self.started),
            "scan_births": self.births,
            "scan_cursor": "",
            "scan_dirty": "",
            "scan_young_so_far": 0,
            "scan_unregistrable_so_far": 0,
        }

    def so_far(self, findings: Findings) -> dict[str, str | int]:
        """The scan's record after a page."""
        return {
            "scan_cursor": f">{self.after}",
            "scan_dirty": "1" if self._is_dirty(findings) else "",
            "scan_young_so_far": self._young(findings),
            "scan_unregistrable_so_far": self._unregistrable(findings),
        }

    def closing(self, findings: Findings, *, clean: bool) -> dict[str, str | int]:
        """The scan's record at its end."""
        fields: dict[str, str | int] = {
            "scan_cursor": "",
            "scan_completed": "@now",
            "scan_completed_start": to_us(self.started),
            "scan_young": self._young(findings),
            "unregistrable": self._unregistrable(findings),
        }
        if clean:
            fields |= {"clean_start": to_us(self.started), "clean_births": self.births}
        return fields

    def is_clean(self, findings: Findings, *, births: int) -> bool:
        """Whether it found nothing new, nothing too young to judge, and nothing came meanwhile."""
        nothing_new = not self._is_dirty(findings) and births == self.births
        return nothing_new and self._young(findings) == 0

    def _is_dirty(self, findings: Findings) -> bool:
        outcomes = findings.outcomes
        return bool(
            self.dirty
            or outcomes[AdoptOutcome.NEW]
            or outcomes[AdoptOutcome.CLOSED]
            or outcomes[AdoptOutcome.SUPERSEDED]
            or findings.fallbacks
            or findings.troubles
        )

    def _young(self, findings: Findings) -> int:
        return self.young + findings.too_young

    def _unregistrable(self, findings: Findings) -> int:
        return self.unregistrable + findings.outcomes[AdoptOutcome.UNREGISTRABLE]


class Adopt:
    """Scans the source, and keeps the scan's record."""

    def __init__(
        self,
        books: AdoptionBooks,
        control: Control,
        source: LegacySource,
        *,
        every: timedelta,
        page: int,
        source_settle: timedelta,
        freeze_settle: timedelta,
        on_page: Callable[[], None] = lambda: None,
    ) -> None:
        self._books = books
        self._control = control
        self._source = source
        self.every = every
        self._page = page
        self._source_settle = source_settle
        self._freeze_settle = freeze_settle
        self._on_page = on_page
        self._stopping = False

    def stop(self) -> None:
        """End the scan after the page under way; its cursor stays."""
        self._stopping = True

    async def run(self, *, force: bool = False) -> AdoptReport:
        """Scan if it is time to, else say why not. ``force`` scans whatever the interval says.

        Again on an unchanged source: everything ``unchanged``.
        """
        word = await self._control.read()
        now = await self._books.now()
        if PassName.ADOPT in word.paused:
            reason = f"paused: {word.paused[PassName.ADOPT]}"
            return AdoptReport(at=now, skipped=reason, held=True)
        scan = scan_record(word.raw)
        reason = ""
        if not (force or word.legacy_frozen):
            # Births are asked for, partition by partition, only where they matter.
            reason = self._not_now(word, scan, 0, now)
        births = 0 if reason else await self._books.births()
        if not (force or reason):
            reason = self._not_now(word, scan, births, now)
        if reason:
            return AdoptReport(at=now, skipped=reason)
        token = self._books.token()
        if not await self._books.take_turn(token):
            return AdoptReport(at=now, skipped="another replica is scanning")
        try:
            await self._books.bind_source(self._source.identity)
            return await self._scan(token, word, scan, births)
        finally:
            await self._books.give_turn(token)

    def _not_now(self, word: ControlWord, scan: ScanRecord, births: int, now: datetime) -> str:
        """Why no scan is to be made now, or nothing."""
        if scan.cursor is not None:
            return ""
        since = None if scan.completed is None else now - scan.completed
        frozen_at = word.in_force_at if word.legacy_frozen else None
        if frozen_at is not None and (
            scan_owed(
                in_force_at=frozen_at, settle=self._freeze_settle, clean_start=scan.clean_start
            )
            or scan.clean_births != births
        ):
            settled_at = frozen_at + self._freeze_settle
            if now >= settled_at:
                tried = scan.completed_start is not None and scan.completed_start >= settled_at
                if not tried or since is None or since >= min(OWED_GAP, self.every):
                    return ""
                return "the last scan was not clean; the next one follows"
        if since is not None and since < self.every:
            return "a replica scanned within the interval"
        return ""

    async def _scan(
        self, token: str, word: ControlWord, scan: ScanRecord, births: int
    ) -> AdoptReport:
        began = await self._books.now()
        findings = Findings()
        journey = _Journey.begun(word, scan, births, now=began)
        if journey.after == "":
            await self._books.note(token, **journey.opening())
        settled_at = word.in_force_at + self._freeze_settle if word.in_force_at else None
        confirming = word.legacy_frozen and settled_at is not None and journey.started >= settled_at
        complete = clean = False
        while not self._stopping:
            page = await self._source.page(journey.after, self._page)
            now = await self._books.now()
            await self._adopt_page(page.threads, findings, now=now, confirming=confirming)
            self._on_page()
            if page.next_after is None:
                complete = True
                break
            journey.after = page.next_after
            if not (
                await self._books.take_turn(token)
                and await self._books.note(token, **journey.so_far(findings))
            ):
                findings.troubles.append("another replica took the scan over")
                break
        if complete:
            if confirming:
                await self._let_go_of_the_gone()
            clean = journey.is_clean(findings, births=await self._books.births())
            await self._books.note(token, **journey.closing(findings, clean=clean))
        ended = await self._books.now()
        return findings.report(
            began, complete=complete, clean=clean, took_s=(ended - began).total_seconds()
        )

    async def _let_go_of_the_gone(self) -> None:
        """Pauses that the source has no more are never seen unchanged: let them end."""
        gone = [
            (thread, checkpoint)
            async for thread, checkpoint in self._books.held_pauses()
            if await self._source.state(thread, checkpoint) is None
        ]
        for thread, checkpoint in gone:
            await self._books.let_go(thread, checkpoint)

    async def _adopt_page(
        self,
        threads: Sequence[ThreadSketch],
        findings: Findings,
        *,
        now: datetime,
        confirming: bool,
    ) -> None:
        nameable = []
        for sketch in threads:
            findings.threads += 1
            try:
                check_id(sketch.thread_id, what="thread_id")
                check_id(sketch.head_id, what="checkpoint_id")
                nameable.append(sketch)
            except InvalidIdError:
                findings.outcomes[AdoptOutcome.UNREGISTRABLE] += 1
                findings.note(AdoptOutcome.UNREGISTRABLE, ascii(sketch.thread_id)[:80])
        known = await self._books.known([sketch.thread_id for sketch in nameable])
        for at in range(0, len(nameable), AT_ONCE):
            lot = nameable[at : at + AT_ONCE]
            done = await asyncio.gather(
                *(
                    self._adopt_thread(
                        sketch, known[sketch.thread_id], findings, now, confirming=confirming
                    )
                    for sketch in lot
                ),
                return_exceptions=True,
            )
            for sketch, error in zip(lot, done, strict=True):
                if isinstance(error, SourceUnreachableError | StoreError):
                    raise error
                if isinstance(error, BaseException):
                    findings.troubles.append(f"thread {sketch.thread_id!a}: {error}")

    async def _adopt_thread(
        self,
        sketch: ThreadSketch,
        records: Mapping[str, RefRecord] | None,
        findings: Findings,
        now: datetime,
        *,
        confirming: bool,
    ) -> None:
        if records is None:
            findings.outcomes[AdoptOutcome.UNREADABLE] += 1
            findings.troubles.append(f"a record of thread {sketch.thread_id!a} cannot be read")
            return
        if not needs_reading(sketch, records):
            findings.outcomes[AdoptOutcome.UNCHANGED] += 1
            return
        reading = await self._source.head(sketch.thread_id)
        if reading is None:
            return  # deleted since the page was read; what is registered of it ends as absent
        head = reading.head
        if now - head.created_at < self._source_settle:
            findings.too_young += 1
            findings.note("too_young", head.thread_id)
            return
        findings.read(reading)
        record = records.get(head.checkpoint_id)
        adopted = await self._books.adopt(
            head,
            hold=hold_of(head.verdict, record, confirming=confirming),
            confirming=confirming and record is not None,
            fallback=reading.ancestor,
            moved_on=moved_on(sketch, records, reading),
        )
        findings.fallbacks += adopted.fallback
        findings.outcomes[AdoptOutcome.SUPERSEDED] += adopted.superseded
        match adopted.word:
            case "corrupt":
                findings.outcomes[AdoptOutcome.UNREADABLE] += 1
                findings.troubles.append(f"a record of thread {head.thread_id!a} cannot be read")
            case word:
                findings.outcomes[AdoptOutcome(word)] += 1
                findings.note(word, head.thread_id)
                if head.verdict is Verdict.UNREADABLE and word == AdoptOutcome.NEW:
                    findings.outcomes[AdoptOutcome.UNREADABLE] += 1


def needs_reading(sketch: ThreadSketch, records: Mapping[str, RefRecord]) -> bool:
    """Whether a head must be decoded: it is new, or something can have happened to it since.

    An open one may have closed, one held as paused may have been answered, one that expired
    as crashed may have ended after all; and whatever the thread moved on from is superseded.
    """
    record = records.get(sketch.head_id)
    if record is None or record.state is RefState.OPEN or record.hold is not Hold.NONE:
        return True
    if record.state is RefState.EXPIRED and record.reason == CRASH_EXPIRY_REASON:
        return True
    fallback = record.fallback
    return any(
        old in sketch.checkpoint_ids and old not in (sketch.head_id, fallback)
        for old, r in records.items()
        if r.ref.writer_line is WriterLine.LEGACY and r.state in UNFINISHED
    )


def moved_on(
    sketch: ThreadSketch, records: Mapping[str, RefRecord], reading: HeadReading
) -> tuple[str, ...]:
    """The unfinished legacy refs that the source shows as neither head nor fallback.

    A ref that the source does not show is left alone: its first checkpoint may be on its way,
    and if it never comes, the grace ends it.
    """
    stay = {reading.head.checkpoint_id}
    if reading.ancestor is not None:
        stay.add(reading.ancestor.checkpoint_id)
    head = records.get(reading.head.checkpoint_id)
    if head is not None and head.state is RefState.EXPIRED and not reading.head.verdict.is_settled:
        stay.add(head.fallback)
    return tuple(
        old
        for old, record in records.items()
        if old in sketch.checkpoint_ids
        and old not in stay
        and record.ref.writer_line is WriterLine.LEGACY
        and record.state in UNFINISHED
    )


def hold_of(verdict: Verdict, record: RefRecord | None, *, confirming: bool) -> Hold:
    """Whether a head that is registered as finalized must wait before it may be claimed.

    A pause may be being answered at this moment, and so may a finalized head that reads as
    open now. A scan begun after the freeze had settled ends the wait of what it has
    seen before.
    """
    if verdict in (Verdict.CLOSED, Verdict.UNREADABLE):
        return Hold.NONE
    seen_before = record is not None and record.state is not RefState.OPEN
    return Hold.NONE if confirming and seen_before else Hold.PAUSED
