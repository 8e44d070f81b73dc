"""``run``: the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import click
from rich.console import Group, RenderableType

from checkpointd.app.daemon import Daemon, Ended
from checkpointd.app.rooms import Rooms
from checkpointd.cli import reports, stories, tables
from checkpointd.cli.common import Asked, Code
from checkpointd.cli.options import duration
from checkpointd.cli.verbs import Verb, asks
from checkpointd.domain.errors import CheckpointdError
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import DrainState
from checkpointd.telemetry import logs

NAMED = 5
"""Blocked refs that are named when a drain ends over them."""


@click.command(cls=Verb, example="checkpointd run --until drained --timeout 30m")
@click.option(
    "--until",
    type=click.Choice([str(DrainState.DRAINED)]),
    help="End when this is so, or when nothing is left to wait for.",
)
@click.option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    help="With --until: wait no longer than this.",
)
@asks
def run(asked: Asked, until: str | None, timeout: timedelta | None) -> int:
    """The daemon.

    It expires, adopts, drains and shows until it is told to stop.

    With --until: exit 0 if drained, 3 if only an operator can move it on, 4 if timed out.
    SIGTERM lets running replays finish; SIGHUP reads the settings anew.
    """
    if timeout is not None and until is None:
        raise click.UsageError("--timeout ends a wait, and --until drained is missing beside it")
    settings = asked.settings()
    logs.configure(level="debug" if asked.debug else settings.log.level, form=settings.log.format)
    daemon = Daemon(settings, actor=asked.who(), reload=asked.settings)
    ended = asyncio.run(daemon.run(until_drained=until is not None, give_up_after=timeout))
    if until is None:
        return Code.DONE
    blocking = [] if ended.drained else _blocking(asked, ended.status)
    asked.tell(ended.status, people=lambda: _page(ended, blocking))
    if ended.drained:
        return Code.DONE
    return Code.TIMED_OUT if ended.timed_out else Code.NOT_DRAINED


def _blocking(asked: Asked, status: Mapping[str, Any]) -> list[RefRecord]:
    """Some of the quarantined refs; none where the store cannot be asked any more."""
    if not status.get("blocked") or asked.as_json:
        return []

    async def work(rooms: Rooms) -> list[RefRecord]:
        found: list[RefRecord] = []
        async for record in rooms.operations.quarantined():
            found.append(record)
            if len(found) == NAMED:
                break
        return found

    try:
        return asked.within(work, found=False)
    except CheckpointdError:
        return []


def _page(ended: Ended, blocking: list[RefRecord]) -> Group:
    parts: list[RenderableType] = []
    if ended.timed_out:
        parts.append(tables.Line("The time is over, and it is not drained."))
    parts.append(reports.status_page(ended.status))
    if blocking:
        parts += [tables.blank(), stories.quarantine_page(blocking)]
    return Group(*parts)
