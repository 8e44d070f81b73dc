"""The registry's port: which checkpoints exist, and which may resume.

Two implementations, held by one contract suite: ``memory`` (the model, and for
embedding) and ``redis`` (durable, shared by every process). A store that cannot be
read raises; it never answers ``None`` or ``False``.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol

from checkpointd.domain.refs import (
    CheckpointRef,
    Explanation,
    IssuanceFreeze,
    Lease,
    MigrationLink,
    ReconciliationReport,
    SafeBoundaryMarker,
)
from checkpointd.domain.states import ALL_LINES, WriterLine


class CheckpointRegistry(Protocol):
    """Answers "which checkpoints exist, and may they resume?", and nothing else does."""

    async def register(
        self, ref: CheckpointRef, *, finalized: bool = True, issuance: bool = True
    ) -> CheckpointRef:
        """Record a checkpoint; return what is stored.

        ``finalized=True`` keeps the ref's own flag, ``False`` opens a crash window.
        While its line is frozen a new ref raises ``IssuanceFrozenError``, unless
        ``issuance=False`` says that the state exists already and only the books catch up.

        Again: the stored ref comes back unchanged, frozen or not, and is never finalized by
        it. As another writer line: ``WriterLineChangedError``.
        """
        ...

    async def register_replay(
        self, ref: CheckpointRef, *, legacy_checkpoint_id: str
    ) -> CheckpointRef:
        """Record the checkpoint that a replay produced, frozen or not.

        While any line is frozen the legacy ref must be known here, else
        ``IssuanceFrozenError``. Again: as ``register``.
        """
        ...

    async def finalize(self, thread_id: str, checkpoint_id: str) -> CheckpointRef:
        """Close the crash window, frozen or not. Again: nothing changes.

        ``UnknownCheckpointError`` if never registered. ``CheckpointExpiredError`` if it
        expired: the lateness is stamped and counted, and nothing is revived.
        """
        ...

    async def extend(self, thread_id: str, checkpoint_id: str) -> CheckpointRef:
        """Start the crash window anew, each time: a long turn says that it is alive.

        Only while open: on a finalized ref nothing changes; expired and unknown as
        ``finalize``.
        """
        ...

    async def expire(self, thread_id: str, checkpoint_id: str, reason: str) -> CheckpointRef:
        """Mark it not resumable, from any state but migrated, and take its lease away.

        Again: the first reason and time stay. Migrated: returned unchanged.
        """
        ...

    async def is_authoritative(self, thread_id: str, checkpoint_id: str) -> bool:
        """Whether the registry knows it, expired or not."""
        ...

    async def is_resumable(self, thread_id: str, checkpoint_id: str) -> bool:
        """Whether it is known, finalized, not expired and not waived."""
        ...

    async def refs_for(self, thread_id: str) -> tuple[CheckpointRef, ...]:
        """Every ref of the thread, oldest first by (created_at, checkpoint_id)."""
        ...

    async def resolve(self, thread_id: str) -> CheckpointRef | None:
        """The newest resumable ref; a migrated one is followed to what it became.

        A link to a ref that is not resumable is skipped. ``None`` if there is none.
        """
        ...

    async def explain(self, thread_id: str) -> Explanation:
        """What an application tells its user about the thread.

        The newest ref that has not expired decides; if all have, the newest of them.
        """
        ...

    async def freeze_issuance(
        self, *, reason: str, lines: tuple[WriterLine, ...] = ALL_LINES
    ) -> IssuanceFreeze:
        """Close issuance of these lines everywhere; return when it is in force.

        Again: the first freeze, since its declarer's reason is the one that is kept.
        """
        ...

    async def thaw_issuance(self, *, reason: str) -> None:
        """Open issuance again; replays under way may still commit. Again: nothing changes."""
        ...

    async def freeze_in_force(self) -> IssuanceFreeze | None:
        """The freeze, if there is one."""
        ...

    async def mark_safe_boundary(
        self,
        thread_id: str,
        *,
        sequence: int,
        digest: str,
        writer_line: WriterLine,
        boundary_id: str | None = None,
    ) -> SafeBoundaryMarker:
        """Record a point to replay from; a retry or another process marks the same one.

        A given ``boundary_id`` adopts a marker under the id that its writer derived.
        Again: the stored marker.
        """
        ...

    async def boundaries_for(self, thread_id: str) -> tuple[SafeBoundaryMarker, ...]:
        """The thread's boundaries, oldest first by (sequence, created_at, boundary_id)."""
        ...

    def migration_lock(
        self, thread_id: str, legacy_checkpoint_id: str
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold the right to replay this ref, or raise; nobody waits.

        ``LeaseBusyError`` if another holds it, ``AlreadyMigratedError`` if it has its link,
        ``UnknownCheckpointError``, or ``CommitRefusedError`` where the ref is not to be replayed
        (``writer_line``, ``not_authoritative``). Leaving releases it, unless a commit already did.
        """
        ...

    async def record_migration(
        self, thread_id: str, legacy_checkpoint_id: str, *, checkpoint_id: str, boundary_id: str
    ) -> MigrationLink:
        """Link a legacy ref to what it became; the first link wins.

        Both refs must be known (``UnknownCheckpointError``), the first of line legacy and the
        second of line kernel (``WriterLineChangedError``), and the legacy ref must not
        have expired (``CheckpointExpiredError``). A new ref that is another's replay is refused
        (``CommitRefusedError``, ``id_conflict``). Again: the first link.
        """
        ...

    async def migration_of(self, thread_id: str, legacy_checkpoint_id: str) -> MigrationLink | None:
        """The link, if there is one."""
        ...

    async def commit_replay(
        self, lease: Lease, ref: CheckpointRef, boundary_id: str
    ) -> MigrationLink:
        """Register what a replay produced and link it, in one step, while the lease is held.

        The new ref gets the legacy ref's ``created_at``: a conversation does not go back
        in time because it was replayed late. Needs no exemption from a freeze.

        Again with the same ref: the link. If another replay was first: its link.
        ``LeaseLostError`` if the lease is not held any more; ``CommitRefusedError`` with a word
        of ``FailureReason`` (``not_authoritative``, ``writer_line``, ``id_conflict``,
        ``binding_mismatch`` for another thread's ref).
        Nothing is written in either case.
        """
        ...

    async def reconcile_crash_expiry(self, *, grace: timedelta) -> ReconciliationReport:
        """Expire every ref whose crash window has been open for at least ``grace``.

        A ref from the future is never expired. Again: no ref is reported twice.
        ``ValueError`` unless ``grace`` is positive.
        """
        ...

    async def request_replay(self, thread_id: str) -> int:
        """Move the thread's due legacy refs to the front of the drain; say how many."""
        ...

    async def now(self) -> datetime:
        """The clock that judges ages here: the store's."""
        ...
