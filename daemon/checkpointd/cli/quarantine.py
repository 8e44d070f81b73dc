"""Commands about what no replay can safely continue: each blocked ref waits for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from checkpointd.app.rooms import Rooms
from checkpointd.cli import documents, stories, tables
from checkpointd.cli.common import Asked
from checkpointd.cli.options import Decorator, dry_run, one_of, reason, thread
from checkpointd.cli.verbs import Family, asks
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import FailureReason, RefState
from checkpointd.registry.operations import BulkResult


@click.group(cls=Family)
def quarantine() -> None:
    """What no replay can safely continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """The refs that a command is about."""

    thread: str | None
    blocked_by: FailureReason | None

    async def within(self, rooms: Rooms, state: RefState) -> list[RefRecord]:
        """Those of them in this state, quarantined or waived."""
        found: AsyncIterator[RefRecord]
        if self.thread is not None:
            records = await rooms.registry.records_of(self.thread)
            return [r for r in records if r.state is state and self._is_meant(r)]
        if state is RefState.QUARANTINED:
            found = rooms.operations.quarantined(blocked_by=self.blocked_by)
        else:
            found = rooms.operations.in_state(state)
        return [record async for record in found if self._is_meant(record)]

    def _is_meant(self, record: RefRecord) -> bool:
        return self.blocked_by is None or record.code is self.blocked_by


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which refs are meant."""
    command = click.option(
        "--blocked-by", type=one_of(FailureReason), metavar="CODE", help="Those with this reason."
    )(command)
    return click.option("--thread", type=thread, metavar="T", help="Those of this thread.")(command)


def _decision(what: str) -> Decorator:
    """The options of a command that decides."""

    def options(command: Callable[..., Any]) -> Callable[..., Any]:
        command = dry_run(f"List them, and {what} nothing.")(command)
        command = reason()(command)
        command = click.option(
            "--all", "all_", is_flag=True, help="All; with several codes, add --blocked-by."
        )(command)
        return _which(command)

    return options


@quarantine.command("list", example="checkpointd quarantine list --blocked-by unreadable")
@_which
@asks
def list_(asked: Asked, thread: str | None, blocked_by: str | None) -> None:
    """Each blocked ref with its reason."""
    which = _asked_for(thread, blocked_by)
    found = asked.within(lambda rooms: which.within(rooms, RefState.QUARANTINED), found=False)
    asked.tell(
        {"refs": documents.plain(found)},
        people=lambda: stories.quarantine_page(found),
    )


@quarantine.command(example='checkpointd quarantine release --thread t:_:s-42 --reason "mended"')
@_decision("release")
@asks
def release(asked: Asked, /, **options: Any) -> None:
    """Give refs back to the drain.

    Their attempts are counted anew.
    """
    _decide(asked, "released", RefState.QUARANTINED, **options)


@quarantine.command(example='checkpointd quarantine waive --all --reason "the users left"')
@_decision("waive")
@asks
def waive(asked: Asked, /, **options: Any) -> None:
    """Let the drain end without refs.

    They cannot be resumed then.
    """
    _decide(asked, "waived", RefState.QUARANTINED, **options)


@quarantine.command(
    example='checkpointd quarantine unwaive --thread t:_:s-42 --reason "she is back"'
)
@_decision("unwaive")
@asks
def unwaive(asked: Asked, /, **options: Any) -> None:
    """Take waivers back."""
    _decide(asked, "unwaived", RefState.WAIVED, **options)


def _asked_for(thread: str | None, blocked_by: str | None) -> Which:
    return Which(thread=thread, blocked_by=FailureReason(blocked_by) if blocked_by else None)


def _decide(
    asked: Asked,
    done: str,
    state: RefState,
    *,
    thread: str | None,
    blocked_by: str | None,
    all_: bool,
    reason: str,
    dry_run: bool,
) -> None:
    if not (thread or blocked_by or all_):
        raise click.UsageError(
            "it is not said which refs are meant; give --thread T, --blocked-by CODE or --all"
        )
    which = _asked_for(thread, blocked_by)

    async def work(rooms: Rooms) -> BulkResult:
        found = await which.within(rooms, state)
        if all_ and blocked_by is None and thread is None:
            _check_one_code(found)
        verb = {
            "released": rooms.operations.release,
            "waived": rooms.operations.waive,
            "unwaived": rooms.operations.unwaive,
        }[done]
        return await verb(found, reason=reason, dry_run=dry_run)

    result = asked.within(work, found=False)
    asked.tell(
        documents.plain(result),
        people=lambda: stories.bulk_page(result, done),
    )


def _check_one_code(found: Sequence[RefRecord]) -> None:
    """Refuse to decide about different troubles with one word."""
    codes = Counter(str(record.code or FailureReason.OTHER) for record in found)
    if len(codes) > 1:
        present = tables.counts(dict(sorted(codes.items())))
        raise click.UsageError(
            f"--all would decide about several reasons at once ({present}); add --blocked-by CODE"
        )
