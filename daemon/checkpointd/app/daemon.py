"""The long-running process: schedule, signals, endpoint, and how it winds down."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from checkpointd import __version__
from checkpointd.app.crew import CENSUS_EVERY, Crew, Report, note_pass
from checkpointd.app.rooms import open_rooms
from checkpointd.config import Settings, reloadable_changes
from checkpointd.domain.drain import (
    DrainRules,
    assess,
    is_frozen,
    only_operator_can_help,
    unfinished,
)
from checkpointd.domain.errors import ConfigError, StoreError
from checkpointd.domain.reports import (
    AdoptReport,
    CensusReport,
    DrainReport,
    ReconcileReport,
)
from checkpointd.domain.states import (
    DrainState,
    PassName,
    PassOutcome,
)
from checkpointd.domain.status import status_document
from checkpointd.domain.tally import DrainStatus, StoreTally
from checkpointd.schedule import Passes, Schedule
from checkpointd.telemetry import logs
from checkpointd.telemetry.endpoint import Endpoint
from checkpointd.telemetry.heartbeat import Heartbeat
from checkpointd.telemetry.metrics import Metrics
from checkpointd.telemetry.record import Recorder

log = structlog.get_logger(__name__)

ADOPT_LOOK_EVERY = timedelta(seconds=5)
"""How often adoption asks whether a scan is due: one owed to a freeze must not wait an interval."""

UNTIL_CENSUS_EVERY = timedelta(seconds=1)
"""While somebody waits for the drain's end, it is looked for this often."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a daemon's run ended."""

    drained: bool | None = None
    """Whether the drain had ended; ``None`` where nobody waited for it."""
    timed_out: bool = False
    status: dict[str, Any] = field(default_factory=dict)


class Daemon:
    """Runs the passes at their intervals until it is told to stop."""

    def __init__(
        self,
        settings: Settings,
        *,
        actor: str,
        reload: Callable[[], Settings] | None = None,
        on_census: Callable[[StoreTally, DrainStatus], None] = lambda _tally, _status: None,
        on_started: Callable[[str], None] = lambda _url: None,
    ) -> None:
        self.settings = settings
        self.endpoint_url = ""
        self._actor = actor
        self._reload = reload
        self._on_census = on_census
        self._on_started = on_started
        self._registry = CollectorRegistry()
        self._metrics = Metrics(self._registry, version=__version__)
        self._recorder = Recorder(self._metrics)
        self._heartbeat = Heartbeat(metrics=self._metrics)
        self._document: dict[str, Any] = status_document(None, assess(None, DrainRules()), {})
        self._passes_ran: dict[str, dict[str, Any]] = {}
        self._noted_at: dict[PassName, float] = {}
        self._store_ok = False
        self._store_says = "the store has not been asked yet"
        self._paced_at: float | None = None
        self._until = False
        self._ended: Ended | None = None
        self._stop = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    async def run(
        self, *, until_drained: bool = False, give_up_after: timedelta | None = None
    ) -> Ended:
        """Run until SIGTERM or SIGINT; or until the drain has ended, or only a person can help.

        SIGHUP reloads what may change while running.
        """
        self._until = until_drained
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: self.reload}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            async with open_rooms(self.settings, actor=self._actor) as rooms:
                self._require_a_source()
                self._crew = await Crew.assembled(rooms, self._recorder, self._heartbeat)
                await self._serve(give_up_after)
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
        if self._ended is not None:
            return self._ended
        return Ended(status=self._document)

    def _require_a_source(self) -> None:
        if self.settings.replay.url == "turnstate:" and not self.settings.source.url:
            log.info("source_missing", effect="nothing is adopted, and no replay can be made")

    async def _serve(self, give_up_after: timedelta | None) -> None:
        endpoint = self._endpoint()
        if endpoint is not None:
            endpoint.start()
            host, port = endpoint.address or ("", 0)
            shown = f"[{host}]" if ":" in host else host
            self.endpoint_url = f"http://{shown}:{port}"
        beats = asyncio.create_task(self._heartbeat.run(), name="heartbeat")
        self._crew.draining.keep_leases()
        self._passes = Passes(self._runs(), self)
        self._schedule = Schedule(self._passes, self)
        log.info(
            "daemon_started",
            version=__version__,
            store=self._crew.rooms.store.where,
            endpoint=self.endpoint_url,
        )
        for name, every in self._intervals().items():
            self._recorder.pass_scheduled(name, every)
            self._heartbeat.expect(name, within=self._patience(name, every))
        self._schedule.start(self._intervals())
        self._on_started(self.endpoint_url)
        try:
            async with asyncio.timeout(give_up_after.total_seconds() if give_up_after else None):
                await self._stop.wait()
        except TimeoutError:
            self._ended = Ended(drained=False, timed_out=True, status=self._document)
        finally:
            await self._wind_down()
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            if endpoint is not None:
                await asyncio.to_thread(endpoint.stop)
            log.info("daemon_stopped")

    async def _wind_down(self) -> None:
        """Claim nothing more, let what runs finish within the grace, then end the schedule."""
        grace = self.settings.shutdown.grace
        began = asyncio.get_running_loop().time()
        self._schedule.pause()
        self._crew.drain.stop()
        if self._crew.adopt is not None:
            self._crew.adopt.stop()
        await self._passes.settle(grace)
        left = max(0.0, grace.total_seconds() - (asyncio.get_running_loop().time() - began))
        await self._crew.stop(timedelta(seconds=left))
        await self._passes.cancel()
        await self._schedule.stop()
        await asyncio.gather(*self._background, return_exceptions=True)

    def stop(self) -> None:
        """End the run, in order."""
        self._stop.set()

    # Passes --------------------------------------------------------------------------------------

    def _intervals(self) -> dict[PassName, timedelta]:
        s = self.settings
        every = {
            PassName.CENSUS: UNTIL_CENSUS_EVERY if self._until else CENSUS_EVERY,
            PassName.RECONCILE: s.reconcile.every,
            PassName.DRAIN: s.drain.every,
        }
        if s.source.url:
            every[PassName.ADOPT] = min(s.adopt.every, ADOPT_LOOK_EVERY)
        return every

    def _patience(self, name: PassName, every: timedelta) -> timedelta:
        """How long a pass may show no sign of life before the process counts as stuck."""
        patience = max(3 * every, timedelta(minutes=1))
        if name is PassName.DRAIN:
            patience = max(patience, 2 * self.settings.replay.timeout)
        return patience + timedelta(seconds=30)

    def _runs(self) -> dict[PassName, Any]:
        crew = self._crew
        runs: dict[PassName, Any] = {
            PassName.RECONCILE: crew.reconcile.run,
            PassName.DRAIN: lambda: crew.drain.run(within=self.settings.drain.every * 0.9),
            PassName.CENSUS: lambda: crew.census.run(throttled=crew.drain.pace.throttled),
        }
        if crew.adopt is not None:
            runs[PassName.ADOPT] = crew.adopt.run
        return runs

    # The record of runs, as the schedule tells it ------------------------------------------------

    def ended(self, name: PassName, report: Report, took_s: float) -> None:
        """A pass came back: numbers, lines, and what others wait for."""
        self._heartbeat.sign(name)
        self._recorder.pass_ended(name, report.outcome, took_s=took_s, at=datetime.now(UTC))
        match report:
            case CensusReport():
                self._counted(report)
            case AdoptReport():
                self._recorder.report(report)
                if report.complete:
                    self._crew.drain.wake()
                    self._schedule.hasten(PassName.CENSUS)
            case DrainReport():
                self._recorder.report(report)
                self._paced()
            case ReconcileReport():
                self._recorder.report(report)
                if report.expired:
                    self._crew.drain.wake()
        self._note_soon(name, report.outcome, took_s, moved=moved(report))

    def failed(self, name: PassName, error: Exception, took_s: float) -> None:
        """A pass raised; the next tick tries again."""
        self._heartbeat.sign(name)
        self._recorder.pass_failed(name, error, took_s=took_s)
        if name is PassName.CENSUS:
            self._store_ok, self._store_says = False, str(error)
            drain = assess(None, self._crew.rooms.rules)
            self._document = status_document(None, drain, self._passes_ran)
        self._note_soon(name, PassOutcome.ERROR, took_s, moved=True)

    def missed(self, name: PassName) -> None:
        """A run did not begin at its time."""
        self._recorder.pass_missed(name)

    def overran(self, name: PassName) -> None:
        """A run was due while the one before it went on."""
        self._recorder.pass_overran(name)

    def _counted(self, report: CensusReport) -> None:
        self._store_ok, self._store_says = True, "the store answers"
        self._recorder.census(report.tally, report.status)
        self._recorder.leases_held(len(self._crew.draining.keeper))
        self._document = status_document(report.tally, report.status, self._passes_ran)
        self._on_census(report.tally, report.status)
        if is_frozen(report.tally) and unfinished(report.tally):
            self._crew.drain.wake()
        if not self._until or self._ended is not None:
            return
        drained = report.status.state is DrainState.DRAINED
        if drained or only_operator_can_help(report.status, report.tally, self._crew.rooms.rules):
            self._ended = Ended(drained=drained, status=self._document)
            self.stop()

    def _paced(self) -> None:
        now = asyncio.get_running_loop().time()
        since = 0.0 if self._paced_at is None else now - self._paced_at
        self._paced_at = now
        pace = self._crew.drain.pace
        self._recorder.paced(limit=pace.limit, throttled=pace.throttled, for_s=since)
        self._recorder.leases_held(len(self._crew.draining.keeper))

    def _note_soon(
        self, name: PassName, outcome: PassOutcome, took_s: float, *, moved: bool
    ) -> None:
        """Keep how the pass ended; an idle pass says so no more often than a census."""
        self._passes_ran[str(name)] = {
            "last_run": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "outcome": str(outcome),
            "duration_s": round(took_s, 4),
        }
        now = asyncio.get_running_loop().time()
        idle_for = now - self._noted_at.get(name, -1e9)
        if not self._store_ok or idle_for < (1 if moved else CENSUS_EVERY.total_seconds()):
            return
        self._noted_at[name] = now
        task = asyncio.create_task(self._note(name, outcome, took_s), name="note-pass")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _note(self, name: PassName, outcome: PassOutcome, took_s: float) -> None:
        try:
            await note_pass(self._crew.rooms, name, outcome, took_s)
        except StoreError as error:
            log.debug("pass_unnoted", error=str(error))

    # Endpoint and reload -------------------------------------------------------------------------

    def _endpoint(self) -> Endpoint | None:
        address = self.settings.endpoint.address
        if address is None:
            return None
        return Endpoint(
            host=address[0],
            port=address[1],
            registry=self._registry,
            live=self._heartbeat.live,
            ready=lambda: (
                self._store_ok,
                [
                    ("store", self._store_ok, self._store_says),
                    ("configuration", True, "loaded"),
                ],
            ),
            status=lambda: self._document,
        )

    def reload(self) -> None:
        """Read the configuration again and take over what may change while running."""
        if self._reload is None:
            return
        try:
            wanted = self._reload()
        except ConfigError as error:
            self._recorder.config_refused(error)
            return
        settings, refused = reloadable_changes(self.settings, wanted)
        self.settings = self._crew.rooms.settings = settings
        logs.set_level(settings.log.level)
        crew = self._crew
        crew.reconcile.grace = crew.census.grace = settings.reconcile.grace
        crew.reconcile.max_expiries = settings.reconcile.max_expiries
        crew.drain.concurrency = settings.drain.concurrency
        crew.drain.max_attempts = crew.draining.replaying.max_attempts = settings.drain.max_attempts
        crew.draining.replaying.backoff_base = settings.drain.backoff_base
        crew.draining.replaying.backoff_cap = settings.drain.backoff_cap
        crew.census.rules = crew.rooms.rules
        if crew.adopt is not None:
            crew.adopt.every = settings.adopt.every
        for name, every in self._intervals().items():
            self._schedule.change(name, every)
            self._recorder.pass_scheduled(name, every)
            self._heartbeat.expect(name, within=self._patience(name, every))
        self._recorder.config_reloaded(refused=refused)


def moved(report: Report) -> bool:
    """Whether a pass did anything that somebody may want to see at once."""
    match report:
        case DrainReport():
            return bool(report.outcomes or report.troubles)
        case ReconcileReport():
            return bool(report.expired or report.held or report.troubles)
        case AdoptReport():
            return report.complete or bool(report.troubles)
        case CensusReport():
            return bool(report.marked or report.halted)
