"""The store goes back in time under a living process: nothing expires, nothing is claimed twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import pytest
from tests.passes.world import KERNEL, OLD, PARTITIONS, World, many, ref

from checkpointd.domain.errors import LeaseLostError, WrongStoreError
from checkpointd.domain.states import DrainState, HoldReason, RefState, WriterLine
from checkpointd.registry import store as store_module
from checkpointd.registry.store import Store


@dataclass(frozen=True)
class Backup:
    """Everything of one registry, as a dump of the server would hold it."""

    keys: dict[bytes, tuple[bytes, int]]

    @classmethod
    async def of(cls, world: World) -> Self:
        keys: dict[bytes, tuple[bytes, int]] = {}
        client = world.store.client
        async for key in client.scan_iter(match=f"{{{world.store.keys.namespace}:*"):
            keys[key] = (await client.dump(key), max(0, await client.pttl(key)))
        return cls(keys)

    async def restore(self, world: World) -> None:
        """The store as it was: what came after is gone."""
        await emptied(world)
        for key, (value, ttl_ms) in self.keys.items():
            await world.store.client.restore(key, ttl_ms, value)


async def emptied(world: World) -> None:
    """Somebody's FLUSHALL."""
    client = world.store.client
    async for key in client.scan_iter(match=f"{{{world.store.keys.namespace}:*"):
        await client.delete(key)


async def _in_mid_drain(world: World) -> None:
    """Three of six legacy threads are migrated, and a turn is open."""
    for thread in many(3):
        world.source.holds(thread)
    await world.adopt()
    await world.freeze()
    await world.drain()
    for thread in many(3, "late"):
        world.source.holds(thread)
    await world.adopt()
    await world.registry.register(ref("turn", line=KERNEL), finalized=False)


class TestARestoredBackup:
    async def test_expires_nothing_until_an_operator_or_a_grace_says_so(self, worlds: Any) -> None:
        world = await worlds.open()
        await _in_mid_drain(world)
        await world.beat_was(timedelta(days=1))
        backup = await Backup.of(world)
        await world.registry.finalize("turn", "c1")
        await backup.restore(world)

        report = await world.reconciling().run()
        assert (report.held, report.expired, report.overdue) == (HoldReason.STORE_GAP, (), 1)
        assert await world.reconcile() == []

        await world.registry.finalize("turn", "c1")  # its writer, asked again, still can
        await world.registry.register(ref("dead", line=KERNEL), finalized=False)
        await world.expiry.allow(count=1, reason="looked at it", actor="me")
        assert await world.reconcile() == ["dead/c1"]
        assert await worlds.findings() == []

    async def test_drains_again_what_it_forgot_to_the_same_ids(self, worlds: Any) -> None:
        world = await worlds.open()
        await _in_mid_drain(world)
        backup = await Backup.of(world)
        await world.drain()
        became = await _links(world)
        assert len(became) == 6
        await backup.restore(world)

        status = await world.status()
        assert status.state is not DrainState.DRAINED
        assert status.progress is not None
        assert status.progress < 1
        await world.drain()
        assert await _links(world) == became
        assert await worlds.findings() == []

    async def test_is_not_drained_though_it_had_been(self, worlds: Any) -> None:
        world = await worlds.open()
        await _in_mid_drain(world)
        backup = await Backup.of(world)
        await world.drain()
        await world.adopt()
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.DRAINED
        await backup.restore(world)

        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.DRAINING
        assert report.tally.drained_at is None


class TestALostLastSecond:
    async def test_two_holders_of_one_fence_make_one_link(self, worlds: Any) -> None:
        world, peer = await worlds.open("a"), await worlds.open("b")
        await world.registry.register(ref())
        await world.freeze()
        backup = await Backup.of(world)
        forgotten = await world.claimed()
        await backup.restore(world)  # the replica that was promoted had not seen the claim
        known = await peer.claimed()

        assert forgotten.fence == known.fence
        with pytest.raises(LeaseLostError):
            await world.ledger.commit(forgotten, "new", WriterLine.KERNEL, "b")
        assert await world.ledger.renew(forgotten) is False
        assert await world.ledger.release(forgotten) is False
        committed = await peer.ledger.commit(known, "new", WriterLine.KERNEL, "b")
        assert committed.outcome == "migrated"
        assert await worlds.findings() == []

    async def test_a_commit_that_was_lost_is_made_again(self, worlds: Any) -> None:
        world = await worlds.open()
        await world.registry.register(ref())
        await world.freeze()
        backup = await Backup.of(world)
        lease = await world.claimed()
        await world.ledger.commit(lease, "new", WriterLine.KERNEL, "b")
        await backup.restore(world)

        assert await world.state() is RefState.PENDING
        again = await world.claimed()
        committed = await world.ledger.commit(again, "new", WriterLine.KERNEL, "b")
        assert committed.link.checkpoint_id == "new"
        assert await worlds.findings() == []

    async def test_a_freeze_that_was_lost_is_not_in_force(self, worlds: Any) -> None:
        world = await worlds.open()
        await world.registry.register(ref())
        backup = await Backup.of(world)
        await world.freeze()
        await backup.restore(world)

        assert (await world.status()).state is DrainState.IDLE
        await world.drain(source=False)
        assert await world.state() is RefState.PENDING
        await world.freeze()
        assert (await world.control.read()).legacy_frozen


class TestAnEmptiedStore:
    async def test_is_never_called_drained(self, worlds: Any) -> None:
        world = await worlds.open()
        await _in_mid_drain(world)
        await emptied(world)

        report = await world.drain()
        assert report.acquired == 0
        assert (await world.counting().run(wait=True)).status.state is DrainState.IDLE
        assert await world.reconcile() == []

    async def test_is_filled_and_drained_anew_to_the_same_ids(self, worlds: Any) -> None:
        world = await worlds.open()
        await _in_mid_drain(world)
        await world.drain()
        became = await _links(world)
        await emptied(world)

        await world.store.claim_place(environment="test")
        await world.adopt()
        await world.freeze()
        await world.drain()
        assert await _links(world) == became
        await world.adopt()
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.DRAINED
        assert await worlds.findings() == []


class TestAStoreOfAnother:
    async def test_environment_is_refused_before_anything_expires(self, worlds: Any) -> None:
        world = await worlds.open()
        await world.registry.register(ref(line=KERNEL, age=OLD), finalized=False)
        with pytest.raises(WrongStoreError, match=r"belongs to the environment 'test'.*production"):
            await _opened(worlds, environment="production")
        assert await world.state() is RefState.OPEN

    async def test_newer_schema_is_used_where_it_says_that_it_may_be(self, worlds: Any) -> None:
        world = await worlds.open()
        await world.set_meta(schema=store_module.SCHEMA + 1, min_reader=store_module.SCHEMA)
        await (await _opened(worlds)).aclose()
        assert (await world.control.read()).raw["schema"] == str(store_module.SCHEMA + 1)

    async def test_newer_schema_is_refused_where_it_says_so(self, worlds: Any) -> None:
        world = await worlds.open()
        await world.set_meta(schema=store_module.SCHEMA + 2, min_reader=store_module.SCHEMA + 1)
        with pytest.raises(WrongStoreError):
            await _opened(worlds)

    async def test_older_schema_is_used_and_left_as_it_is(
        self, worlds: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = await worlds.open()
        monkeypatch.setattr(store_module, "SCHEMA", store_module.SCHEMA + 1)
        await (await _opened(worlds)).aclose()
        assert (await world.control.read()).raw["schema"] == str(store_module.SCHEMA - 1)


async def _opened(worlds: Any, environment: str = "test") -> Store:
    return await Store.open(
        worlds.url, namespace=worlds.namespace, partitions=PARTITIONS, environment=environment
    )


async def _links(world: World) -> dict[str, str]:
    found: dict[str, str] = {}
    for thread in (*many(3), *many(3, "late")):
        link = await world.registry.migration_of(thread, "c1")
        if link is not None:
            found[thread] = link.checkpoint_id
    return found
