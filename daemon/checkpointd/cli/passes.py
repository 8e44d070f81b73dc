"""``once``: one pass, by hand."""

from __future__ import annotations

import click

from checkpointd import app
from checkpointd.cli import documents, tables
from checkpointd.cli.common import Asked, Code, Verb, asks, dry_run, one_of
from checkpointd.domain.reports import AdoptReport, DrainReport, ReconcileReport
from checkpointd.domain.states import PassName, PassOutcome


@click.command(cls=Verb, example="checkpointd once adopt --dry-run")
@click.argument("name", metavar="PASS", type=one_of(PassName))
@dry_run("Say what it would do, and do nothing.")
@asks
def once(asked: Asked, *, name: str, dry_run: bool) -> int:
    """Run one pass now: reconcile, adopt, drain or census.

    It is recorded like a scheduled one. With --dry-run nothing is written: adopt reads the source
    and needs no store, and drain needs no freeze and calls no replayer.
    """
    which = PassName(name)
    if which is PassName.CENSUS:
        return _census(asked, dry_run=dry_run)
    if which is PassName.ADOPT and dry_run:
        return _told(asked, asked.awaited(app.survey(asked.settings())))
    return _told(
        asked,
        asked.within(lambda rooms: rooms.run_pass(which, dry_run=dry_run), found=not dry_run),
    )


def _told(asked: Asked, report: documents.Report) -> int:
    asked.tell(
        documents.report_document(report),
        people=lambda out: out.print(tables.report_page(report)),
    )
    return Code.FAILED if report.outcome is PassOutcome.ERROR else Code.DONE


def _census(asked: Asked, *, dry_run: bool) -> int:
    async def work(rooms: app.Rooms) -> dict[str, object]:
        if not dry_run:
            await rooms.run_pass(PassName.CENSUS)
        _, _, document = await rooms.status()
        return document

    document = asked.within(work, found=not dry_run)
    asked.tell(document, people=lambda out: out.print(tables.status_page(document)))
    return Code.DONE
