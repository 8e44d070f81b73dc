"""From intervals to runs: when each pass is due, and who owns the runs that are going on.

APScheduler decides when; one wrapper runs each pass, catches what it raises, and has its
report recorded. The running passes are owned here, since APScheduler's own
``shutdown(wait=True)`` cancels coroutines instead of waiting for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import structlog
from apscheduler.events import (
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobEvent,
)
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from checkpointd.domain.states import PassName, PassOutcome

log = structlog.get_logger(__name__)

CLOCK_LOOK_S = 1.0
CLOCK_STEP_S = 1.0
"""A wall clock that fell behind by more within one look was set back."""

JITTER = 0.1
"""Of an interval, at most: replicas that start together drift apart, and the period holds."""


class Report(Protocol):
    """What any pass returns."""

    @property
    def at(self) -> datetime: ...

    @property
    def outcome(self) -> PassOutcome: ...


class Record(Protocol):
    """What is told of each run."""

    def ended(self, name: PassName, report: Any, took_s: float) -> None: ...

    def failed(self, name: PassName, error: Exception, took_s: float) -> None: ...

    def missed(self, name: PassName) -> None: ...

    def overran(self, name: PassName) -> None: ...


Pass = Callable[[], Awaitable[Report]]


class Passes:
    """The passes, their wrapper, and the runs now going on, so that a stop can wait for them."""

    def __init__(self, passes: Mapping[PassName, Pass], record: Record) -> None:
        self._passes = passes
        self._record = record
        self._running: dict[asyncio.Task[Any], PassName] = {}

    async def run(self, name: PassName) -> Report | None:
        """Run a pass once and have it recorded; ``None`` if it failed.

        The one place where any exception of a pass ends: the next tick tries again.
        """
        task = asyncio.current_task()
        began = time.monotonic()
        if task is not None:
            self._running[task] = name
        try:
            with structlog.contextvars.bound_contextvars(
                run_id=secrets.token_hex(4), **{"pass": str(name)}
            ):
                try:
                    report = await self._passes[name]()
                except Exception as error:  # noqa: BLE001 - see above
                    self._record.failed(name, error, time.monotonic() - began)
                    return None
                self._record.ended(name, report, time.monotonic() - began)
                return report
        finally:
            if task is not None:
                self._running.pop(task, None)

    async def settle(self, within: timedelta) -> bool:
        """Wait so long for running passes; say whether they all ended."""
        if not self._running:
            return True
        _, pending = await asyncio.wait(tuple(self._running), timeout=within.total_seconds())
        return not pending

    async def cancel(self) -> None:
        """Cancel what still runs, and wait for it."""
        left = tuple(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class Schedule:
    """Runs each pass at its interval, the first time at once."""

    def __init__(self, passes: Passes, record: Record) -> None:
        self._passes = passes
        self._record = record
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            # None: a run that is late still runs, once, however late; the loop may have been
            # blocked or the process stopped.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._heard, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        self._clock_watch: asyncio.Task[None] | None = None

    def start(self, intervals: Mapping[PassName, timedelta]) -> None:
        """Begin; every pass of ``intervals`` is due now."""
        for name, every in intervals.items():
            self._scheduler.add_job(
                self._passes.run,
                _trigger(every),
                args=[name],
                id=str(name),
                next_run_time=datetime.now(UTC),
            )
        self._scheduler.start()
        self._clock_watch = asyncio.create_task(self._watch_the_clock(), name="clock-watch")

    def change(self, name: PassName, every: timedelta) -> None:
        """Run this pass at another interval from now on."""
        self._scheduler.reschedule_job(str(name), trigger=_trigger(every))

    def hasten(self, name: PassName) -> None:
        """Run this pass as soon as it is not running; its interval goes on from there."""
        with contextlib.suppress(LookupError):
            self._scheduler.modify_job(str(name), next_run_time=datetime.now(UTC))

    def pause(self) -> None:
        """Begin no more runs."""
        if self._scheduler.running:
            self._scheduler.pause()

    async def stop(self) -> None:
        """End the scheduler. Call it after ``Passes.settle``: it would cancel what runs."""
        if self._clock_watch is not None:
            self._clock_watch.cancel()
            await asyncio.gather(self._clock_watch, return_exceptions=True)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
            await asyncio.sleep(0)  # it ends in the loop's next turn

    async def _watch_the_clock(self) -> None:
        """Make every pass due when the wall clock was set back.

        APScheduler keeps the wall-clock time at which each is due next; after a step back by two
        hours none would run for two hours. A step forward needs nothing: all are due, once.
        """
        ahead_s = time.time() - time.monotonic()
        while True:
            await asyncio.sleep(CLOCK_LOOK_S)
            now_ahead_s = time.time() - time.monotonic()
            if now_ahead_s < ahead_s - CLOCK_STEP_S:
                log.warning("clock_set_back", by_s=round(ahead_s - now_ahead_s, 1))
                for job in self._scheduler.get_jobs():
                    self.hasten(PassName(job.id))
            ahead_s = now_ahead_s

    def _heard(self, event: JobEvent) -> None:
        name = PassName(event.job_id)
        if event.code == EVENT_JOB_MISSED:
            self._record.missed(name)
        else:
            self._record.overran(name)


def _trigger(every: timedelta) -> IntervalTrigger:
    seconds = every.total_seconds()
    return IntervalTrigger(seconds=seconds, jitter=seconds * JITTER, timezone=UTC)
