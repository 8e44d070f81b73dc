"""Drain: claim due refs, replay them, commit or fail. Each await is a place where the process may die.

What a death leaves behind is a lease that runs out, an attempt that was counted before the
replay, and at most a replay whose effects the next one repeats under the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from typing_extensions import TypeIs

from checkpointd.domain.errors import StoreError
from checkpointd.domain.pace import Pace
from checkpointd.domain.refs import Lease
from checkpointd.domain.reports import DrainReport, ReplayEnd
from checkpointd.domain.states import (
    FailureReason,
    ReplayOutcome,
)
from checkpointd.leases.keeper import Keeper
from checkpointd.passes.replaying import Replaying, Reporter
from checkpointd.registry.control import Control
from checkpointd.registry.ledger import Claim, DrainLedger, Named, Taken

log = structlog.get_logger(__name__)

LOOK_AHEAD = 4
"""Refs looked at for each that may be claimed: some are busy, and one look serves several claims."""

CENSUSES_IDLE = 4
"""A drain without any ref to claim looks once where the census looks this often."""


@dataclass(slots=True)
class _Round:
    """What one pass did, as it adds up."""

    outcomes: Counter[ReplayOutcome] = field(default_factory=Counter)
    failures: Counter[FailureReason] = field(default_factory=Counter)
    acquired: int = 0
    busy: int = 0
    claim_errors: int = 0
    troubles: list[str] = field(default_factory=list)
    waiting_for: str = ""
    held: bool = False

    def ended(self, end: ReplayEnd) -> None:
        self.outcomes[end.outcome] += 1
        if end.reason is not None:
            self.failures[end.reason] += 1


class Drain:
    """Keeps up to ``concurrency`` replays going while there is work and time.

    Replays outlive the pass that began them, so a slow one holds no others up; ``settle`` waits
    for them, and whoever stops the daemon calls it.
    """

    def __init__(
        self,
        ledger: DrainLedger,
        control: Control,
        keeper: Keeper,
        replaying: Replaying,
        *,
        concurrency: int,
        max_attempts: int,
        idle_for: timedelta,
        report_end: Reporter,
        pause: Callable[[str], Coroutine[Any, Any, object]],
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._ledger = ledger
        self._control = control
        self._keeper = keeper
        self._replaying = replaying
        self.max_attempts = max_attempts
        self._idle_for = idle_for
        self._report_end = report_end
        self._pause = pause
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads replicas, guards nothing
        self.pace = Pace(ceiling=concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[object]] = set()
        self._ahead: deque[tuple[int, list[Named], str]] = deque()
        self._idle_until = 0.0
        self._stopping = False
        self._canary_spent = False
        self._round = _Round()

    @property
    def concurrency(self) -> int:
        """How many replays may run at once, at most."""
        return self.pace.ceiling

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        self.pace.ceiling = value
        self.pace.limit = max(1, min(self.pace.limit, value))

    @property
    def running(self) -> int:
        """Replays under way."""
        return len(self._running)

    def wake(self) -> None:
        """Look for work at the next pass, however idle the last one was."""
        self._idle_until = 0.0

    async def run(self, *, within: timedelta, wait: bool = False) -> DrainReport:
        """Work for ``within``, or until there is nothing to claim. ``wait`` waits for all replays.

        Idle, it asks the store nothing until ``idle_for`` has passed.
        """
        began, at = self._clock(), self._replaying.now()
        self._round = _Round()
        if began < self._idle_until and not wait:
            return DrainReport(at=at)
        try:
            await self._work(began + within.total_seconds(), wait=wait)
            if wait:
                while self._running:
                    await asyncio.wait(self._running)
        except StoreError as error:
            self._round.claim_errors += 1
            self._round.troubles.append(str(error))
        told = self._round
        return DrainReport(
            at=at,
            outcomes=dict(told.outcomes),
            failures=dict(told.failures),
            acquired=told.acquired,
            busy=told.busy,
            claim_errors=told.claim_errors,
            took_s=self._clock() - began,
            troubles=tuple(told.troubles),
            waiting_for=told.waiting_for,
            held=told.held,
        )

    async def _work(self, until: float, *, wait: bool) -> None:
        while not self._stopping and (wait or self._clock() < until):
            room = self.pace.room(len(self._running), now=self._clock())
            if room and (room >= self.pace.limit // 4 or not self._running):
                claimed = await self._claim_some(room)
                if not claimed and not self._running and self._ahead:
                    continue
            if not self._running:
                break
            left = None if wait else max(0.0, until - self._clock())
            await asyncio.wait(self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def _claim_some(self, room: int) -> int:
        """Claim up to ``room`` refs, from what was looked at before if any is left."""
        if not self._ahead:
            await self._look()
        lots: list[tuple[int, list[Named], str]] = []
        wanted = 0
        while self._ahead and wanted < room:
            partition, refs, canary = self._ahead.popleft()
            take, rest = refs[: room - wanted], refs[room - wanted :]
            if rest:
                self._ahead.appendleft((partition, rest, canary))
            lots.append((partition, take, canary))
            wanted += len(take)
        self._canary_spent = False
        claims = await asyncio.gather(*(self._claim(*lot) for lot in lots), return_exceptions=True)
        claimed = sum(n for n in claims if not self._is_trouble(n))
        if self._canary_spent and not claimed and not self._running:
            # Only now: a pause beside claims that were granted would refuse them.
            await self._pause("the canary's refs are done")
        return claimed

    def _is_trouble(self, answer: object) -> TypeIs[BaseException]:
        """Note what one partition's store would not do; the others' answers still count."""
        if isinstance(answer, StoreError):
            self._round.claim_errors += 1
            self._round.troubles.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        return isinstance(answer, BaseException)

    async def _look(self) -> None:
        """Peek at every partition whose counters show work, in one round trip."""
        work = await self._ledger.with_work()
        self._rng.shuffle(work)
        most = max(1, -(-LOOK_AHEAD * self.pace.limit // max(1, len(work))))
        answers = await asyncio.gather(
            *(self._ledger.peek(p, most) for p in work), return_exceptions=True
        )
        peeks = [(p, a) for p, a in zip(work, answers, strict=True) if not self._is_trouble(a)]
        stops = [peek.word for _, peek in peeks if peek.word not in ("go", "canary")]
        if stops:
            self._round.waiting_for = stops[0]
            self._round.held = stops[0] in ("paused", "halted")
        self._ahead.extend(
            (partition, list(peek.due), peek.canary)
            for partition, peek in peeks
            if peek.due and peek.word in ("go", "canary")
        )
        if not work and not self._running:
            self.pace.reached()  # nothing is left to probe with, nor to hold back
        if not self._ahead and not self._running and (stops or not work):
            # Nothing can become due by the passing of time: ask again when a census would; and
            # where there is nothing at all, leave it to the census, which wakes the drain.
            idle_s = self._idle_for.total_seconds() * self._rng.uniform(0.9, 1)
            self._idle_until = self._clock() + idle_s * (1 if work else CENSUSES_IDLE)

    async def _claim(self, partition: int, refs: Sequence[Named], canary: str) -> int:
        granted = len(refs)
        if canary:
            granted = await self._control.take_canary(len(refs))
            if granted == 0:
                self._canary_spent = True
                return 0
        taken = self._ledger.drawn(refs[:granted])
        sent_at, asked = self._keeper.clock(), self._clock()
        try:
            claim = await self._ledger.claim(
                partition,
                taken,
                most=granted,
                max_attempts=self.max_attempts,
                canary=canary,
            )
        except BaseException:
            # The reply may be lost while the keys hold our tokens: take them away by the tokens.
            self._in_background(self._give_back(taken), "release-unseen-claim")
            raise
        self.pace.answered(self._clock() - asked, now=self._clock())
        if canary:
            await self._control.give_canary(granted - len(claim.leases), epoch=canary)
        if claim.word != "go":
            # Its first reply may have been lost and have been another: then it holds leases.
            self._in_background(self._give_back(taken), "release-refused-claim")
        self._note(claim)
        for lease in claim.leases:
            self._begin(lease, sent_at)
        return len(claim.leases)

    def _note(self, claim: Claim) -> None:
        self._round.acquired += len(claim.leases)
        self._round.busy += claim.busy
        if claim.word != "go":
            self._round.waiting_for = claim.word
        if claim.corrupt:
            self._round.troubles.append(f"{claim.corrupt} records cannot be read")
        for record in claim.quarantined:
            self._tell(
                ReplayEnd(
                    thread_id=record.ref.thread_id,
                    checkpoint_id=record.ref.checkpoint_id,
                    outcome=ReplayOutcome.QUARANTINED,
                    attempt=record.attempts,
                    reason=FailureReason.ATTEMPTS_EXHAUSTED,
                    detail=record.detail,
                )
            )

    def _begin(self, lease: Lease, sent_at: float) -> None:
        task = asyncio.create_task(self._one(lease, sent_at), name=f"replay {lease.fence}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _one(self, lease: Lease, sent_at: float) -> None:
        end, throttle = await self._replaying.one(lease, sent_at=sent_at)
        now = self._clock()
        if throttle is not None:
            self.pace.unreachable(throttle, now=now)
            self._ahead.clear()
        elif end is not None:
            self.pace.reached()
            self.pace.ended(well=end.outcome is not ReplayOutcome.RETRYABLE, now=now)
        if end is not None:
            self._tell(end)

    def _tell(self, end: ReplayEnd) -> None:
        self._round.ended(end)
        self._report_end(end)

    async def _give_back(self, taken: Sequence[Taken]) -> None:
        with contextlib.suppress(StoreError):
            await self._ledger.release_tokens(taken)

    def _in_background(self, work: Coroutine[Any, Any, object], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Stopping ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True

    async def settle(self, within: timedelta, *, patience: timedelta | None = None) -> int:
        """Let running replays finish for so long, cancel the rest; how many were cancelled.

        A cancelled replay gives its lease and its attempt back. One that ignores it is waited
        for as long as ``patience``, if that is given, and left running.
        """
        self.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=within.total_seconds())
        left = tuple(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=patience.total_seconds() if patience else None)
        ended = (task for task in left if task.done())
        await asyncio.gather(*ended, *self._background, return_exceptions=True)
        return len(left)
