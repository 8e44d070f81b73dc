"""The keeper: renews every held lease, and stops the replays of those that are not held any more."""

from __future__ import annotations

import asyncio
import contextlib
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
        self, lease: Lease, deadline: float, task: asyncio.Task[object], clock: Callable[[], float]
    ) -> None:
        self.lease = lease
        self.deadline = deadline
        self.lost = False
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
            self.lost = True
            raise LeaseLostError(self.lease.name, self.lease.fence)

    def lose(self) -> None:
        """Stop the replay: its lease is over. Again: nothing."""
        if not self.lost:
            self.lost = True
            self._task.cancel()


class Keeper:
    """Keeps leases while their replays run."""

    def __init__(
        self,
        renew: Callable[[Lease], Awaitable[bool]],
        *,
        deadline_s: float,
        renew_every_s: float,
        clock: Callable[[], float] = boottime,
        rng: random.Random | None = None,
    ) -> None:
        self._renew = renew
        self._deadline_s = deadline_s
        self._renew_every_s = renew_every_s
        self.clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads ticks, guards nothing
        self._guards: set[Guard] = set()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._guards)

    @contextlib.asynccontextmanager
    async def hold(self, lease: Lease, *, sent_at: float) -> AsyncIterator[Guard]:
        """Keep this lease while the body runs; the body's task is cancelled when it is lost.

        ``sent_at`` is this keeper's clock before the request that took the lease was sent.
        A body cancelled for the loss sees ``LeaseLostError``; any other cancellation passes.
        """
        if os.getpid() != self._pid:
            raise ForkedError
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease is held by a task, and none is running here")
        guard = Guard(lease, sent_at + self._deadline_s, task, self.clock)
        self._guards.add(guard)
        try:
            guard.check()
            yield guard
        except asyncio.CancelledError:
            if not guard.lost or task.uncancel() > 0:
                raise
            raise LeaseLostError(lease.name, lease.fence) from None
        finally:
            self._guards.discard(guard)

    async def run(self) -> None:
        """Tick until cancelled. No error of the store ends it: a keeper that dies loses all."""
        while True:
            jitter = self._rng.uniform(0.8, 1.2)
            await asyncio.sleep(self._renew_every_s * jitter)
            await self.tick()

    async def tick(self) -> None:
        """Stop what is past its deadline, then renew all others, in one round trip a shard."""
        for guard in tuple(self._guards):
            if not guard.is_held:
                guard.lose()
        held = [guard for guard in self._guards if not guard.lost]
        if not held:
            return
        sent_at = self.clock()
        answers = await asyncio.gather(
            *(self._renew(guard.lease) for guard in held), return_exceptions=True
        )
        troubles = [a for a in answers if isinstance(a, BaseException)]
        if troubles:
            # The deadlines stay as they are: silence is not a renewal.
            log.warning("leases_unrenewed", count=len(troubles), error=str(troubles[0]))
        for guard, answer in zip(held, answers, strict=True):
            if answer is True:
                guard.deadline = max(guard.deadline, sent_at + self._deadline_s)
            elif answer is False and guard in self._guards:
                guard.lose()
