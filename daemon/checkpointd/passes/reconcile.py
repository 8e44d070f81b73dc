"""Reconcile: expire what a crash left open, and doubt oneself when everything looks dead."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta

from checkpointd.domain.errors import StoreError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.reports import ReconcileReport
from checkpointd.domain.states import CRASH_EXPIRY_REASON, HoldReason, PassName
from checkpointd.registry.control import Control
from checkpointd.registry.expiry import BATCH, Expiry

MASS_SHARE = 0.05
"""From this share of the open refs overdue at once, it is more likely us than them."""

AT_ONCE = 3
"""Partitions at once, where no allowance is shared out: one's records are read while the store
is at work on another."""


class Reconcile:
    """Expires overdue refs, round the partitions."""

    def __init__(
        self,
        expiry: Expiry,
        control: Control,
        *,
        grace: timedelta,
        max_expiries: int,
        replica: str,
        rng: random.Random | None = None,
    ) -> None:
        if grace <= timedelta(0):
            raise ValueError(f"the grace is {grace}; it must be positive, or honest turns expire")
        self._expiry = expiry
        self._control = control
        self.grace = grace
        self.max_expiries = max_expiries
        self._replica = replica
        self._rng = rng or random.Random()  # noqa: S311 - spreads replicas, guards nothing

    async def run(self, *, dry_run: bool = False) -> ReconcileReport:
        """Expire each overdue ref once. Again: what expired is not reported any more."""
        word = await self._control.read()
        if PassName.RECONCILE in word.paused and not dry_run:
            return ReconcileReport(
                at=await self._expiry.now(),
                grace_s=self.grace.total_seconds(),
                skipped=f"paused: {word.paused[PassName.RECONCILE]}",
            )
        if dry_run:
            return await self._look()
        beat = await self._expiry.beat(grace=self.grace)
        inspected, overdue = await self._expiry.overdue(grace=self.grace, now=beat.at)
        held, most = await self._brake(beat.held, inspected, overdue)
        if held is None and most is None and (unused := int(word.raw.get("allowed") or 0)):
            # The mass it was given for has gone; left over, it would let the next one pass.
            await self._expiry.take_allowed(unused)
        expired: list[CheckpointRef] = []
        troubles: list[str] = []
        if held is None and overdue:
            unheard = await self._expire(beat.at, most, expired, troubles)
            if most is not None:
                await self._expiry.give_allowed(most - len(expired) - unheard)
        return ReconcileReport(
            at=beat.at,
            grace_s=self.grace.total_seconds(),
            inspected=inspected,
            overdue=overdue,
            expired=tuple(expired),
            held=held,
            troubles=tuple(troubles),
        )

    async def _look(self) -> ReconcileReport:
        now = await self._expiry.now()
        inspected, overdue = await self._expiry.overdue(grace=self.grace, now=now)
        return ReconcileReport(
            at=now,
            grace_s=self.grace.total_seconds(),
            inspected=inspected,
            overdue=overdue,
            expired=await self._expiry.would_expire(grace=self.grace, now=now),
            dry_run=True,
        )

    async def _brake(
        self, held: HoldReason | None, inspected: int, overdue: int
    ) -> tuple[HoldReason | None, int | None]:
        """Why expiry is held, if it is; and how much an operator allows, if only that."""
        if held is HoldReason.STORE_GAP:
            return held, None
        if overdue > max(self.max_expiries, int(MASS_SHARE * inspected)):
            if await self._expiry.hold_mass(overdue):
                return HoldReason.MASS, None
            granted = await self._expiry.take_allowed(overdue)
            return (None, granted) if granted else (HoldReason.MASS, None)
        if held is HoldReason.MASS:
            await self._expiry.release_hold(HoldReason.MASS)
        return None, None

    async def _expire(
        self,
        now: datetime,
        most: int | None,
        expired: list[CheckpointRef],
        troubles: list[str],
    ) -> int:
        """Round the partitions; how many of ``most`` may be used up by steps nobody heard of."""
        unheard = 0
        actor = self._expiry.pass_actor(self._replica)
        partitions = list(range(self._expiry.partitions))
        self._rng.shuffle(partitions)
        turns = iter(partitions)

        async def go_round() -> None:
            nonlocal unheard
            for partition in turns:
                left = None if most is None else most - len(expired) - unheard
                if left is not None and left <= 0:
                    return
                try:
                    async for lot in self._expiry.expire_overdue(
                        partition,
                        now=now,
                        grace=self.grace,
                        actor=actor,
                        reason=CRASH_EXPIRY_REASON,
                        most=left,
                    ):
                        expired.extend(lot)
                except StoreError as error:
                    troubles.append(f"partition {partition}: {error}")
                    if most is not None:
                        unheard += min(BATCH, most - len(expired) - unheard)

        at_once = AT_ONCE if most is None else 1
        for ended in await asyncio.gather(
            *(go_round() for _ in range(at_once)), return_exceptions=True
        ):
            if ended is not None:
                raise ended
        return unheard
