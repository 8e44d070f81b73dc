"""One side of a race, as a process of its own: ``racing.py URL NAMESPACE SIDE ROUNDS REFS``.

Both sides meet before every round, then one finalizes the round's refs while the other expires
those that are old enough, which all of them are. Prints as JSON what it was told of each.

The sides take turns at beginning, so that each wins its share on any machine: in even rounds the
reconciler begins when half is finalized, in odd ones the finalizer when the first has expired.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from datetime import timedelta
from typing import Any

from checkpointd.domain.errors import CheckpointExpiredError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import WriterLine
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

GRACE = timedelta(seconds=1)


async def seen(store: Store, place: str, least: int) -> None:
    """Return when the number at ``place`` is at least this: the other process raises it."""
    while int(await store.read(lambda c: c.get(place)) or 0) < least:  # noqa: ASYNC110 - no event reaches across processes
        await asyncio.sleep(0)


async def met(store: Store, place: str) -> None:
    """Return when both sides are here: the second one in opens the door."""
    await store.write(lambda c: c.incr(place))
    await seen(store, place, 2)


async def first_expired(registry: RedisRegistry, ids: list[str]) -> None:
    """Return when one of these is expired."""
    while True:
        for name in ids:
            record = await registry.record_of(name, "c")
            if record is not None and record.ref.expired:
                return


async def finalizing(
    registry: RedisRegistry, store: Store, ids: list[str], half: str
) -> dict[str, str]:
    """Finalize each, a few at a time, and say when half is done; what each answer was."""

    async def one(name: str) -> str:
        try:
            return "finalized" if (await registry.finalize(name, "c")).finalized else "?"
        except CheckpointExpiredError:
            return "told"

    told: dict[str, str] = {}
    for at in range(0, len(ids), 25):
        lot = ids[at : at + 25]
        told |= dict(zip(lot, await asyncio.gather(*map(one, lot)), strict=True))
        if 2 * len(told) >= len(ids):
            await store.write(lambda c: c.set(half, 1))
    return told


async def expiring(registry: RedisRegistry) -> dict[str, str]:
    """Reconcile; what the report names."""
    report = await registry.reconcile_crash_expiry(grace=GRACE)
    return {ref.thread_id: "expired" for ref in report.expired}


async def main(url: str, namespace: str, side: str, rounds: int, refs: int) -> dict[str, str]:
    store = await Store.open(url, namespace=namespace, partitions=4)
    registry = RedisRegistry(store, actor=side)
    told: dict[str, str] = {}
    for n in range(rounds):
        ids = [f"r{n}-{i}" for i in range(refs)]
        if side == "finalize":
            old = await registry.now() - timedelta(hours=1)
            await asyncio.gather(
                *(
                    registry.register(
                        CheckpointRef(name, "c", WriterLine.KERNEL, old), finalized=False
                    )
                    for name in ids
                )
            )
            random.Random(n).shuffle(ids)  # noqa: S311 - an order, not a secret
        await met(store, f"{namespace}-begin-{n}")
        half = f"{namespace}-half-{n}"
        if side == "finalize":
            if n % 2:
                await first_expired(registry, ids[:5])
            told |= await finalizing(registry, store, ids, half)
        else:
            if n % 2 == 0:
                await seen(store, half, 1)
            told |= await expiring(registry)
        await met(store, f"{namespace}-end-{n}")
    await store.aclose()
    return told


if __name__ == "__main__":
    words: list[Any] = sys.argv[1:]
    print(json.dumps(asyncio.run(main(*words[:3], int(words[3]), int(words[4])))))  # noqa: T201
