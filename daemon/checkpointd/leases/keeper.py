"""The keeper: renews every held lease, and stops the replays of those that are not held any more."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from checkpointd.domain.errors import CheckpointdError, LeaseLostError
from checkpointd.domain.refs import Lease
from checkpointd.leases.clock import boottime

log = structlog.get_logger(__name__)


class ForkedError(CheckpointdError):
    """A lease was taken in another process than the one that uses it."""

    def __init__(self) -> None:
        super().__init__(
            "this keeper was made in another process; a lease does not survive a fork, so make "
            "one in each process"
        )


class Guard:
    """A held lease, as its replay sees it."""

    def __init__(
        self,
        lease: Lease,
        deadline: float,
        task: asyncio.Task[object],
        clock: Callable[[], float],
        gives_up_at: float,
    ) -> None:
        self.lease = lease
        self.deadline = deadline
        self.lost = False
        self.gives_up_at = gives_up_at
        """When this lease is not renewed any more: its replay should long have been cancelled."""
        self.lost_at: float | None = None
        self.is_told = False
        """Whether ``on_stuck`` has been told of it."""
        self._cancelled = False
        self._cancels_before = task.cancelling()
        self._task = task
        self._clock = clock
        self._pid = os.getpid()

    @property
    def is_held(self) -> bool:
        """Whether work may go on, judged locally: sooner than the store would say no."""
        return not self.lost and self._clock() < self.deadline and os.getpid() == self._pid

    def check(self) -> None:
        """Return if work may go on, else raise ``LeaseLostError``.

        Called before each effect and before the commit: a holder that slept, or whose loop
        was blocked, has not been told by anybody else.
        """
        if os.getpid() != self._pid:
            raise ForkedError
        if not self.is_held:
            self._mark_lost()
            raise LeaseLostError(self.lease.name, self.lease.fence)

    def lose(self) -> None:
        """Stop the replay: its lease is over. Again: nothing."""
        if not self.lost:
            self._mark_lost()
            self._cancelled = True
            self._task.cancel()

    def _mark_lost(self) -> None:
        self.lost = True
        if self.lost_at is None:
            self.lost_at = self._clock()

    def replayed(self) -> None:
        """The replay has come back: from here the lease is renewed for as long as it is held."""
        self.gives_up_at = math.inf

    def took_back(self) -> bool:
        """Take this guard's own cancellation back; whether the task was cancelled by nothing else.

        ``False`` means that a cancellation that was caught must pass on. Again: ``False``.
        """
        if not self._cancelled:
            return False
        self._cancelled = False
        return self._task.uncancel() <= self._cancels_before


class Keeper:
    """Keeps leases while their replays run."""

    def __init__(
        self,
        renew: Callable[[Lease], Awaitable[bool]],
        *,
        ttl_s: float,
        deadline_s: float,
        renew_every_s: float,
        on_stuck: Callable[[Lease], None] = lambda _lease: None,
        clock: Callable[[], float] = boottime,
        rng: random.Random | None = None,
    ) -> None:
        """``on_stuck`` is told once of each replay that goes on a TTL after it was cancelled."""
        self._renew = renew
        self._ttl_s = ttl_s
        self._deadline_s = deadline_s
        self._renew_every_s = renew_every_s
        self._on_stuck = on_stuck
        self.clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads ticks, guards nothing
        self._guards: set[Guard] = set()
        self._renewals: dict[Guard, asyncio.Task[None]] = {}
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._guards)

    @contextlib.asynccontextmanager
    async def hold(
        self, lease: Lease, *, sent_at: float, replay_s: float = math.inf
    ) -> AsyncIterator[Guard]:
        """Keep this lease while the body runs; the body's task is cancelled when it is lost.

        ``sent_at`` is this keeper's clock before the request that took the lease was sent.
        A body cancelled for the loss sees ``LeaseLostError``; any other cancellation passes.
        The replay is cancelled by its caller after ``replay_s``; if that has not ended it a
        TTL later, its lease is given up, so that code which ignores cancellation does not keep
        its ref from everybody for good.
        """
        if os.getpid() != self._pid:
            raise ForkedError
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease is held by a task, and none is running here")
        gives_up_at = self.clock() + replay_s + self._ttl_s
        guard = Guard(lease, sent_at + self._deadline_s, task, self.clock, gives_up_at)
        self._guards.add(guard)
        try:
            guard.check()
            yield guard
        except asyncio.CancelledError:
            if guard.took_back():
                raise LeaseLostError(lease.name, lease.fence) from None
            raise
        finally:
            guard.took_back()  # of a body that let it through
            self._guards.discard(guard)
            if renewal := self._renewals.pop(guard, None):
                renewal.cancel()

    async def run(self) -> None:
        """Tick until cancelled. No error ends it: a keeper that dies loses all."""
        took_s = 0.0
        try:
            while True:
                period_s = self._renew_every_s * self._rng.uniform(0.8, 1.2)
                await asyncio.sleep(max(0.0, period_s - took_s))
                began = self.clock()
                try:
                    await self.tick()
                except Exception:  # whatever it was, the leases need the next tick
                    log.exception("lease_tick_failed")
                took_s = self.clock() - began
        finally:
            left = tuple(self._renewals.values())
            for renewal in left:
                renewal.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def tick(self) -> None:
        """Stop what is past its deadline, then renew all others, in one round trip a shard.

        Returns when all have answered, or after a period, or at the first deadline: a store
        that does not answer must not keep a replay going. A renewal that is still under way
        goes on, and no second one is sent beside it.
        """
        self._judge_all()
        for guard in self._guards:
            if not guard.lost and guard not in self._renewals:
                renewal = asyncio.create_task(self._renewed(guard), name="renewal")
                renewal.add_done_callback(_trouble_of)  # its guard may be gone by then
                self._renewals[guard] = renewal
        if not self._renewals:
            return
        first = min((g.deadline for g in self._renewals if not g.lost), default=math.inf)
        patience_s = max(0.0, min(self._renew_every_s, first - self.clock()))
        await asyncio.wait(tuple(self._renewals.values()), timeout=patience_s)
        self._judge_all()
        troubles: list[BaseException] = []
        for guard, renewal in tuple(self._renewals.items()):
            if not renewal.done():
                continue
            del self._renewals[guard]
            if trouble := _trouble_of(renewal):
                troubles.append(trouble)
        if troubles:
            # The deadlines stay as they are: silence is not a renewal.
            told = str(troubles[0]) or type(troubles[0]).__name__
            log.warning("leases_unrenewed", count=len(troubles), error=told)

    def _judge_all(self) -> None:
        """Stop what is past its deadline; tell of what goes on though it was stopped."""
        now = self.clock()
        for guard in tuple(self._guards):
            if not guard.is_held or now >= guard.gives_up_at:
                guard.lose()
            if guard.lost_at is None:
                continue
            if now >= min(guard.lost_at + self._ttl_s, guard.gives_up_at):
                self._tell(guard)

    def give_up(self) -> None:
        """Tell of every replay that goes on, as of a stuck one: all were to have ended by now."""
        for guard in tuple(self._guards):
            guard.lose()
            self._tell(guard)

    def _tell(self, guard: Guard) -> None:
        if not guard.is_told:
            guard.is_told = True
            self._on_stuck(guard.lease)

    async def _renewed(self, guard: Guard) -> None:
        sent_at = self.clock()
        if await self._renew(guard.lease):
            guard.deadline = max(guard.deadline, sent_at + self._deadline_s)
        elif guard in self._guards:
            guard.lose()


def _trouble_of(renewal: asyncio.Task[None]) -> BaseException | None:
    """What a renewal that has ended came to, if not to an answer."""
    return asyncio.CancelledError() if renewal.cancelled() else renewal.exception()
