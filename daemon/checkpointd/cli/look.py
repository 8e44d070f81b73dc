"""Commands that only look: the drain's status, one conversation's story, the audit, the check of all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import click
from rich.live import Live

from checkpointd.app.rooms import Rooms
from checkpointd.cli import documents, reports, stories
from checkpointd.cli.common import Asked, Code, console, show
from checkpointd.cli.options import duration, moment, thread
from checkpointd.cli.verbs import Verb, asks
from checkpointd.domain import standing
from checkpointd.domain.drain import assess
from checkpointd.domain.errors import StoreUnreachableError
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import DrainState
from checkpointd.domain.status import status_document
from checkpointd.registry.operations import AuditPage

PATIENCE_S = 3.5
"""How long a status may take: whoever asks has been paged, and a store that is down is an answer."""

WATCH_EVERY_S = 2.0

Status = dict[str, Any]


@click.command(cls=Verb, example="checkpointd status --require drained --for 168h")
@click.option("--watch", is_flag=True, help="Go on showing it, until Ctrl-C or what is required.")
@click.option(
    "--require",
    "required",
    type=click.Choice([str(DrainState.DRAINED)]),
    help="Exit 3 unless this is so.",
)
@click.option(
    "--for",
    "for_",
    type=duration,
    metavar="DURATION",
    help="With --require: and has been so for this long.",
)
@asks
def status(asked: Asked, *, watch: bool, required: str | None, for_: timedelta | None) -> int:
    """Where the drain is.

    A word, a sentence and numbers. Any state that can be read is an answer, exit 0; only --require makes a demand of it.
    """
    if for_ is not None and required is None:
        raise click.UsageError("--for says how long, and --require drained is missing beside it")
    demand = None if required is None else (for_ or timedelta(0))
    if watch:
        return _watched(asked, demand)
    document = asked.within(_status_of, found=False, patience_s=PATIENCE_S)
    asked.tell(document, people=lambda: reports.status_page(document))
    return Code.DONE if is_met(demand, document) else Code.NOT_DRAINED


def is_met(demand: timedelta | None, document: Mapping[str, Any]) -> bool:
    """Whether the drain is over, and has been for ``demand`` by the store's clock.

    ``None`` demands nothing. When it ended is on record only once a census has seen it.
    """
    if demand is None:
        return True
    if document["state"] != DrainState.DRAINED:
        return False
    if not demand:
        return True
    since, now = document["drained_at"], document["at"]
    if since is None or now is None:
        return False
    return datetime.fromisoformat(now) - datetime.fromisoformat(since) >= demand


async def _status_of(rooms: Rooms) -> Status:
    _, _, document = await rooms.status()
    return document


# Watching it -----------------------------------------------------------------------------------


def _watched(asked: Asked, demand: timedelta | None) -> Code:
    async def watch(rooms: Rooms) -> Code:
        with _showing(asked) as draw:
            while True:
                document = await _status_or_unknown(rooms)
                draw(document)
                if demand is not None and is_met(demand, document):
                    return Code.DONE
                await asyncio.sleep(WATCH_EVERY_S)

    try:
        return asked.within(watch, found=False)
    except KeyboardInterrupt:  # the way in which a watch ends
        return Code.DONE if demand is None else Code.NOT_DRAINED


async def _status_or_unknown(rooms: Rooms) -> Status:
    """The status; ``unknown`` while the store cannot be reached, and the watch goes on."""
    try:
        return await _status_of(rooms)
    except StoreUnreachableError:
        return status_document(None, assess(None, rooms.rules), {})


@contextlib.contextmanager
def _showing(asked: Asked) -> Iterator[Callable[[Status], None]]:
    """On a terminal one page that is drawn anew; in a pipe a line each time."""
    out = console()
    if asked.as_json:
        yield lambda document: click.echo(json.dumps(document))
    elif not out.is_terminal:
        yield lambda document: show(out, reports.status_line(document))
    else:
        with Live(console=out, auto_refresh=False) as live:
            yield lambda document: live.update(reports.status_page(document), refresh=True)


# One conversation ------------------------------------------------------------------------------


@click.command(cls=Verb, example="checkpointd explain tenant:_:session-42")
@click.argument("thread_id", metavar="THREAD", type=thread)
@asks
def explain(asked: Asked, thread_id: str) -> None:
    """What became of this conversation."""

    async def work(rooms: Rooms) -> tuple[tuple[RefRecord, ...], AuditPage]:
        records = await rooms.registry.records_of(thread_id)
        return records, await rooms.operations.audit(thread=thread_id)

    records, audit = asked.within(work, found=False)
    explanation = standing.explain(thread_id, records)
    sentence = stories.standing_sentence(explanation, records)
    asked.tell(
        {
            **documents.explanation_document(explanation, sentence),
            "refs": documents.plain(records),
            "audit": documents.plain(audit.entries),
        },
        people=lambda: stories.story_page(
            thread_id, str(explanation.standing), sentence, records, audit
        ),
    )


# The audit and the check -----------------------------------------------------------------------


@click.command(cls=Verb, example="checkpointd audit --since 2h")
@click.option("--since", type=moment, metavar="T", help="A time, or how long ago, such as 2h.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="The newest N.",
)
@asks
def audit(asked: Asked, since: datetime | None, limit: int) -> None:
    """Who did what to which ref, oldest first."""
    page = asked.within(lambda rooms: rooms.operations.audit(since=since, most=limit), found=False)
    asked.tell(
        {"entries": documents.plain(page.entries), "trimmed": page.trimmed},
        people=lambda: stories.audit_page(page),
    )


@click.command(cls=Verb, example="checkpointd verify")
@asks
def verify(asked: Asked) -> int:
    """Whether everything adds up.

    Walks all refs and holds them against their indexes, links and counters. Exit 1 if something does not add up. Meant for a registry at rest: what changes meanwhile may
    be found once, and be gone on the next run.
    """
    found = asked.within(lambda rooms: rooms.operations.verify(), found=False)
    asked.tell(
        {"clean": not found.findings, **documents.plain(found)},
        people=lambda: stories.verification_page(found),
    )
    return Code.FAILED if found.findings else Code.DONE
