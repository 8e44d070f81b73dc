"""What the store's errors mean: each calls for another decision."""

from __future__ import annotations

from typing import Any

import pytest
from tests.passes.world import World, ref

from checkpointd.domain.errors import StoreRefusedError, StoreUnreachableError
from checkpointd.registry.store import Store

pytestmark = pytest.mark.server


class TestErrors:
    async def test_of_a_server_that_is_not_there_are_unreachable(self, tmp_path: Any) -> None:
        with pytest.raises(StoreUnreachableError):
            await Store.open(f"unix://{tmp_path}/nobody.sock")

    async def test_of_a_server_that_refuses_name_the_refusal(self, redis_server: Any) -> None:
        store = await Store.open(redis_server.url, namespace="store-errors")
        told: list[str] = []
        store.tell_errors(told.append)
        world = World(store)
        await store.client.set(store.keys.thread("t"), "not a hash")
        with pytest.raises(StoreRefusedError, match="WRONGTYPE"):
            await world.registry.register(ref())
        with pytest.raises(StoreRefusedError, match="WRONGTYPE"):
            await world.registry.record_of("t", "c1")
        with pytest.raises(StoreRefusedError, match="WRONGTYPE"):
            await world.ledger.acquire("t", "c1", token="a" * 32)
        assert told == ["write", "read", "lease"]
        await store.aclose()
