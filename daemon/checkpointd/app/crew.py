"""The four passes over one set of rooms, with the keeper of their leases."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from prometheus_client import CollectorRegistry

from checkpointd.app.rooms import Rooms, legacy_source
from checkpointd.config import Settings
from checkpointd.domain.errors import ConfigError
from checkpointd.domain.reports import (
    AdoptReport,
    CensusReport,
    DrainReport,
    ReconcileReport,
    ReplayEnd,
)
from checkpointd.domain.states import (
    PassName,
    PassOutcome,
    ThrottleReason,
)
from checkpointd.leases.keeper import Keeper
from checkpointd.passes.adopt import Adopt
from checkpointd.passes.census import Census
from checkpointd.passes.drain import Drain
from checkpointd.passes.reconcile import Reconcile
from checkpointd.passes.rehearsal import rehearse_adoption, rehearse_drain
from checkpointd.passes.replaying import Replaying
from checkpointd.telemetry.heartbeat import Heartbeat
from checkpointd.telemetry.metrics import Metrics
from checkpointd.telemetry.record import Recorder

log = structlog.get_logger(__name__)

CENSUS_EVERY = timedelta(seconds=15)

Report = ReconcileReport | AdoptReport | DrainReport | CensusReport


@dataclass
class Crew:
    """The four passes over one set of rooms, with the keeper of their leases."""

    rooms: Rooms
    recorder: Recorder
    keeper: Keeper
    reconcile: Reconcile
    adopt: Adopt | None
    drain: Drain
    replaying: Replaying
    census: Census
    heartbeat: Heartbeat | None = None
    _kept: asyncio.Task[None] | None = None

    @classmethod
    async def assembled(
        cls, rooms: Rooms, recorder: Recorder, heartbeat: Heartbeat | None = None
    ) -> Crew:
        """Everything that the passes need, built and wired; nothing runs yet."""
        s = rooms.settings
        rooms.store.tell_errors(recorder.redis_failed)
        keeper = Keeper(
            rooms.ledger.renew,
            deadline_s=s.lease.deadline.total_seconds(),
            renew_every_s=s.lease.renew_every.total_seconds(),
        )
        source = await rooms.source()
        replaying = Replaying(
            rooms.ledger,
            rooms.registry,
            rooms.books,
            keeper,
            await rooms.replayer(),
            source,
            timeout=s.replay.timeout,
            max_attempts=s.drain.max_attempts,
            backoff_base=s.drain.backoff_base,
            backoff_cap=s.drain.backoff_cap,
            truncate_unanswered=s.drain.unanswered == "truncate",
        )

        def replay_ended(end: ReplayEnd) -> None:
            recorder.replay_ended(end)
            if heartbeat is not None:
                heartbeat.sign(PassName.DRAIN)

        async def pause_drain(reason: str) -> None:
            await rooms.control.pause(PassName.DRAIN, reason=reason, actor=rooms.actor)

        drain = Drain(
            rooms.ledger,
            rooms.control,
            keeper,
            replaying,
            concurrency=s.drain.concurrency,
            max_attempts=s.drain.max_attempts,
            idle_for=CENSUS_EVERY,
            report_end=replay_ended,
            pause=pause_drain,
        )
        adopt = None
        if source is not None:
            adopt = Adopt(
                rooms.books,
                rooms.control,
                source,
                every=s.adopt.every,
                page=s.adopt.page,
                source_settle=s.source.settle,
                freeze_settle=s.drain.settle,
                on_page=(lambda: heartbeat.sign(PassName.ADOPT)) if heartbeat else (lambda: None),
            )
        return cls(
            rooms=rooms,
            recorder=recorder,
            keeper=keeper,
            reconcile=Reconcile(
                rooms.expiry,
                rooms.control,
                grace=s.reconcile.grace,
                max_expiries=s.reconcile.max_expiries,
                replica=rooms.actor,
            ),
            adopt=adopt,
            drain=drain,
            replaying=replaying,
            census=Census(
                rooms.tallies,
                rooms.control,
                rooms.expiry,
                rules=rooms.rules,
                grace=s.reconcile.grace,
                replica=rooms.actor,
            ),
            heartbeat=heartbeat,
        )

    def keep_leases(self) -> None:
        """Begin renewing."""
        if self._kept is None:
            self._kept = asyncio.create_task(self.keeper.run(), name="lease-keeper")

    @property
    def throttled(self) -> ThrottleReason | None:
        """Why this replica's drain does less than it could."""
        return self.drain.pace.throttled

    async def once(self, name: PassName, *, dry_run: bool) -> Report:
        """One pass to its end, whatever its interval says."""
        match name:
            case PassName.RECONCILE:
                return await self.reconcile.run(dry_run=dry_run)
            case PassName.ADOPT:
                if dry_run:
                    return await survey(self.rooms.settings)
                return await self._adopting().run(force=True)
            case PassName.CENSUS:
                return await self.census.run(dry_run=dry_run, wait=True)
            case PassName.DRAIN:
                if dry_run:
                    return await rehearse_drain(
                        self.rooms.operations,
                        await self.rooms.source(),
                        truncate_unanswered=self.rooms.settings.drain.unanswered == "truncate",
                    )
                self.keep_leases()
                return await self.drain.run(within=timedelta(days=1), wait=True)

    def _adopting(self) -> Adopt:
        if self.adopt is None:
            raise ConfigError(["source.url is empty, so there is nothing to adopt from; set it"])
        return self.adopt

    async def note(self, name: PassName, outcome: PassOutcome, took_s: float) -> None:
        """Keep in the store how a pass ended, for ``status``."""
        await self.rooms.tallies.note_pass(
            name,
            at=datetime.now(UTC),
            outcome=outcome,
            duration_s=took_s,
            by=self.rooms.actor,
        )

    async def stop(self, grace: timedelta) -> None:
        """Let replays finish for ``grace``, cancel the rest, end the keeper."""
        if self.adopt is not None:
            self.adopt.stop()
        cancelled = await self.drain.settle(grace)
        if cancelled:
            log.warning("replays_cancelled", count=cancelled, grace_s=grace.total_seconds())
        if self._kept is not None:
            self._kept.cancel()
            await asyncio.gather(self._kept, return_exceptions=True)
        await self.census.aclose()


async def run_pass(rooms: Rooms, name: PassName, *, dry_run: bool = False) -> Report:
    """Run one pass to its end, as the schedule would. ``dry_run`` changes nothing."""
    crew = await Crew.assembled(rooms, Recorder(Metrics(CollectorRegistry(), version="")))
    began = time.monotonic()
    try:
        report = await crew.once(name, dry_run=dry_run)
        if not isinstance(report, CensusReport):
            crew.recorder.report(report)
        if not dry_run:
            await crew.note(name, report.outcome, time.monotonic() - began)
        return report
    finally:
        await crew.stop(timedelta(0))


async def survey(settings: Settings) -> AdoptReport:
    """What adoption would find in the source; needs no store and changes nothing."""
    if not settings.source.url:
        raise ConfigError(["source.url is empty, so there is nothing to survey; set it"])
    source = legacy_source(settings)
    try:
        return await rehearse_adoption(
            source, page=settings.adopt.page, source_settle=settings.source.settle
        )
    finally:
        await source.aclose()
