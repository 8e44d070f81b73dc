"""Interrupted everywhere: at each wait of each pass, and the next pass brings it to the same end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.passes.world import KERNEL, YOUNG, World, ref

from checkpointd.domain.errors import (
    AlreadyMigratedError,
    PermanentReplayError,
    StoreError,
    TransientReplayError,
)
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.states import WriterLine
from checkpointd.registry.control import HalfCopiedError

from .interrupts import End, Interrupter, Moment

Step = Callable[[World], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """One kind of work."""

    prepare: Step
    work: Step
    again: Step
    """What the next process does: the same, undisturbed."""


# Adopt -----------------------------------------------------------------------------------------


async def _legacy_threads(world: World) -> None:
    world.source.holds("closed")
    world.source.holds("paused", verdict=Verdict.PAUSED)
    world.source.holds("crashed", "good")
    world.source.holds("crashed", "half", Verdict.OPEN)
    world.source.holds("moved", "old")
    await world.adopt()
    world.source.holds("moved", "new")
    world.source.holds("later")


async def _adopt(world: World) -> None:
    await world.adopt(page=2)


# Reconcile -------------------------------------------------------------------------------------


async def _open_windows(world: World) -> None:
    for n in range(3):
        await world.registry.register(ref(f"dead-{n}", line=KERNEL), finalized=False)
    await world.registry.register(ref("alive", age=YOUNG), finalized=False)
    await world.registry.register(ref("whole"))


async def _reconcile(world: World) -> None:
    await world.reconcile()


# Freeze ----------------------------------------------------------------------------------------


async def _refs(world: World) -> None:
    for n in range(3):
        await world.registry.register(ref(f"t-{n}"))


async def _freeze(world: World) -> None:
    await world.freeze()


async def _freeze_again(world: World) -> None:
    await world.counting().run()  # any replica's census completes what was declared
    await world.freeze()
    word = await world.control.read()
    assert word.legacy_frozen
    tally = await world.tally()
    assert (tally.baseline, tally.copies_carrying) == (3, tally.copies_declared)


# Drain -----------------------------------------------------------------------------------------


async def _frozen_refs(world: World) -> None:
    for thread in ("plain", "stumbles", "refused"):
        world.source.holds(thread)
    await world.adopt()
    await world.freeze()
    world.replayer.will("stumbles", TransientReplayError("not now"))
    world.replayer.always["refused"] = PermanentReplayError("unanswered_call")


async def _drain(world: World) -> None:
    drain = world.draining()
    try:
        await drain.run(within=timedelta(days=1), wait=True)
    finally:
        await drain.settle(timedelta(0))


async def _drain_again(world: World) -> None:
    for _ in range(3):
        await _drain(world)
        await world.make_due()


# Commit ----------------------------------------------------------------------------------------


async def _one_ref(world: World) -> None:
    await world.registry.register(ref())


async def _migrate(world: World) -> None:
    registry = world.registry
    async with registry.migration_lock("t", "c1") as lease:
        await registry.commit_replay(lease, ref("t", "new", line=WriterLine.KERNEL), "b")


async def _migrate_again(world: World) -> None:
    try:
        await _migrate(world)
    except AlreadyMigratedError:
        link = await world.registry.migration_of("t", "c1")
        assert link is not None


CASES = {
    "adopt": Case(_legacy_threads, _adopt, _adopt),
    "reconcile": Case(_open_windows, _reconcile, _reconcile),
    "freeze": Case(_refs, _freeze, _freeze_again),
    "drain": Case(_frozen_refs, _drain, _drain_again),
    "commit": Case(_one_ref, _migrate, _migrate_again),
}


async def _ends(world: World) -> dict[str, str]:
    """Every ref's state, and what it became."""
    found: dict[str, str] = {}
    async for lot in world.store.threads():
        for thread in lot:
            for record in await world.registry.records_of(thread):
                became = record.link.checkpoint_id if record.link else ""
                found[f"{thread}/{record.ref.checkpoint_id}"] = f"{record.state} {became}".strip()
    return found


async def _attempt(worlds: Any, case: Case, interrupter: Interrupter) -> dict[str, str]:
    """Prepared, interrupted, and gone on with by another process: how every ref ends."""
    worlds.another()
    first = await worlds.open("first")
    await case.prepare(first)
    second = await worlds.open("second", like=first)
    second.source, second.replayer = _unwired(first)
    interrupter.wires(first)
    try:
        async with asyncio.timeout(20):
            await interrupter.runs(case.work(first))
    except (StoreError, HalfCopiedError):
        assert interrupter.struck
    await first.aclose()
    await first.store.scripts.settle()
    await second.break_leases()
    for turn in ("adopt", "recount"):
        key = second.store.keys.turn_of(turn)
        await second.store.write(lambda c, k=key: c.delete(k))
    await case.again(second)
    return await _ends(second)


def _unwired(world: World) -> tuple[Any, Any]:
    """The source and the replayer as the next process meets them."""
    source, replayer = type(world.source)(), type(world.replayer)()
    source.threads = world.source.threads
    replayer.plans, replayer.always = world.replayer.plans, world.replayer.always
    return source, replayer


class TestInterruptedAtEveryWait:
    @pytest.mark.parametrize("end", list(End))
    @pytest.mark.parametrize("name", sorted(CASES))
    async def test_the_next_pass_comes_to_the_same_end(
        self, worlds: Any, name: str, end: End
    ) -> None:
        case = CASES[name]
        undisturbed = Interrupter()
        expected = await _attempt(worlds, case, undisturbed)
        assert await worlds.findings() == []
        assert undisturbed.waits > 1
        for moment in Moment:
            n, struck = 0, True
            while struck:  # until the work has fewer waits than that
                n += 1
                interrupter = Interrupter(at=n, end=end, moment=moment)
                ended = await _attempt(worlds, case, interrupter)
                struck = interrupter.struck
                where = f"{name} {end} {moment} wait {n}"
                assert ended == expected, where
                assert await worlds.findings() == [], where
