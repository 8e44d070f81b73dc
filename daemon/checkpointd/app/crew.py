"""The four passes over one set of rooms, with the keeper of their leases."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from prometheus_client import CollectorRegistry

from checkpointd.app.rooms import Rooms, legacy_source
from checkpointd.config import Settings
from checkpointd.domain.errors import ConfigError
from checkpointd.domain.refs import Lease
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
)
from checkpointd.leases.keeper import Keeper
from checkpointd.passes.adopt import Adopt
from checkpointd.passes.census import Census
from checkpointd.passes.drain import Drain
from checkpointd.passes.reconcile import Reconcile
from checkpointd.passes.rehearsal import rehearse_adoption, rehearse_drain
from checkpointd.passes.replaying import Replaying
from checkpointd.replay.port import Replayer
from checkpointd.sources.port import LegacySource
from checkpointd.telemetry.heartbeat import Heartbeat
from checkpointd.telemetry.metrics import Metrics
from checkpointd.telemetry.record import Recorder

log = structlog.get_logger(__name__)

CENSUS_EVERY = timedelta(seconds=15)

STUCK = 70
"""How the process ends over a replay that ignores cancellation, if it is to."""

Report = ReconcileReport | AdoptReport | DrainReport | CensusReport


# Each pass, built over one set of rooms ---------------------------------------------------------


def reconciling(rooms: Rooms) -> Reconcile:
    """The reconcile pass."""
    s = rooms.settings.reconcile
    return Reconcile(
        rooms.expiry,
        rooms.control,
        grace=s.grace,
        max_expiries=s.max_expiries,
        replica=rooms.actor,
    )


async def adopting(rooms: Rooms, on_page: Callable[[], None] = lambda: None) -> Adopt | None:
    """The adoption pass; ``None`` where no source is configured."""
    source = await rooms.source()
    if source is None:
        return None
    s = rooms.settings
    return Adopt(
        rooms.books,
        rooms.control,
        source,
        every=s.adopt.every,
        page=s.adopt.page,
        source_settle=s.source.settle,
        freeze_settle=s.drain.settle,
        on_page=on_page,
    )


def counting(rooms: Rooms) -> Census:
    """The census pass."""
    return Census(
        rooms.tallies,
        rooms.control,
        rooms.expiry,
        rules=rooms.rules,
        grace=rooms.settings.reconcile.grace,
        replica=rooms.actor,
    )


class Draining:
    """The drain pass, with the keeper of its leases and what takes one lease to its end."""

    def __init__(
        self,
        rooms: Rooms,
        replayer: Replayer,
        source: LegacySource | None,
        report_end: Callable[[ReplayEnd], None],
        report_stuck: Callable[[Lease], None],
    ) -> None:
        s = rooms.settings
        self._ttl = s.lease.ttl
        self._report_stuck = report_stuck
        self._exits_when_stuck = s.drain.exit_on_stuck_replay
        self.keeper = Keeper(
            rooms.ledger.renew,
            ttl_s=s.lease.ttl.total_seconds(),
            deadline_s=s.lease.deadline.total_seconds(),
            renew_every_s=s.lease.renew_every.total_seconds(),
            on_stuck=self._stuck,
        )
        self.replaying = Replaying(
            rooms.ledger,
            rooms.registry,
            rooms.books,
            self.keeper,
            replayer,
            source,
            timeout=s.replay.timeout,
            max_attempts=s.drain.max_attempts,
            backoff_base=s.drain.backoff_base,
            backoff_cap=s.drain.backoff_cap,
            truncate_unanswered=s.drain.unanswered == "truncate",
        )

        async def pause(reason: str) -> None:
            await rooms.control.pause(PassName.DRAIN, reason=reason, actor=rooms.actor)

        self.drain = Drain(
            rooms.ledger,
            rooms.control,
            self.keeper,
            self.replaying,
            concurrency=s.drain.concurrency,
            max_attempts=s.drain.max_attempts,
            idle_for=CENSUS_EVERY,
            report_end=report_end,
            pause=pause,
        )
        self._kept: asyncio.Task[None] | None = None

    @classmethod
    async def over(
        cls,
        rooms: Rooms,
        report_end: Callable[[ReplayEnd], None],
        report_stuck: Callable[[Lease], None] = lambda _lease: None,
    ) -> Draining:
        """The drain with the replayer and the source that the settings name."""
        return cls(rooms, await rooms.replayer(), await rooms.source(), report_end, report_stuck)

    def _stuck(self, lease: Lease) -> None:
        """Count and name it; where the settings say so, end the process as a kill would.

        Nothing gentler ends code that ignores cancellation: a loop that closes waits for it.
        What else this process holds is free within a TTL, as after any death.
        """
        self._report_stuck(lease)
        if self._exits_when_stuck:
            os._exit(STUCK)

    def keep_leases(self) -> None:
        """Begin renewing. Again: nothing."""
        if self._kept is None:
            self._kept = asyncio.create_task(self.keeper.run(), name="lease-keeper")

    async def stop(self, grace: timedelta) -> None:
        """Let replays finish for ``grace``, cancel the rest, end the keeper.

        What goes on a TTL after it was cancelled is left to itself: nobody renews its lease then.
        """
        cancelled = await self.drain.settle(grace, patience=self._ttl)
        self.keeper.give_up()
        if cancelled:
            log.warning("replays_cancelled", count=cancelled, grace_s=grace.total_seconds())
        if self._kept is not None:
            self._kept.cancel()
            await asyncio.gather(self._kept, return_exceptions=True)


# All of them, for the daemon --------------------------------------------------------------------


@dataclass
class Crew:
    """The four passes over one set of rooms."""

    rooms: Rooms
    reconcile: Reconcile
    adopt: Adopt | None
    draining: Draining
    census: Census

    @classmethod
    async def assembled(
        cls, rooms: Rooms, recorder: Recorder, heartbeat: Heartbeat | None = None
    ) -> Crew:
        """Everything that the passes need, built and wired; nothing runs yet."""
        rooms.store.tell_errors(recorder.redis_failed)

        def alive(name: PassName) -> None:
            if heartbeat is not None:
                heartbeat.sign(name)

        def replay_ended(end: ReplayEnd) -> None:
            recorder.replay_ended(end)
            alive(PassName.DRAIN)

        return cls(
            rooms=rooms,
            reconcile=reconciling(rooms),
            adopt=await adopting(rooms, on_page=lambda: alive(PassName.ADOPT)),
            draining=await Draining.over(rooms, replay_ended, recorder.replay_stuck),
            census=counting(rooms),
        )

    @property
    def drain(self) -> Drain:
        """The drain pass itself."""
        return self.draining.drain

    async def stop(self, grace: timedelta) -> None:
        """Claim nothing more, let replays finish for ``grace``, end what runs beside the passes."""
        if self.adopt is not None:
            self.adopt.stop()
        await self.draining.stop(grace)
        await self.census.aclose()


# One of them, once, for a command ---------------------------------------------------------------


async def run_pass(rooms: Rooms, name: PassName, *, dry_run: bool = False) -> Report:
    """Run one pass to its end, whatever its interval says; it is noted as a scheduled one is.

    Only what this pass needs is built. ``dry_run`` changes nothing.
    """
    if dry_run:
        return await _rehearsed(rooms, name)
    recorder = Recorder(Metrics(CollectorRegistry(), version=""))
    began = time.monotonic()
    report = await _once(rooms, name, recorder)
    if not isinstance(report, CensusReport):
        recorder.report(report)
    took_s = time.monotonic() - began
    await note_pass(rooms, name, report.outcome, took_s)
    return report


async def _once(rooms: Rooms, name: PassName, recorder: Recorder) -> Report:
    match name:
        case PassName.RECONCILE:
            return await reconciling(rooms).run()
        case PassName.ADOPT:
            adopt = await adopting(rooms)
            if adopt is None:
                raise ConfigError(
                    ["source.url is empty, so there is nothing to adopt from; set it"]
                )
            return await adopt.run(force=True)
        case PassName.CENSUS:
            census = counting(rooms)
            try:
                return await census.run(wait=True)
            finally:
                await census.aclose()
        case PassName.DRAIN:
            draining = await Draining.over(rooms, recorder.replay_ended, recorder.replay_stuck)
            draining.keep_leases()
            try:
                return await draining.drain.run(within=timedelta(days=1), wait=True)
            finally:
                await draining.stop(timedelta(0))


async def _rehearsed(rooms: Rooms, name: PassName) -> Report:
    match name:
        case PassName.RECONCILE:
            return await reconciling(rooms).run(dry_run=True)
        case PassName.ADOPT:
            return await survey(rooms.settings)
        case PassName.CENSUS:
            return await counting(rooms).run(dry_run=True)
        case PassName.DRAIN:
            return await rehearse_drain(
                rooms.operations,
                await rooms.source(),
                truncate_unanswered=rooms.settings.drain.unanswered == "truncate",
            )


async def note_pass(rooms: Rooms, name: PassName, outcome: PassOutcome, took_s: float) -> None:
    """Keep in the store how a pass ended, for ``status``."""
    await rooms.tallies.note_pass(
        name, at=datetime.now(UTC), outcome=outcome, duration_s=took_s, by=rooms.actor
    )


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
