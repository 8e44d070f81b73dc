"""Census: read the counters, decide the drain's state, and finish what others left half done."""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta

import structlog

from checkpointd.domain.drain import DrainRules, assess, breaker_trips, is_frozen, unfinished
from checkpointd.domain.errors import StoreError
from checkpointd.domain.reports import CensusReport
from checkpointd.domain.states import DrainState, ThrottleReason
from checkpointd.domain.tally import DrainStatus, StoreTally
from checkpointd.registry.control import Control
from checkpointd.registry.expiry import Expiry
from checkpointd.registry.tallies import Tallies

log = structlog.get_logger(__name__)


class Census:
    """Counts, and keeps the control word and the drain's marks up to date."""

    def __init__(
        self,
        tallies: Tallies,
        control: Control,
        expiry: Expiry,
        *,
        rules: DrainRules,
        grace: timedelta,
        replica: str,
    ) -> None:
        self._tallies = tallies
        self._control = control
        self._expiry = expiry
        self.rules = rules
        self.grace = grace
        self._replica = replica
        self._recount: asyncio.Task[None] | None = None

    async def run(
        self,
        *,
        throttled: ThrottleReason | None = None,
        dry_run: bool = False,
        wait: bool = False,
    ) -> CensusReport:
        """One look. ``throttled`` is this replica's own word, kept for the others to see.

        A recount that is needed goes on beside the following censuses; with ``wait`` it is
        waited for. ``dry_run`` only reads.
        """
        tally = await self._tallies.read(grace=self.grace)
        if dry_run:
            return CensusReport(
                at=tally.at, tally=tally, status=assess(tally, self.rules), dry_run=True
            )
        await self._expiry.beat(grace=self.grace)
        if throttled is not None:
            await self._tallies.note_throttle(throttled, at=tally.at)
        completed = await self._complete(tally)
        halted = await self._breaker(tally)
        if self._wants_recount(tally):
            self._begin_recount()
            if wait and self._recount is not None:
                await asyncio.shield(self._recount)
        if completed or halted or wait:
            tally = await self._tallies.read(grace=self.grace)
        status = assess(tally, self.rules)
        return CensusReport(
            at=tally.at,
            tally=tally,
            status=status,
            completed_copies=completed,
            marked=await self._mark(tally, status),
            halted=halted,
        )

    async def aclose(self) -> None:
        """End a recount under way; what it had counted is not kept."""
        if self._recount is not None:
            self._recount.cancel()
            await asyncio.gather(self._recount, return_exceptions=True)

    async def _complete(self, tally: StoreTally) -> bool:
        """Bring a control change home whose declarer died between its rounds."""
        half = tally.copies_carrying < tally.copies_declared and tally.epoch > 0
        if half or (tally.frozen is not None and tally.freeze_in_force_at is None):
            await self._control.complete()
            return True
        return False

    async def _breaker(self, tally: StoreTally) -> bool:
        """Halt the drain if most replays of this window failed for reasons of their own."""
        trips = breaker_trips(failed=tally.replays_failed, ended=tally.replays_ended)
        if trips is None or tally.halted_reason:
            return False
        if not trips:
            await self._control.judge_anew()
            return False
        reason = f"{tally.replays_failed} of {tally.replays_ended} replays failed"
        return await self._control.halt(
            reason=reason, actor=f"census {self._replica}", epoch=tally.epoch
        )

    def _wants_recount(self, tally: StoreTally) -> bool:
        return is_frozen(tally) and unfinished(tally) == 0 and not tally.recounted

    def _begin_recount(self) -> None:
        if self._recount is None or self._recount.done():
            self._recount = asyncio.create_task(self._count_again(), name="recount")

    async def _count_again(self) -> None:
        try:
            found = await self._tallies.recount(secrets.token_hex(16))
        except StoreError as error:
            log.warning("recount_failed", error=str(error))
        else:
            if found is not None and found["differs"]:
                log.error("counters_mended", partitions=found["differs"])

    async def _mark(self, tally: StoreTally, status: DrainStatus) -> str:
        if status.state is DrainState.DRAINED and tally.drained_at is None:
            word = "drained"
        elif tally.drained_at is not None and is_frozen(tally) and _has_reopened(tally):
            word = "reopened"
        else:
            return ""
        is_first = await self._tallies.mark(
            word, transitions=tally.transitions, births=tally.births
        )
        return word if is_first else ""


def _has_reopened(tally: StoreTally) -> bool:
    """Whether something legacy came after the end, also if it is gone again by now."""
    return unfinished(tally) > 0 or tally.births > tally.drained_births
