from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta

from checkpointd.domain.states import PassName
from checkpointd.telemetry.heartbeat import Heartbeat
from checkpointd.telemetry.metrics import Metrics


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class TestTheLoop:
    def test_that_beats_is_alive(self) -> None:
        clock = Clock()
        heart = Heartbeat(clock=clock)
        clock.now_s += 1.9
        assert heart.live()[0]
        heart.beat()
        clock.now_s += 1.9
        assert heart.live()[0]

    def test_that_stands_still_is_not_and_says_for_how_long(self) -> None:
        clock = Clock()
        heart = Heartbeat(clock=clock)
        clock.now_s += 2.5
        alive, why = heart.live()
        assert not alive
        assert "has not turned for 2.5 s" in why

    def test_that_turns_again_is_alive_again(self) -> None:
        clock = Clock()
        heart = Heartbeat(clock=clock)
        clock.now_s += 60
        heart.beat()
        assert heart.live()[0]

    def test_that_is_late_shows_its_lag_while_it_lasts(self) -> None:
        clock = Clock()
        heart = Heartbeat(beat_every_s=0.5, clock=clock)
        assert heart.lag_s() == 0
        clock.now_s += 3.5
        assert heart.lag_s() == 3.0

    def test_its_lag_is_shown_as_of_the_scrape(
        self, metrics: Metrics, scraped: Callable[[], dict[str, float]]
    ) -> None:
        clock = Clock()
        heart = Heartbeat(metrics=metrics, beat_every_s=0.5, clock=clock)
        clock.now_s += 3.5
        assert scraped()["checkpointd_event_loop_lag_seconds"] == 3.0
        heart.beat()
        assert scraped()["checkpointd_event_loop_lag_seconds"] == 0

    async def test_beats_by_itself_while_it_turns(self) -> None:
        beaten = asyncio.Event()

        class Counting(Heartbeat):
            def beat(self) -> None:
                super().beat()
                beaten.set()

        heart = Counting(beat_every_s=0.001)
        task = asyncio.create_task(heart.run(), name="heartbeat")
        await asyncio.wait_for(beaten.wait(), 5)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert heart.live()[0]

    async def test_that_is_blocked_is_seen_from_another_thread(self) -> None:
        heart = Heartbeat(beat_every_s=0.01, silence_s=0.05)
        task = asyncio.create_task(heart.run(), name="heartbeat")
        seen: list[bool] = []
        noticed = threading.Event()

        def watch() -> None:
            while heart.live()[0]:
                pass
            seen.append(heart.live()[0])
            noticed.set()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        noticed.wait(10)  # blocks the loop, on purpose
        thread.join(10)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert seen == [False]


class TestAPass:
    def test_that_shows_no_sign_in_time_is_overdue(self) -> None:
        clock = Clock()
        heart = Heartbeat(clock=clock)
        heart.expect(PassName.ADOPT, within=timedelta(minutes=10))
        clock.now_s += 601
        heart.beat()
        alive, why = heart.live()
        assert not alive
        assert "the adopt pass has shown no sign of life for 601 s (10m are allowed)" in why

    def test_that_is_long_is_alive_while_its_pages_finish(self) -> None:
        clock = Clock()
        heart = Heartbeat(clock=clock)
        heart.expect(PassName.ADOPT, within=timedelta(minutes=10))
        for _ in range(10):
            clock.now_s += 300
            heart.beat()
            heart.sign(PassName.ADOPT)
            assert heart.live()[0]

    def test_of_which_nothing_is_expected_is_never_overdue(self) -> None:
        clock = Clock()
        heart = Heartbeat(clock=clock)
        heart.expect(PassName.ADOPT, within=timedelta(seconds=1))
        heart.forget(PassName.ADOPT)
        heart.forget(PassName.DRAIN)
        heart.sign(PassName.DRAIN)
        clock.now_s += 60
        heart.beat()
        assert heart.live()[0]
