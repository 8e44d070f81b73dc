"""The keeper in virtual time: who goes on, who is stopped, and what each is told."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from checkpointd.domain.errors import LeaseLostError, StoreUnreachableError
from checkpointd.domain.refs import Lease
from checkpointd.leases.keeper import ForkedError, Guard, Keeper

TTL, D, PERIOD = 15.0, 10.0, 2.0
LATE_S = 0.01
"""A period of the loop's own time, for the few tests in which an answer does not come."""


def lease(name: str = "t") -> Lease:
    return Lease(
        thread_id=name,
        checkpoint_id="c",
        fence=7,
        token="a" * 32,
        attempt=1,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


Answer = bool | BaseException | Callable[[], Awaitable[bool]]


@dataclass
class Stage:
    """A keeper whose clock a test moves, and whose store answers what a test says."""

    now: float = 1000.0
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    renew_every_s: float = PERIOD

    def __post_init__(self) -> None:
        self.keeper = Keeper(
            self._renew,
            ttl_s=TTL,
            deadline_s=D,
            renew_every_s=self.renew_every_s,
            on_stuck=lambda held: self.stuck.append(held.thread_id),
            clock=lambda: self.now,
            rng=random.Random(1),  # noqa: S311 - the same draws in each run
        )

    async def _renew(self, held: Lease) -> bool:
        self.asked.append(held.thread_id)
        answer = self.answers.get(held.thread_id, True)
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, bool) else await answer()

    async def tick(self, *, after: float = 0.0) -> None:
        """The keeper's next tick, so many seconds later."""
        self.now += after
        await self.keeper.tick()

    @asynccontextmanager
    async def holding(self, *names: str, replay_s: float | None = None) -> AsyncIterator[Holders]:
        """Replays that wait until they are let go, each under its lease, taken now."""
        holders = Holders(self, replay_s)
        try:
            for name in names:
                await holders.begin(name)
            yield holders
        finally:
            for task in holders.tasks.values():
                task.cancel()
            await asyncio.gather(*holders.tasks.values(), return_exceptions=True)


class Holders:
    """Tasks that hold leases."""

    def __init__(self, stage: Stage, replay_s: float | None) -> None:
        self.stage = stage
        self.how = {} if replay_s is None else {"replay_s": replay_s}
        self.tasks: dict[str, asyncio.Task[str]] = {}
        self.guards: dict[str, Guard] = {}
        self.go: dict[str, asyncio.Event] = {}

    async def begin(
        self, name: str, *, sent_at: float | None = None, deaf: bool = False
    ) -> asyncio.Task[str]:
        entered = asyncio.Event()
        go = self.go[name] = asyncio.Event()
        at = self.stage.now if sent_at is None else sent_at

        async def replay() -> str:
            async with self.stage.keeper.hold(lease(name), sent_at=at, **self.how) as guard:
                self.guards[name] = guard
                entered.set()
                while not go.is_set():
                    try:
                        await go.wait()
                    except asyncio.CancelledError:
                        if not deaf:
                            raise
            return "whole"

        task = self.tasks[name] = asyncio.create_task(replay(), name=name)
        waiting = asyncio.create_task(entered.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return task

    async def end_of(self, name: str) -> object:
        """What its replay came to: what it returned, or what it raised."""
        (end,) = await asyncio.gather(self.tasks[name], return_exceptions=True)
        return type(end) if isinstance(end, BaseException) else end


@pytest.fixture
def stage() -> Stage:
    return Stage()


class TestTheDeadline:
    async def test_is_counted_from_before_the_request_was_sent(self, stage: Stage) -> None:
        async with stage.holding() as holders:
            await holders.begin("t", sent_at=stage.now - 9)
            stage.answers["t"] = StoreUnreachableError("store", "silence")
            stage.now += 0.99
            assert holders.guards["t"].is_held
            stage.now += 0.01
            assert not holders.guards["t"].is_held

    async def test_that_passed_while_the_reply_was_on_its_way_keeps_the_body_from_running(
        self, stage: Stage
    ) -> None:
        ran = False
        with pytest.raises(LeaseLostError):
            async with stage.keeper.hold(lease(), sent_at=stage.now - D):
                ran = True
        assert not ran
        assert len(stage.keeper) == 0

    async def test_moves_with_a_renewal_that_was_confirmed(self, stage: Stage) -> None:
        async with stage.holding("t") as holders:
            for _ in range(20):
                await stage.tick(after=PERIOD)
            assert holders.guards["t"].deadline == stage.now + D
            assert holders.guards["t"].is_held

    async def test_is_counted_from_before_the_renewal_was_sent(self, stage: Stage) -> None:
        async def slowly() -> bool:
            stage.now += 3
            return True

        async with stage.holding("t") as holders:
            stage.answers["t"] = slowly
            await stage.tick(after=PERIOD)
            assert holders.guards["t"].deadline == 1000 + PERIOD + D

    async def test_stays_where_it_is_when_the_store_says_nothing(self, stage: Stage) -> None:
        async with stage.holding("t") as holders:
            stage.answers["t"] = StoreUnreachableError("store", "silence")
            for _ in range(4):
                await stage.tick(after=PERIOD)
            assert holders.guards["t"].deadline == 1000 + D
            assert not holders.tasks["t"].done()
            await stage.tick(after=PERIOD)
            assert await holders.end_of("t") is LeaseLostError

    async def test_is_never_moved_back(self, stage: Stage) -> None:
        async with stage.holding() as holders:
            await holders.begin("t", sent_at=stage.now + 5)
            await stage.tick()
            assert holders.guards["t"].deadline == 1005 + D


class TestALostLease:
    async def test_stops_its_replay_and_no_other(self, stage: Stage) -> None:
        async with stage.holding("mine", "theirs") as holders:
            stage.answers["theirs"] = False
            await stage.tick(after=PERIOD)
            assert await holders.end_of("theirs") is LeaseLostError
            holders.go["mine"].set()
            assert await holders.end_of("mine") == "whole"

    async def test_cancels_once(self, stage: Stage) -> None:
        async with stage.holding() as holders:
            task = await holders.begin("t", deaf=True)
            stage.answers["t"] = False
            for _ in range(3):
                await stage.tick(after=PERIOD)
            assert task.cancelling() == 1
            assert stage.asked == ["t"]
            holders.go["t"].set()
            assert await holders.end_of("t") == "whole"
            assert task.cancelling() == 0

    async def test_that_its_replay_gave_back_meanwhile_stops_nobody(self, stage: Stage) -> None:
        arrived, answer = asyncio.Event(), asyncio.Event()

        async def gone() -> bool:
            arrived.set()
            await answer.wait()
            return False

        stage.answers["t"] = gone

        async def replay() -> str:
            async with stage.keeper.hold(lease(), sent_at=stage.now):
                ticking = asyncio.create_task(stage.keeper.tick())
                await arrived.wait()
            answer.set()
            await ticking
            return "went on"

        async with asyncio.timeout(5):
            assert await asyncio.create_task(replay()) == "went on"
        assert len(stage.keeper) == 0


class TestACancellation:
    async def test_from_outside_passes_as_what_it_is(self, stage: Stage) -> None:
        async with stage.holding("t") as holders:
            holders.tasks["t"].cancel()
            assert await holders.end_of("t") is asyncio.CancelledError

    async def test_from_outside_passes_also_when_the_lease_was_lost_at_the_same_time(
        self, stage: Stage
    ) -> None:
        async with stage.holding("t") as holders:
            holders.guards["t"].lose()
            holders.tasks["t"].cancel()
            assert await holders.end_of("t") is asyncio.CancelledError

    async def test_from_outside_passes_when_the_loss_was_only_noted(self, stage: Stage) -> None:
        async def replay() -> None:
            async with stage.keeper.hold(lease(), sent_at=stage.now) as guard:
                stage.now += D
                with pytest.raises(LeaseLostError):
                    guard.check()
                await asyncio.Event().wait()

        task = asyncio.create_task(replay())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_of_before_the_lease_is_not_mistaken_for_the_loss(self, stage: Stage) -> None:
        """A task may finish something while it is being cancelled."""

        async def replay() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                try:
                    async with stage.keeper.hold(lease(), sent_at=stage.now) as guard:
                        guard.lose()
                        await asyncio.Event().wait()
                except LeaseLostError:
                    return "told"
            return "?"

        task = asyncio.create_task(replay())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "told"

    async def test_for_the_loss_leaves_the_task_fit_for_more(self, stage: Stage) -> None:
        async def replay() -> str:
            try:
                async with stage.keeper.hold(lease(), sent_at=stage.now) as guard:
                    guard.lose()
                    await asyncio.Event().wait()
            except LeaseLostError:
                async with asyncio.timeout(5):
                    await asyncio.sleep(0)
            return "went on"

        assert await asyncio.create_task(replay()) == "went on"

    async def test_for_the_loss_that_the_body_hides_is_taken_back_all_the_same(
        self, stage: Stage
    ) -> None:
        async def hiding() -> None:
            async with stage.keeper.hold(lease(), sent_at=stage.now) as guard:
                guard.lose()
                try:
                    await asyncio.Event().wait()
                finally:
                    _ = 1 // 0

        async def replay() -> int:
            with pytest.raises(ZeroDivisionError):
                await hiding()
            task = asyncio.current_task()
            assert task is not None
            return task.cancelling()

        assert await asyncio.create_task(replay()) == 0


class TestTheKeeper:
    async def test_asks_for_all_leases_at_once(self, stage: Stage) -> None:
        names = [f"t{n}" for n in range(50)]
        everybody = asyncio.Barrier(len(names))

        async def together() -> bool:
            await everybody.wait()  # is passed only when all are asked side by side
            return True

        stage.answers |= dict.fromkeys(names, together)
        async with stage.holding(*names):
            async with asyncio.timeout(5):
                await stage.tick(after=PERIOD)
            assert sorted(stage.asked) == sorted(names)

    async def test_asks_nothing_where_nothing_is_held(self, stage: Stage) -> None:
        await stage.tick(after=PERIOD)
        assert stage.asked == []

    @pytest.mark.parametrize(
        "error",
        [
            StoreUnreachableError("store", "it is down"),
            ZeroDivisionError("a bug"),
            asyncio.CancelledError(),
            TimeoutError(),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_survives_any_error_and_goes_on_when_it_is_over(self, error: Exception) -> None:
        stage = Stage(renew_every_s=0.001)
        failed, renewed = asyncio.Event(), asyncio.Event()

        async def broken() -> bool:
            failed.set()
            raise error

        async def well() -> bool:
            renewed.set()
            return True

        async with stage.holding("t") as holders:
            stage.answers["t"] = broken
            kept = asyncio.create_task(stage.keeper.run())
            with capture_logs() as logs:
                async with asyncio.timeout(5):
                    await failed.wait()
                    stage.answers["t"] = well
                    stage.now += 1
                    await renewed.wait()
                    while holders.guards["t"].deadline < 1001 + D:  # noqa: ASYNC110 - its own turn
                        await asyncio.sleep(0)
            assert logs[0]["event"] == "leases_unrenewed"
            assert logs[0]["error"]
            assert not holders.tasks["t"].done()
            kept.cancel()
            await asyncio.gather(kept, return_exceptions=True)

    async def test_survives_one_who_is_told_and_raises(self) -> None:
        stage = Stage(renew_every_s=0.001)
        stage.keeper._on_stuck = lambda _lease: 1 / 0  # type: ignore[assignment,return-value]
        renewed = asyncio.Event()

        async def well() -> bool:
            renewed.set()
            return True

        async with stage.holding() as holders:
            await holders.begin("t", deaf=True)
            holders.guards["t"].lose()
            stage.now += TTL
            await holders.begin("other")
            stage.answers["other"] = well
            kept = asyncio.create_task(stage.keeper.run())
            with capture_logs() as logs:
                async with asyncio.timeout(5):
                    await renewed.wait()
            assert logs[0]["event"] == "lease_tick_failed"
            kept.cancel()
            await asyncio.gather(kept, return_exceptions=True)
            holders.go["t"].set()

    async def test_does_not_wait_for_an_answer_beyond_a_deadline(self) -> None:
        """A store that accepts and says nothing must not keep a replay going."""
        stage = Stage(renew_every_s=LATE_S)
        asked = asyncio.Event()

        async def silence() -> bool:
            asked.set()
            stage.now += D
            await asyncio.Event().wait()
            return True

        async with stage.holding("t") as holders:
            stage.answers["t"] = silence
            async with asyncio.timeout(5):
                await stage.tick(after=PERIOD)
            assert await holders.end_of("t") is LeaseLostError

    async def test_renews_the_others_while_one_answer_is_awaited(self) -> None:
        stage = Stage(renew_every_s=LATE_S)
        answer = asyncio.Event()

        async def late() -> bool:
            await answer.wait()
            return True

        async with stage.holding("late", "prompt") as holders:
            stage.answers["late"] = late
            for _ in range(3):
                await stage.tick(after=PERIOD)
            assert holders.guards["prompt"].deadline == stage.now + D
            assert stage.asked.count("late") == 1, "no second one is sent beside it"
            answer.set()
            await stage.tick()
            assert holders.guards["late"].deadline == 1000 + PERIOD + D

    async def test_leaves_no_error_behind_of_a_renewal_whose_replay_is_over(self) -> None:
        """Else the loop would print it as an exception that was never retrieved."""
        stage = Stage()
        printed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: printed.append(told))
        failed, answer = asyncio.Event(), asyncio.Event()

        async def broken() -> bool:
            failed.set()
            raise ZeroDivisionError

        async def late() -> bool:
            await answer.wait()
            return True

        async with stage.holding("over", "late") as holders:
            stage.answers |= {"over": broken, "late": late}
            ticking = asyncio.create_task(stage.keeper.tick())
            await failed.wait()
            holders.go["over"].set()
            await holders.end_of("over")
            answer.set()
            await ticking
        gc.collect()
        assert printed == []

    async def test_ends_with_its_renewals(self) -> None:
        stage = Stage(renew_every_s=0.001)
        asked, ended = asyncio.Event(), asyncio.Event()

        async def silence() -> bool:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return True

        async with stage.holding("t"):
            stage.answers["t"] = silence
            kept = asyncio.create_task(stage.keeper.run())
            async with asyncio.timeout(5):
                await asked.wait()
            kept.cancel()
            await asyncio.gather(kept, return_exceptions=True)
            assert ended.is_set()


class TestABlockedLoop:
    async def test_loses_its_lease_by_itself(self, stage: Stage) -> None:
        async with stage.holding("t") as holders:
            await stage.tick(after=2 * TTL)  # the loop was blocked: this tick is the first since
            assert await holders.end_of("t") is LeaseLostError
            assert stage.asked == []

    async def test_finds_the_loss_before_it_commits_though_nobody_has_ticked(
        self, stage: Stage
    ) -> None:
        """A process that was stopped finds its replay ended and the tick overdue at once."""
        async with stage.keeper.hold(lease(), sent_at=stage.now) as guard:
            guard.check()
            stage.now += 2 * TTL
            with pytest.raises(LeaseLostError) as told:
                guard.check()
        assert told.value.fence == 7

    async def test_stays_lost_whatever_the_store_says_later(self, stage: Stage) -> None:
        async with stage.keeper.hold(lease(), sent_at=stage.now) as guard:
            stage.now += 2 * TTL
            with pytest.raises(LeaseLostError):
                guard.check()
            await stage.tick()
            stage.now -= 2 * TTL
            assert not guard.is_held
            assert stage.asked == []


class TestAReplayThatIgnoresCancellation:
    async def test_is_told_of_once_a_ttl_after_its_lease_was_lost(self, stage: Stage) -> None:
        async with stage.holding() as holders:
            await holders.begin("deaf", deaf=True)
            stage.answers["deaf"] = False
            await stage.tick(after=PERIOD)
            await stage.tick(after=TTL - 0.1)
            assert stage.stuck == []
            await stage.tick(after=0.1)
            await stage.tick(after=TTL)
            assert stage.stuck == ["deaf"]
            holders.go["deaf"].set()
            assert await holders.end_of("deaf") == "whole"

    async def test_is_told_of_also_where_it_noted_the_loss_itself(self, stage: Stage) -> None:
        async with stage.holding("t") as holders:
            stage.now += D
            with pytest.raises(LeaseLostError):
                holders.guards["t"].check()
            holders.tasks["t"].cancel()  # whatever it does then, it is registered no more
            await holders.end_of("t")
            await stage.tick(after=2 * TTL)
            assert stage.stuck == []

    async def test_is_told_of_once_when_all_were_to_have_ended(self, stage: Stage) -> None:
        async with stage.holding() as holders:
            await holders.begin("deaf", deaf=True)
            holders.tasks["deaf"].cancel()
            stage.keeper.give_up()
            stage.keeper.give_up()
            assert not holders.guards["deaf"].is_held
            assert stage.stuck == ["deaf"]
            holders.go["deaf"].set()

    async def test_does_not_keep_its_ref_from_all_for_good(self, stage: Stage) -> None:
        """Its timeout cancelled it, it went on, and its lease was being renewed."""
        async with stage.holding(replay_s=60) as holders:
            await holders.begin("deaf", deaf=True)
            for _ in range(37):  # to the last tick within timeout and TTL
                await stage.tick(after=PERIOD)
            assert holders.guards["deaf"].is_held
            await stage.tick(after=PERIOD)
            assert not holders.guards["deaf"].is_held
            assert stage.stuck == ["deaf"]
            holders.go["deaf"].set()

    async def test_is_not_one_whose_replay_came_back_and_whose_commit_takes_long(
        self, stage: Stage
    ) -> None:
        async with stage.holding("t", replay_s=60) as holders:
            holders.guards["t"].replayed()
            for _ in range(100):
                await stage.tick(after=PERIOD)
            assert holders.guards["t"].is_held
            assert stage.stuck == []


class TestAFork:
    async def test_is_refused_by_keeper_and_guard(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with stage.keeper.hold(lease(), sent_at=stage.now) as guard:
            pid = os.getpid()
            monkeypatch.setattr(os, "getpid", lambda: pid + 1)
            assert not guard.is_held
            with pytest.raises(ForkedError):
                guard.check()
            with pytest.raises(ForkedError):
                async with stage.keeper.hold(lease("other"), sent_at=stage.now):
                    pass
            monkeypatch.undo()
            assert guard.is_held


class TestAHold:
    def test_needs_a_task(self, stage: Stage) -> None:
        hold = stage.keeper.hold(lease(), sent_at=stage.now)
        entering = hold.__aenter__()
        loop = asyncio.new_event_loop()
        said: list[BaseException] = []

        def step() -> None:
            try:
                entering.send(None)  # type: ignore[attr-defined]
            except RuntimeError as error:
                said.append(error)
            loop.stop()

        loop.call_soon(step)
        loop.run_forever()
        loop.close()
        assert "held by a task" in str(said[0])

    async def test_is_registered_for_as_long_as_its_body_runs(self, stage: Stage) -> None:
        async with stage.holding("a", "b") as holders:
            assert len(stage.keeper) == 2
            holders.go["a"].set()
            await holders.end_of("a")
            assert len(stage.keeper) == 1
        assert len(stage.keeper) == 0
