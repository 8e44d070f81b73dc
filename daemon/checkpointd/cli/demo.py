"""``demo``: all of it on a sample database, in under a minute, with a store of its own."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from checkpointd import sample
from checkpointd.app.crew import run_pass
from checkpointd.app.daemon import Daemon
from checkpointd.app.rooms import Rooms, open_rooms
from checkpointd.cli import documents, tables
from checkpointd.cli.common import Asked, CommandFailedError, console, show
from checkpointd.cli.verbs import Verb, asks
from checkpointd.config import Adopt, Drain, Endpoint, Reconcile, Redis, Settings, Source
from checkpointd.domain.drain import total, unfinished
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.reports import AdoptReport, ReconcileReport
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import AdoptOutcome, PassName, RefState, WriterLine
from checkpointd.domain.tally import DrainStatus, StoreTally

PATIENCE = timedelta(seconds=45)
LOOK_EVERY_S = 0.05
PAGE = 1_000
ACTOR = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one conversation."""

    thread_id: str
    verdict: Verdict
    end: RefState
    """``migrated`` if any of its refs was, else the end of its head."""
    reason: str
    """The word for what blocks it, or why it expired; empty if it was migrated."""
    messages: tuple[int, ...]
    """How many messages each turn-state record of it holds."""
    fell_back: bool
    """Whether its head crashed and an earlier turn was migrated in its stead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How the demo ended."""

    tally: StoreTally
    adopted: int
    discovered_again: int
    outcomes: tuple[Outcome, ...]
    blocked: tuple[RefRecord, ...]
    metrics_url: str

    def document(self) -> dict[str, Any]:
        """The demo as JSON."""
        legacy = self.tally.legacy
        return {
            "threads": len(self.outcomes),
            "adopted": self.adopted,
            "migrated": legacy.get(RefState.MIGRATED, 0),
            "expired": legacy.get(RefState.EXPIRED, 0),
            "quarantined": legacy.get(RefState.QUARANTINED, 0),
            "records": sum(len(outcome.messages) for outcome in self.outcomes),
            "discovered_again": self.discovered_again,
            "outcomes": [
                {
                    "thread_id": outcome.thread_id,
                    "verdict": str(outcome.verdict),
                    "end": str(outcome.end),
                    "reason": outcome.reason,
                    "messages": list(outcome.messages),
                }
                for outcome in self.outcomes
            ],
        }


@click.command(cls=Verb, example="checkpointd demo")
@asks
def demo(asked: Asked) -> None:
    """All of it on a sample; ends by itself.

    Adopts, expires, freezes and drains. Uses a store of its own in a temporary directory, and touches nothing else.
    """
    stage = Stage(None if asked.as_json else console())
    with tempfile.TemporaryDirectory(prefix="checkpointd-demo-") as directory:
        played = asked.awaited(play(Path(directory), stage), level="critical")
    asked.tell(played.document(), people=lambda: _summary(played))


def settings_for(directory: Path, database: Path) -> Settings:
    """A store in ``directory``, and no waiting: nobody writes to the sample."""
    moment = timedelta(seconds=1)
    return Settings(
        redis=Redis(url=f"embedded://{directory / 'store'}"),
        source=Source(url=f"sqlite://{database}"),
        reconcile=Reconcile(grace=moment, every=moment),
        adopt=Adopt(every=moment),
        drain=Drain(settle=timedelta(0), every=timedelta(milliseconds=200), concurrency=2),
        endpoint=Endpoint(listen="127.0.0.1:0"),
    )


# What happens ----------------------------------------------------------------------------------


async def play(directory: Path, stage: Stage) -> Played:
    """Adopt, reconcile, freeze and drain the sample, telling ``stage`` of each step."""
    database = sample.copy_to(directory)
    before = _fingerprint(database)
    settings = settings_for(directory, database)
    async with open_rooms(settings, actor=ACTOR) as rooms:
        stage.says(f"A store of its own is up in {directory}, beside a copy of the sample.")
        stage.step("checkpointd once adopt", "read what the old format holds")
        adopted = await run_pass(rooms, PassName.ADOPT)
        stage.shows(adopted)
        stage.step("checkpointd once reconcile", "expire what a crash left half-written")
        stage.shows(await run_pass(rooms, PassName.RECONCILE))
        stage.step("checkpointd freeze --reason demo", "nobody may issue in the old format now")
        await rooms.control.freeze(reason=ACTOR, lines=(WriterLine.LEGACY,), actor=ACTOR)
        stage.says("Legacy issuance is frozen in all partitions.")
        stage.step("checkpointd run --until drained", "replay the rest under leases")
        url = await _drained(settings, rooms, stage)
        again = await run_pass(rooms, PassName.ADOPT)
        if _fingerprint(database) != before:
            raise CommandFailedError("the sample was to be read only, and its bytes have changed")
        tally, _, _ = await rooms.status()
        return Played(
            tally=tally,
            adopted=adopted.adopted if isinstance(adopted, AdoptReport) else 0,
            discovered_again=_changes(again),
            outcomes=tuple([outcome async for outcome in _outcomes(rooms)]),
            blocked=tuple([record async for record in rooms.operations.quarantined()]),
            metrics_url=url,
        )


def _fingerprint(database: Path) -> str:
    return hashlib.sha256(database.read_bytes()).hexdigest()


async def _drained(settings: Settings, rooms: Rooms, stage: Stage) -> str:
    """Run the daemon until nothing is left to wait for; return where its metrics were."""
    daemon = Daemon(
        settings,
        actor=ACTOR,
        on_started=lambda url: stage.says(f"It is watched at {url}/metrics while it runs."),
    )
    with stage.progress() as draw:
        running = asyncio.create_task(
            daemon.run(until_drained=True, give_up_after=PATIENCE), name="demo-daemon"
        )
        while not running.done():
            tally, status, _ = await rooms.status()
            draw(tally, status)
            await asyncio.wait([running], timeout=LOOK_EVERY_S)
        ended = await running
        tally, status, _ = await rooms.status()
        draw(tally, status)
    if ended.timed_out:
        raise CommandFailedError(
            f"the sample was to be drained within {PATIENCE.total_seconds():g} s and is not "
            f"({status.sentence}); run it again on a machine that is less busy"
        )
    if ended.drained is None:
        raise click.Abort  # somebody pressed Ctrl-C, which the daemon takes as a request to stop
    return daemon.endpoint_url


def _changes(report: documents.Report) -> int:
    """What a second scan found that the first had not."""
    if not isinstance(report, AdoptReport) or not report.complete:
        raise CommandFailedError("the second scan of the sample did not come to its end")
    changed = (AdoptOutcome.CLOSED, AdoptOutcome.SUPERSEDED)
    return report.adopted + sum(report.outcomes.get(outcome, 0) for outcome in changed)


async def _outcomes(rooms: Rooms) -> AsyncIterator[Outcome]:
    """What became of each thread of the source, by its id."""
    source = await rooms.source()
    after: str | None = "" if source is not None else None
    while source is not None and after is not None:
        page = await source.page(after, PAGE)
        for sketch in page.threads:
            reading = await source.head(sketch.thread_id)
            if reading is not None:
                records = await rooms.registry.records_of(sketch.thread_id)
                yield await _outcome(rooms, reading.head.verdict, sketch.head_id, records)
        after = page.next_after


async def _outcome(
    rooms: Rooms, verdict: Verdict, head_id: str, records: tuple[RefRecord, ...]
) -> Outcome:
    head = next(record for record in records if record.ref.checkpoint_id == head_id)
    migrated = [record for record in records if record.state is RefState.MIGRATED]
    messages = [
        len((await rooms.turns.load(claims)).messages)
        for record in migrated
        if record.link is not None
        for claims in await rooms.turns.pauses_of(record.ref.thread_id, record.link.checkpoint_id)
    ]
    reason = "" if migrated else str(head.code or head.reason)
    return Outcome(
        thread_id=head.ref.thread_id,
        verdict=verdict,
        end=RefState.MIGRATED if migrated else head.state,
        reason=reason,
        messages=tuple(messages),
        fell_back=bool(migrated) and head.state is RefState.EXPIRED,
    )


# What is shown ---------------------------------------------------------------------------------


class Stage:
    """Where the demo tells what it does; silent without a console."""

    def __init__(self, out: Console | None) -> None:
        self._out = out

    def says(self, sentence: str) -> None:
        """A line."""
        if self._out is not None:
            show(self._out, tables.Line(sentence, indent=2))

    def step(self, command: str, meaning: str) -> None:
        """A command, and what it is for."""
        if self._out is not None:
            line = tables.Line(("$ ", "dim"), (command, "bold"), (f"   # {meaning}", "dim"))
            show(self._out, Group(tables.blank(), line))

    def shows(self, report: documents.Report) -> None:
        """What a pass did, in a sentence."""
        match report:
            case AdoptReport():
                kinds = ", ".join(f"{n} {v}" for v, n in sorted(report.verdicts.items()) if n)
                self.says(
                    f"{tables.plural(report.threads, 'thread')} ({kinds}); "
                    f"{tables.plural(report.adopted, 'ref')} adopted."
                )
            case ReconcileReport():
                self.says(
                    f"{tables.plural(len(report.expired), 'ref')} expired, open for longer than "
                    f"the grace of {tables.seconds(report.grace_s)}."
                )
            case _:
                pass

    @contextmanager
    def progress(self) -> Iterator[Callable[[StoreTally, DrainStatus], None]]:
        """A bar that moves on a terminal; in a pipe a line for each change."""
        if self._out is None:
            yield lambda _tally, _status: None
        elif self._out.is_terminal:
            with self._bar(self._out) as draw:
                yield draw
        else:
            yield self._lines()

    @contextmanager
    def _bar(self, out: Console) -> Iterator[Callable[[StoreTally, DrainStatus], None]]:
        bar = Progress(
            TextColumn("  {task.description:<9}", markup=False),
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=out,
        )
        task = bar.add_task("freezing", total=None, numbers="")

        def draw(tally: StoreTally, status: DrainStatus) -> None:
            whole = total(tally)
            bar.update(
                task,
                description=str(status.state),
                total=whole,
                completed=max(0, whole - unfinished(tally)),
                numbers=_numbers(tally),
            )

        with bar:
            yield draw

    def _lines(self) -> Callable[[StoreTally, DrainStatus], None]:
        said: list[str] = []

        def draw(tally: StoreTally, status: DrainStatus) -> None:
            whole = total(tally)
            line = f"{status.state}  {whole - unfinished(tally)}/{whole}  {_numbers(tally)}"
            if said[-1:] != [line]:
                said.append(line)
                self.says(line)

        return draw


def _numbers(tally: StoreTally) -> str:
    shown = (RefState.REPLAYING, RefState.MIGRATED, RefState.QUARANTINED)
    return tables.counts({str(s): tally.legacy.get(s, 0) for s in shown}, zeros=False)


def _summary(played: Played) -> Group:
    document = played.document()
    table = tables.columns("conversation", "head", "became", "messages", "why")
    for outcome in played.outcomes:
        table.add_row(
            tables.cell(outcome.thread_id),
            tables.cell(str(outcome.verdict)),
            tables.cell(str(outcome.end)),
            tables.cell(", ".join(map(str, outcome.messages)) or "-"),
            tables.cell(_why(outcome)),
        )
    numbers = {k: document[k] for k in ("adopted", "migrated", "expired", "quarantined")}
    parts: list[RenderableType] = [
        tables.blank(),
        table,
        tables.blank(),
        tables.Line(
            f"{document['threads']} threads; refs: {tables.counts(numbers)}; "
            f"{document['records']} turn-state records. A second scan found "
            f"{played.discovered_again} new, and the database is unchanged to the byte. /metrics "
            f"was at {played.metrics_url}/metrics."
        ),
    ]
    for record in played.blocked:
        thread = shlex.quote(record.ref.thread_id)
        parts += [
            tables.blank(),
            tables.Line(
                ("One thing is in the way", "bold yellow"),
                f": {record.ref.thread_id} is blocked by {record.cause}. You would decide:",
            ),
            tables.Line(
                f"checkpointd quarantine waive --thread {thread} --reason 'the user left'", indent=2
            ),
        ]
    return Group(*parts, tables.blank(), *_own())


def _why(outcome: Outcome) -> str:
    if outcome.fell_back:
        return "crashed; last turn kept"
    match outcome.end:
        case RefState.MIGRATED if outcome.verdict is Verdict.PAUSED:
            n = len(outcome.messages)
            return "a question waits" if n == 1 else f"{n} questions wait"
        case RefState.MIGRATED:
            return "can be continued"
        case RefState.EXPIRED:
            how = "failed" if outcome.verdict is Verdict.FAILED else "crashed"
            return f"{how} in its first turn"
        case _:
            return outcome.reason


def _own() -> tuple[tables.Line, ...]:
    """How to go on with a database of one's own."""
    return (
        tables.Line(("On your own database", "bold"), ":"),
        tables.Line("checkpointd init                      # writes checkpointd.toml", indent=2),
        tables.Line(
            "                                      # set redis.url and source.url in it", indent=2
        ),
        tables.Line(
            "checkpointd once adopt --dry-run      # what is there; writes nothing", indent=2
        ),
        tables.Line(
            "checkpointd run                       # the daemon; freeze when you are ready",
            indent=2,
        ),
    )
