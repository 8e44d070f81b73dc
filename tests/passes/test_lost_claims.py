"""A claim whose first reply was lost, and what was decided before it was sent again."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from checkpointd.domain.states import PassName, RefState
from checkpointd.registry.ledger import Claim

from .world import World, opened, until

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()


@pytest.fixture
async def world(redis_server: Any) -> AsyncIterator[World]:
    async with opened(redis_server.url, f"lost-claims-{next(_NUMBERS)}") as made:
        yield made


class TestAClaimSentAgain:
    async def test_that_is_refused_then_leaves_nothing_claimed(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An operator paused between the two: the first took leases that nobody heard of."""
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        claims = world.ledger.claim

        async def twice(*args: Any, **kwargs: Any) -> Claim:
            assert (await claims(*args, **kwargs)).leases
            await world.control.pause(PassName.DRAIN, reason="r", actor="me")
            return await claims(*args, **kwargs)

        monkeypatch.setattr(world.ledger, "claim", twice)
        report = await world.drain()
        assert report.waiting_for == "paused"

        async def is_back() -> bool:
            return await world.state() is RefState.PENDING

        await until(is_back)
        record = await world.record()
        assert (record.attempts, record.lease) == (0, "")
        assert world.replayer.requests == []
