"""Where a thread stands, decided from its refs alone: both registries answer with these functions.

The order of all that follows is ``CheckpointRef.order``, (created_at, checkpoint_id); so "newest"
means the same here, in the store and in a listing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from checkpointd.domain.refs import CheckpointRef, Explanation, MigrationLink
from checkpointd.domain.states import FailureReason, Hold, RefState, ThreadStanding, WriterLine


def first_state(ref: CheckpointRef) -> RefState:
    """The state in which a ref enters the registry.

    A finalized legacy ref is pending: it is whole, and the drain has yet to deal with it.
    """
    if ref.expired:
        return RefState.EXPIRED
    if not ref.finalized:
        return RefState.OPEN
    match ref.writer_line:
        case WriterLine.LEGACY:
            return RefState.PENDING
        case WriterLine.KERNEL:
            return RefState.FINALIZED
        case never:
            assert_never(never)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefRecord:
    """A ref and its story: all that the registry keeps of one checkpoint."""

    ref: CheckpointRef
    state: RefState
    reason: str = ""
    """Why it is in this state, in words: an operator's, or a pass's."""
    changed_at: datetime | None = None
    by: str = ""
    """Who brought it into this state: an operator, or a pass and its replica."""
    code: FailureReason | None = None
    """The word for its last failed replay."""
    detail: str = ""
    attempts: int = 0
    lease: str = ""
    """``fence:token`` of the last lease issued for it, which may have run out; empty for none."""
    link: MigrationLink | None = None
    boundary_id: str = ""
    """The boundary to replay it from; empty if none is marked yet."""
    stands_in_for: str = ""
    """The head whose fallback this ref is; empty for a head itself."""
    fallback: str = ""
    """The ancestor that stands in for this head should it expire; empty for none."""
    replay_of: str = ""
    """The legacy checkpoint that this kernel ref continues; empty for one of its own."""
    late_at: datetime | None = None
    """When its writer came back to finalize it after it had expired."""
    opened_at: datetime | None = None
    """When its crash window began, or began anew; kept by a crash, ``None`` once finalized."""
    hold: Hold = Hold.NONE
    confirmed_at: datetime | None = None
    """Begin of the last scan that has seen this head unchanged."""
    grace_s: float | None = None
    """The grace by which it was judged when it crash-expired."""

    @property
    def is_resumable(self) -> bool:
        """Whether this checkpoint itself is finalized, not expired and not waived."""
        return self.ref.finalized and self.state not in (RefState.EXPIRED, RefState.WAIVED)

    @property
    def window_began(self) -> datetime:
        """Since when the crash window has been open, where it is."""
        return self.opened_at or self.ref.created_at

    @property
    def cause(self) -> str:
        """Why it stands so, for people: the failure's word with its detail, else the reason.

        An operator who waived it has the last word over the failure that led there.
        """
        if self.code is None or self.state is RefState.WAIVED:
            return self.reason or self.detail
        return f"{self.code}: {self.detail}" if self.detail else str(self.code)

    def outlived(self, *, grace: timedelta, now: datetime) -> bool:
        """Whether the crash window has been open for at least ``grace``.

        A ref exactly ``grace`` old has outlived it; one from the future never has, also
        if its window was extended.
        """
        began = max(self.window_began, self.ref.created_at)
        return self.state is RefState.OPEN and now - began >= grace


def newest_first(records: Iterable[RefRecord]) -> list[RefRecord]:
    """The records by their refs' order, the newest in front."""
    return sorted(records, key=lambda record: record.ref.order, reverse=True)


def resolve(records: Iterable[RefRecord]) -> CheckpointRef | None:
    """The newest resumable ref of one thread's records; ``None`` if there is none.

    A migrated one is followed to what it became, and skipped if that is not resumable:
    its own state was left behind, so it must not be resumed in its successor's stead.
    """
    ordered = newest_first(records)
    by_id = _by_id(ordered)
    for record in ordered:
        end = _followed(record, by_id)
        if end is not None and end.is_resumable:
            return end.ref
    return None


def explain(thread_id: str, records: Iterable[RefRecord]) -> Explanation:
    """What an application tells its user about a thread, from all of its records.

    The newest ref that has not expired decides. A migrated ref speaks for what it became,
    and is passed over where that is not resumable. ``ref`` is the one that decided, followed;
    ``at`` is when it came to stand so (an open one: when its crash window began).
    """
    ordered = newest_first(records)
    by_id = _by_id(ordered)
    for record in ordered:
        standing = _standing(record, by_id)
        if standing is None:
            continue
        end = _followed(record, by_id) or record
        return Explanation(
            thread_id=thread_id,
            standing=standing,
            ref=end.ref,
            reason=end.cause,
            at=end.window_began if standing is ThreadStanding.OPEN else end.changed_at,
        )
    expired = [record for record in ordered if record.state is RefState.EXPIRED]
    if not expired:
        return Explanation(thread_id=thread_id, standing=ThreadStanding.UNKNOWN)
    newest = expired[0].ref
    return Explanation(
        thread_id=thread_id,
        standing=ThreadStanding.EXPIRED,
        ref=newest,
        reason=newest.expired_reason,
        at=newest.expired_at,
    )


def _by_id(records: Iterable[RefRecord]) -> Mapping[str, RefRecord]:
    return {record.ref.checkpoint_id: record for record in records}


def _followed(record: RefRecord, by_id: Mapping[str, RefRecord]) -> RefRecord | None:
    """The record itself, or what it became; ``None`` where its link leads nowhere."""
    return record if record.link is None else by_id.get(record.link.checkpoint_id)


def _standing(record: RefRecord, by_id: Mapping[str, RefRecord]) -> ThreadStanding | None:
    """What one record says of its thread; ``None`` if it has nothing to say."""
    match record.state:
        case RefState.OPEN:
            return ThreadStanding.OPEN
        case RefState.PENDING | RefState.RETRYABLE | RefState.REPLAYING:
            return ThreadStanding.MIGRATING
        case RefState.QUARANTINED:
            return ThreadStanding.QUARANTINED
        case RefState.WAIVED:
            return ThreadStanding.WAIVED
        case RefState.FINALIZED:
            return ThreadStanding.RESUMABLE
        case RefState.MIGRATED:
            end = _followed(record, by_id)
            return ThreadStanding.RESUMABLE if end is not None and end.is_resumable else None
        case RefState.EXPIRED:
            return None
        case never:
            assert_never(never)
