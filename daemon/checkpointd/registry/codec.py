"""How a record lies in the store, and back; what it cannot account for it refuses.

A record is text fields between unit separators, trailing empty ones left off: a settled
ref costs some twenty bytes, and Lua takes it apart with one loop. The first field is the
version of the layout. ``lua/prelude.lua`` names the same fields in the same order.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

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

_SEP = SEP.encode()

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


_ABSENT = [""] * len(FIELDS)
_CREATED, _BECAME, _BOUNDARY, _LINKED, _STANDS_IN_FOR, _CONFIRMED = map(
    FIELDS.index, ("created", "became", "boundary", "linked", "stands_in_for", "confirmed")
)


def decode_record(thread_id: str, checkpoint_id: str, raw: bytes) -> RefRecord:
    """The record that ``raw`` holds, or ``CorruptRecordError`` naming the ref."""
    fields = _fields(thread_id, checkpoint_id, raw)
    # By position: half of what a drain does on its own side is to read records.
    (
        _version, state, _line, _created, opened, changed, by, reason, code, detail, attempts,
        lease, _became, boundary, _linked, stands_in_for, fallback, replay_of, late, hold,
        confirmed, grace, _expiry_kind,
    ) = fields  # fmt: skip
    try:
        return RefRecord(
            ref=_ref(thread_id, checkpoint_id, fields),
            state=_STATES[state],
            reason=reason,
            changed_at=from_us(int(changed)) if changed else None,
            by=by,
            code=FailureReason(code) if code else None,
            detail=detail,
            attempts=int(attempts or 0),
            lease=lease,
            link=_link(thread_id, checkpoint_id, fields),
            boundary_id=boundary,
            stands_in_for=stands_in_for,
            fallback=fallback,
            replay_of=replay_of,
            late_at=from_us(int(late)) if late else None,
            opened_at=from_us(int(opened)) if opened else None,
            hold=_HOLDS[hold],
            confirmed_at=from_us(int(confirmed)) if confirmed else None,
            grace_s=int(grace) / 1e6 if grace else None,
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise _out_of_range(thread_id, checkpoint_id, error) from error


def decode_ref(thread_id: str, checkpoint_id: str, raw: bytes) -> CheckpointRef:
    """The ref of the record that ``raw`` holds, without its story. Errors as ``decode_record``."""
    try:
        return _ref(thread_id, checkpoint_id, _fields(thread_id, checkpoint_id, raw))
    except (KeyError, ValueError, OverflowError) as error:
        raise _out_of_range(thread_id, checkpoint_id, error) from error


def decode_link(thread_id: str, checkpoint_id: str, raw: bytes) -> MigrationLink | None:
    """The link of the record that ``raw`` holds, if it has one. Errors as ``decode_record``."""
    try:
        return _link(thread_id, checkpoint_id, _fields(thread_id, checkpoint_id, raw))
    except (ValueError, OverflowError) as error:
        raise _out_of_range(thread_id, checkpoint_id, error) from error


class Claimed(NamedTuple):
    """What a claim has to know of a record."""

    created_at: datetime
    boundary_id: str
    stands_in_for: str
    confirmed_at: datetime | None


def decode_claimed(thread_id: str, checkpoint_id: str, raw: bytes) -> Claimed:
    """What a claim needs of the record that ``raw`` holds. Errors as ``decode_record``."""
    fields = _fields(thread_id, checkpoint_id, raw)
    try:
        return Claimed(
            created_at=from_us(int(fields[_CREATED])),
            boundary_id=fields[_BOUNDARY],
            stands_in_for=fields[_STANDS_IN_FOR],
            confirmed_at=from_us(int(fields[_CONFIRMED])) if fields[_CONFIRMED] else None,
        )
    except (ValueError, OverflowError) as error:
        raise _out_of_range(thread_id, checkpoint_id, error) from error


def _fields(thread_id: str, checkpoint_id: str, raw: bytes) -> list[str]:
    """All fields of a record of a layout that this build knows."""
    try:
        fields = raw.decode().split(SEP)
    except UnicodeDecodeError as error:
        raise CorruptRecordError(
            _named(thread_id, checkpoint_id), "it is not UTF-8 text"
        ) from error
    if fields[0] != RECORD_VERSION:
        raise CorruptRecordError(
            _named(thread_id, checkpoint_id),
            f"its version is {fields[0][:20]!a} and this build reads {RECORD_VERSION!a}",
        )
    if len(fields) > len(FIELDS):
        raise CorruptRecordError(
            _named(thread_id, checkpoint_id),
            f"it has {len(fields)} fields of at most {len(FIELDS)}",
        )
    return fields + _ABSENT[len(fields) :]


def _ref(thread_id: str, checkpoint_id: str, fields: list[str]) -> CheckpointRef:
    _, state, line, created, opened, changed, _, reason = fields[:8]
    expired = _STATES[state] is RefState.EXPIRED
    return CheckpointRef(
        thread_id,
        checkpoint_id,
        _LINES[line],
        from_us(int(created)),
        finalized=state != "o" and not (expired and opened),
        expired=expired,
        expired_reason=reason if expired else "",
        expired_at=_moment(changed) if expired and changed else None,
    )


def decode_expired(
    thread_id: str, checkpoint_id: str, answer: bytes, reason: str, now: datetime
) -> CheckpointRef:
    """The ref that a script has expired at ``now``, or at the time that ``answer`` names.

    ``answer`` is its line's letter and its created_at. Errors as ``decode_record``.
    """
    try:
        if _SEP in answer:
            answer, _, then = answer.partition(_SEP)
            now = _moment(then.decode())
        line, created_at = _LINES[chr(answer[0])], from_us(int(answer[1:]))
        return CheckpointRef.crashed(thread_id, checkpoint_id, line, created_at, reason, now)
    except (LookupError, ValueError, OverflowError) as error:
        raise _out_of_range(thread_id, checkpoint_id, error) from error


@lru_cache(maxsize=64)
def _moment(us: str) -> datetime:
    """A time that many records share, since one script changed them."""
    return from_us(int(us))


def _link(thread_id: str, checkpoint_id: str, fields: list[str]) -> MigrationLink | None:
    became = fields[_BECAME]
    if not became:
        return None
    linked = from_us(int(fields[_LINKED]))
    return MigrationLink(thread_id, checkpoint_id, became, fields[_BOUNDARY], linked)


def _named(thread_id: str, checkpoint_id: str) -> str:
    return f"checkpoint {checkpoint_id!a} of thread {thread_id!a}"


def _out_of_range(thread_id: str, checkpoint_id: str, error: Exception) -> CorruptRecordError:
    return CorruptRecordError(
        _named(thread_id, checkpoint_id), f"a field is out of its range ({error})"
    )


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
