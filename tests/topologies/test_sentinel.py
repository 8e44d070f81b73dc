"""A primary that sentinels watch: whoever it is, the drain finds it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from tests.registry import test_redis

from checkpointd.domain.errors import LeaseLostError, StoreError
from checkpointd.domain.states import RefState, ReplayOutcome, WriterLine
from checkpointd.registry.connect import Connecting
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

from .conftest import installed_server
from .drains import a_world, drain_through, registered
from .leases import LeasesOnAStore
from .proxy import Line
from .servers import Watched, free_port, wait_until, watched

pytestmark = pytest.mark.server

T = TypeVar("T")
KERNEL = WriterLine.KERNEL
MIGRATED, ALREADY = ReplayOutcome.MIGRATED, ReplayOutcome.ALREADY_MIGRATED


class TestTheRegistry(test_redis._OnAStore):
    """The whole contract, by way of the sentinels."""

    @pytest.fixture
    def url(self, sentinels: Watched) -> str:
        return sentinels.url


class TestLeases(LeasesOnAStore):
    """The lease suite, by way of the sentinels."""

    @pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
    def url(self, request: pytest.FixtureRequest, sentinels: Watched) -> str:
        return f"{sentinels.url}?protocol={request.param}"


class TestTheClient:
    async def test_keeps_no_more_connections_than_it_may_and_waits_for_a_free_one(
        self, sentinels: Watched
    ) -> None:
        how = Connecting(url=sentinels.url, max_connections=2, timeout_s=5)
        store = await Store.open(how, namespace="bounded", partitions=4)
        registry = RedisRegistry(store, actor="test")
        seen = await asyncio.gather(*(registry.is_authoritative("t", f"c-{n}") for n in range(50)))
        assert not any(seen)
        await store.aclose()


class TestADrain:
    @pytest.fixture
    def group(self) -> Iterator[Watched]:
        with watched(sentinels=1, binary=installed_server()) as group:
            yield group

    async def test_goes_on_with_the_promoted_replica_after_a_manual_failover(
        self, group: Watched
    ) -> None:
        before = group.leader()

        async def fail_over() -> None:
            await asyncio.to_thread(group.fail_over)
            await asyncio.to_thread(wait_until, lambda: group.leader() != before, "the failover")

        async with a_world(group.url) as world:
            await drain_through(world, happens=fail_over)

    async def test_goes_on_with_the_promoted_replica_after_the_primary_was_killed(
        self, group: Watched
    ) -> None:
        before = group.leader()

        async def fall() -> None:
            await asyncio.to_thread(group.primary.ask, "WAIT", 1, 1000)
            group.primary.kill()
            await asyncio.to_thread(wait_until, lambda: group.leader() != before, "the failover")

        async with a_world(group.url) as world:
            await drain_through(world, happens=fall)


class TestAFailoverThatLostWrites:
    """The replica was cut off, unnoticed, and what was acknowledged meanwhile is gone."""

    @pytest.fixture
    def cut_off(self) -> Iterator[tuple[Watched, Line]]:
        port, primary_port = free_port(), free_port()
        with (
            Line(port, primary_port) as line,
            watched(
                sentinels=1, link_port=port, primary_port=primary_port, binary=installed_server()
            ) as group,
        ):
            yield group, line

    async def test_leaves_one_link_and_tells_the_loser(self, cut_off: tuple[Watched, Line]) -> None:
        group, line = cut_off
        async with a_world(group.url) as world:
            await registered(world, ["t"])
            await asyncio.to_thread(group.primary.ask, "WAIT", 1, 1000)
            line.black_hole()
            loser = await world.ledger.acquire("t", "c", token="a" * 32)
            await promote_the_replica(group)
            winner = await eventually(world.ledger.acquire, "t", "c", token="b" * 32)
            assert winner.fence == loser.fence  # which is why the whole value is compared
            with pytest.raises(LeaseLostError):
                await world.ledger.commit(loser, "k-loser", KERNEL, "b")
            won = await world.ledger.commit(winner, "k-winner", KERNEL, "b")
            lost = await world.ledger.commit(loser, "k-loser", KERNEL, "b")
            assert (won.outcome, lost.outcome) == (MIGRATED, ALREADY)
            assert lost.link == won.link
            records = await world.registry.records_of("t")
            assert sorted(r.ref.checkpoint_id for r in records) == ["c", "k-winner"]

    async def test_in_the_middle_of_a_drain_ends_with_one_link_a_ref(
        self, cut_off: tuple[Watched, Line]
    ) -> None:
        group, line = cut_off
        promised = 0

        async def fall() -> None:
            nonlocal promised
            line.black_hole()
            had = (await world.tally()).legacy[RefState.MIGRATED]
            while promised < had + 20:
                promised = (await world.tally()).legacy[RefState.MIGRATED]
            await promote_the_replica(group)
            kept = (await eventually(world.tally)).legacy[RefState.MIGRATED]
            assert kept <= promised

        async with a_world(group.url) as world:
            await drain_through(world, happens=fall)
            replayed = world.replayer.threads
        assert len(replayed) > len(set(replayed))  # what was lost was done again


async def promote_the_replica(group: Watched) -> None:
    """Kill the primary; return when the sentinels have another."""
    before = group.leader()
    group.primary.kill()
    await asyncio.to_thread(wait_until, lambda: group.leader() != before, "the failover")


async def eventually(ask: Callable[..., Awaitable[T]], *args: Any, **named: Any) -> T:
    """Its answer, once the client has found the new primary."""
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(StoreError):
                return await ask(*args, **named)
            await asyncio.sleep(0.05)
