"""An operator's hands: each action checks again what it acts on, and leaves its trace."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.passes.world import KERNEL, LEGACY, OLD, World, many, opened, ref

from checkpointd.domain.errors import CheckpointExpiredError, PermanentReplayError
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import FailureReason, RefState

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()


@pytest.fixture
async def world(redis_server: Any) -> AsyncIterator[World]:
    async with opened(redis_server.url, f"operations-{next(_NUMBERS)}") as made:
        yield made


async def quarantine(world: World, **reasons: str) -> None:
    for thread in reasons:
        world.source.holds(thread)
    await world.adopt()
    await world.freeze()
    for thread, reason in reasons.items():
        world.replayer.will(thread, PermanentReplayError(reason, "detail"))
    await world.drain()


async def listed(records: AsyncIterator[RefRecord]) -> list[str]:
    return sorted([f"{r.ref.thread_id}/{r.ref.checkpoint_id}" async for r in records])


class TestListing:
    async def test_the_quarantine_is_narrowed_by_thread_and_by_reason(self, world: World) -> None:
        await quarantine(world, a="absent", b="absent", c="unreadable")
        ops = world.operations
        assert await listed(ops.quarantined()) == ["a/c1", "b/c1", "c/c1"]
        assert await listed(ops.quarantined(thread="b")) == ["b/c1"]
        absent = ops.quarantined(blocked_by=FailureReason.ABSENT)
        assert await listed(absent) == ["a/c1", "b/c1"]
        both = ops.quarantined(thread="c", blocked_by=FailureReason.ABSENT)
        assert await listed(both) == []

    async def test_refs_are_listed_by_state_and_all_together(self, world: World) -> None:
        await quarantine(world, q="absent")
        await world.registry.register(ref("o"), finalized=False, issuance=False)
        await world.registry.register(ref("ko", line=KERNEL), finalized=False)
        await world.registry.register(ref("k", line=KERNEL))
        await world.registry.register(ref("p"), issuance=False)
        await world.registry.register(ref("e"), issuance=False)
        await world.registry.expire("e", "c1", "r")
        found = {s: await listed(world.operations.in_state(s)) for s in RefState}
        assert {s: names for s, names in found.items() if names} == {
            RefState.OPEN: ["ko/c1", "o/c1"],
            RefState.PENDING: ["p/c1"],
            RefState.QUARANTINED: ["q/c1"],
            RefState.EXPIRED: ["e/c1"],
            RefState.FINALIZED: ["k/c1"],
        }
        assert len(await listed(world.operations.in_state(None))) == 6

    async def test_more_than_a_lot_is_listed_whole(self, world: World) -> None:
        for thread in many(450):
            world.source.holds(thread)
        await world.adopt()
        assert len(await listed(world.operations.in_state(RefState.PENDING))) == 450


class TestBulk:
    async def test_a_dry_run_names_them_and_changes_nothing(self, world: World) -> None:
        await quarantine(world, a="absent", b="absent")
        records = [r async for r in world.operations.quarantined()]
        for verb in (world.operations.release, world.operations.waive):
            result = await verb(records, reason="r", dry_run=True)
            assert (len(result.done), result.dry_run) == (2, True)
        assert len(await world.quarantined()) == 2

    async def test_what_changed_since_the_look_is_left_alone_and_counted(
        self, world: World
    ) -> None:
        await quarantine(world, a="absent", b="absent")
        records = [r async for r in world.operations.quarantined()]
        world.source.holds("a", "c2")
        await world.adopt()
        result = await world.operations.waive(records, reason="r")
        assert ([r.ref.thread_id for r in result.done], result.skipped) == (["b"], 1)
        assert await world.state("a") is RefState.EXPIRED

    async def test_one_quarantined_for_another_reason_since_is_left_alone(
        self, world: World
    ) -> None:
        await quarantine(world, a="absent")
        record = await world.record("a")
        await world.operations.release([record], reason="try again")
        world.replayer.will("a", PermanentReplayError("unreadable"))
        await world.drain()
        result = await world.operations.waive([record], reason="it was absent")
        assert (result.done, result.skipped) == ((), 1)
        assert await world.quarantined() == {"a": FailureReason.UNREADABLE}

    async def test_each_twice_does_it_once(self, world: World) -> None:
        await quarantine(world, a="absent")
        record = await world.record("a")
        for verb in (world.operations.waive, world.operations.unwaive, world.operations.release):
            first, second = [await verb([record], reason="r") for _ in range(2)]
            assert (len(first.done), len(second.done), second.skipped) == (1, 0, 1)
        assert await world.state("a") is RefState.PENDING

    async def test_the_reason_and_the_actor_stay_on_the_ref(self, world: World) -> None:
        await quarantine(world, a="absent")
        await world.operations.waive([await world.record("a")], reason="a test\naccount")
        record = await world.record("a")
        assert (record.reason, record.by) == ("a test account", "test")
        assert record.code is FailureReason.ABSENT


class TestRestoringLate:
    async def expired(self, world: World, *threads: str, line: Any = LEGACY) -> None:
        for thread in threads:
            await world.registry.register(ref(thread, line=line), finalized=False)
        await world.reconcile()

    async def comes_back(self, world: World, thread: str) -> None:
        with pytest.raises(CheckpointExpiredError):
            await world.registry.finalize(thread, "c1")

    async def test_exactly_those_whose_writer_came_back_since_are_brought_back(
        self, world: World
    ) -> None:
        await self.expired(world, "before", "after", "never")
        await self.comes_back(world, "before")
        since = await world.registry.now()
        await self.comes_back(world, "after")
        result = await world.operations.restore_late(since=since, reason="a wrong grace")
        assert [r.ref.thread_id for r in result.done] == ["after"]
        states = [await world.state(thread) for thread in ("before", "after", "never")]
        assert states == [RefState.EXPIRED, RefState.PENDING, RefState.EXPIRED]
        assert await world.registry.is_resumable("after", "c1")

    async def test_one_of_the_new_line_is_finalized_again(self, world: World) -> None:
        await self.expired(world, "k", line=KERNEL)
        since = await world.registry.now() - timedelta(minutes=1)
        await self.comes_back(world, "k")
        await world.operations.restore_late(since=since, reason="r")
        assert await world.state("k") is RefState.FINALIZED

    async def test_what_an_operator_expired_is_not_brought_back(self, world: World) -> None:
        await world.registry.register(ref("t"), finalized=False)
        await world.registry.expire("t", "c1", "on purpose")
        since = await world.registry.now() - timedelta(minutes=1)
        await self.comes_back(world, "t")
        result = await world.operations.restore_late(since=since, reason="r")
        assert (result.done, result.skipped) == ((), 1)

    async def test_a_dry_run_names_them_and_a_second_run_does_nothing(self, world: World) -> None:
        await self.expired(world, "t")
        since = await world.registry.now() - timedelta(minutes=1)
        await self.comes_back(world, "t")
        dry = await world.operations.restore_late(since=since, reason="r", dry_run=True)
        assert (len(dry.done), await world.state()) == (1, RefState.EXPIRED)
        assert len((await world.operations.restore_late(since=since, reason="r")).done) == 1
        assert (await world.operations.restore_late(since=since, reason="r")).done == ()

    async def test_restored_after_the_freeze_it_is_discovered(self, world: World) -> None:
        await self.expired(world, "t")
        since = await world.registry.now() - timedelta(minutes=1)
        await self.comes_back(world, "t")
        await world.freeze()
        await world.operations.restore_late(since=since, reason="r")
        assert (await world.tally()).discovered_since_freeze == 1


class TestAudit:
    async def test_it_tells_every_transition_in_order_with_its_actor(self, world: World) -> None:
        await quarantine(world, a="absent")
        record = await world.record("a")
        await world.operations.waive([record], reason="w")
        await world.operations.unwaive([record], reason="u")
        page = await world.operations.audit(thread="a")
        told = [(e.event, e.was, e.became, e.reason) for e in page.entries]
        assert told == [
            ("ref_adopted", "", "pending", ""),
            ("ref_claimed", "pending", "replaying", ""),
            ("ref_quarantined", "replaying", "quarantined", "absent"),
            ("quarantine_waived", "quarantined", "waived", "w"),
            ("waiver_revoked", "waived", "quarantined", "absent"),
        ]
        assert {e.by for e in page.entries} == {"test"}
        assert {(e.thread_id, e.checkpoint_id) for e in page.entries} == {("a", "c1")}

    async def test_store_wide_changes_are_in_it(self, world: World) -> None:
        await world.freeze()
        await world.registry.thaw_issuance(reason="enough")
        page = await world.operations.audit()
        told = [(e.event, e.reason) for e in page.entries]
        assert told == [("issuance_frozen", "retiring it"), ("issuance_thawed", "enough")]

    async def test_only_the_newest_are_told_and_only_since_then(self, world: World) -> None:
        for thread in many(20):
            await world.registry.register(ref(thread))
        assert len((await world.operations.audit(most=7)).entries) == 7
        ahead = datetime.now(UTC) + timedelta(hours=1)
        assert (await world.operations.audit(since=ahead)).entries == ()
        assert len((await world.operations.audit(since=ahead - 2 * OLD)).entries) == 20

    async def test_refs_that_went_the_same_way_at_once_share_an_entry_and_are_told_each(
        self, world: World
    ) -> None:
        world.store.keys.index = lambda _: 0  # type: ignore[assignment] # all in one partition
        threads = many(60)
        for thread in threads:
            await world.registry.register(ref(thread), finalized=False)
        assert len(await world.reconcile()) == 60
        page = await world.operations.audit()
        expired = [e for e in page.entries if e.event == "ref_expired"]
        assert {e.thread_id for e in expired} == set(threads)
        assert {(e.checkpoint_id, e.was, e.became) for e in expired} == {("c1", "open", "expired")}
        assert len(page.entries) == 120
        key = world.store.keys.all[0].audit
        assert await world.store.read(lambda c: c.xlen(key)) == 60 + 3
        assert len((await world.operations.audit(most=7)).entries) == 7
        assert len((await world.operations.audit(thread=threads[0])).entries) == 2

    async def test_each_ref_of_a_shared_entry_counts_as_trimmed(self, world: World) -> None:
        world.store.keys.index = lambda _: 0  # type: ignore[assignment] # all in one partition
        for thread in many(30):
            await world.registry.register(ref(thread), finalized=False)
        await world.reconcile()
        key = world.store.keys.all[0].audit
        await world.store.write(lambda c: c.xtrim(key, maxlen=1, approximate=False))
        page = await world.operations.audit()
        assert (len(page.entries), page.trimmed) == (5, 55)
        assert (await world.operations.audit(thread="none")).trimmed == 55
        await world.store.write(lambda c: c.xtrim(key, maxlen=0, approximate=False))
        assert (await world.operations.audit()).trimmed == 60

    async def test_it_says_how_much_was_trimmed(self, world: World) -> None:
        for thread in many(20):
            await world.registry.register(ref(thread))
        assert (await world.operations.audit()).trimmed == 0
        for keys in world.store.keys.all:
            await world.store.write(lambda c, k=keys.audit: c.xtrim(k, maxlen=1, approximate=False))
        page = await world.operations.audit()
        assert page.trimmed == 20 - len(page.entries)


class TestVerify:
    """What is broken here on purpose is mended again, since a world's end verifies too."""

    async def test_of_sound_books_it_counts_what_is_there(self, world: World) -> None:
        await quarantine(world, a="absent")
        await world.registry.register(ref("k", line=KERNEL))
        found = await world.operations.verify()
        assert (found.refs, found.threads, found.findings) == (2, 2, ())
        assert found.counted == {"legacy:quarantined": 1, "kernel:finalized": 1}

    @pytest.mark.parametrize("index", ["due", "unfinished"])
    async def test_a_ref_missing_from_an_index_is_found(self, world: World, index: str) -> None:
        await world.registry.register(ref())
        key = getattr(world.store.keys.of("t"), index)
        ((name, score),) = await world.store.read(lambda c: c.zrange(key, 0, -1, withscores=True))
        await world.store.write(lambda c: c.zrem(key, name))
        (finding,) = (await world.operations.verify()).findings
        assert finding.thread_id == "t"
        assert index in finding.what
        await world.store.write(lambda c: c.zadd(key, {name: score}))

    async def test_an_index_that_names_nothing_is_found(self, world: World) -> None:
        key = world.store.keys.all[0].quarantined
        await world.store.write(lambda c: c.zadd(key, {"ghost\x1fc1": 1}))
        (finding,) = (await world.operations.verify()).findings
        assert (finding.thread_id, finding.checkpoint_id) == ("ghost", "c1")
        await world.store.write(lambda c: c.delete(key))

    async def test_a_counter_that_lies_is_found(self, world: World) -> None:
        await world.registry.register(ref(line=KERNEL))
        key = world.store.keys.of("t").counters
        await world.store.write(lambda c: c.hincrby(key, "kernel:finalized", 2))
        (finding,) = (await world.operations.verify()).findings
        assert "counts 3 refs as kernel:finalized and 1 are there" in finding.what
        await world.store.write(lambda c: c.hincrby(key, "kernel:finalized", -2))

    async def test_a_record_that_cannot_be_read_is_found(self, world: World) -> None:
        await world.registry.register(ref())
        key = world.store.keys.thread("t")
        good = await world.store.read(lambda c: c.hget(key, "cc1"))
        await world.store.write(lambda c: c.hset(key, "cc1", "2\x1fnews"))
        found = await world.operations.verify()
        assert any("version is '2'" in finding.what for finding in found.findings)
        await world.store.write(lambda c: c.hset(key, "cc1", good))

    async def test_a_link_that_leads_nowhere_is_found(self, world: World) -> None:
        await world.registry.register(ref())
        await world.migrates("t")
        key = world.store.keys.thread("t")
        good = await world.store.read(lambda c: c.hget(key, "cby-hand-c1"))
        await world.store.write(lambda c: c.hdel(key, "cby-hand-c1"))
        found = await world.operations.verify()
        assert any("not registered" in finding.what for finding in found.findings)
        await world.store.write(lambda c: c.hset(key, "cby-hand-c1", good))

    async def test_of_very_many_findings_a_hundred_are_listed_and_the_rest_counted(
        self, world: World
    ) -> None:
        key = world.store.keys.all[0].due
        ghosts = {f"ghost-{i}\x1fc": 1 for i in range(250)}
        await world.store.write(lambda c: c.zadd(key, ghosts))
        found = await world.operations.verify()
        assert (len(found.findings), found.more) == (100, 150)
        await world.store.write(lambda c: c.delete(key))
