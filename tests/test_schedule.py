"""The schedule runs each pass at once and then at its interval, one at a time, and never dies of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent

from checkpointd.domain.states import PassName, PassOutcome
from checkpointd.schedule import JITTER, Passes, Schedule

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=20)
CENSUS, DRAIN, ADOPT = PassName.CENSUS, PassName.DRAIN, PassName.ADOPT


@dataclass
class Told:
    """A record of what is told of each run."""

    said: list[tuple[str, PassName]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    bound: list[dict[str, Any]] = field(default_factory=list)

    def ended(self, name: PassName, report: Any, took_s: float) -> None:
        assert took_s >= 0
        assert report is REPORT
        self._say("ended", name)

    def failed(self, name: PassName, error: Exception, took_s: float) -> None:
        assert took_s >= 0
        self.errors.append(error)
        self._say("failed", name)

    def missed(self, name: PassName) -> None:
        self.said.append(("missed", name))

    def overran(self, name: PassName) -> None:
        self.said.append(("overran", name))

    def _say(self, word: str, name: PassName) -> None:
        self.said.append((word, name))
        self.bound.append(structlog.contextvars.get_contextvars())


@dataclass(frozen=True)
class Report:
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    outcome: PassOutcome = PassOutcome.SUCCESS


REPORT = Report()


class Counted:
    """A pass that counts its runs, and waits at a gate if it is given one."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.runs = 0
        self.gate = gate
        self.at_once = self.most_at_once = 0
        self._changed = asyncio.Event()

    async def __call__(self) -> Report:
        self.runs += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self._changed.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.at_once -= 1
        return REPORT

    async def ran(self, times: int) -> None:
        async with asyncio.timeout(10):
            while self.runs < times:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def told() -> Told:
    return Told()


Scheduled = Callable[..., tuple[Schedule, Passes]]


@pytest.fixture
async def scheduled(told: Told) -> AsyncIterator[Scheduled]:
    """``scheduled({CENSUS: pass}, every=…)``: running, and stopped at the end."""
    made: list[tuple[Schedule, Passes]] = []
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)

    def start(
        passes: dict[PassName, Callable[[], Awaitable[Any]]], every: timedelta = HOUR
    ) -> tuple[Schedule, Passes]:
        running = Passes(passes, told)
        schedule = Schedule(running, told)
        schedule.start(dict.fromkeys(passes, every))
        made.append((schedule, running))
        return schedule, running

    yield start
    for schedule, passes in made:
        schedule.pause()
        await passes.cancel()
        await schedule.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - APScheduler has no event to wait on
            await asyncio.sleep(0.001)


class TestIntervals:
    async def test_every_pass_runs_at_once(self, scheduled: Scheduled) -> None:
        passes = {name: Counted() for name in PassName}
        scheduled(passes)
        for counted in passes.values():
            await counted.ran(1)

    async def test_and_then_at_its_interval(self, scheduled: Scheduled) -> None:
        counted = Counted()
        scheduled({CENSUS: counted}, SOON)
        await counted.ran(3)

    async def test_an_interval_may_change_while_it_runs(self, scheduled: Scheduled) -> None:
        counted = Counted()
        schedule, _ = scheduled({CENSUS: counted})
        await counted.ran(1)
        schedule.change(CENSUS, SOON)
        await counted.ran(3)

    async def test_a_hastened_pass_runs_now(self, scheduled: Scheduled) -> None:
        counted = Counted()
        schedule, _ = scheduled({CENSUS: counted})
        await counted.ran(1)
        schedule.hasten(CENSUS)
        await counted.ran(2)

    async def test_hastening_a_pass_that_is_not_scheduled_does_nothing(
        self, scheduled: Scheduled
    ) -> None:
        schedule, _ = scheduled({CENSUS: Counted()})
        schedule.hasten(ADOPT)

    async def test_replicas_that_start_together_drift_apart_and_no_more(self) -> None:
        assert 0 < JITTER <= 0.1

    async def test_a_loop_that_was_blocked_runs_it_once_and_late(
        self, scheduled: Scheduled, told: Told
    ) -> None:
        gate = asyncio.Event()
        gate.set()
        counted = Counted(gate)
        schedule, _ = scheduled({CENSUS: counted})
        await counted.ran(1)
        job = schedule._scheduler.get_job(str(CENSUS))
        job.modify(next_run_time=datetime.now(UTC) - 10 * HOUR)
        schedule._scheduler.wakeup()
        await counted.ran(2)
        await until(lambda: len(told.said) == 2)
        assert counted.runs == 2
        assert told.said == [("ended", CENSUS)] * 2


class TestWrapper:
    async def test_a_report_is_recorded(self, told: Told) -> None:
        assert await Passes({CENSUS: Counted()}, told).run(CENSUS) is REPORT
        assert told.said == [("ended", CENSUS)]

    @pytest.mark.parametrize("error", [RuntimeError("x"), KeyError(1), TimeoutError()])
    async def test_what_a_pass_raises_ends_here_and_is_recorded(
        self, told: Told, error: Exception
    ) -> None:
        async def fails() -> Report:
            raise error

        assert await Passes({CENSUS: fails}, told).run(CENSUS) is None
        assert told.errors == [error]

    async def test_a_failing_pass_stops_no_other_and_is_tried_again(
        self, scheduled: Scheduled, told: Told
    ) -> None:
        async def fails() -> Report:
            raise RuntimeError("always")

        counted = Counted()
        scheduled({DRAIN: fails, CENSUS: counted}, SOON)
        await counted.ran(3)
        await until(lambda: told.said.count(("failed", DRAIN)) >= 2)

    async def test_lines_logged_inside_carry_the_pass_and_its_run(self, told: Told) -> None:
        passes = Passes({CENSUS: Counted(), DRAIN: Counted()}, told)
        await passes.run(CENSUS)
        await passes.run(DRAIN)
        assert [bound["pass"] for bound in told.bound] == ["census", "drain"]
        assert len({bound["run_id"] for bound in told.bound}) == 2
        assert "pass" not in structlog.contextvars.get_contextvars()

    async def test_a_cancelled_run_is_recorded_as_nothing(self, told: Told) -> None:
        passes = Passes({CENSUS: Counted(asyncio.Event())}, told)
        task = asyncio.create_task(passes.run(CENSUS))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told.said == []
        assert await passes.settle(timedelta(0))


class TestOverruns:
    async def test_never_two_of_a_kind_at_once_and_the_overrun_is_counted(
        self, scheduled: Scheduled, told: Told
    ) -> None:
        gate = asyncio.Event()
        slow, other = Counted(gate), Counted()
        scheduled({DRAIN: slow, CENSUS: other}, SOON)
        await until(lambda: ("overran", DRAIN) in told.said)
        await other.ran(2)
        assert slow.most_at_once == 1
        gate.set()
        await slow.ran(2)

    async def test_a_missed_run_is_counted(self, told: Told) -> None:
        schedule = Schedule(Passes({}, told), told)
        schedule._heard(JobEvent(EVENT_JOB_MISSED, "adopt", "default"))
        schedule._heard(JobEvent(EVENT_JOB_MAX_INSTANCES, "drain", "default"))
        assert told.said == [("missed", ADOPT), ("overran", DRAIN)]


class TestStopping:
    async def test_running_passes_are_waited_for(self, scheduled: Scheduled, told: Told) -> None:
        gate = asyncio.Event()
        counted = Counted(gate)
        schedule, passes = scheduled({DRAIN: counted})
        await counted.ran(1)
        schedule.pause()
        settling = asyncio.create_task(passes.settle(timedelta(seconds=10)))
        await asyncio.sleep(0)
        assert not settling.done()
        gate.set()
        assert await settling
        await schedule.stop()
        assert told.said == [("ended", DRAIN)]

    async def test_what_does_not_end_in_time_is_cancelled(
        self, scheduled: Scheduled, told: Told
    ) -> None:
        counted = Counted(asyncio.Event())
        schedule, passes = scheduled({DRAIN: counted})
        await counted.ran(1)
        schedule.pause()
        assert not await passes.settle(timedelta(0))
        await passes.cancel()
        await schedule.stop()
        assert (counted.at_once, told.said) == (0, [])

    async def test_paused_it_begins_no_more(self, scheduled: Scheduled) -> None:
        counted = Counted()
        schedule, _ = scheduled({CENSUS: counted}, SOON)
        await counted.ran(1)
        schedule.pause()
        runs = counted.runs
        await asyncio.sleep(3 * SOON.total_seconds())
        assert counted.runs == runs

    async def test_stopping_twice_or_before_the_start_does_nothing(
        self, scheduled: Scheduled, told: Told
    ) -> None:
        never = Schedule(Passes({}, told), told)
        never.pause()
        await never.stop()
        schedule, _ = scheduled({CENSUS: Counted()})
        await schedule.stop()
        await schedule.stop()

    async def test_start_stop_start_in_one_process_works(self, scheduled: Scheduled) -> None:
        for _ in range(2):
            counted = Counted()
            schedule, passes = scheduled({CENSUS: counted})
            await counted.ran(1)
            await passes.settle(timedelta(seconds=5))
            await schedule.stop()
