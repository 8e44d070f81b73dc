"""A cluster of three primaries: refs on all of them, and the drain goes on while it changes."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.crc import key_slot
from tests.registry import test_redis
from tests.registry.contract import AWKWARD_IDS

from checkpointd.domain.errors import StoreRefusedError
from checkpointd.domain.states import RefState
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

from .conftest import installed_server
from .drains import a_world, drain_through, registered
from .leases import LeasesOnAStore
from .servers import ClusterOfNodes, cluster, wait_until

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()


def slot_of(key: str) -> int:
    return key_slot(key.encode())


class TestTheRegistry(test_redis._OnAStore):
    """The whole contract."""

    @pytest.fixture
    def url(self, clustered: ClusterOfNodes) -> str:
        return clustered.url


class TestLeases(LeasesOnAStore):
    """The lease suite."""

    @pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
    def url(self, request: pytest.FixtureRequest, clustered: ClusterOfNodes) -> str:
        return f"{clustered.url}?protocol={request.param}"

    @pytest.fixture(autouse=True)
    def _nodes(self, clustered: ClusterOfNodes) -> None:
        self.nodes = clustered

    async def flush_scripts(self, store: Store) -> None:
        for node in self.nodes.primaries():
            await asyncio.to_thread(node.ask, "SCRIPT", "FLUSH")


class TestRefs:
    @pytest.fixture
    async def store(self, clustered: ClusterOfNodes) -> AsyncIterator[Store]:
        store = await Store.open(clustered.url, namespace=f"c-{next(_NUMBERS)}", partitions=16)
        yield store
        await store.aclose()

    async def test_of_ten_thousand_odd_threads_share_no_step_between_slots(
        self, clustered: ClusterOfNodes
    ) -> None:
        odd = [
            f"{text[:40]}{n}{{}}" for n, text in zip(range(10_000), itertools.cycle(AWKWARD_IDS))
        ]
        async with a_world(clustered.url) as world:
            await registered(world, odd)
            tally = await world.tally()
            assert tally.legacy[RefState.PENDING] == 10_000
            held = Counter(
                clustered.owner(slot_of(keys.counters)).port for keys in world.store.keys.all
            )
            walked = {thread async for lot in world.store.threads() for thread in lot}
        assert walked == set(odd)
        assert len(held) > 1

    def test_are_spread_over_all_primaries(self, store: Store, clustered: ClusterOfNodes) -> None:
        owners = {clustered.owner(slot_of(keys.counters)).port for keys in store.keys.all}
        assert owners == {node.port for node in clustered.primaries()}

    async def test_are_read_and_written_without_a_redirection(
        self, store: Store, clustered: ClusterOfNodes
    ) -> None:
        registry = RedisRegistry(store, actor="test")
        before = _redirections(clustered)
        for n in range(50):
            assert not await registry.is_authoritative(f"t-{n}", "c")
        assert _redirections(clustered) == before


def _redirections(nodes: ClusterOfNodes) -> int:
    told = [node.ask("INFO", "errorstats") for node in nodes.nodes]
    return sum(int(str(stats.get("errorstat_MOVED", {"count": 0})["count"])) for stats in told)


class TestADrain:
    async def test_migrates_every_ref_once(self, clustered: ClusterOfNodes) -> None:
        async with a_world(clustered.url) as world:
            story = await drain_through(world)
        assert story.troubles == []

    async def test_goes_on_while_a_slot_moves_to_another_node(
        self, clustered: ClusterOfNodes
    ) -> None:
        """All the way: declared, its keys moved in two halves, and told to all."""
        async with a_world(clustered.url) as world:
            slot = slot_of(world.store.keys.all[0].counters)
            source = clustered.owner(slot)
            target = next(node for node in clustered.primaries() if node is not source)
            refused: list[tuple[str, bool]] = []

            async def move() -> None:
                await asyncio.to_thread(clustered.begin_moving, slot, source, target)
                await asyncio.to_thread(clustered.move_keys, slot, source, target, 3)
                for _ in range(3):  # half here, half there: steps over several keys must wait
                    with pytest.raises(StoreRefusedError) as caught:
                        await world.ledger.peek(0, 1)
                    refused.append((caught.value.word, caught.value.transient))
                with pytest.raises(StoreRefusedError, match="TRYAGAIN"):
                    _ = [lot async for lot in world.store.threads()]
                while await asyncio.to_thread(clustered.move_keys, slot, source, target, 50):
                    pass
                await asyncio.to_thread(clustered.end_moving, slot, target)
                await asyncio.to_thread(wait_until, clustered.is_well, "the move")

            story = await drain_through(world, happens=move)
            assert clustered.owner(slot) is target
        assert set(refused) == {("TRYAGAIN", True)}
        assert all("TRYAGAIN" in trouble for trouble in story.troubles)


class TestAnotherPrimary:
    @pytest.fixture
    def nodes(self) -> Iterator[ClusterOfNodes]:
        with cluster(binary=installed_server()) as nodes:
            yield nodes

    async def test_takes_over_in_the_middle_of_a_drain(self, nodes: ClusterOfNodes) -> None:
        async with a_world(nodes.url) as world:
            victim = nodes.owner(slot_of(world.store.keys.all[0].counters))
            heirs = {node.port for node in nodes.nodes[3:]}

            async def fall() -> None:
                await asyncio.to_thread(
                    victim.ask, "WAIT", 1, 1000
                )  # what was answered so far has been copied
                victim.kill()
                await asyncio.to_thread(
                    wait_until,
                    lambda: nodes.is_well() and victim not in nodes.primaries(),
                    "the promotion",
                )

            await drain_through(world, happens=fall)
            assert {node.port for node in nodes.primaries()} & heirs
