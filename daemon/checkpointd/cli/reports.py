"""What people read of the drain as a whole, and of single passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from checkpointd.cli.tables import (
    SHOWN,
    Line,
    blank,
    cell,
    columns,
    counts,
    folded,
    grid,
    more,
    plural,
    seconds,
    when,
    word,
)
from checkpointd.domain.reports import AdoptReport, CensusReport, DrainReport, ReconcileReport
from checkpointd.domain.states import HoldReason
from checkpointd.domain.status import status_document

WAITING = {
    "not_frozen": "legacy issuance is not frozen in force; `checkpointd freeze` comes first",
    "paused": "the drain is paused; `checkpointd resume` lets it go on",
    "halted": "the breaker halted the drain; find out why replays fail, then `checkpointd resume`",
    "canary": "the canary's refs are done; `checkpointd resume` lets the drain go on",
    "source": "the source is out of reach",
    "replayer": "the replayer is out of reach",
}
"""What a drain pass that claimed nothing waits for, by its word."""


# The drain's status ----------------------------------------------------------------------------


def status_page(status: Mapping[str, Any]) -> Group:
    """The status document: its word and sentence, how far it is, and what to know beside it."""
    cause = f" ({status['cause']})" if status["cause"] else ""
    parts: list[RenderableType] = [Line(word(status["state"]), f"{cause}  {status['sentence']}")]
    if status["progress"] is not None:
        parts.append(_progress(status))
    parts += [blank(), grid(_status_rows(status))]
    return Group(*parts)


def status_line(status: Mapping[str, Any]) -> Line:
    """The status as one line, for a pipe."""
    progress = "" if status["progress"] is None else f" {status['progress']:.1%}"
    at = f"{status['at'][:19]}Z " if status["at"] else ""
    return Line(f"{at}{status['state']}{progress}  {status['sentence']}")


def _progress(status: Mapping[str, Any]) -> Table:
    row = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=1.0, completed=status["progress"], width=40)
    eta = status["eta_seconds"]
    row.add_row(
        bar,
        f"{status['progress']:.1%}",
        f"{status['baseline']:,} at the freeze, {status['discovered']:,} since",
        "" if eta is None else f"ETA {seconds(eta)}",
    )
    return row


def _status_rows(status: Mapping[str, Any]) -> Iterable[tuple[str, RenderableType]]:
    if status["refs"] is not None:
        yield "legacy", folded(status["refs"])
        yield "kernel", counts(status["kernel"])
    if status["blocked"]:
        yield "blocked by", folded(status["blocked"])
    frozen = status["frozen"]
    if frozen:
        force = "" if frozen["in_force"] else ", not in force yet"
        lines = " and ".join(frozen["lines"])
        yield "frozen", f"{lines} since {frozen['at'][:19]}Z ({frozen['reason']}){force}"
    if status["written_after_freeze"]:
        late = plural(status["written_after_freeze"], "ref")
        yield "late", f"{late} written after the freeze: somebody still writes the old format"
    if status["throttled"]:
        yield "throttled", f"by {status['throttled']}"
    for name, why in (status.get("paused") or {}).items():
        yield "paused", f"{name} ({why})"
    expiry = status.get("expiry") or {}
    if expiry.get("held"):
        yield "expiry held", held_sentence(expiry["held"], expiry["overdue"])
    elif expiry.get("overdue"):
        yield "overdue", f"{plural(expiry['overdue'], 'ref')} to be expired"
    if status["drained_at"]:
        yield "drained", f"since {status['drained_at'][:19]}Z"
    if status["reopened_at"]:
        yield "reopened", f"at {status['reopened_at'][:19]}Z, by late legacy state"
    passes = status["passes"]
    for name, row in passes.items():
        ran = f"{row['outcome']} at {row['last_run'][:19]}Z, took {seconds(row['duration_s'])}"
        yield name, ran


def held_sentence(held: str, overdue: int) -> str:
    """Why expiry is held, and what ends that."""
    match HoldReason(held):
        case HoldReason.MASS:
            return (
                f"{plural(overdue, 'ref')} overdue at once, more than the brake lets through: find "
                "out whether their writers are alive, then `checkpointd expiries allow --reason R`"
            )
        case HoldReason.STORE_GAP:
            return (
                "nobody watched the store for over 10 minutes, or it is a restored backup: expiry "
                "goes on by itself after one grace, or by `checkpointd expiries allow --reason R`"
            )
        case never:
            assert_never(never)


# Reports of passes -----------------------------------------------------------------------------


def report_page(report: ReconcileReport | AdoptReport | DrainReport | CensusReport) -> Group:
    """What a pass did, or would do."""
    match report:
        case CensusReport():
            return Group(*_counted(report))
        case ReconcileReport():
            parts = list(_reconciled(report))
        case AdoptReport():
            parts = list(_adopted(report))
        case DrainReport():
            parts = list(_drained(report))
        case never:
            assert_never(never)
    return Group(*parts, *(Line(("trouble", "bold red"), f"  {t}") for t in report.troubles))


def _reconciled(report: ReconcileReport) -> Iterable[RenderableType]:
    if report.skipped:
        yield Line(f"Nothing was expired: {report.skipped}.")
        return
    would = "would be expired" if report.dry_run else "expired"
    yield Line(
        f"{plural(len(report.expired), 'ref')} {would}, of {report.overdue:,} overdue after a grace "
        f"of {seconds(report.grace_s)} and {report.inspected:,} open."
    )
    if report.held:
        yield Line(("held", "bold yellow"), f"  {held_sentence(report.held, report.overdue)}")
    for ref in report.expired[:SHOWN]:
        yield Line(
            f"{ref.thread_id}  {ref.checkpoint_id}  ",
            (f"open since {when(ref.created_at)}", "dim"),
            indent=2,
        )
    yield from more(len(report.expired) - SHOWN)


def _adopted(report: AdoptReport) -> Iterable[RenderableType]:
    if report.skipped:
        yield Line(f"Nothing was scanned: {report.skipped}.")
        return
    rate = f", {report.threads / report.took_s:,.0f} a second" if report.took_s > 0 else ""
    would = "would come" if report.dry_run else "came"
    yield Line(
        f"{plural(report.threads, 'thread')} in {seconds(report.took_s)}{rate}; "
        f"{plural(report.adopted, 'ref')} {would} into the registry"
        f"{f', {report.fallbacks:,} of them a fallback' if report.fallbacks else ''}."
    )
    if not report.complete:
        yield Line("The scan is not complete; the next pass goes on where it stopped.")
    if report.too_young:
        yield Line(
            f"{plural(report.too_young, 'head')} too young to judge: left for the next scan."
        )
    groups: tuple[tuple[str, Mapping[str, int]], ...] = (
        ("outcome", {str(k): n for k, n in report.outcomes.items()}),
        ("verdict", report.verdicts),
        ("blocked by", report.blockers),
        ("lost", report.losses),
    )
    table = columns("", "what", "number", "for instance", right=("number",))
    for name, numbers in groups:
        for what, n in sorted(numbers.items(), key=lambda pair: -pair[1]):
            if n:
                samples = ", ".join(report.samples.get(what, ())[:5])
                table.add_row(name, cell(what), f"{n:,}", cell(samples, "dim"))
                name = ""
    if table.row_count:
        yield blank()
        yield table


def _drained(report: DrainReport) -> Iterable[RenderableType]:
    if report.waiting_for:
        word_ = report.waiting_for.partition(":")[0]
        yield Line(f"Nothing was claimed: {WAITING.get(word_, word_)}.")
    would = "would be " if report.dry_run else ""
    outcomes = {f"{would}{k}": n for k, n in report.outcomes.items()}
    if outcomes or not report.waiting_for:
        yield Line(
            f"{counts(outcomes, zeros=False) if any(outcomes.values()) else 'Nothing was due'}"
            f"{f' in {seconds(report.took_s)}' if report.took_s else ''}."
        )
    for reason, n in sorted(report.failures.items()):
        if n:
            yield Line(f"{plural(n, 'ref')} blocked by {reason}", indent=2)
    if report.busy:
        yield Line(f"{plural(report.busy, 'ref')} held by another replica", indent=2)


def _counted(report: CensusReport) -> Iterable[RenderableType]:
    yield status_page(status_document(report.tally, report.status, {}))
    if report.completed_copies:
        yield Line("It completed a control change that somebody had left half-copied.")
    if report.halted:
        yield Line(("The breaker tripped in this census: the drain is halted.", "bold red"))
