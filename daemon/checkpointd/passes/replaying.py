"""One claimed ref: look again at its head, replay it, commit, or say what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from checkpointd.domain.errors import (
    LeaseLostError,
    PermanentReplayError,
    StoreError,
    StoreRefusedError,
    StoreUnreachableError,
    TransientReplayError,
)
from checkpointd.domain.failure import Failure, meaning_of
from checkpointd.domain.ids import check_id
from checkpointd.domain.legacy import LegacyState, Verdict
from checkpointd.domain.pace import backoff
from checkpointd.domain.refs import Lease, SafeBoundaryMarker
from checkpointd.domain.reports import ReplayEnd
from checkpointd.domain.states import (
    FailureReason,
    Hold,
    RefState,
    ReplayOutcome,
    ThrottleReason,
    WriterLine,
)
from checkpointd.leases.keeper import Guard, Keeper
from checkpointd.registry.books import AdoptionBooks
from checkpointd.registry.ledger import Committed, DrainLedger, unattended
from checkpointd.registry.redis import RedisRegistry
from checkpointd.replay.port import Replayer, ReplayRequest, replay_key
from checkpointd.sources.port import LegacySource

log = structlog.get_logger(__name__)

COMMIT_AGAIN_S = 0.2
RELEASE_WITHIN_S = 2.0


class Reporter(Protocol):
    """Told of each end as it happens."""

    def __call__(self, end: ReplayEnd, /) -> None: ...


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a replay needs, or what made it needless."""

    boundary: SafeBoundaryMarker | None = None
    state: LegacyState | None = None
    outcome: ReplayOutcome | None = None
    given_back: bool = False
    """Whether the lease and its attempt went back already."""


class Replaying:
    """Takes one lease to its end. Any number at once; each on its own."""

    def __init__(
        self,
        ledger: DrainLedger,
        registry: RedisRegistry,
        books: AdoptionBooks,
        keeper: Keeper,
        replayer: Replayer,
        source: LegacySource | None,
        *,
        timeout: timedelta,
        max_attempts: int,
        backoff_base: timedelta,
        backoff_cap: timedelta,
        truncate_unanswered: bool = False,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._registry = registry
        self._books = books
        self._keeper = keeper
        self._replayer = replayer
        self._source = source
        self._timeout = timeout
        self.max_attempts = max_attempts
        self.backoff_base = backoff_base
        self.backoff_cap = backoff_cap
        self._truncate = truncate_unanswered
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._clock = clock

    @staticmethod
    def now() -> datetime:
        """Local time, for reports and for the deadline that a replayer is told."""
        return datetime.now(UTC)

    async def one(
        self, lease: Lease, *, sent_at: float
    ) -> tuple[ReplayEnd | None, ThrottleReason | None]:
        """Take the lease to its end: how it ended, and what is out of reach as a whole.

        Run as a task of its own, which is what a lost lease cancels.
        No end where the ref was given back untouched. Cancelled from outside, the lease and
        its attempt are given back, and the cancellation passes on.
        """
        # Bound for good: a replay is a task, whose context ends with it.
        structlog.contextvars.bind_contextvars(
            thread_id=lease.thread_id, checkpoint_id=lease.checkpoint_id, fence=lease.fence
        )
        began = self._clock()
        try:
            return await self._held(lease, sent_at, began)
        except StoreError as error:
            # Nothing can be said to the store now: the lease runs out, the ref comes back.
            log.warning("replay_abandoned", error=str(error))
            await self._release(lease)
            return None, None
        except LeaseLostError:
            return self._end(lease, began, ReplayOutcome.LEASE_LOST, lost="before_commit"), None
        except asyncio.CancelledError:
            await self._release(lease)
            raise

    async def _held(
        self, lease: Lease, sent_at: float, began: float
    ) -> tuple[ReplayEnd | None, ThrottleReason | None]:
        timeout_s = self._timeout.total_seconds()
        async with self._keeper.hold(lease, sent_at=sent_at, replay_s=timeout_s) as guard:
            limit = asyncio.timeout(timeout_s)
            try:
                async with limit:
                    prepared = await self._prepare(lease, guard)
                    if prepared.outcome is not None:
                        return self._end(lease, began, prepared.outcome), None
                    if prepared.given_back:
                        return None, None
                    if prepared.boundary is None:
                        await self._release(lease, hold=Hold.PAUSED)
                        return None, None
                    guard.check()
                    replayed = await self._replayer.replay(
                        self._request(lease, prepared.boundary, prepared.state)
                    )
                    became = check_id(replayed.checkpoint_id, what="checkpoint_id")
            except (LeaseLostError, StoreUnreachableError):
                raise
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Nobody cancelled us: something inside the replayer was, and let it through.
                return await self._failed(lease, began, meaning_of(error))
            except Exception as error:
                # A replayer is not ours: whatever it raises ends this replay and no other.
                if isinstance(error, StoreRefusedError) and error.word:
                    raise  # the store as a whole says no: this ref is not to blame
                timed_out = isinstance(error, TimeoutError) and limit.expired()
                return await self._failed(lease, began, meaning_of(error, timed_out=timed_out))
            guard.replayed()
            guard.check()
            return await self._commit(lease, guard, began, prepared.boundary, became)

    # Before --------------------------------------------------------------------------------------

    async def _prepare(self, lease: Lease, guard: Guard) -> _Prepared:
        """Look again at the thread: is this still its head, and what is the boundary?"""
        if self._source is None:
            if lease.boundary is None:
                raise PermanentReplayError(
                    FailureReason.NO_SAFE_BOUNDARY,
                    "no boundary is marked for it and no source is configured to find one in",
                )
            return _Prepared(boundary=lease.boundary)
        reading = await self._source.head(lease.thread_id)
        if reading is None:
            raise PermanentReplayError(FailureReason.ABSENT, "the thread is not in the source")
        head = reading.head
        if head.checkpoint_id != (lease.stands_in_for or lease.checkpoint_id) or (
            lease.stands_in_for and head.verdict.is_settled
        ):
            return await self._supersede(lease, guard, head, reading.ancestor)
        state: LegacyState | None = head
        if lease.stands_in_for:
            state = await self._source.state(lease.thread_id, lease.checkpoint_id)
        if state is None:
            raise PermanentReplayError(FailureReason.ABSENT, "the checkpoint is not in the source")
        if state.verdict is Verdict.PAUSED and not lease.confirmed:
            return _Prepared()  # an answer may be on its way: wait for a scan to see it unchanged
        if not state.verdict.is_settled:
            raise TransientReplayError("the old application is continuing this thread")
        if state.blocker is not None and not (
            self._truncate and state.blocker is FailureReason.UNANSWERED_CALL
        ):
            raise PermanentReplayError(state.blocker, state.detail)
        guard.check()
        return _Prepared(boundary=await self._boundary(lease, state), state=state)

    async def _boundary(self, lease: Lease, state: LegacyState) -> SafeBoundaryMarker:
        if lease.own_boundary and lease.boundary is not None:
            return lease.boundary
        return await self._registry.mark_safe_boundary(
            lease.thread_id,
            sequence=state.sequence,
            digest=state.digest,
            writer_line=WriterLine.LEGACY,
            of=lease.checkpoint_id,
        )

    async def _supersede(
        self, lease: Lease, guard: Guard, head: LegacyState, ancestor: LegacyState | None
    ) -> _Prepared:
        """The thread has moved on: register its new head and expire this ref, in one script.

        Where this ref is the last good turn before that head, and the head is open or has
        expired, the ref is given back instead, to stand in for it.
        """
        guard.check()
        settled = head.verdict in (Verdict.CLOSED, Verdict.UNREADABLE)
        adopted = await self._books.adopt(
            head,
            hold=Hold.NONE if settled else Hold.PAUSED,
            confirming=False,
            fallback=ancestor,
            moved_on=[lease.checkpoint_id],
            guard=lease,
        )
        if adopted.word == "stale":
            raise LeaseLostError(lease.name, lease.fence)
        if adopted.superseded == 0:
            return _Prepared(given_back=True)
        return _Prepared(outcome=ReplayOutcome.SUPERSEDED)

    def _request(
        self, lease: Lease, boundary: SafeBoundaryMarker, state: LegacyState | None
    ) -> ReplayRequest:
        return ReplayRequest(
            thread_id=lease.thread_id,
            legacy_checkpoint_id=lease.checkpoint_id,
            boundary=boundary,
            state=state,
            attempt=lease.attempt,
            fence=lease.fence,
            deadline=self.now() + self._timeout,
            idempotency_key=replay_key(lease.thread_id, lease.checkpoint_id, boundary.boundary_id),
        )

    # After ---------------------------------------------------------------------------------------

    async def _commit(
        self,
        lease: Lease,
        guard: Guard,
        began: float,
        boundary: SafeBoundaryMarker,
        checkpoint_id: str,
    ) -> tuple[ReplayEnd | None, ThrottleReason | None]:
        """Commit while the lease lives. A reply that never comes is unknown: ask again."""
        while True:
            try:
                committed = await self._ledger.commit(
                    lease, checkpoint_id, WriterLine.KERNEL, boundary.boundary_id
                )
            except (StoreUnreachableError, StoreRefusedError) as error:
                if isinstance(error, StoreRefusedError) and not error.transient:
                    if error.word:
                        raise
                    return await self._failed(lease, began, meaning_of(error), refused=True)
                log.warning("commit_unanswered", error=str(error))
                if not guard.is_held:
                    return await self._unknown(lease, began), None
                await asyncio.sleep(COMMIT_AGAIN_S)
            except LeaseLostError:
                return self._end(lease, began, ReplayOutcome.LEASE_LOST, lost="at_commit"), None
            except asyncio.CancelledError:
                # A commit that took the lease away looks lost to the keeper until its reply is
                # here: its outcome is unknown, not no.
                if not guard.took_back():
                    raise
                return await self._unknown(lease, began), None
            except Exception as error:  # noqa: BLE001 - refused, or a checkpoint id that names nothing: this ref's trouble alone
                return await self._failed(lease, began, meaning_of(error), refused=True)
            else:
                return self._linked(lease, began, committed), None

    async def _unknown(self, lease: Lease, began: float) -> ReplayEnd:
        """The lease ran out before a reply came: read the link, never assume."""
        link = None
        with contextlib.suppress(StoreError):
            link = await self._registry.migration_of(lease.thread_id, lease.checkpoint_id)
        if link is not None:
            return self._end(
                lease, began, ReplayOutcome.ALREADY_MIGRATED, became=link.checkpoint_id
            )
        return self._end(lease, began, ReplayOutcome.LEASE_LOST, lost="at_commit")

    def _linked(self, lease: Lease, began: float, committed: Committed) -> ReplayEnd:
        return self._end(lease, began, committed.outcome, became=committed.link.checkpoint_id)

    async def _failed(
        self, lease: Lease, began: float, failure: Failure, *, refused: bool = False
    ) -> tuple[ReplayEnd | None, ThrottleReason | None]:
        if failure.throttle is not None:
            log.warning("dependency_unreachable", dependency=failure.throttle, error=failure.detail)
            await self._release(lease)
            return None, failure.throttle
        again_in = backoff(
            lease.attempt,
            base=self.backoff_base,
            cap=self.backoff_cap,
            draw=self._rng.random(),
        )
        if failure.retry_after_s is not None:
            again_in = max(again_in, timedelta(seconds=failure.retry_after_s))
        became = await self._ledger.fail(
            lease,
            reason=failure.reason,
            detail=failure.detail,
            permanent=failure.permanent,
            again_in=again_in,
            max_attempts=self.max_attempts,
        )
        if became is None:
            outcome = ReplayOutcome.REFUSED if refused else ReplayOutcome.LEASE_LOST
        elif became is RefState.QUARANTINED:
            outcome = ReplayOutcome.QUARANTINED
        else:
            outcome = ReplayOutcome.RETRYABLE
        lost = "before_commit" if outcome is ReplayOutcome.LEASE_LOST else ""
        end = self._end(
            lease, began, outcome, reason=failure.reason, detail=failure.detail, lost=lost
        )
        return end, None

    async def _release(self, lease: Lease, *, hold: Hold = Hold.NONE) -> None:
        """Give the lease back; bounded, and never in the way of what is being raised."""
        with contextlib.suppress(StoreError, TimeoutError):
            await asyncio.wait_for(
                asyncio.shield(unattended(self._ledger.release(lease, hold=hold))),
                RELEASE_WITHIN_S,
            )

    def _end(
        self,
        lease: Lease,
        began: float,
        outcome: ReplayOutcome,
        *,
        reason: FailureReason | None = None,
        detail: str = "",
        became: str = "",
        lost: str = "",
    ) -> ReplayEnd:
        return ReplayEnd(
            thread_id=lease.thread_id,
            checkpoint_id=lease.checkpoint_id,
            outcome=outcome,
            fence=lease.fence,
            attempt=lease.attempt,
            took_s=self._clock() - began,
            reason=reason,
            detail=detail,
            became=became,
            lost_phase=lost,
        )
