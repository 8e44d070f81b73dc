"""``once``: one pass, by hand."""

from __future__ import annotations

import click

from checkpointd.app.crew import run_pass, survey
from checkpointd.cli import documents, reports
from checkpointd.cli.common import Asked, Code
from checkpointd.cli.options import dry_run, one_of
from checkpointd.cli.verbs import Verb, asks
from checkpointd.domain.states import PassName, PassOutcome


@click.command(cls=Verb, example="checkpointd once adopt --dry-run")
@click.argument("name", metavar="PASS", type=one_of(PassName))
@dry_run("Say what it would do, and do nothing.")
@asks
def once(asked: Asked, *, name: str, dry_run: bool) -> int:
    """Run one pass: reconcile, adopt, drain, census.

    It is recorded like a scheduled one. With --dry-run nothing is written: adopt reads the source
    and needs no store, and drain needs no freeze and calls no replayer.
    """
    which = PassName(name)
    if which is PassName.ADOPT and dry_run:
        report: documents.Report = asked.awaited(survey(asked.settings()))
    else:
        report = asked.within(
            lambda rooms: run_pass(rooms, which, dry_run=dry_run), found=not dry_run
        )
    asked.tell(
        documents.report_document(report),
        people=lambda: reports.report_page(report),
    )
    return Code.FAILED if report.outcome is PassOutcome.ERROR else Code.DONE
