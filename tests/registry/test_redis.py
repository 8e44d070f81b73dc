"""The registry on Redis and on Valkey keeps the contract."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from checkpointd.domain.errors import WrongStoreError
from checkpointd.domain.standing import RefRecord
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

from .contract import RegistryContract, Story, kernel

pytestmark = pytest.mark.server

_NAMESPACES = (f"contract-{n}" for n in itertools.count())


class _OnAStore(RegistryContract):
    """Two registries on one store, each with clients of its own as two processes have."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def namespace(self) -> str:
        """A place of the test's own, with what a namespace may hold that a pattern may not."""
        return f"{next(_NAMESPACES)}[*]?"

    @pytest.fixture
    async def registry(self, url: str, namespace: str) -> AsyncIterator[RedisRegistry]:
        store = await Store.open(url, namespace=namespace, partitions=4, environment="test")
        yield RedisRegistry(store, actor="test")
        await store.aclose()

    @pytest.fixture
    async def peer(
        self, url: str, namespace: str, registry: RedisRegistry
    ) -> AsyncIterator[RedisRegistry]:
        store = await Store.open(url, namespace=namespace, partitions=4, environment="test")
        yield RedisRegistry(store, actor="peer")
        await store.aclose()

    @pytest.fixture
    def story(self, registry: RedisRegistry) -> Story:
        async def record_of(thread_id: str, checkpoint_id: str) -> RefRecord:
            record = await registry.record_of(thread_id, checkpoint_id)
            assert record is not None
            return record

        return record_of


class TestRedisRegistry(_OnAStore):
    """The whole contract, on the server that is installed."""

    @pytest.fixture
    def url(self, redis_server: Any) -> str:
        return str(redis_server.url)


class TestValkeyRegistry(_OnAStore):
    """The whole contract, on the server that ``embedded://`` starts."""

    @pytest.fixture
    def url(self, valkey_server: Any) -> str:
        return str(valkey_server.url)


class TestOneStore:
    async def test_two_namespaces_never_meet(self, redis_server: Any) -> None:
        stores = [
            await Store.open(redis_server.url, namespace=name, partitions=4, environment="test")
            for name in ("one", "one:0", "{one", "one}")
        ]
        registries = [RedisRegistry(store, actor="test") for store in stores]
        await registries[0].register(kernel())
        await registries[0].freeze_issuance(reason="r")
        for registry in registries[1:]:
            assert await registry.refs_for("t") == ()
            assert await registry.register(kernel("other")) == kernel("other")
        for store in stores:
            await store.aclose()

    async def test_another_number_of_partitions_is_refused_with_both_numbers(
        self, redis_server: Any
    ) -> None:
        store = await Store.open(redis_server.url, namespace="p", partitions=4, environment="test")
        await store.aclose()
        with pytest.raises(WrongStoreError, match=r"4 .*8"):
            await Store.open(redis_server.url, namespace="p", partitions=8, environment="test")
