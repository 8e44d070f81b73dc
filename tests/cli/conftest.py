"""The command, called in this process, over a registry of the test's own on a real store."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
from click.testing import CliRunner, Result

from checkpointd import sample
from checkpointd.app.rooms import Rooms, open_rooms
from checkpointd.cli.commands import checkpointd
from checkpointd.config import load_settings
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import FailureReason, WriterLine
from checkpointd.telemetry.logs import LineHandler

T = TypeVar("T")
LONG_AGO = datetime.now(UTC) - timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Command:
    """Calls ``checkpointd``; what came out of it is in the result."""

    runner: CliRunner

    def __call__(self, *words: str, **environ: str) -> Result:
        return self.runner.invoke(checkpointd, list(words), env=environ, catch_exceptions=False)

    def json(self, *words: str) -> dict[str, Any]:
        """What it printed with ``--json``, whatever its exit code."""
        document: dict[str, Any] = json.loads(self(*words, "--json").stdout)
        return document


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_logging: None) -> Command:
    """The command in an empty directory, with an environment that says nothing of it."""
    for name in [name for name in os.environ if name.startswith("CHECKPOINTD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return Command(CliRunner())


@pytest.fixture
def fresh_logging() -> Iterator[None]:
    """Logging as it was before, whatever the command configured."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [h for h in root.handlers if isinstance(h, LineHandler)]:
        root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    logging.getLogger("apscheduler").setLevel(logging.NOTSET)
    structlog.reset_defaults()


@pytest.fixture
def store(command: Command, redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment points the command to a registry of its own; returns the store's url."""
    for name, value in {
        "REDIS__URL": redis_server.url,
        "REGISTRY__NAMESPACE": f"cli-{uuid.uuid4().hex[:12]}",
        "REGISTRY__PARTITIONS": "4",
        "RECONCILE__GRACE": "1s",
        "RECONCILE__EVERY": "1s",
        "DRAIN__SETTLE": "0s",
        "ENDPOINT__LISTEN": "127.0.0.1:0",
    }.items():
        monkeypatch.setenv(f"CHECKPOINTD_{name}", value)
    url: str = redis_server.url
    return url


@pytest.fixture
def source(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment also points it to a copy of the sample."""
    database = sample.copy_to(tmp_path)
    monkeypatch.setenv("CHECKPOINTD_SOURCE__URL", f"sqlite://{database}")
    return database


@pytest.fixture
def inside(store: str) -> Callable[[Callable[[Rooms], Awaitable[T]]], T]:
    """``inside(work)``: what ``work`` gives over the rooms that the command would open."""

    def run(work: Callable[[Rooms], Awaitable[T]]) -> T:
        async def opened() -> T:
            settings = load_settings(None, os.environ)
            async with open_rooms(settings, actor="test") as rooms:
                return await work(rooms)

        return asyncio.run(opened())

    return run


@pytest.fixture
def registered(inside: Any) -> Callable[..., CheckpointRef]:
    """``registered("thread", "checkpoint")``: a ref that is in the registry, a day old."""

    def register(
        thread: str, checkpoint: str, *, line: str = "legacy", finalized: bool = True
    ) -> CheckpointRef:
        ref = CheckpointRef(thread, checkpoint, WriterLine(line), LONG_AGO)
        stored: CheckpointRef = inside(
            lambda rooms: rooms.registry.register(ref, finalized=finalized)
        )
        return stored

    return register


@pytest.fixture
def quarantined(inside: Any, registered: Any) -> Callable[..., None]:
    """``quarantined("thread", "checkpoint", "unreadable")``: a ref that is blocked for a reason."""

    def block(thread: str, checkpoint: str, reason: str) -> None:
        registered(thread, checkpoint)

        async def fail(rooms: Rooms) -> None:
            async with rooms.registry.migration_lock(thread, checkpoint) as lease:
                await rooms.ledger.fail(
                    lease,
                    reason=FailureReason(reason),
                    detail="seen by a test",
                    permanent=True,
                    again_in=timedelta(0),
                    max_attempts=5,
                )

        inside(fail)

    return block
