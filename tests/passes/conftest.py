"""A world for each test of a pass, its books checked when the test is over."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from .world import World, opened

_NUMBERS = itertools.count()


@pytest.fixture
def namespace() -> str:
    return f"passes-{next(_NUMBERS)}"


@pytest.fixture
async def world(redis_server: Any, namespace: str) -> AsyncIterator[World]:
    """A registry of the test's own; at the end its counters and indexes equal a recount."""
    async with opened(redis_server.url, namespace) as made:
        yield made


@pytest.fixture
async def peer(redis_server: Any, namespace: str, world: World) -> AsyncIterator[World]:
    """A second process on the same registry, source and replayer."""
    async with opened(redis_server.url, namespace, actor="peer") as made:
        made.source, made.replayer = world.source, world.replayer
        yield made
