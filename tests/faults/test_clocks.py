"""Clocks that are wrong: the store's judges ages, and no hour that is there twice runs a pass twice."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.passes.world import KERNEL, OLD, YOUNG, World, ref

from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import WriterLine
from checkpointd.registry.redis import RedisRegistry

from .run import Plan, Run
from .server import Clock
from .workers import command, environment

AUTUMN = datetime(2026, 10, 25, 0, 59, 57, tzinfo=UTC)
"""Just before Berlin's clocks go back."""

SPRING = datetime(2027, 3, 28, 0, 59, 57, tzinfo=UTC)
"""Just before they go forward."""

COUNTED_S = 5
"""So long are runs counted: the hour changes while they are."""


class TestADaemonWhoseClockIsWrong:
    @pytest.mark.parametrize("hours", [2, -2])
    async def test_judges_ages_by_the_stores_and_says_by_how_much_it_is_off(
        self, worlds: Any, monkeypatch: pytest.MonkeyPatch, hours: int
    ) -> None:
        world: World = await worlds.open()
        await world.registry.register(ref("dead", line=KERNEL, age=OLD), finalized=False)
        await world.registry.register(ref("alive", line=KERNEL, age=YOUNG), finalized=False)
        true_time = time.time
        monkeypatch.setattr(time, "time", lambda: true_time() + 3600 * hours)

        tally = await world.tally()
        assert tally.clock_offset_s == pytest.approx(3600 * hours, abs=30)
        assert (tally.open_overdue, tally.open_in_grace) == (1, 1)
        assert await world.reconcile() == ["dead/c1"]

    @pytest.mark.parametrize("hours", [2, -2])
    @pytest.mark.timeout(120)
    async def test_expires_by_the_stores_as_a_process_too(
        self, skip_without: Callable[[str], None], tmp_path_factory: Any, hours: int
    ) -> None:
        skip_without(Clock.is_possible())
        directory = Path(tmp_path_factory.mktemp("clk"))
        run = Run(Plan(seconds=0, seed=1, workers=0), directory)
        clock = Clock(directory)
        clock.move(3600 * hours)
        async with run.going(), run.store() as store:
            registry = RedisRegistry(store, actor="app")
            # The workers' grace is 2 s by the store's clock.
            for thread, age_s in (("dead", 60), ("alive", -60)):
                at = datetime.now(UTC) - timedelta(seconds=age_s)
                await registry.register(
                    CheckpointRef(thread, "c", WriterLine.KERNEL, at), finalized=False
                )
            worker = run.worker("off", run.proxies[0].port)
            process = await asyncio.create_subprocess_exec(
                *command("once", "reconcile", "--json", config=worker.config, actor="off"),
                stdout=subprocess.PIPE,
                env=environment({**worker.environment, **clock.environment}),
            )
            stdout, _ = await process.communicate()
            assert process.returncode == 0
            report = json.loads(stdout)
            assert report["overdue"] == 1
            assert len(report["expired"]) == 1
            dead, alive = await registry.refs_for("dead"), await registry.refs_for("alive")
            assert (dead[0].expired, alive[0].expired) == (True, False)

    @pytest.mark.timeout(180)
    async def test_runs_its_passes_at_their_intervals_whatever_its_clock_does(
        self, skip_without: Callable[[str], None], tmp_path_factory: Any
    ) -> None:
        """Over the hour that is there twice, over the one that is missing, and set by two hours."""
        skip_without(Clock.is_possible())
        now = datetime.now(UTC)
        two_hours = timedelta(hours=2)
        changes = {
            "autumn": (AUTUMN, AUTUMN),
            "spring": (SPRING, SPRING),
            "back": (now, now - two_hours),
            "forward": (now, now + two_hours),
        }
        ran = await asyncio.gather(
            *(
                _passes_over(Path(tmp_path_factory.mktemp(name)), *change)
                for name, change in changes.items()
            )
        )
        for name, (runs, seconds) in zip(changes, ran, strict=True):
            # Every 300 ms. A loaded machine may skip some; nothing makes up for an hour of them.
            assert seconds <= runs <= 5 * seconds + 2, (name, runs, seconds)


class TestARefFromTheFuture:
    async def test_is_counted_never_expired_and_can_be_finalized(self, worlds: Any) -> None:
        world: World = await worlds.open()
        await world.registry.register(
            ref("t", line=KERNEL, age=-timedelta(minutes=10)), finalized=False
        )
        assert await world.reconcile() == []
        assert (await world.tally()).open_future == 1
        finalized = await world.registry.finalize("t", "c1")
        assert finalized.finalized
        assert (await world.tally()).open_future == 0
        assert await worlds.findings() == []

    async def test_is_drained_like_any_other(self, worlds: Any) -> None:
        world: World = await worlds.open()
        world.source.holds("t", age=-timedelta(minutes=10))
        await world.adopt(source_settle=-timedelta(days=1))
        await world.freeze()
        await world.drain()
        link = await world.registry.migration_of("t", "c1")
        assert link is not None
        assert await worlds.findings() == []


async def _passes_over(directory: Path, starts_at: datetime, then: datetime) -> tuple[int, float]:
    """Reconcile runs of a daemon in Berlin, and the seconds in which it made them.

    Its clock says ``starts_at`` when it is started; where ``then`` is another time, it is set to
    that once the daemon runs.
    """
    run = Run(Plan(seconds=0, seed=1, workers=0), directory)
    clock = Clock(directory)
    async with run.going():
        run.listen = "127.0.0.1:0"
        worker = run.worker("berlin", run.proxies[0].port)
        worker.environment = {**worker.environment, **clock.environment, "TZ": "Europe/Berlin"}
        clock.show(starts_at)
        worker.start()
        try:
            await worker.started(within_s=60)
            started = next(
                json.loads(row)
                for row in worker.logs[-1].read_text().splitlines()
                if '"daemon_started"' in row
            )
            assert started["timestamp"][:7] == f"{starts_at:%Y-%m}", "its clock was not moved"
            url = started["endpoint"]
            loop = asyncio.get_running_loop()
            first, began = await asyncio.to_thread(_runs, url), loop.time()
            if then != starts_at:
                clock.show(then)
            await asyncio.sleep(COUNTED_S)
            last, ended = await asyncio.to_thread(_runs, url), loop.time()
            assert await worker.stop(within_s=30) == 0
            return last - first, ended - began
        finally:
            worker.kill()


def _runs(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:  # noqa: S310 - our own
        text = reply.read().decode()
    found = re.search(
        r'^checkpointd_pass_runs_total\{outcome="success",pass="reconcile"\} (\S+)', text, re.M
    )
    assert found is not None, text[:2000]
    return int(float(found[1]))
