"""Values as people read them, at eighty columns and more.

Nothing here is markup: ids, reasons and details are other people's text, and are shown with
whatever a terminal might obey escaped. In a pipe lines are not broken, so that they can be searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from checkpointd.cli.common import printable
from checkpointd.domain.durations import format_duration
from checkpointd.domain.refs import Explanation
from checkpointd.domain.reports import AdoptReport, CensusReport, DrainReport, ReconcileReport
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import Hold, HoldReason, RefState, ThreadStanding
from checkpointd.domain.status import iso, status_document
from checkpointd.registry.operations import AuditEntry, AuditPage, BulkResult, Verification

STYLES = {
    "drained": "bold green",
    "draining": "bold cyan",
    "settling": "bold cyan",
    "idle": "bold",
    "paused": "bold yellow",
    "halted": "bold red",
    "stalled": "bold red",
    "unknown": "bold red",
    "migrated": "green",
    "finalized": "green",
    "resumable": "green",
    "quarantined": "red",
    "expired": "yellow",
    "waived": "yellow",
    "retryable": "yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}
"""Colours of words, wherever they stand."""

WAITING = {
    "not_frozen": "legacy issuance is not frozen in force; `checkpointd freeze` comes first",
    "paused": "the drain is paused; `checkpointd resume` lets it go on",
    "halted": "the breaker halted the drain; find out why replays fail, then `checkpointd resume`",
    "canary": "the canary's refs are done; `checkpointd resume` lets the drain go on",
    "source": "the source is out of reach",
    "replayer": "the replayer is out of reach",
}
"""What a drain pass that claimed nothing waits for, by its word."""

ROW_WIDTH = 64
"""Characters of a row of counts: with its name before it, it fits into eighty."""

SHOWN = 20
"""Refs that a report names before it says how many more there are."""


class Line:
    """A sentence: broken at words on a terminal, and left whole in a pipe."""

    def __init__(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        self._text = Text.assemble(*(_clean_part(part) for part in parts))
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield Padding(self._text, (0, 0, 0, self._indent))
        else:
            lead = " " * self._indent
            whole = options.update(no_wrap=True, overflow="ignore", width=1_000_000)
            text = Text.assemble(lead, self._text)
            yield from console.render(text, whole)


def _clean_part(part: str | tuple[str, str]) -> str | tuple[str, str]:
    return printable(part) if isinstance(part, str) else (printable(part[0]), part[1])


def word(text: str) -> tuple[str, str]:
    """A word in its colour."""
    return (text, STYLES.get(text, ""))


def blank() -> Text:
    """An empty line."""
    return Text("")


def grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names on the left, what they stand for on the right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(
            name, Text(printable(value), overflow="fold") if isinstance(value, str) else value
        )
    return table


def columns(*names: str, right: Sequence[str] = ()) -> Table:
    """An empty table with a line of headings and no frame."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(
            name, justify="right" if name in right else "left", overflow="fold", header_style="bold"
        )
    return table


def cell(text: str, style: str = "") -> Text:
    """Other people's text in a table."""
    return Text(printable(text), style=style or STYLES.get(text, ""), overflow="fold")


def counts(numbers: Mapping[str, int], *, zeros: bool = True) -> str:
    """``open 0 · pending 3``: the counts of a row."""
    return " · ".join(f"{name} {n:,}" for name, n in numbers.items() if n or zeros) or "none"


def folded(numbers: Mapping[str, int]) -> Text:
    """Counts in lines that part no name from its number."""
    lines = [""]
    for item in counts(numbers).split(" · "):
        longer = f"{lines[-1]} · {item}" if lines[-1] else item
        if len(longer) > ROW_WIDTH:
            lines.append(item)
        else:
            lines[-1] = longer
    return Text("\n".join(lines))


def when(moment: datetime | None) -> str:
    """A moment as everything else prints it, to the second."""
    return "" if moment is None else iso(moment.replace(microsecond=0)) or ""


def plural(n: int, noun: str, plural_form: str = "") -> str:
    """``1 ref``, ``2 refs``."""
    return f"{n:,} {noun if n == 1 else plural_form or noun + 's'}"


def seconds(s: float) -> str:
    """So many seconds, as people say them."""
    span = timedelta(seconds=round(s) if s >= 10 else round(s, 1 if s >= 1 else 3))
    return format_duration(span)


# Refs ------------------------------------------------------------------------------------------


def story(record: RefRecord) -> str:
    """Why a ref stands where it stands, in a few words."""
    match record.state:
        case RefState.OPEN:
            return f"its crash window began {when(record.window_began)}"
        case RefState.PENDING:
            return _pending(record)
        case RefState.REPLAYING:
            return f"attempt {record.attempts} is under way, or its owner died"
        case RefState.RETRYABLE:
            return f"{plural(record.attempts, 'attempt')} so far: {record.cause}"
        case RefState.QUARANTINED:
            return record.cause
        case RefState.WAIVED:
            return f"{record.cause} (waived by {record.by})"
        case RefState.MIGRATED:
            return f"became {record.link.checkpoint_id}" if record.link else "became nothing"
        case RefState.EXPIRED:
            late = f"; its writer came back {when(record.late_at)}" if record.late_at else ""
            return f"{record.cause}{late}"
        case RefState.FINALIZED:
            return f"continues legacy {record.replay_of}" if record.replay_of else "whole"
        case never:
            assert_never(never)


def _pending(record: RefRecord) -> str:
    match record.hold:
        case Hold.NONE:
            return f"waits for the drain{f' ({record.reason})' if record.reason else ''}"
        case Hold.PAUSED:
            return "a question waits there: replayed once a scan after the freeze saw it unchanged"
        case Hold.FALLBACK:
            return f"stands in for {record.stands_in_for}, should that expire"
        case never:
            assert_never(never)


def ref_lines(record: RefRecord) -> Group:
    """A ref in two lines: where it stands and which it is, then why."""
    ref = record.ref
    return Group(
        Line(
            (f"{record.state!s:<13}", STYLES.get(str(record.state), "")),
            f"{ref.thread_id}  {ref.checkpoint_id}",
        ),
        Line((story(record), "dim"), indent=13),
    )


def ref_list(records: Sequence[RefRecord], *, more: bool) -> Group:
    """Refs one after another, and whether there are more."""
    rest = (Line((f"… and more: these are the first {len(records):,}; --limit N", "dim")),)
    if not records:
        return Group(Line("There is no such ref."))
    return Group(*map(ref_lines, records), *(rest if more else ()))


def quarantine_page(records: Sequence[RefRecord]) -> Group:
    """What is blocked, why and since when, and the ways out."""
    if not records:
        return Group(Line("Nothing is in quarantine that was asked for."))
    parts: list[RenderableType] = []
    for record in records:
        since = f"since {when(record.changed_at)}, by {record.by}"
        parts += [ref_lines(record), Line((since, "dim"), indent=13)]
    codes = sorted({str(record.code) for record in records})
    which = f"--blocked-by {codes[0]}" if len(codes) == 1 else "--blocked-by CODE"
    return Group(
        *parts,
        blank(),
        Line(f"Let the drain end without them: checkpointd quarantine waive {which} --reason R"),
        Line(f"Try them again:                 checkpointd quarantine release {which} --reason R"),
    )


def bulk_page(result: BulkResult, done: str) -> Group:
    """What an operator's decision did, or would do."""
    would = "would be " if result.dry_run else ""
    skipped = (
        f"; {plural(result.skipped, 'ref')} had changed meanwhile and stayed as they are"
        if result.skipped
        else ""
    )
    parts: list[RenderableType] = [
        Line(f"{plural(len(result.done), 'ref')} {would}{done}{skipped}.")
    ]
    for record in result.done[:SHOWN]:
        ref = record.ref
        parts.append(
            Line(f"{ref.thread_id}  {ref.checkpoint_id}  ", (record.cause, "dim"), indent=2)
        )
    return Group(*parts, *_more(len(result.done) - SHOWN))


def ref_page(record: RefRecord) -> Table:
    """Everything that is known of one ref."""
    ref, link = record.ref, record.link
    rows: list[tuple[str, RenderableType]] = [
        ("thread", ref.thread_id),
        ("checkpoint", ref.checkpoint_id),
        ("line", str(ref.writer_line)),
        ("state", cell(str(record.state))),
        ("why", story(record)),
        ("since", when(record.changed_at)),
        ("by", record.by),
        ("created", when(ref.created_at)),
        ("window opened", when(record.opened_at)),
        ("grace", seconds(record.grace_s) if record.grace_s is not None else ""),
        ("late", when(record.late_at)),
        ("attempts", str(record.attempts or "")),
        ("boundary", record.boundary_id),
        ("became", link.checkpoint_id if link else ""),
        ("migrated", when(link.at) if link else ""),
        ("continues", record.replay_of),
        ("stands in for", record.stands_in_for),
        ("fallback", record.fallback),
        ("seen unchanged", when(record.confirmed_at)),
        ("resumable", "yes" if record.is_resumable else "no"),
    ]
    return grid((name, value) for name, value in rows if value)


def standing_sentence(explanation: Explanation, records: Sequence[RefRecord]) -> str:
    """What became of a conversation, in one sentence."""
    ref = explanation.ref
    record = next((r for r in records if ref and r.ref.checkpoint_id == ref.checkpoint_id), None)
    at = when(explanation.at)
    match explanation.standing:
        case ThreadStanding.UNKNOWN:
            return "The registry has never seen this thread, so nothing of it may be resumed."
        case _ if ref is None or record is None:
            return f"It is {explanation.standing}."
        case ThreadStanding.RESUMABLE:
            origin = f", which continues legacy {record.replay_of}" if record.replay_of else ""
            return f"It can be resumed from checkpoint {ref.checkpoint_id}{origin}."
        case ThreadStanding.OPEN:
            return (
                f"A turn has been open since {at} ({ref.checkpoint_id}): its writer is at work, or "
                "it crashed and will expire when the grace is over."
            )
        case ThreadStanding.MIGRATING:
            return f"Checkpoint {ref.checkpoint_id} is {record.state}: {story(record)}."
        case ThreadStanding.QUARANTINED:
            return (
                f"Checkpoint {ref.checkpoint_id} is in quarantine since {at} "
                f"({explanation.reason}); an operator must release or waive it."
            )
        case ThreadStanding.WAIVED:
            return (
                f"An operator ({record.by}) waived checkpoint {ref.checkpoint_id} at {at} "
                f"({explanation.reason}); it cannot be resumed."
            )
        case ThreadStanding.EXPIRED:
            return (
                f"Its newest checkpoint {ref.checkpoint_id} expired at {at} "
                f"({explanation.reason}); nothing of it can be resumed, begin the turn anew."
            )
        case never:
            assert_never(never)


def audit_line(entry: AuditEntry, *, of_thread: bool = False) -> Line:
    """One transition."""
    which = entry.checkpoint_id if of_thread else f"{entry.thread_id} {entry.checkpoint_id}".strip()
    change = f" {entry.was or 'new'} -> {entry.became}" if entry.became else ""
    why = f": {entry.reason}" if entry.reason else ""
    return Line(
        (when(entry.at), "dim"),
        f"  {entry.event}{change}  {which}{'  ' if which else ''}by {entry.by or 'nobody'}{why}",
    )


def audit_page(page: AuditPage) -> Group:
    """Transitions, oldest first, and how many older ones are gone."""
    gone = f"{plural(page.trimmed, 'older entry', 'older entries')} trimmed: the audit is bounded"
    return Group(
        *((Line((gone, "dim")),) if page.trimmed else ()),
        *(map(audit_line, page.entries) if page.entries else (Line("Nothing is on record."),)),
    )


def story_page(
    thread_id: str, standing: str, sentence: str, records: Sequence[RefRecord], audit: AuditPage
) -> Group:
    """A conversation: its sentence, its refs with their reasons, then what happened, in order."""
    parts: list[RenderableType] = [Line((thread_id, "bold"), "  ", word(standing)), Line(sentence)]
    for record in records:
        ref = record.ref
        by = f", by {record.by}" if record.by else ""
        parts += [
            blank(),
            Line(f"{ref.writer_line} {ref.checkpoint_id}  ", word(str(record.state))),
            Line(story(record), indent=2),
            Line((f"created {when(ref.created_at)}", "dim"), indent=2),
            Line((f"so since {when(record.changed_at)}{by}", "dim"), indent=2),
        ]
    if audit.entries:
        parts += [blank(), *(audit_line(entry, of_thread=True) for entry in audit.entries)]
    elif records and audit.trimmed:
        parts += [blank(), Line(("The audit of it was trimmed: that is bounded.", "dim"))]
    return Group(*parts)


def verification_page(found: Verification) -> Group:
    """What a walk over all refs found."""
    walked = f"{plural(found.refs, 'ref')} of {plural(found.threads, 'thread')}"
    if not found.findings:
        return Group(Line(f"{walked}: every index, link and counter agrees with them."))
    total = len(found.findings) + found.more
    parts: list[RenderableType] = [Line(f"{walked}: {plural(total, 'finding')}.")]
    for finding in found.findings:
        parts.append(Line(f"{finding.thread_id}  {finding.checkpoint_id}".strip() or "counters"))
        parts.append(Line(finding.what, indent=2))
    if found.more:
        parts.append(Line((f"… and {found.more:,} more", "dim")))
    return Group(*parts)


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
    yield from _more(len(report.expired) - SHOWN)


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


def _more(n: int) -> Iterable[RenderableType]:
    if n > 0:
        yield Line((f"… and {n:,} more; --json lists all", "dim"), indent=2)
