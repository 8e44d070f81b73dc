"""What happens to a replica as a process: killed, blocked, stopped, and left without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from checkpointd.registry.redis import RedisRegistry

from .books import read_books
from .checker import Effect, Evidence, check, effects_in, log_in
from .run import NAMESPACE, PARTITIONS, TTL_S, Plan, Run, to_the_end
from .workers import Worker

LOADED_S = 10.0
"""What a loaded machine may add to any bound."""


@contextlib.asynccontextmanager
async def _frozen(directory: Path, *threads: tuple[int, str], workers: int) -> AsyncIterator[Run]:
    """Replicas over a source of so many closed threads that behave so, issuance frozen."""
    run = Run(Plan(seconds=0, seed=1, workers=workers), directory)
    run.listen = "127.0.0.1:0"
    for count, behaviour in threads:
        run.source.write(count, all_like=("t:_:closed", behaviour))
    async with run.going():
        async with run.store() as store:
            await RedisRegistry(store, actor="operator").freeze_issuance(reason="test")
        yield run


class TestAHolder:
    @pytest.mark.timeout(180)
    async def test_that_is_killed_or_blocked_in_a_replay_is_succeeded_and_writes_nothing_more(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        directory = Path(tmp_path_factory.mktemp("holder"))
        async with _frozen(directory, (1, "die"), (1, "block"), (10, "plain"), workers=2) as run:
            async with run.store() as store:
                drained, status = await to_the_end(run, store)
            assert drained, status
            logs = [path for worker in run.workers for path in worker.logs]
            for worker in run.workers:
                await worker.stop(within_s=30)
            async with run.client() as client:
                books = await read_books(client, NAMESPACE, PARTITIONS)
        effects = effects_in(run.effects)
        assert check(Evidence(books, {}, effects, heads=run.source.heads, drained=True)) == []
        log, _ = log_in(logs)

        first, second = _attempts(effects, "die")
        assert second.pid != first.pid
        assert second.at - first.at < TTL_S + LOADED_S
        first, second = _attempts(effects, "block")
        assert second.at - first.at > TTL_S / 2
        lost = {line["fence"] for line in log if line["event"] == "lease_lost"}
        assert first.fence in lost
        for effect in (first, second):
            row = books.rows[effect.name]
            assert (row.state, row.fence) == ("m", second.fence)


class TestAReplica:
    @pytest.mark.timeout(180)
    async def test_that_was_stopped_runs_each_pass_once_and_goes_on(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        async with _frozen(Path(tmp_path_factory.mktemp("stopped")), workers=1) as run:
            worker = run.workers[0]
            worker.send(signal.SIGSTOP)
            await asyncio.sleep(2 * TTL_S)
            before = asyncio.create_task(asyncio.to_thread(_runs, worker))
            worker.send(signal.SIGCONT)
            runs = await before
            await asyncio.sleep(1)
            again = await asyncio.to_thread(_runs, worker) - runs
            assert 1 <= again <= 8, "every 300 ms, and nothing made up for the time when it stood"
            assert await asyncio.to_thread(_runs, worker, "missed") == 0
            assert await worker.stop(within_s=30) == 0

    @pytest.mark.timeout(180)
    async def test_whose_store_never_answers_is_alive_not_ready_and_ready_again(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        directory = Path(tmp_path_factory.mktemp("silent"))
        async with _frozen(directory, (300, "slow"), workers=1) as run:
            worker = run.workers[0]
            await worker.stop(within_s=30)
            # Waiting for the drain's end it counts every second, and so sees sooner how it stands.
            worker.words = ("run", "--until", "drained", "--timeout", "2m")
            worker.start()
            await worker.started(within_s=60)
            await _until(worker, "/readyz", 200)
            async with run.server.stalled():
                await _until(worker, "/readyz", 503)
                assert await asyncio.to_thread(_answer, worker, "/livez") == 200
            await _until(worker, "/readyz", 200)
            worker.kill()
        log, noise = log_in(worker.logs)
        assert noise == []
        assert [line for line in log if "exception" in line] == []


def _attempts(effects: list[Effect], behaviour: str) -> tuple[Effect, Effect]:
    began = sorted(
        (e for e in effects if e.step == "began" and behaviour in e.name.thread.split(".")),
        key=lambda effect: effect.at,
    )
    assert [effect.attempt for effect in began] == [1, 2]
    return began[0], began[1]


def _endpoint(worker: Worker) -> str:
    for row in worker.logs[-1].read_text().splitlines():
        if '"daemon_started"' in row:
            return str(json.loads(row)["endpoint"])
    raise LookupError("the daemon has not started")


def _answer(worker: Worker, path: str) -> int:
    try:
        with urllib.request.urlopen(_endpoint(worker) + path, timeout=20) as reply:  # noqa: S310 - our own
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def _until(worker: Worker, path: str, code: int) -> None:
    async with asyncio.timeout(5 + LOADED_S):
        while await asyncio.to_thread(_answer, worker, path) != code:  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.1)


def _runs(worker: Worker, outcome: str = "success") -> int:
    with urllib.request.urlopen(_endpoint(worker) + "/metrics", timeout=20) as reply:  # noqa: S310 - our own
        text: Any = reply.read().decode()
    pattern = rf'^checkpointd_pass_runs_total{{outcome="{outcome}",pass="reconcile"}} (\S+)'
    found = re.search(pattern, text, re.M)
    assert found is not None, text[:2000]
    return int(float(found[1]))
