"""The expiry steps of the store: bounded, sent twice without harm, and with a brake."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.passes.world import GRACE, OLD, YOUNG, World, many, opened, ref

from checkpointd.domain.refs import to_us
from checkpointd.domain.states import ExpiryKind, HoldReason, RefState, WriterLine

pytestmark = pytest.mark.server

KERNEL = WriterLine.KERNEL
_NUMBERS = itertools.count()
EARLY = datetime(2024, 5, 1, tzinfo=UTC)
GRACE_US = GRACE // timedelta(microseconds=1)


@pytest.fixture
async def world(redis_server: Any) -> AsyncIterator[World]:
    async with opened(redis_server.url, f"expiry-{next(_NUMBERS)}") as made:
        made.store.keys.index = lambda _: 0  # type: ignore[assignment] # all in one partition
        yield made


async def open_refs(world: World, *threads: str, age: timedelta = OLD) -> list[bytes]:
    for thread in threads:
        await world.registry.register(ref(thread, age=age), finalized=False)
    return [f"{thread}\x1fc1".encode() for thread in threads]


class TestStep:
    async def test_sent_again_by_its_pass_it_answers_as_it_did_and_counts_nothing(
        self, world: World
    ) -> None:
        members = await open_refs(world, "a", "b")
        actor = world.expiry.pass_actor("pod")
        first, second = [
            await world.expiry.expire_members(
                0, members, grace_us=GRACE_US, actor=actor, reason="r"
            )
            for _ in range(2)
        ]
        assert first == second
        assert len(first) == 2
        assert (await world.tally()).expired[ExpiryKind.CRASH] == 2

    async def test_a_plain_record_is_cut_into_what_any_other_becomes(self, world: World) -> None:
        """A kernel ref's record is not taken apart, a legacy one's is."""
        await world.registry.register(ref("k", line=KERNEL, at=EARLY), finalized=False)
        await world.registry.register(ref("l", at=EARLY), finalized=False)
        refs = await world.expiry.expire_members(
            0, [b"k\x1fc1", b"l\x1fc1"], grace_us=GRACE_US, actor="pass", reason="r"
        )
        cut, taken_apart = refs
        assert replace(cut, thread_id="l", writer_line=WriterLine.LEGACY) == taken_apart
        assert refs == [(await world.record(r.thread_id)).ref for r in refs]
        plain, other = await world.store.read_many(
            [("HGET", world.store.keys.thread(t), "cc1") for t in "kl"]
        )
        assert plain.replace(b"\x1fk\x1f", b"\x1fl\x1f", 1) == other

    async def test_sent_again_it_keeps_the_time_of_the_first_and_closes_what_is_due_by_now(
        self, world: World
    ) -> None:
        members = await open_refs(world, "a", "b")
        lot: dict[str, Any] = {"grace_us": GRACE_US, "actor": "pass", "reason": "r"}
        (first,) = await world.expiry.expire_members(0, members[:1], **lot)
        again, second = await world.expiry.expire_members(0, members, **lot)
        assert again == first
        assert first.expired_at is not None
        assert second.expired_at is not None
        assert first.expired_at < second.expired_at

    async def test_another_pass_is_told_of_nothing(self, world: World) -> None:
        members = await open_refs(world, "a")
        for expected in (1, 0):
            refs = await world.expiry.expire_members(
                0, members, grace_us=GRACE_US, actor=world.expiry.pass_actor("pod"), reason="r"
            )
            assert len(refs) == expected

    async def test_what_was_finalized_or_extended_since_the_look_stays(self, world: World) -> None:
        members = await open_refs(world, "finalized", "extended", "crashed")
        await world.registry.finalize("finalized", "c1")
        await world.registry.extend("extended", "c1")
        refs = await world.expiry.expire_members(
            0, members, grace_us=GRACE_US, actor="pass", reason="r"
        )
        assert [r.thread_id for r in refs] == ["crashed"]
        assert await world.state("finalized") is RefState.PENDING
        assert await world.state("extended") is RefState.OPEN

    async def test_a_name_without_a_record_leaves_the_index(self, world: World) -> None:
        key = world.store.keys.all[0].open
        await world.store.write(lambda c: c.zadd(key, {"ghost\x1fc1": 1}))
        assert await world.reconcile() == []
        assert await world.store.members(key) == []

    async def test_passes_are_told_apart_even_of_one_replica(self, world: World) -> None:
        names = {world.expiry.pass_actor("pod\nname") for _ in range(50)}
        assert len(names) == 50
        assert all(name.startswith("reconcile pod name ") for name in names)

    async def test_a_bound_is_kept_across_lots(self, world: World) -> None:
        await open_refs(world, *many(30))
        now = await world.expiry.now()
        lots = [
            lot
            async for lot in world.expiry.expire_overdue(
                0, now=now, grace=GRACE, actor="pass", reason="r", most=12
            )
        ]
        assert sum(map(len, lots)) == 12
        assert (await world.tally()).legacy[RefState.OPEN] == 18


class TestLooking:
    async def test_open_and_overdue_are_counted(self, world: World) -> None:
        await open_refs(world, "a", "b")
        await open_refs(world, "c", age=YOUNG)
        now = await world.expiry.now()
        assert await world.expiry.overdue(grace=GRACE, now=now) == (3, 2)
        assert await world.expiry.open_refs() == 3

    async def test_what_would_expire_is_named_within_a_bound(self, world: World) -> None:
        await open_refs(world, *many(8))
        now = await world.expiry.now()
        found = await world.expiry.would_expire(grace=GRACE, now=now, most=5)
        assert len(found) == 5
        assert (await world.tally()).legacy[RefState.OPEN] == 8


class TestBrake:
    async def test_a_hold_stays_until_its_own_cause_goes(self, world: World) -> None:
        assert await world.expiry.hold_mass(9)
        assert not await world.expiry.release_hold(HoldReason.STORE_GAP)
        assert (await world.expiry.beat(grace=GRACE)).held is HoldReason.MASS
        assert await world.expiry.release_hold(HoldReason.MASS)
        assert not await world.expiry.release_hold(HoldReason.MASS)

    async def test_nothing_is_held_while_an_allowance_lasts(self, world: World) -> None:
        await world.expiry.allow(count=3, reason="r", actor="op")
        assert not await world.expiry.hold_mass(9)
        assert await world.expiry.take_allowed(3) == 3
        assert await world.expiry.hold_mass(9)

    async def test_many_take_no_more_than_was_allowed(self, world: World) -> None:
        await world.expiry.allow(count=10, reason="r", actor="op")
        grants = await asyncio.gather(*(world.expiry.take_allowed(4) for _ in range(5)))
        assert sorted(grants) == [0, 0, 2, 4, 4]
        await world.expiry.give_allowed(3)
        assert await world.expiry.take_allowed(100) == 3

    async def test_a_gap_holds_once_and_for_one_grace(self, world: World) -> None:
        await world.beat_was(timedelta(minutes=11))
        first = await world.expiry.beat(grace=GRACE)
        second = await world.expiry.beat(grace=GRACE)
        assert first.held is second.held is HoldReason.STORE_GAP
        assert first.until == second.until
        assert first.until is not None
        assert to_us(first.until) - to_us(first.at) == GRACE_US

    async def test_a_gap_beside_a_mass_leaves_the_mass_to_the_operator(self, world: World) -> None:
        await world.expiry.hold_mass(9)
        await world.beat_was(timedelta(days=1))
        assert (await world.expiry.beat(grace=GRACE)).held is HoldReason.MASS
