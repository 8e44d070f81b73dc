"""The source or the replayer out of reach in mid-drain: no attempt is spent, and it goes on unaided."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpointd.registry.redis import RedisRegistry

from .books import Books, read_books
from .checker import Evidence, check, effects_in
from .run import NAMESPACE, PARTITIONS, Plan, Run
from .workers import command, environment

THREADS = 30
WITHIN_S = 60.0


class Drain:
    """``run --until drained`` over a source of slow threads, and what it waits for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.down = run.directory / "replayer-down"

    async def start(self) -> asyncio.subprocess.Process:
        worker = self.run.workers[0]
        more = {**worker.environment, "FAULT_REPLAYER_DOWN": str(self.down)}
        words = ("run", "--until", "drained", "--timeout", f"{WITHIN_S:.0f}s", "--json")
        return await asyncio.create_subprocess_exec(
            *command(*words, config=worker.config, actor="drainer"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(more),
        )

    async def books(self) -> Books:
        async with self.run.client() as client:
            return await read_books(client, NAMESPACE, PARTITIONS)

    async def until(self, what: Callable[[Books], bool]) -> Books:
        async with asyncio.timeout(WITHIN_S):
            while not what(books := await self.books()):  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.1)
        return books

    async def status(self) -> dict[str, Any]:
        worker = self.run.workers[0]
        process = await asyncio.create_subprocess_exec(
            *command("status", "--json", config=worker.config, actor="asker"),
            stdout=subprocess.PIPE,
            env=environment(worker.environment),
        )
        stdout, _ = await process.communicate()
        return dict(json.loads(stdout))


def _migrated(books: Books) -> int:
    return sum(row.state == "m" for row in books.rows.values())


def _throttled(reason: str) -> Callable[[Books], bool]:
    return lambda books: books.meta.get("throttle", "").startswith(reason)


class TestADrainWhoseDependenciesGo:
    @pytest.mark.slow
    @pytest.mark.timeout(240)
    async def test_spends_no_attempt_says_what_it_waits_for_and_goes_on_unaided(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        # Not tmp_path: a socket's path may have about a hundred characters only.
        directory = Path(tmp_path_factory.mktemp("deps"))
        run = Run(Plan(seconds=0, seed=1, workers=1), directory)
        run.source.write(THREADS, all_like=("t:_:closed", "slow"))
        async with run.going():
            await run.workers[0].stop(within_s=20)
            async with run.store() as store:
                await RedisRegistry(store, actor="operator").freeze_issuance(reason="deps")
            drain = Drain(run)
            drain.down.touch()
            process = await drain.start()
            try:
                await drain.until(_throttled("replayer"))
                await self._is_waiting(drain, "replayer")
                drain.down.unlink()
                await drain.until(lambda books: _migrated(books) >= THREADS // 4)

                away = run.source.path.with_suffix(".away")
                run.source.path.rename(away)
                books = await drain.until(_throttled("source"))
                assert _migrated(books) < THREADS
                await self._is_waiting(drain, "source")
                away.rename(run.source.path)

                began = time.monotonic()
                stdout, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            status = json.loads(stdout)
            assert (process.returncode, status["state"]) == (0, "drained"), status["sentence"]
            assert time.monotonic() - began < WITHIN_S
            books = await drain.books()
        effects = effects_in(run.effects)
        assert {effect.attempt for effect in effects} == {1}
        assert check(Evidence(books, {}, effects, heads=run.source.heads, drained=True)) == []

    async def _is_waiting(self, drain: Drain, reason: str) -> None:
        status = await drain.status()
        assert status["throttled"] == reason
        assert reason in status["sentence"]
        assert status["eta_seconds"] is None
        books = await drain.books()
        spent = {str(n): r for n, r in books.rows.items() if r.state in "pr" and r.attempts}
        assert spent == {}
        assert not any(row.state == "q" for row in books.rows.values())
