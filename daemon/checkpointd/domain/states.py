"""The words of a ref's life. One word from the store to the dashboard, so each is said once, here."""

from __future__ import annotations

from enum import StrEnum


class WriterLine(StrEnum):
    """Which generation of code wrote a checkpoint. It never changes."""

    LEGACY = "legacy"
    KERNEL = "kernel"


ALL_LINES: tuple[WriterLine, ...] = (WriterLine.LEGACY, WriterLine.KERNEL)


class RefState(StrEnum):
    """Where a ref is in its life. Stored, never guessed."""

    OPEN = "open"
    PENDING = "pending"
    REPLAYING = "replaying"
    RETRYABLE = "retryable"
    QUARANTINED = "quarantined"
    WAIVED = "waived"
    MIGRATED = "migrated"
    EXPIRED = "expired"
    FINALIZED = "finalized"
    """Kernel refs only: a finalized legacy ref is pending until the drain has dealt with it."""


LEGACY_STATES: tuple[RefState, ...] = (
    RefState.OPEN,
    RefState.PENDING,
    RefState.REPLAYING,
    RefState.RETRYABLE,
    RefState.QUARANTINED,
    RefState.WAIVED,
    RefState.MIGRATED,
    RefState.EXPIRED,
)
KERNEL_STATES: tuple[RefState, ...] = (RefState.OPEN, RefState.FINALIZED, RefState.EXPIRED)
UNFINISHED: frozenset[RefState] = frozenset(
    {
        RefState.OPEN,
        RefState.PENDING,
        RefState.REPLAYING,
        RefState.RETRYABLE,
        RefState.QUARANTINED,
    }
)
"""The legacy states that stand between the drain and its end."""


class Hold(StrEnum):
    """Why a pending legacy ref is not due yet, though nothing has failed."""

    NONE = ""
    PAUSED = "paused"
    """A pause may be being answered: due once a scan after the freeze saw it unchanged."""
    FALLBACK = "fallback"
    """An ancestor stands in for its thread's head only once that head has expired."""


class FailureReason(StrEnum):
    """Why a replay did not end in a link. Metric label, log field and script reply."""

    ABSENT = "absent"
    UNREADABLE = "unreadable"
    BINDING_MISMATCH = "binding_mismatch"
    UNANSWERED_CALL = "unanswered_call"
    NO_SAFE_BOUNDARY = "no_safe_boundary"
    CLOSED_AFTER_EXPIRY = "closed_after_expiry"
    NOT_AUTHORITATIVE = "not_authoritative"
    WRITER_LINE = "writer_line"
    ID_CONFLICT = "id_conflict"
    STORE_REFUSED = "store_refused"
    REPLAY_ERROR = "replay_error"
    TIMEOUT = "timeout"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    OTHER = "other"


class ExpiryKind(StrEnum):
    """Who closed a ref for good."""

    CRASH = "crash"
    SUPERSEDED = "superseded"
    OPERATOR = "operator"


CRASH_EXPIRY_REASON = "crash-expiry: issued but never finalized"
SUPERSEDED_REASON = "superseded: the thread moved on to another checkpoint"


class DrainState(StrEnum):
    """The drain as a whole, in one word; the first that applies, in this order."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    PAUSED = "paused"
    HALTED = "halted"
    DRAINED = "drained"
    STALLED = "stalled"
    SETTLING = "settling"
    DRAINING = "draining"


class StallCause(StrEnum):
    """Why a drain is stalled."""

    NO_PROGRESS = "no_progress"
    QUARANTINE = "quarantine"


class ThrottleReason(StrEnum):
    """Why this replica claims less than it could."""

    OPERATOR = "operator"
    LATENCY = "latency"
    ERROR_RATE = "error_rate"
    WINDOW = "window"
    SOURCE = "source"
    REPLAYER = "replayer"


class HoldReason(StrEnum):
    """Why expiry is held."""

    MASS = "mass"
    STORE_GAP = "store_gap"


class PassName(StrEnum):
    """The four passes."""

    RECONCILE = "reconcile"
    ADOPT = "adopt"
    DRAIN = "drain"
    CENSUS = "census"


class PassOutcome(StrEnum):
    """How one run of a pass ended."""

    SUCCESS = "success"
    ERROR = "error"
    HELD = "held"
    SKIPPED = "skipped"
    MISSED = "missed"
    OVERRUN = "overrun"


class AdoptOutcome(StrEnum):
    """What a scan found about one thread's head."""

    NEW = "new"
    CLOSED = "closed"
    SUPERSEDED = "superseded"
    UNCHANGED = "unchanged"
    UNREADABLE = "unreadable"
    UNREGISTRABLE = "unregistrable"


class ReplayOutcome(StrEnum):
    """How one claimed ref left the drain's hands."""

    MIGRATED = "migrated"
    ALREADY_MIGRATED = "already_migrated"
    SUPERSEDED = "superseded"
    REFUSED = "refused"
    RETRYABLE = "retryable"
    QUARANTINED = "quarantined"
    LEASE_LOST = "lease_lost"


class ThreadStanding(StrEnum):
    """What an application tells its user about a thread."""

    RESUMABLE = "resumable"
    OPEN = "open"
    MIGRATING = "migrating"
    QUARANTINED = "quarantined"
    WAIVED = "waived"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
