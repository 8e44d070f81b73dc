"""Commands that close, open, hold and let go: what an operator decides for the whole registry."""

from __future__ import annotations

import click
from rich.console import Group

from checkpointd.app.rooms import Rooms
from checkpointd.cli import tables
from checkpointd.cli.common import Asked, CommandFailedError
from checkpointd.cli.options import one_of, reason
from checkpointd.cli.verbs import Family, Verb, asks
from checkpointd.domain.refs import IssuanceFreeze
from checkpointd.domain.states import ALL_LINES, PassName, WriterLine
from checkpointd.domain.status import iso

LINES = {"legacy": (WriterLine.LEGACY,), "all": ALL_LINES}
HELD_PASSES = one_of([PassName.RECONCILE, PassName.ADOPT, PassName.DRAIN])
"""The census is never held: it only looks."""


@click.command(cls=Verb, example='checkpointd freeze --reason "moving to the new kernel"')
@reason()
@click.option(
    "--line",
    type=click.Choice(list(LINES)),
    default="legacy",
    show_default=True,
    help="What is closed: legacy lets the new route go on.",
)
@asks
def freeze(asked: Asked, reason: str, line: str) -> None:
    """Close issuance, everywhere.

    When this returns, nobody may register a new checkpoint of the line, and the drain may begin. Only
    callers of register are stopped: what writes past the registry must be stopped too.
    """
    lines = LINES[line]

    async def work(rooms: Rooms) -> tuple[IssuanceFreeze, bool]:
        known = (await rooms.control.read()).freeze
        if known is None or set(known.lines) == set(lines):
            declared = await rooms.control.freeze(reason=reason, lines=lines, actor=rooms.actor)
            if set(declared.lines) == set(lines):
                return declared, known is not None
            known = declared  # somebody else was faster, and closed others
        raise CommandFailedError(
            f"a freeze of {line} was asked for, and one of {_named(known.lines)} is declared since "
            f"{tables.when(known.at)} ({known.reason}); thaw that first, or leave it as it is"
        )

    declared, again = asked.within(work)
    asked.tell(
        {
            "frozen": {
                "reason": declared.reason,
                "at": iso(declared.at),
                "lines": [str(one) for one in declared.lines],
                "in_force": True,
            },
            "declared_before": again,
        },
        people=lambda: _frozen(declared, again=again),
    )


def _frozen(declared: IssuanceFreeze, *, again: bool) -> Group:
    since = f"since {tables.when(declared.at)} ({declared.reason})"
    lines = _named(declared.lines)
    return Group(
        tables.Line(
            f"Issuance of {lines} checkpoints was frozen before, {since}; that freeze stays."
            if again
            else f"Issuance of {lines} checkpoints is frozen everywhere, {since}."
        ),
        tables.Line(
            "Only callers of register are stopped: stop the old writer itself too, or what it "
            "writes from now on will reopen the drain."
        ),
    )


def _named(lines: tuple[WriterLine, ...]) -> str:
    return " and ".join(lines)


@click.command(cls=Verb, example='checkpointd thaw --reason "the cut-over is postponed"')
@reason()
@asks
def thaw(asked: Asked, reason: str) -> None:
    """Open issuance again, everywhere.

    The drain stops claiming; replays under way may still commit. A later freeze counts anew.
    """
    thawed = asked.within(lambda rooms: rooms.control.thaw(reason=reason, actor=rooms.actor))
    said = "Issuance is open again, everywhere." if thawed else "Nothing was frozen."
    _tell(asked, "thawed", said, done=thawed)


@click.command(cls=Verb, example='checkpointd pause --reason "the model provider is down"')
@reason()
@click.option(
    "--pass",
    "which",
    type=HELD_PASSES,
    default=str(PassName.DRAIN),
    show_default=True,
    help="Which pass is held, on all replicas.",
)
@asks
def pause(asked: Asked, reason: str, which: str) -> None:
    """Hold the drain, or another pass."""
    name = PassName(which)
    paused = asked.within(lambda rooms: rooms.control.pause(name, reason=reason, actor=rooms.actor))
    said = (
        f"The {which} pass is paused; `checkpointd resume{_pass_option(name)}` lets it go on."
        if paused
        else f"The {which} pass was paused before; the first reason stays."
    )
    _tell(asked, "paused", said, done=paused)


@click.command(cls=Verb, example="checkpointd resume --refs 20")
@click.option(
    "--pass",
    "which",
    type=HELD_PASSES,
    default=str(PassName.DRAIN),
    show_default=True,
    help="Which pass goes on.",
)
@click.option(
    "--refs",
    type=click.IntRange(min=1),
    metavar="N",
    help="A canary: the drain takes N refs, then pauses itself.",
)
@asks
def resume(asked: Asked, which: str, refs: int | None) -> None:
    """Let a pass go on, and clear the breaker."""
    name = PassName(which)
    if refs and name is not PassName.DRAIN:
        raise click.UsageError(f"--refs counts replays, which the {which} pass makes none of")
    resumed = asked.within(
        lambda rooms: rooms.control.resume(name, actor=rooms.actor, refs=refs or 0)
    )
    limit = f" for {tables.plural(refs, 'ref')}, then pauses" if refs else ""
    said = f"The {which} pass goes on{limit}." if resumed else f"Nothing held the {which} pass."
    _tell(asked, "resumed", said, done=resumed)


def _pass_option(which: PassName) -> str:
    return "" if which is PassName.DRAIN else f" --pass {which}"


@click.group(cls=Family)
def expiries() -> None:
    """The brake on expiry."""


@expiries.command(example='checkpointd expiries allow --reason "that pod is gone for good"')
@reason()
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many may expire; else all that are overdue now.",
)
@asks
def allow(asked: Asked, reason: str, count: int | None) -> None:
    """Let a held expiry go on."""
    grace = asked.settings().reconcile.grace

    async def work(rooms: Rooms) -> tuple[int, int]:
        _, overdue = await rooms.expiry.overdue(grace=grace, now=await rooms.store.now())
        wanted = count if count is not None else overdue
        if wanted:
            await rooms.expiry.allow(count=wanted, reason=reason, actor=rooms.actor)
        return wanted, overdue

    allowed, overdue = asked.within(work)
    said = (
        f"{tables.plural(allowed, 'expiry', 'expiries')} allowed, of "
        f"{tables.plural(overdue, 'ref')} overdue now; the next reconcile pass uses it."
        if allowed
        else "Nothing is overdue, so there is nothing to allow."
    )
    asked.tell(
        {"allowed": allowed, "overdue": overdue},
        people=lambda: tables.Line(said),
    )


def _tell(asked: Asked, verb: str, said: str, *, done: bool) -> None:
    asked.tell({verb: done, "sentence": said}, people=lambda: tables.Line(said))
