"""A whole drain on a store, with something happening to the store in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.passes.world import World, opened

from checkpointd.domain.errors import StoreError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import RefState, WriterLine
from checkpointd.registry.control import HalfCopiedError
from checkpointd.replay.port import ReplayRequest

_NUMBERS = itertools.count()
REFS = 300
WITHIN_S = 40.0


@dataclass
class Story:
    """What a drain met on its way."""

    troubles: list[str] = field(default_factory=list)
    rounds: int = 0
    took_s: float = 0.0
    recovered_in_s: float = 0.0


async def registered(world: World, names: list[str]) -> None:
    """A legacy ref in each thread, and the freeze in force."""
    created = datetime.now(UTC) - timedelta(hours=2)

    async def issued(name: str) -> None:
        await world.registry.register(CheckpointRef(name, "c", WriterLine.LEGACY, created))
        await world.registry.mark_safe_boundary(
            name, sequence=1, digest="d", writer_line=WriterLine.LEGACY
        )

    for at in range(0, len(names), 500):
        await asyncio.gather(*(issued(name) for name in names[at : at + 500]))
    await world.freeze()


@asynccontextmanager
async def a_world(url: str, **how: object) -> AsyncIterator[World]:
    """A registry of the test's own, its leases kept; at the end its books are held to its refs.

    Its leases are short, since those of a claim that was lost are waited for.
    """
    how.setdefault("lease_ttl", timedelta(seconds=4))
    async with opened(url, f"drain-{next(_NUMBERS)}", **how) as world:
        kept = asyncio.create_task(world.keeper.run(), name="keeper")
        try:
            yield world
        finally:
            kept.cancel()
            await asyncio.gather(kept, return_exceptions=True)


async def drain_through(
    world: World,
    refs: int = REFS,
    *,
    after: int = 50,
    happens: Callable[[], Awaitable[None]] | None = None,
    names: list[str] | None = None,
) -> Story:
    """Drain all of ``refs``; once ``after`` replays have begun, let something happen.

    At the end each ref is migrated once, whatever happened, and nothing was quarantined.
    """
    names = names or [f"t-{n:04}" for n in range(refs)]
    await registered(world, names)
    begun = asyncio.Event()

    async def replay(request: ReplayRequest) -> str:
        if len(world.replayer.requests) >= after:
            begun.set()
        await asyncio.sleep(0.005)
        return request.idempotency_key

    for name in names:
        world.replayer.always[name] = replay
    story = Story()

    async def trouble() -> None:
        await begun.wait()
        if happens is not None:
            await happens()

    happening = asyncio.create_task(trouble(), name="trouble")
    drain = world.draining(concurrency=8, source=False)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(WITHIN_S):
        while not (happening.done() and await _is_over(world, len(names), story)):
            drain.wake()
            report = await drain.run(within=timedelta(seconds=0.5))
            story.troubles += report.troubles
            story.rounds += 1
            await asyncio.sleep(0.02)
            await make_due(world)
        await happening
    await drain.settle(timedelta(seconds=5))
    story.took_s = asyncio.get_running_loop().time() - began
    await judge(world, names)
    return story


async def _is_over(world: World, refs: int, story: Story) -> bool:
    try:
        tally = await world.tally()
    except StoreError as error:
        story.troubles.append(str(error))
        return False
    assert tally.legacy[RefState.QUARANTINED] == 0
    return tally.legacy[RefState.MIGRATED] == refs


async def make_due(world: World) -> None:
    """What waits for a back-off or for a dead owner's lease is looked at now."""
    with contextlib.suppress(StoreError, HalfCopiedError):
        await world.make_due()


async def judge(world: World, names: list[str]) -> None:
    """One link a ref, the same however often it is read, and no ref without one."""
    tally = await world.tally()
    assert tally.legacy[RefState.MIGRATED] == len(names)
    assert sum(tally.legacy.values()) == len(names)
    assert sum(tally.kernel.values()) == len(names)
    for name in names:
        records = await world.registry.records_of(name)
        links = [record.link for record in records if record.link is not None]
        assert len(links) == 1
        assert len(records) == 2
        assert links[0].checkpoint_id in {record.ref.checkpoint_id for record in records}
