"""The status of a million refs, in process."""

from __future__ import annotations

import time

from benchmarks.figures import Figure, median, quantile
from benchmarks.loading import due, overdue, send, settled
from benchmarks.servers import client_of, url_of
from checkpointd.app.rooms import open_rooms
from checkpointd.config import Settings

SETTLED = 980_000
OTHERS = 10_000
"""Refs that are open, and as many that are due: the rest are settled."""


async def measured(path: str, *, times: int = 50) -> list[Figure]:
    """How long the counters, the drain's word for them and the document take, the slowest too."""
    settings = Settings.model_validate({"redis": {"url": url_of(path, 6)}})
    took: list[float] = []
    async with open_rooms(settings, actor="bench") as rooms:
        keys = rooms.store.keys
        began = time.perf_counter()
        send(path, settled(keys, SETTLED), db=6)
        send(path, overdue(keys, [f"open-{n}" for n in range(OTHERS)]), db=6)
        send(path, due(keys, [f"due-{n}" for n in range(OTHERS)]), db=6)
        loaded_s = time.perf_counter() - began
        tally, _, document = await rooms.status()
        for _ in range(times):
            began = time.perf_counter()
            tally, _, document = await rooms.status()
            took.append((time.perf_counter() - began) * 1000)
        refs = sum(document["refs"].values()) + sum(document["kernel"].values())
        assert refs == SETTLED + 2 * OTHERS, f"status counts {refs} refs"
        assert tally.open_overdue == tally.due == OTHERS
        recounted = await rooms.tallies.recount("bench")
        assert recounted == {"agrees": keys.partitions, "differs": 0, "moved": 0}, recounted
    with client_of(path, 6) as client:
        client.flushdb()
    return [
        Figure(
            name=f"status over {refs:,} refs, in process, the slowest of {times}",
            value=max(took),
            keeps="<=",
            target=50,
            unit="ms",
            rounds=[median(took), quantile(took, 0.9)],
            facts={"loaded_in_s": round(loaded_s, 1)},
        )
    ]
