"""What people read of single refs and of conversations: where each stands, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from rich.console import Group, RenderableType
from rich.table import Table

from checkpointd.cli.tables import (
    SHOWN,
    STYLES,
    Line,
    blank,
    cell,
    grid,
    more,
    plural,
    seconds,
    when,
    word,
)
from checkpointd.domain.refs import Explanation
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import Hold, RefState, ThreadStanding
from checkpointd.registry.operations import AuditEntry, AuditPage, BulkResult, Verification


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
            return record.cause or "no reason was kept"
        case RefState.WAIVED:
            return f"{record.cause} (waived by {record.by})"
        case RefState.MIGRATED:
            return f"became {record.link.checkpoint_id}" if record.link else "became nothing"
        case RefState.EXPIRED:
            late = f"; its writer came back {when(record.late_at)}" if record.late_at else ""
            return f"{record.cause or 'no reason was kept'}{late}"
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
    return Group(*parts, *more(len(result.done) - SHOWN))


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
