"""How a record lies in the store, and back; what it cannot account for it refuses.

A record is text fields between unit separators, trailing empty ones left off: a settled
ref costs some twenty bytes, and Lua takes it apart with one loop. The first field is the
version of the layout. ``lua/prelude.lua`` names the same fields in the same order.
"""

from __future__ import annotations

from datetime import timedelta

from checkpointd.domain.errors import CorruptRecordError
from checkpointd.domain.refs import (
    CheckpointRef,
    MigrationLink,
    SafeBoundaryMarker,
    from_us,
    to_us,
)
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import FailureReason, Hold, RefState, WriterLine
from checkpointd.registry.keys import SEP

RECORD_VERSION = "1"

STATE_LETTERS = {
    RefState.OPEN: "o",
    RefState.PENDING: "p",
    RefState.REPLAYING: "x",
    RefState.RETRYABLE: "r",
    RefState.QUARANTINED: "q",
    RefState.WAIVED: "w",
    RefState.MIGRATED: "m",
    RefState.EXPIRED: "e",
    RefState.FINALIZED: "f",
}
_STATES = {letter: state for state, letter in STATE_LETTERS.items()}
LINE_LETTERS = {WriterLine.LEGACY: "l", WriterLine.KERNEL: "k"}
_LINES = {letter: line for line, letter in LINE_LETTERS.items()}
HOLD_LETTERS = {Hold.NONE: "", Hold.PAUSED: "p", Hold.FALLBACK: "f"}
_HOLDS = {letter: hold for hold, letter in HOLD_LETTERS.items()}

FIELDS = (
    "version",
    "state",
    "line",
    "created",
    "opened",
    "changed",
    "by",
    "reason",
    "code",
    "detail",
    "attempts",
    "lease",
    "became",
    "boundary",
    "linked",
    "stands_in_for",
    "fallback",
    "replay_of",
    "late",
    "hold",
    "confirmed",
    "grace",
    "expiry_kind",
)


def clean(text: str, limit: int = 500) -> str:
    """Free text as a record can hold it: no control characters, bounded."""
    shown = "".join(c if c.isprintable() else " " for c in text).strip()
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def decode_record(thread_id: str, checkpoint_id: str, raw: bytes) -> RefRecord:
    """The record that ``raw`` holds, or ``CorruptRecordError`` naming the ref."""
    what = f"checkpoint {checkpoint_id!a} of thread {thread_id!a}"
    try:
        parts = raw.decode().split(SEP)
    except UnicodeDecodeError as error:
        raise CorruptRecordError(what, "it is not UTF-8 text") from error
    if parts[0] != RECORD_VERSION:
        raise CorruptRecordError(
            what, f"its version is {parts[0][:20]!a} and this build reads {RECORD_VERSION!a}"
        )
    if len(parts) > len(FIELDS):
        raise CorruptRecordError(what, f"it has {len(parts)} fields of at most {len(FIELDS)}")
    parts += [""] * (len(FIELDS) - len(parts))
    f = dict(zip(FIELDS, parts, strict=True))
    try:
        state = _STATES[f["state"]]
        created = from_us(int(f["created"]))
        changed = from_us(int(f["changed"])) if f["changed"] else None
        expired = state is RefState.EXPIRED
        ref = CheckpointRef(
            thread_id,
            checkpoint_id,
            _LINES[f["line"]],
            created,
            finalized=state not in (RefState.OPEN, RefState.EXPIRED)
            or (expired and not f["opened"]),
            expired=expired,
            expired_reason=f["reason"] if expired else "",
            expired_at=changed if expired else None,
        )
        link = None
        if f["became"]:
            link = MigrationLink(
                thread_id,
                checkpoint_id,
                f["became"],
                f["boundary"],
                from_us(int(f["linked"])),
            )
        return RefRecord(
            ref=ref,
            state=state,
            reason=f["reason"],
            changed_at=changed,
            by=f["by"],
            code=FailureReason(f["code"]) if f["code"] else None,
            detail=f["detail"],
            attempts=int(f["attempts"] or 0),
            lease=f["lease"],
            link=link,
            boundary_id=f["boundary"],
            stands_in_for=f["stands_in_for"],
            fallback=f["fallback"],
            replay_of=f["replay_of"],
            late_at=from_us(int(f["late"])) if f["late"] else None,
            opened_at=from_us(int(f["opened"])) if f["opened"] else None,
            hold=_HOLDS[f["hold"]],
            confirmed_at=from_us(int(f["confirmed"])) if f["confirmed"] else None,
            grace_s=int(f["grace"]) / 1e6 if f["grace"] else None,
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise CorruptRecordError(what, f"a field is out of its range ({error})") from error


def encode_boundary(marker: SafeBoundaryMarker) -> str:
    """The boundary as the store holds it, but for its id, which is its field's name."""
    return SEP.join(
        (
            RECORD_VERSION,
            str(marker.sequence),
            LINE_LETTERS[marker.writer_line],
            str(to_us(marker.created_at)),
            marker.digest,
        )
    )


def decode_boundary(thread_id: str, boundary_id: str, raw: bytes) -> SafeBoundaryMarker:
    """The boundary that ``raw`` holds, or ``CorruptRecordError`` naming it."""
    what = f"boundary {boundary_id!a} of thread {thread_id!a}"
    try:
        version, sequence, line, created, digest = raw.decode().split(SEP)
        if version != RECORD_VERSION:
            raise CorruptRecordError(what, f"its version is {version[:20]!a}")
        return SafeBoundaryMarker(
            boundary_id, thread_id, int(sequence), digest, _LINES[line], from_us(int(created))
        )
    except (KeyError, ValueError, OverflowError) as error:
        if isinstance(error, CorruptRecordError):
            raise
        raise CorruptRecordError(what, f"a field is out of its range ({error})") from error


def microseconds(span: timedelta) -> int:
    """Whole microseconds of a duration."""
    return span // timedelta(microseconds=1)
