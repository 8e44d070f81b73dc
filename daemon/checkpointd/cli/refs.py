"""Commands about single refs: what the registry knows of them, and what an operator may decide."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

import click

from checkpointd.app.rooms import Rooms
from checkpointd.cli import documents, stories, tables
from checkpointd.cli.common import Asked, CommandFailedError
from checkpointd.cli.options import checkpoint, dry_run, moment, one_of, reason, thread
from checkpointd.cli.verbs import Family, asks
from checkpointd.domain.errors import UnknownCheckpointError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import RefState

LISTED = 200
"""Refs that are listed for people unless they ask for more."""

THREAD = click.argument("thread_id", metavar="THREAD", type=thread)
CHECKPOINT = click.argument("checkpoint_id", metavar="CHECKPOINT", type=checkpoint)


@click.group(cls=Family)
def refs() -> None:
    """Single refs: look, and decide."""


@refs.command("list", example="checkpointd refs list --state expired")
@click.option(
    "--state",
    type=one_of(RefState),
    metavar="STATE",
    help=f"Only those that are {', '.join(RefState)}.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"At most N; else {LISTED}, and all of them with --json.",
)
@asks
def list_(asked: Asked, state: str | None, limit: int | None) -> None:
    """The refs, or those in one state.

    Settled ones are found by a walk over the store.
    """
    most = limit or (None if asked.as_json else LISTED)

    async def work(rooms: Rooms) -> tuple[list[RefRecord], bool]:
        return await first(rooms.operations.in_state(RefState(state) if state else None), most)

    found, more = asked.within(work, found=False)
    asked.tell(
        {"refs": documents.plain(found), "more": more},
        people=lambda: stories.ref_list(found, more=more),
    )


async def first(
    records: AsyncIterator[RefRecord], most: int | None
) -> tuple[list[RefRecord], bool]:
    """The first ``most`` of the records, or all, and whether there are more."""
    found: list[RefRecord] = []
    async for record in records:
        if len(found) == most:
            return found, True
        found.append(record)
    return found, False


@refs.command(example="checkpointd refs show tenant:_:session-42 1ef8a1c2-7f3e")
@THREAD
@CHECKPOINT
@asks
def show(asked: Asked, thread_id: str, checkpoint_id: str) -> None:
    """All that is kept of one ref.

    Its state, why, since when and by whom; of a crash also the grace and the pass.
    """

    async def work(rooms: Rooms) -> RefRecord:
        record = await rooms.registry.record_of(thread_id, checkpoint_id)
        if record is None:
            raise UnknownCheckpointError(thread_id, checkpoint_id)
        return record

    record = asked.within(work, found=False)
    asked.tell(
        documents.record_document(record),
        people=lambda: stories.ref_page(record),
    )


@refs.command(example='checkpointd refs expire tenant:_:s-42 1ef8a1c2 --reason "a test turn"')
@THREAD
@CHECKPOINT
@reason()
@asks
def expire(asked: Asked, thread_id: str, checkpoint_id: str, reason: str) -> None:
    """Declare a ref not resumable.

    Recorded, never deleted; there is no way back.
    """
    ref = asked.within(
        lambda rooms: rooms.registry.expire(thread_id, checkpoint_id, reason), found=False
    )
    if not ref.expired:
        raise CommandFailedError(
            f"an expiry of {checkpoint_id} was asked for, and it has been migrated; expire what it "
            "became, if that is meant (`checkpointd refs show` names it)"
        )
    at = tables.when(ref.expired_at)
    said = f"{ref.checkpoint_id} is expired since {at} ({ref.expired_reason})."
    asked.tell({"ref": documents.ref_document(ref)}, people=lambda: tables.Line(said))


@refs.command(example="checkpointd refs resolve tenant:_:session-42")
@THREAD
@asks
def resolve(asked: Asked, thread_id: str) -> None:
    """What would be resumed now."""
    ref = asked.within(lambda rooms: rooms.registry.resolve(thread_id), found=False)
    asked.tell(
        {"thread_id": thread_id, "ref": documents.ref_document(ref)},
        people=lambda: tables.Line(_resolved(ref)),
    )


def _resolved(ref: CheckpointRef | None) -> str:
    if ref is None:
        return "Nothing of it can be resumed; `checkpointd explain THREAD` says why."
    return f"{ref.checkpoint_id}  {ref.writer_line}, created {tables.when(ref.created_at)}"


@refs.command(example="checkpointd refs replay tenant:_:session-42")
@THREAD
@asks
def replay(asked: Asked, thread_id: str) -> None:
    """Move a conversation to the front of the drain."""
    moved = asked.within(lambda rooms: rooms.registry.request_replay(thread_id), found=False)
    said = (
        f"{tables.plural(moved, 'ref')} moved to the front of the drain."
        if moved
        else "Nothing of it is due; `checkpointd explain THREAD` says why."
    )
    asked.tell(
        {"thread_id": thread_id, "moved": moved},
        people=lambda: tables.Line(said),
    )


@refs.command(example='checkpointd refs restore --late --since 2h --reason "too short a grace"')
@click.option(
    "--late",
    is_flag=True,
    required=True,
    help="Those whose writer came back after they had expired: the only ones that can be.",
)
@click.option(
    "--since",
    type=moment,
    required=True,
    metavar="T",
    help="It came back since then: a time, or how long ago, such as 2h.",
)
@reason()
@dry_run("List them, and restore nothing.")
@asks
def restore(asked: Asked, *, late: bool, since: datetime, reason: str, dry_run: bool) -> None:
    """Bring back what expired too early.

    Refs that a wrong grace expired, and whose writers came back to finalize them.
    """
    del late  # said for the record: nothing else can be restored
    result = asked.within(
        lambda rooms: rooms.operations.restore_late(since=since, reason=reason, dry_run=dry_run),
        found=False,
    )
    asked.tell(
        documents.plain(result),
        people=lambda: stories.bulk_page(result, "restored"),
    )
