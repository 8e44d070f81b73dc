"""The registry's values: what is known of a checkpoint, and how one becomes another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from checkpointd.domain.ids import check_id
from checkpointd.domain.states import ALL_LINES, ThreadStanding, WriterLine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Whole microseconds since 1970 of an aware ``moment``; a naive one is a ``ValueError``."""
    if moment.tzinfo is None:
        raise ValueError(f"the time {moment.isoformat()} has no zone; give an aware datetime")
    return (moment - EPOCH) // MICROSECOND


def from_us(us: int) -> datetime:
    """The aware UTC datetime of ``us`` microseconds since 1970."""
    return EPOCH + timedelta(0, 0, us)


def derived_id(*parts: object) -> str:
    """A stable 32-digit id of ``parts``: equal parts give the equal id in every process.

    Each part is preceded by its length, so no two lists of parts read alike.
    """
    raws = [str(part).encode("utf-8", "surrogatepass") for part in parts]
    return hashlib.sha256(b"".join([b"%d:%b" % (len(raw), raw) for raw in raws])).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """The record that a checkpoint exists."""

    thread_id: str
    checkpoint_id: str
    writer_line: WriterLine
    created_at: datetime
    finalized: bool = True
    expired: bool = False
    expired_reason: str = ""
    expired_at: datetime | None = None

    def __post_init__(self) -> None:
        check_id(self.thread_id, what="thread_id")
        check_id(self.checkpoint_id, what="checkpoint_id")
        if type(self.writer_line) is not WriterLine:
            object.__setattr__(self, "writer_line", WriterLine(self.writer_line))
        if self.created_at.tzinfo is None:
            to_us(self.created_at)

    @classmethod
    def crashed(
        cls,
        thread_id: str,
        checkpoint_id: str,
        writer_line: WriterLine,
        created_at: datetime,
        reason: str,
        at: datetime,
    ) -> CheckpointRef:
        """A ref whose crash window was closed by expiry, of parts that came from the store.

        They were checked when they went in, and are not again: a reconcile pass
        makes thousands of these at once, and the checks would be most of what it does.
        """
        ref = object.__new__(cls)
        put = object.__setattr__
        put(ref, "thread_id", thread_id)
        put(ref, "checkpoint_id", checkpoint_id)
        put(ref, "writer_line", writer_line)
        put(ref, "created_at", created_at)
        put(ref, "finalized", False)  # noqa: FBT003 - the value of a field
        put(ref, "expired", True)  # noqa: FBT003 - as above
        put(ref, "expired_reason", reason)
        put(ref, "expired_at", at)
        return ref

    @property
    def order(self) -> tuple[datetime, str]:
        """What "oldest first" means everywhere."""
        return (self.created_at, self.checkpoint_id)

    def finalize(self) -> CheckpointRef:
        """The same ref, its crash window closed."""
        return replace(self, finalized=True)

    def expire(self, reason: str, at: datetime) -> CheckpointRef:
        """The same ref, not resumable any more; the first reason and time stay."""
        if self.expired:
            return self
        return replace(self, expired=True, expired_reason=reason, expired_at=at)

    def outlived(self, *, grace: timedelta, now: datetime) -> bool:
        """Whether the crash window has been open for at least ``grace``.

        A ref exactly ``grace`` old has outlived it: two reconcilers reading the
        same second then agree, whichever of them runs first.
        """
        return not self.finalized and not self.expired and now - self.created_at >= grace


@dataclass(frozen=True, slots=True)
class SafeBoundaryMarker:
    """A point from which a thread can be replayed without repeating a side effect."""

    boundary_id: str
    thread_id: str
    sequence: int
    digest: str
    writer_line: WriterLine
    created_at: datetime

    @staticmethod
    def derive_id(thread_id: str, sequence: int, digest: str) -> str:
        """The id of a boundary that was not given one; a retry derives the same."""
        return derived_id("boundary", thread_id, sequence, digest)


@dataclass(frozen=True, slots=True)
class MigrationLink:
    """Which kernel checkpoint a legacy ref was replayed into. At most one per legacy ref."""

    thread_id: str
    legacy_checkpoint_id: str
    checkpoint_id: str
    boundary_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class IssuanceFreeze:
    """Issuance is closed for these lines, for the reason that its first declarer gave."""

    reason: str
    at: datetime
    lines: tuple[WriterLine, ...] = ALL_LINES


@dataclass(frozen=True, slots=True)
class ReconciliationReport:
    """What one reconcile pass did. ``inspected`` counts the windows open when it began."""

    at: datetime
    grace_seconds: float
    expired: tuple[CheckpointRef, ...] = ()
    inspected: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an application tells its user about a thread: a word, the ref, a reason, a time."""

    thread_id: str
    standing: ThreadStanding
    ref: CheckpointRef | None = None
    reason: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The time-bounded right to replay one ref, with its fence.

    ``value`` is ``fence:token``, what the store compares: the whole of it, never
    the fence alone, since a lossy failover can hand out one fence twice.
    """

    thread_id: str
    checkpoint_id: str
    fence: int
    token: str
    attempt: int = 0
    created_at: datetime = EPOCH
    boundary: SafeBoundaryMarker | None = None
    """Its own boundary, else the thread's newest legacy one."""
    own_boundary: bool = False
    stands_in_for: str = ""
    """The head whose fallback this ref is; empty for a head itself."""
    confirmed: bool = False
    """Whether a scan begun after the freeze had settled has seen this ref's head unchanged."""
    acquired_at: datetime = field(default=EPOCH)

    @property
    def value(self) -> str:
        return f"{self.fence}:{self.token}"

    @property
    def name(self) -> str:
        return f"{self.thread_id}/{self.checkpoint_id}"
