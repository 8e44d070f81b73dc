"""Worlds whose books are read by the checker of this suite, not by the package's own verification."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import redis.asyncio as aioredis
from tests.passes.world import PARTITIONS, World

from checkpointd.registry.store import Store

from .books import audit_keys, read_books, steps_of
from .checker import Evidence, check

_NUMBERS = itertools.count()


@asynccontextmanager
async def a_world(
    url: str, namespace: str, *, actor: str = "a", **how: Any
) -> AsyncIterator[World]:
    """A process's view of one registry."""
    store = await Store.open(url, namespace=namespace, partitions=PARTITIONS, environment="test")
    world = World(store, actor=actor, **how)
    try:
        yield world
    finally:
        await world.aclose()
        await store.aclose()


async def examined(url: str, namespace: str) -> list[str]:
    """What the checker finds in the store as it lies there."""
    client = aioredis.Redis.from_url(url)
    try:
        steps = {
            key: [step for entry in await client.xrange(key) or () for step in steps_of(entry)]
            for key in audit_keys(namespace, PARTITIONS)
        }
        return check(Evidence(await read_books(client, namespace, PARTITIONS), steps))
    finally:
        await client.aclose()


class Worlds:
    """Opens worlds, closes them all; names a registry for each scenario."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack
        self.namespace = ""
        self.another()

    def another(self) -> None:
        """A registry that nobody has used."""
        self.namespace = f"faults-{next(_NUMBERS)}"

    async def open(self, actor: str = "a", like: World | None = None, **how: Any) -> World:
        """A process on this registry; ``like`` gives it the same source and replayer."""
        world = await self._stack.enter_async_context(
            a_world(self.url, self.namespace, actor=actor, **how)
        )
        if like is not None:
            world.source, world.replayer = like.source, like.replayer
        return world

    async def findings(self) -> list[str]:
        return await examined(self.url, self.namespace)


@pytest.fixture
async def worlds(redis_server: Any) -> AsyncIterator[Worlds]:
    async with AsyncExitStack() as stack:
        yield Worlds(redis_server.url, stack)


@pytest.fixture
def skip_without() -> Callable[[str], None]:
    """``skip_without(why)``: skipped with the reason, if there is one."""

    def skip(why: str) -> None:
        if why:
            pytest.skip(why)

    return skip
