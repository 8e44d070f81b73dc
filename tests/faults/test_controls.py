"""The checker can fail: each guard taken out of the scripts alone is found, by what it guards.

The storm finds the same in whole runs (``python -m tests.faults WITHOUT=…``); here each guard's
moment is made by hand, so that it comes every time.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from tests.passes.world import GRACE, KERNEL, World, ref

from checkpointd.domain.errors import LeaseLostError
from checkpointd.domain.refs import to_us
from checkpointd.domain.states import CRASH_EXPIRY_REASON, FailureReason, WriterLine

from .inside.fault_controls import GUARDS, removed


async def _two_claims(world: World, peer: World) -> Any:
    """The lease of a holder that slept, and beside it another's at work on the same ref."""
    await world.registry.register(ref())
    await world.freeze()
    slept = await world.claimed()
    await world.break_leases()
    await peer.claimed()
    return slept


async def _commit_late(world: World, peer: World) -> None:
    slept = await _two_claims(world, peer)
    with contextlib.suppress(LeaseLostError):
        await world.ledger.commit(slept, "new", WriterLine.KERNEL, "b")


async def _fail_late(world: World, peer: World) -> None:
    slept = await _two_claims(world, peer)
    await world.ledger.fail(
        slept,
        reason=FailureReason.OTHER,
        detail="",
        permanent=True,
        again_in=timedelta(0),
        max_attempts=3,
    )


async def _expire_late(world: World, peer: World) -> None:
    await world.registry.register(ref(line=KERNEL), finalized=False)
    partition = world.store.keys.index("t")
    now_us = to_us(await world.store.now())
    looked = await world.expiry.due_in(partition, limit_us=now_us, skip=0, most=9)
    assert looked
    await peer.registry.finalize("t", "c1")
    await world.expiry.expire_members(
        partition,
        looked,
        grace_us=GRACE // timedelta(microseconds=1),
        actor="reconcile a 1",
        reason=CRASH_EXPIRY_REASON,
    )


async def _expire(world: World, peer: World) -> None:
    await world.registry.register(ref(line=KERNEL), finalized=False)
    assert await world.reconcile() == ["t/c1"]


async def _migrate(world: World, peer: World) -> None:
    await world.registry.register(ref())
    await peer.migrates("t")


async def _copy_late(world: World, peer: World) -> None:
    await world.freeze()
    word = await world.control.read()
    await peer.registry.thaw_issuance(reason="again")
    await world.control._copy(word, "the late freeze")


MOMENTS = {
    "commit_lease": _commit_late,
    "fail_fence": _fail_late,
    "expire_finalized": _expire_late,
    "expired_counter": _expire,
    "state_counter": _migrate,
    "thaw_epoch": _copy_late,
}


class TestEachGuard:
    def test_has_its_moment(self) -> None:
        assert set(MOMENTS) == set(GUARDS)

    @pytest.mark.parametrize("guard", sorted(GUARDS))
    async def test_is_missed_by_the_checker_when_it_is_gone(self, worlds: Any, guard: str) -> None:
        with removed(guard):
            await MOMENTS[guard](await worlds.open("a"), await worlds.open("b"))
        assert await worlds.findings()

    @pytest.mark.parametrize("guard", sorted(GUARDS))
    async def test_keeps_the_books_clean_where_it_stands(self, worlds: Any, guard: str) -> None:
        await MOMENTS[guard](await worlds.open("a"), await worlds.open("b"))
        assert await worlds.findings() == []
