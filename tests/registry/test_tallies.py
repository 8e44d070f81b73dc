"""What the store counts is read at one instant, and a recount holds it to account."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.passes.world import KERNEL, LEGACY, OLD, PARTITIONS, YOUNG, World, many, opened, ref

from checkpointd.domain.errors import IssuanceFrozenError
from checkpointd.domain.states import PassName, RefState, ThrottleReason
from checkpointd.domain.tally import StoreTally

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()


@pytest.fixture
async def world(redis_server: Any) -> AsyncIterator[World]:
    async with opened(redis_server.url, f"tallies-{next(_NUMBERS)}") as made:
        yield made


class TestReading:
    async def test_an_empty_registry_counts_nothing(self, world: World) -> None:
        tally = await world.tally()
        assert not any(tally.legacy.values())
        assert not any(tally.kernel.values())
        assert (tally.due, tally.on_hold, tally.baseline, tally.births) == (0, 0, 0, 0)
        assert (tally.oldest_open, tally.oldest_pending, tally.frozen) == (None, None, None)
        assert tally.recounted
        assert abs(tally.clock_offset_s) < 1

    async def test_open_refs_are_told_apart_by_age(self, world: World) -> None:
        ages = {"old": OLD, "young": YOUNG, "future": timedelta(minutes=-5)}
        for (thread, age), line in zip(ages.items(), (LEGACY, KERNEL, LEGACY), strict=True):
            await world.registry.register(ref(thread, age=age, line=line), finalized=False)
        tally = await world.tally()
        assert (tally.open_overdue, tally.open_in_grace, tally.open_future) == (1, 1, 1)
        assert tally.oldest_open == (await world.record("old")).ref.created_at

    async def test_without_a_grace_nothing_is_called_overdue(self, world: World) -> None:
        await world.registry.register(ref(), finalized=False)
        tally = await world.tallies.read()
        assert (tally.open_overdue, tally.open_in_grace, tally.grace) == (0, 1, None)

    async def test_what_waits_for_a_scan_is_on_hold_and_not_due(self, world: World) -> None:
        for thread in many(8):
            await world.registry.register(ref(thread))
        world.source.holds("crashed", "c1")
        await world.adopt()
        world.source.holds("crashed", "c2", world.source.threads["crashed"][0].verdict.OPEN)
        await world.adopt()
        tally = await world.tally()
        assert (tally.legacy[RefState.PENDING], tally.due, tally.on_hold) == (9, 8, 1)
        assert tally.oldest_pending is not None

    async def test_the_time_to_finalize_falls_into_its_bucket(self, world: World) -> None:
        for thread, age in {"a": timedelta(0), "b": timedelta(seconds=50), "c": OLD * 9}.items():
            await world.registry.register(ref(thread, age=age), finalized=False)
            await world.registry.finalize(thread, "c1")
        tally = await world.tally()
        assert {b: n for b, n in tally.ttf_buckets.items() if n} == {1.0: 1, 60.0: 1, math.inf: 1}
        assert tally.ttf_sum_s == pytest.approx(50 + 18 * 3600, abs=5)

    async def test_refused_issuance_is_counted_by_line(self, world: World) -> None:
        await world.freeze(LEGACY, KERNEL)
        for line in (LEGACY, LEGACY, KERNEL):
            with pytest.raises(IssuanceFrozenError):
                await world.registry.register(ref(line=line))
        assert (await world.tally()).refused == {LEGACY: 2, KERNEL: 1}

    async def test_a_partition_that_missed_the_second_round_does_not_carry_the_freeze(
        self, world: World
    ) -> None:
        await world.freeze()
        assert (await world.tally()).copies_carrying == PARTITIONS
        key = world.store.keys.all[1].control
        await world.store.write(lambda c: c.hset(key, "in_force", ""))
        assert (await world.tally()).copies_carrying == PARTITIONS - 1
        await world.control.complete()
        assert (await world.tally()).copies_carrying == PARTITIONS

    async def test_it_takes_the_same_round_trips_whatever_there_is(self, world: World) -> None:
        async def reads() -> int:
            asked = 0
            read = world.store.read

            async def counted(ask: Any) -> Any:
                nonlocal asked
                asked += 1
                return await read(ask)

            world.store.read = counted  # type: ignore[method-assign]
            await world.tally()
            world.store.read = read  # type: ignore[method-assign]
            return asked

        await world.registry.register(ref("first"))
        before = await reads()
        for thread in many(200):
            await world.registry.register(ref(thread))
        assert await reads() == before

    async def test_memory_is_told_as_a_share_where_the_store_has_a_limit(
        self, start_server: Any
    ) -> None:
        tally: StoreTally
        server: AbstractContextManager[Any] = start_server(options=("--maxmemory", "512mb"))
        with server as limited:
            async with opened(limited.url, "limited") as there:
                tally = await there.tally()
        assert tally.memory_ratio is not None
        assert 0 < tally.memory_ratio < 1

    async def test_without_a_limit_there_is_no_share(self, world: World) -> None:
        assert (await world.tally()).memory_ratio is None


class TestWhatPassesSay:
    async def test_the_last_run_of_each_pass_is_kept(self, world: World) -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        for outcome in ("error", "success"):
            await world.tallies.note_pass(
                PassName.DRAIN, at=at, outcome=outcome, duration_s=0.25, by="pod-1"
            )
        assert await world.tallies.passes() == {
            "drain": {
                "last_run": "2026-01-01T00:00:00Z",
                "outcome": "success",
                "duration_s": 0.25,
                "by": "pod-1",
            }
        }

    async def test_a_throttle_is_kept_until_it_goes_stale(self, world: World) -> None:
        now = await world.registry.now()
        await world.tallies.note_throttle(ThrottleReason.LATENCY, at=now)
        await world.tallies.note_throttle(None, at=now)
        assert (await world.tally()).throttled is ThrottleReason.LATENCY
        await world.tallies.note_throttle(ThrottleReason.LATENCY, at=now - timedelta(minutes=2))
        assert (await world.tally()).throttled is None


class TestMarks:
    async def test_an_end_is_marked_once_and_only_while_frozen(self, world: World) -> None:
        assert not await world.tallies.mark("drained", transitions=0, births=0)
        await world.freeze()
        assert await world.tallies.mark("drained", transitions=3, births=0)
        assert not await world.tallies.mark("drained", transitions=3, births=0)

    async def test_an_older_view_reopens_nothing(self, world: World) -> None:
        await world.freeze()
        await world.tallies.mark("drained", transitions=3, births=0)
        assert not await world.tallies.mark("reopened", transitions=3, births=0)
        assert await world.tallies.mark("reopened", transitions=4, births=1)
        assert not await world.tallies.mark("drained", transitions=3, births=0)
        assert (await world.tally()).reopened == 1


class TestRecount:
    async def test_it_agrees_with_honest_counters_and_is_not_made_twice(self, world: World) -> None:
        for thread in many(40):
            await world.registry.register(ref(thread))
        assert not (await world.tally()).recounted
        first = await world.tallies.recount("token")
        assert first == {"agrees": PARTITIONS, "differs": 0, "moved": 0}
        assert (await world.tally()).recounted
        second = await world.tallies.recount("token")
        assert second == {"agrees": 0, "differs": 0, "moved": 0}

    async def test_any_change_of_a_legacy_ref_makes_it_due_again(self, world: World) -> None:
        await world.registry.register(ref())
        await world.tallies.recount("token")
        await world.registry.register(ref("k", line=KERNEL))
        assert (await world.tally()).recounted
        await world.registry.expire("t", "c1", "r")
        assert not (await world.tally()).recounted

    async def test_counters_that_differ_are_set_right(self, world: World) -> None:
        await world.registry.register(ref())
        key = world.store.keys.of("t").counters
        lies = {"legacy:pending": 0, "legacy:migrated": 5}
        await world.store.write(lambda c: c.hset(key, mapping=lies))
        found = await world.tallies.recount("token")
        assert found is not None
        assert found["differs"] == 1
        tally = await world.tally()
        assert (tally.legacy[RefState.PENDING], tally.legacy[RefState.MIGRATED]) == (1, 0)

    async def test_a_partition_that_moves_meanwhile_is_left_for_the_next_time(
        self, world: World
    ) -> None:
        await world.registry.register(ref())
        threads = world.store.threads

        async def moved_under_it(count: int = 500) -> AsyncIterator[list[str]]:
            async for lot in threads(count):
                yield lot
            await world.registry.expire("t", "c1", "meanwhile")

        world.store.threads = moved_under_it  # type: ignore[method-assign]
        found = await world.tallies.recount("token")
        world.store.threads = threads  # type: ignore[method-assign]
        assert found is not None
        assert found["moved"] == 1
        assert not (await world.tally()).recounted
        assert (await world.tallies.recount("token"))["agrees"] == 1  # type: ignore[index]

    async def test_one_replica_counts_at_a_time(self, world: World) -> None:
        await world.store.meta("take_turn", "another", 60_000, turn="recount")
        assert await world.tallies.recount("token") is None
        await world.store.meta("give_turn", "another", turn="recount")
        assert await world.tallies.recount("token") is not None

    async def test_it_walks_more_threads_than_a_lot(self, world: World) -> None:
        for thread in many(700):
            world.source.holds(thread)
        await world.adopt()
        found = await world.tallies.recount("token")
        assert found is not None
        assert found["differs"] == found["moved"] == 0
