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
        fruitless = 0
        while not self._stopping and (wait or self._clock() < until):
            room = self.pace.room(len(self._running), now=self._clock())
            if room and (room >= self.pace.limit // 4 or not self._running):
                claimed = await self._claim_some(room)
                fruitless = 0 if claimed else fruitless + 1
                if not claimed and not self._running:
                    if not self._ahead:
                        break
                    continue
            if not self._running:
                break
            left = max(0.0, until - self._clock()) if not wait else 1.0
            # When a look found nothing more, wait for an end; else only until there is room.
            timeout = min(left, 0.25) if fruitless else left
            await asyncio.wait(self._running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def _claim_some(self, room: int) -> int:
        """Claim up to ``room`` refs, from what was looked at before if any is left."""
        if not self._ahead:
            await self._look()
        if not self._ahead:
            if not self._running:
                self._idle_until = (
                    self._clock() + self._idle_for.total_seconds() * self._rng.uniform(0.9, 1)
                )
            return 0
        lots: list[tuple[int, list[Named], str]] = []
        wanted = 0
        while self._ahead and wanted < room:
            partition, refs, canary = self._ahead.popleft()
            take, rest = refs[: room - wanted], refs[room - wanted :]
            if rest:
                self._ahead.appendleft((partition, rest, canary))
            lots.append((partition, take, canary))
            wanted += len(take)
        claimed = await asyncio.gather(*(self._claim(*lot) for lot in lots))
        return sum(claimed)

    async def _look(self) -> None:
        """Peek at every partition whose counters show work, in one round trip."""
        work, due_later = await self._ledger.with_work()
        if not work:
            return
        self._rng.shuffle(work)
        most = -(-LOOK_AHEAD * self.pace.limit // len(work))
        peeks = await asyncio.gather(
            *(self._ledger.peek(partition, max(most, 1)) for partition in work)
        )
        word = await self._word_for(peek.word for peek in peeks)
        if word:
            self._round.waiting_for = word
            self._round.held = word in ("paused", "halted")
            if word == "not_frozen":
                return
            if self._round.held:
                return
        found = [
            (partition, list(peek.due), peek.canary)
            for partition, peek in zip(work, peeks, strict=True)
            if peek.due and peek.word in ("go", "canary")
        ]
        self._ahead.extend(found)
        if not found and due_later and not self._running:
            self._round.waiting_for = self._round.waiting_for or "nothing is due yet"

    async def _word_for(self, words: Any) -> str:
        stops = [word for word in words if word not in ("go", "canary")]
        return stops[0] if stops else ""

    async def _claim(self, partition: int, refs: Sequence[Named], canary: str) -> int:
        granted = len(refs)
        if canary:
            granted = await self._control.take_canary(len(refs))
            if granted == 0:
                if not self._running:
                    await self._pause("the canary's refs are done")
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

    async def settle(self, within: timedelta) -> int:
        """Let running replays finish for so long, cancel the rest; how many were cancelled.

        A cancelled replay gives its lease and its attempt back.
        """
        self.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=within.total_seconds())
        left = tuple(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, *self._background, return_exceptions=True)
        return len(left)
