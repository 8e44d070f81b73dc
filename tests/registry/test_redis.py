"""The registry on Redis and on Valkey keeps the contract."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from checkpointd.domain.errors import WrongStoreError
from checkpointd.domain.standing import RefRecord
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

from .contract import RegistryContract, Story, kernel, legacy

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


class TestLeaseKey:
    """A lease that outlived its ref would be found busy by whoever asks for it next."""

    @pytest.fixture
    async def store(self, redis_server: Any) -> AsyncIterator[Store]:
        store = await Store.open(
            redis_server.url, namespace=next(_NAMESPACES), partitions=4, environment="test"
        )
        yield store
        await store.aclose()

    @pytest.mark.parametrize("how", ["commit", "link", "expire", "leave"])
    async def test_it_is_gone_once_the_ref_is_migrated_expired_or_given_back(
        self, store: Store, how: str
    ) -> None:
        registry = RedisRegistry(store, actor="test")
        await registry.register(legacy())
        await registry.register(kernel())
        key = store.keys.lease("t", "l-1")
        async with registry.migration_lock("t", "l-1") as lease:
            assert await store.read(lambda c: c.get(key)) == lease.value.encode()
            match how:
                case "commit":
                    await registry.commit_replay(lease, kernel(), "b-1")
                case "link":
                    await registry.record_migration(
                        "t", "l-1", checkpoint_id="k-1", boundary_id="b-1"
                    )
                case "expire":
                    await registry.expire("t", "l-1", "reason")
            left = await store.read(lambda c: c.exists(key))
            assert left == (how == "leave")
        assert not await store.read(lambda c: c.exists(key))

    async def test_it_always_has_a_ttl_and_no_more_than_it_was_given(self, store: Store) -> None:
        registry = RedisRegistry(store, actor="test", lease_ttl=timedelta(seconds=7))
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1"):
            left_ms = await store.read(lambda c: c.pttl(store.keys.lease("t", "l-1")))
        assert 0 < left_ms <= 7_000


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
