"""What every store must hold of a lease, in few words; collected through a subclass for each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from checkpointd.domain.errors import LeaseBusyError, LeaseLostError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import ReplayOutcome, WriterLine
from checkpointd.registry.ledger import DrainLedger
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

_NUMBERS = itertools.count()
TTL = timedelta(seconds=15)


class LeasesOnAStore:
    """Promises of the lease protocol that rest on the server: its scripts, clock and TTLs."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[Store]:
        store = await Store.open(url, namespace=f"lease-{next(_NUMBERS)}", partitions=8)
        yield store
        await store.aclose()

    @pytest.fixture
    def ledger(self, store: Store) -> DrainLedger:
        return DrainLedger(store, actor="test", lease_ttl=TTL)

    @pytest.fixture
    async def threads(self, store: Store) -> list[str]:
        """Threads with a legacy ref each, in every partition."""
        registry = RedisRegistry(store, actor="test")
        names = [f"t-{n}" for n in range(40)]
        created = datetime.now(UTC) - timedelta(hours=2)
        await asyncio.gather(
            *(registry.register(CheckpointRef(t, "c", WriterLine.LEGACY, created)) for t in names)
        )
        await registry.freeze_issuance(reason="r", lines=(WriterLine.LEGACY,))
        return names

    async def test_a_token_is_granted_once_and_again_the_same(
        self, ledger: DrainLedger, threads: list[str]
    ) -> None:
        first = await ledger.acquire(threads[0], "c", token="a" * 32)
        again = await ledger.acquire(threads[0], "c", token="a" * 32)
        assert (again.fence, again.attempt) == (first.fence, first.attempt)
        with pytest.raises(LeaseBusyError):
            await ledger.acquire(threads[0], "c", token="b" * 32)

    async def test_every_lease_key_has_a_ttl(
        self, store: Store, ledger: DrainLedger, threads: list[str]
    ) -> None:
        for thread in threads[:5]:
            await ledger.acquire(thread, "c", token="a" * 32)
            key = store.keys.lease(thread, "c")
            left_ms = await store.read(lambda c, k=key: c.pttl(k))
            assert 0 < left_ms <= TTL / timedelta(milliseconds=1)

    async def test_nobody_else_renews_or_releases_it(
        self, ledger: DrainLedger, threads: list[str]
    ) -> None:
        lease = await ledger.acquire(threads[0], "c", token="a" * 32)
        assert await ledger.release_tokens([(threads[0], "c", "b" * 32)]) == 0
        assert await ledger.renew(lease)
        assert await ledger.release(lease)
        assert not await ledger.renew(lease)
        assert not await ledger.release(lease)

    async def test_a_stale_holder_commits_nothing(
        self, store: Store, ledger: DrainLedger, threads: list[str]
    ) -> None:
        thread = threads[0]
        stale = await ledger.acquire(thread, "c", token="a" * 32)
        await store.write(lambda c: c.delete(store.keys.lease(thread, "c")))
        holder = await ledger.acquire(thread, "c", token="b" * 32)
        assert holder.fence > stale.fence
        with pytest.raises(LeaseLostError):
            await ledger.commit(stale, "k-stale", WriterLine.KERNEL, "b")
        done = await ledger.commit(holder, "k", WriterLine.KERNEL, "b")
        late = await ledger.commit(stale, "k-stale", WriterLine.KERNEL, "b")
        assert (done.outcome, late.outcome) == (
            ReplayOutcome.MIGRATED,
            ReplayOutcome.ALREADY_MIGRATED,
        )
        assert late.link == done.link

    async def test_all_are_claimed_renewed_and_committed_side_by_side(
        self, ledger: DrainLedger, threads: list[str]
    ) -> None:
        leases = await self._claimed(ledger)
        assert sorted(lease.thread_id for lease in leases) == sorted(threads)
        assert all(await asyncio.gather(*(ledger.renew(lease) for lease in leases)))
        done = await asyncio.gather(
            *(ledger.commit(lease, "k", WriterLine.KERNEL, "b") for lease in leases)
        )
        assert {one.outcome for one in done} == {ReplayOutcome.MIGRATED}

    async def test_flushed_scripts_are_noticed_by_nobody(
        self, url: str, store: Store, ledger: DrainLedger, threads: list[str]
    ) -> None:
        leases = await self._claimed(ledger)
        await self.flush_scripts(store)
        assert all(await asyncio.gather(*(ledger.renew(lease) for lease in leases)))
        await self.flush_scripts(store)
        assert await ledger.renew(leases[0])

    async def flush_scripts(self, store: Store) -> None:
        await store.client.execute_command("SCRIPT", "FLUSH")

    @staticmethod
    async def _claimed(ledger: DrainLedger) -> list:  # type: ignore[type-arg]
        found = []
        for partition in await ledger.with_work():
            peek = await ledger.peek(partition, 100)
            claim = await ledger.claim(partition, ledger.drawn(peek.due), most=100, max_attempts=3)
            found += claim.leases
        return found
