"""Looks at the store while the faults go on: what no reading afterwards could show.

It keeps the whole audit, of which the store holds only the newest part, and sees that no lease
is ever without a TTL and no epoch ever falls.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import redis.asyncio as aioredis
import redis.exceptions as rx

from .books import Step, audit_keys, steps_of


class Observer:
    """One connection of its own, past every proxy."""

    EVERY_S = 0.1
    LOT = 2000

    def __init__(self, client: aioredis.Redis, namespace: str, partitions: int) -> None:
        self._client = client
        self._namespace = namespace
        self._partitions = partitions
        self._seen = dict.fromkeys(audit_keys(namespace, partitions), "-")
        self._epochs = [0] * partitions
        self.steps: dict[str, list[Step]] = {key: [] for key in self._seen}
        self.findings: set[str] = set()
        self.looks = 0
        self.leases_seen = 0

    async def run(self) -> None:
        """Look until cancelled. A store that is away is looked at again."""
        while True:
            with contextlib.suppress(rx.RedisError, OSError):
                await self.look()
            await asyncio.sleep(self.EVERY_S)

    async def look(self) -> None:
        """Once: leases, epochs, and what is new in the audit."""
        await self._look_at_leases()
        await self._look_at_epochs()
        for key in self._seen:
            await self._follow(key)
        self.looks += 1

    async def _look_at_leases(self) -> None:
        pattern = f"{{{self._namespace}:*:lease:*"
        keys = [key async for key in self._client.scan_iter(match=pattern, count=1000)]
        keys += [
            key
            async for key in self._client.scan_iter(
                match=f"{{{self._namespace}:meta}}:turn:*", count=1000
            )
        ]
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.pttl(key)
            for key, ttl in zip(keys, await pipe.execute(), strict=True):
                self.leases_seen += 1
                if ttl == -1:
                    self.findings.add(f"the lease {key.decode()!a} has no TTL")

    async def _look_at_epochs(self) -> None:
        # The copies first: the declared epoch may rise in between, and never falls.
        async with self._client.pipeline(transaction=False) as pipe:
            for p in range(self._partitions):
                pipe.hget(f"{{{self._namespace}:{p}}}:control", "epoch")
            pipe.hget(f"{{{self._namespace}:meta}}", "epoch")
            *copies, declared = [int(epoch or 0) for epoch in await pipe.execute()]
        for p, epoch in enumerate(copies):
            if epoch < self._epochs[p]:
                self.findings.add(
                    f"the control copy of partition {p} fell from epoch {self._epochs[p]} to {epoch}"
                )
            if epoch > declared:
                self.findings.add(f"partition {p} carries epoch {epoch} of {declared} declared")
            self._epochs[p] = epoch

    async def _follow(self, key: str) -> None:
        while True:
            entries: Any = await self._client.xrange(key, min=self._seen[key], count=self.LOT)
            for entry in entries:
                self.steps[key] += steps_of(entry)
                self._seen[key] = f"({entry[0].decode()}"
            if len(entries) < self.LOT:
                return
