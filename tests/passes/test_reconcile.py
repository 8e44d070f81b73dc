"""Reconcile expires what a crash left open, once, and doubts itself when everything looks dead."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from checkpointd.domain.errors import CheckpointExpiredError, StoreRefusedError
from checkpointd.domain.states import (
    CRASH_EXPIRY_REASON,
    ExpiryKind,
    HoldReason,
    PassName,
    PassOutcome,
    RefState,
)

from .world import GRACE, KERNEL, LEGACY, OLD, YOUNG, World, many, ref

pytestmark = pytest.mark.server


async def open_refs(world: World, *threads: str, age: timedelta = OLD) -> None:
    await asyncio.gather(
        *(world.registry.register(ref(thread, age=age), finalized=False) for thread in threads)
    )


class TestOverdueRefs:
    @pytest.mark.parametrize("line", [LEGACY, KERNEL])
    async def test_an_open_ref_that_outlived_the_grace_expires(self, world: World, line) -> None:
        await world.registry.register(ref(line=line), finalized=False)
        assert await world.reconcile() == ["t/c1"]
        assert await world.state() is RefState.EXPIRED

    async def test_its_story_says_why_when_by_whom_and_by_which_grace(self, world: World) -> None:
        await open_refs(world, "t")
        await world.reconcile(replica="pod-7")
        record = await world.record()
        assert record.reason == CRASH_EXPIRY_REASON
        assert record.by.startswith("reconcile pod-7 ")
        assert record.grace_s == GRACE.total_seconds()
        assert record.ref.expired_at is not None
        assert record.ref.finalized is False

    async def test_a_ref_within_its_grace_is_left_alone(self, world: World) -> None:
        await open_refs(world, "t", age=YOUNG)
        assert await world.reconcile() == []
        assert await world.state() is RefState.OPEN

    async def test_the_grace_ends_to_the_microsecond(self, world: World) -> None:
        now = await world.registry.now()
        await world.registry.register(ref("at", at=now - GRACE), finalized=False)
        just = now - GRACE + timedelta(seconds=5)
        await world.registry.register(ref("before", at=just), finalized=False)
        assert await world.reconcile() == ["at/c1"]

    async def test_a_ref_from_the_future_is_never_expired_and_counted_as_such(
        self, world: World
    ) -> None:
        await open_refs(world, "t", age=timedelta(minutes=-10))
        assert await world.reconcile(grace=timedelta(microseconds=1)) == []
        tally = await world.tally()
        assert (tally.open_future, tally.open_in_grace, tally.open_overdue) == (1, 0, 0)

    async def test_an_extended_window_begins_anew(self, world: World) -> None:
        await open_refs(world, "t")
        await world.registry.extend("t", "c1")
        assert await world.reconcile() == []

    async def test_a_finalized_ref_does_not_expire_however_old(self, world: World) -> None:
        await world.registry.register(ref())
        assert await world.reconcile() == []

    async def test_a_writer_who_comes_back_too_late_is_told_and_counted_once(
        self, world: World
    ) -> None:
        await open_refs(world, "t")
        await world.reconcile()
        for _ in range(2):
            with pytest.raises(CheckpointExpiredError):
                await world.registry.finalize("t", "c1")
        assert (await world.tally()).late_finalizations == 1
        assert await world.state() is RefState.EXPIRED

    async def test_a_hundred_passes_on_three_replicas_name_each_ref_once(
        self, world: World
    ) -> None:
        await open_refs(world, *many(30))
        passes = [world.reconciling(replica=name) for name in "abc"] * 34
        reports = await asyncio.gather(*(one.run() for one in passes))
        named = [r.thread_id for report in reports for r in report.expired]
        assert sorted(named) == list(many(30))
        assert (await world.tally()).expired[ExpiryKind.CRASH] == 30

    async def test_more_than_one_batch_of_a_partition_is_done_in_one_pass(
        self, world: World
    ) -> None:
        world.store.keys.index = lambda _: 0  # type: ignore[assignment] # all in one partition
        await open_refs(world, *(f"t-{i}" for i in range(1100)))
        report = await world.reconciling(max_expiries=2000).run()
        assert len(report.expired) == 1100
        assert report.inspected == report.overdue == 1100

    async def test_by_hand_and_by_the_pass_leave_the_same_trace(self, world: World) -> None:
        await open_refs(world, "a", "b")
        await world.registry.expire("a", "c1", "an operator's reason")
        await world.reconcile()
        assert await world.events("a") == await world.events("b")
        expired = (await world.tally()).expired
        assert expired[ExpiryKind.OPERATOR] == expired[ExpiryKind.CRASH] == 1

    async def test_a_record_that_cannot_be_read_is_stepped_over(self, world: World) -> None:
        world.store.keys.index = lambda _: 0  # type: ignore[assignment] # one lot for both
        await open_refs(world, "a", "b")
        key = world.store.keys.thread("a")
        good = await world.store.read(lambda c: c.hget(key, "cc1"))
        await world.store.write(lambda c: c.hset(key, "cc1", "9\x1fnonsense"))
        assert await world.reconcile() == ["b/c1"]
        await world.store.write(lambda c: c.hset(key, "cc1", good))
        assert await world.reconcile() == ["a/c1"]

    async def test_one_partition_that_fails_stops_no_other(self, world: World) -> None:
        await open_refs(world, *many(20))
        due_in, bad = world.expiry.due_in, world.store.keys.index("t-000")

        async def fails_in_one(partition: int, **how: int) -> list[bytes]:
            if partition == bad:
                raise StoreRefusedError("look", "MISCONF")
            return await due_in(partition, **how)

        world.expiry.due_in = fails_in_one  # type: ignore[method-assign, assignment]
        report = await world.reconciling().run()
        others = [t for t in many(20) if world.store.keys.index(t) != bad]
        assert len(report.expired) == len(others)
        assert report.outcome is PassOutcome.ERROR
        assert f"partition {bad}" in report.troubles[0]

    async def test_a_grace_that_is_not_positive_is_refused(self, world: World) -> None:
        with pytest.raises(ValueError, match="positive"):
            world.reconciling(grace=timedelta(0))

    async def test_paused_it_expires_nothing_and_says_why(self, world: World) -> None:
        await open_refs(world, "t")
        await world.control.pause(PassName.RECONCILE, reason="a look first", actor="op")
        report = await world.reconciling().run()
        assert report.outcome is PassOutcome.HELD
        assert "a look first" in report.skipped
        assert await world.state() is RefState.OPEN
        await world.control.resume(PassName.RECONCILE, actor="op")
        assert await world.reconcile() == ["t/c1"]

    async def test_a_dry_run_names_them_and_changes_nothing(self, world: World) -> None:
        await open_refs(world, "t")
        await world.beat_was(timedelta(days=1))
        report = await world.reconciling().run(dry_run=True)
        assert [r.thread_id for r in report.expired] == ["t"]
        assert report.dry_run
        assert await world.state() is RefState.OPEN
        assert (await world.tally()).held is None


class TestBrake:
    async def test_more_overdue_at_once_than_allowed_is_held(self, world: World) -> None:
        await open_refs(world, *many(6))
        report = await world.reconciling(max_expiries=5).run()
        assert report.held is HoldReason.MASS
        assert report.outcome is PassOutcome.HELD
        assert report.expired == ()
        assert report.overdue == 6
        assert (await world.tally()).held is HoldReason.MASS

    async def test_just_as_many_as_allowed_expire(self, world: World) -> None:
        await open_refs(world, *many(5))
        assert len(await world.reconcile(max_expiries=5)) == 5

    async def test_five_percent_of_the_open_refs_may_always_expire(self, world: World) -> None:
        await open_refs(world, *many(57), age=YOUNG)
        await open_refs(world, *many(3, "old"))
        assert len(await world.reconcile(max_expiries=1)) == 3

    async def test_more_than_five_percent_is_held(self, world: World) -> None:
        await open_refs(world, *many(56), age=YOUNG)
        await open_refs(world, *many(3, "old"))
        report = await world.reconciling(max_expiries=1).run()
        assert report.held is HoldReason.MASS

    async def test_after_an_operators_word_everything_expires(self, world: World) -> None:
        await open_refs(world, *many(6))
        await world.reconcile(max_expiries=5)
        await world.expiry.allow(count=6, reason="that pod is gone", actor="op")
        assert len(await world.reconcile(max_expiries=5)) == 6
        assert (await world.tally()).held is None

    async def test_only_as_many_as_the_operator_said(self, world: World) -> None:
        await open_refs(world, *many(12))
        await world.reconcile(max_expiries=5)
        await world.expiry.allow(count=4, reason="four of them", actor="op")
        report = await world.reconciling(max_expiries=5).run()
        assert len(report.expired) == 4
        assert report.held is None
        again = await world.reconciling(max_expiries=5).run()
        assert again.held is HoldReason.MASS
        assert (await world.tally()).legacy[RefState.OPEN] == 8

    async def test_two_replicas_share_one_word(self, world: World, peer: World) -> None:
        await open_refs(world, *many(20))
        await world.reconcile(max_expiries=5)
        await world.expiry.allow(count=7, reason="seven", actor="op")
        reports = await asyncio.gather(
            *(w.reconciling(max_expiries=5).run() for w in (world, peer))
        )
        assert sum(len(report.expired) for report in reports) == 7

    async def test_a_mass_that_went_by_itself_ends_the_hold(self, world: World) -> None:
        await open_refs(world, *many(6))
        await world.reconcile(max_expiries=5)
        for thread in many(6)[:3]:
            await world.registry.finalize(thread, "c1")
        assert len(await world.reconcile(max_expiries=5)) == 3
        assert (await world.tally()).held is None


class TestStoreGap:
    async def test_after_a_gap_of_the_heartbeat_nothing_expires_for_one_grace(
        self, world: World
    ) -> None:
        await open_refs(world, "t")
        await world.beat_was(timedelta(minutes=11))
        before = datetime.now(UTC)
        report = await world.reconciling().run()
        assert report.held is HoldReason.STORE_GAP
        assert await world.state() is RefState.OPEN
        beat = await world.expiry.beat(grace=GRACE)
        assert beat.held is HoldReason.STORE_GAP
        assert beat.until is not None
        assert abs(beat.until - before - GRACE) < timedelta(seconds=30)

    async def test_when_that_grace_is_over_expiry_goes_on_unaided(self, world: World) -> None:
        await open_refs(world, "t")
        await world.beat_was(timedelta(minutes=11))
        await world.reconcile()
        await world.set_meta(held_until=1)
        assert await world.reconcile() == ["t/c1"]

    async def test_a_gap_within_ten_minutes_is_none(self, world: World) -> None:
        await open_refs(world, "t")
        await world.beat_was(timedelta(minutes=9))
        assert await world.reconcile() == ["t/c1"]

    async def test_a_store_that_nobody_ever_watched_has_no_gap(self, world: World) -> None:
        await open_refs(world, "t")
        assert await world.reconcile() == ["t/c1"]

    async def test_a_census_that_beats_first_does_not_hide_the_gap(self, world: World) -> None:
        await open_refs(world, "t")
        await world.beat_was(timedelta(hours=5))
        await world.counting().run()
        report = await world.reconciling().run()
        assert report.held is HoldReason.STORE_GAP

    async def test_an_operators_word_ends_it_at_once(self, world: World) -> None:
        await open_refs(world, "t")
        await world.beat_was(timedelta(hours=5))
        await world.reconcile()
        await world.expiry.allow(count=1, reason="nothing was restored", actor="op")
        assert await world.reconcile() == ["t/c1"]


class TestWordsThatOutlastTheirCause:
    async def test_what_was_allowed_and_not_needed_does_not_let_the_next_mass_pass(
        self, world: World
    ) -> None:
        await open_refs(world, *many(6))
        await world.reconcile(max_expiries=5)
        await world.expiry.allow(count=50, reason="that pod is gone", actor="op")
        await world.reconcile(max_expiries=5)
        await world.reconcile(max_expiries=5)
        await open_refs(world, *many(6, "next"))
        report = await world.reconciling(max_expiries=5).run()
        assert report.held is HoldReason.MASS
