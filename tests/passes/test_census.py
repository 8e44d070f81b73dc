"""Census says in one word where the drain stands, and mends what others left half done."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from checkpointd.domain.drain import DrainRules, only_operator_can_help
from checkpointd.domain.errors import IssuanceFrozenError, PermanentReplayError, StoreRefusedError
from checkpointd.domain.legacy import ThreadSketch, Verdict
from checkpointd.domain.states import (
    DrainState,
    PassName,
    RefState,
    StallCause,
    ThrottleReason,
    WriterLine,
)
from checkpointd.registry.control import HalfCopiedError

from .world import KERNEL, PARTITIONS, YOUNG, Gate, World, many, ref, until

pytestmark = pytest.mark.server


async def drained(world: World) -> None:
    """A whole drain, to its end."""
    await world.adopt()
    await world.freeze()
    await world.adopt()
    await world.drain()
    report = await world.counting().run(wait=True)
    assert report.status.state is DrainState.DRAINED, report.status.sentence


class TestWord:
    async def test_it_is_idle_before_the_freeze(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        report = await world.counting().run()
        assert report.status.state is DrainState.IDLE
        assert report.status.progress is None
        assert "1 ref" in report.status.sentence

    async def test_a_freeze_of_the_new_line_alone_leaves_it_idle(self, world: World) -> None:
        await world.freeze(KERNEL)
        assert (await world.counting().run()).status.state is DrainState.IDLE

    async def test_it_is_draining_while_something_is_due(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        report = await world.counting().run()
        assert (report.status.state, report.status.progress) == (DrainState.DRAINING, 0.0)
        assert "1 pending" in report.status.sentence

    async def test_nothing_legacy_at_all_settles_at_once_and_is_drained_after_a_scan(
        self, world: World
    ) -> None:
        await world.freeze()
        report = await world.counting().run(wait=True)
        assert (report.status.state, report.status.progress) == (DrainState.SETTLING, 1.0)
        await world.adopt()
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.DRAINED

    async def test_a_ref_in_its_grace_keeps_it_from_being_drained(self, world: World) -> None:
        world.source.holds("t", verdict=Verdict.OPEN, age=YOUNG)
        await world.adopt()
        await world.freeze()
        await world.adopt()
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.SETTLING
        assert "1 open" in report.status.sentence

    async def test_a_ref_whose_owner_died_counts_as_replaying(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        await world.claimed()
        await world.break_leases()
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.DRAINING
        assert report.tally.legacy[RefState.REPLAYING] == 1

    async def test_an_unregistrable_thread_is_in_the_way_unless_it_is_accepted(
        self, world: World
    ) -> None:
        world.source.extra_sketches = [ThreadSketch(thread_id="rootless")]
        await world.freeze()
        await world.adopt()
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.SETTLING
        assert "accept_unregistrable" in report.status.sentence
        assert only_operator_can_help(report.status, report.tally, world.rules)
        rules = DrainRules(has_source=True, settle=timedelta(0), accept_unregistrable=True)
        report = await world.counting(rules=rules).run(wait=True)
        assert report.status.state is DrainState.DRAINED

    async def test_it_is_stalled_when_work_is_due_and_nothing_moved_for_long(
        self, world: World
    ) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        rules = DrainRules(has_source=True, settle=timedelta(0), stall_after=timedelta(0))
        report = await world.counting(rules=rules).run()
        assert (report.status.state, report.status.cause) == (
            DrainState.STALLED,
            StallCause.NO_PROGRESS,
        )

    async def test_a_dry_run_only_reads(self, world: World) -> None:
        await world.freeze()
        await world.beat_was(timedelta(hours=1))
        report = await world.counting().run(dry_run=True)
        assert report.dry_run
        assert (await world.tally()).held is None
        assert (await world.tally()).drained_at is None

    async def test_a_replicas_throttle_is_kept_for_the_others(
        self, world: World, peer: World
    ) -> None:
        await world.counting().run(throttled=ThrottleReason.REPLAYER)
        assert (await peer.tally()).throttled is ThrottleReason.REPLAYER

    async def test_and_goes_stale_by_itself(self, world: World) -> None:
        await world.counting().run(throttled=ThrottleReason.REPLAYER)
        await world.set_meta(throttle="replayer|1")
        assert (await world.tally()).throttled is None


class TestProgress:
    async def test_the_baseline_is_what_was_unfinished_when_the_freeze_came(
        self, world: World
    ) -> None:
        for thread in many(6):
            world.source.holds(thread)
        await world.adopt()
        await world.migrates("t-000")
        await world.freeze()
        tally = await world.tally()
        assert (tally.baseline, tally.discovered_since_freeze) == (5, 0)

    async def test_it_falls_when_more_is_discovered_and_says_so(self, world: World) -> None:
        for thread in many(4):
            world.source.holds(thread)
        await world.adopt()
        await world.freeze()
        await world.drain()
        assert (await world.status()).progress == 1.0
        for thread in many(2, "more"):
            world.source.holds(thread)
        await world.adopt()
        tally = await world.tally()
        assert (await world.status()).progress == pytest.approx(4 / 6)
        assert (tally.baseline, tally.discovered_since_freeze) == (4, 2)

    async def test_expired_and_waived_refs_are_done_as_well(self, world: World) -> None:
        world.source.holds("waived")
        world.source.holds("expired", verdict=Verdict.OPEN)
        world.source.holds("left")
        await world.adopt()
        await world.freeze()
        world.replayer.will("waived", PermanentReplayError("other"))
        gate = Gate()
        world.replayer.will("left", gate)
        running = asyncio.create_task(world.drain())
        await gate.reached()
        await world.reconcile()

        async def is_quarantined() -> bool:
            return await world.state("waived") is RefState.QUARANTINED

        await until(is_quarantined)
        await world.operations.waive([await world.record("waived")], reason="r")
        assert (await world.status()).progress == pytest.approx(2 / 3)
        gate.open()
        await running

    async def test_what_was_written_after_the_freeze_is_counted_apart(self, world: World) -> None:
        await world.freeze()
        world.source.holds("old")
        world.source.holds("new", age=timedelta(0))
        await world.adopt(source_settle=timedelta(days=-1))
        tally = await world.tally()
        assert tally.discovered["catch_up"] == tally.discovered["written_after_freeze"] == 1
        assert (tally.discovered_since_freeze, tally.written_since_freeze) == (2, 1)

    async def test_a_later_freeze_has_a_baseline_of_its_own(self, world: World) -> None:
        await world.freeze()
        world.source.holds("a")
        await world.adopt()
        await world.registry.thaw_issuance(reason="later")
        assert (await world.status()).progress is None
        await world.registry.register(ref("b"))
        await world.freeze()
        tally = await world.tally()
        assert (tally.baseline, tally.discovered_since_freeze) == (2, 0)
        assert (await world.status()).progress == 0.0


class TestEnd:
    async def test_the_first_census_to_see_it_says_so_once(self, world: World, peer: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        await world.adopt()
        await world.drain()
        marks = [(await w.counting().run(wait=True)).marked for w in (world, peer, world)]
        assert marks == ["drained", "", ""]
        assert (await world.tally()).drained_at is not None

    async def test_a_late_adoption_reopens_it_once(self, world: World, peer: World) -> None:
        world.source.holds("t")
        await drained(world)
        world.source.holds("late")
        await world.adopt()
        marks = [(await w.counting().run(wait=True)).marked for w in (world, peer, world)]
        assert marks == ["reopened", "", ""]
        tally = await world.tally()
        assert (tally.reopened, tally.drained_at) == (1, None)
        assert tally.discovered_since_freeze == 1
        assert (await world.status()).state is DrainState.DRAINING

    async def test_one_that_was_migrated_before_any_census_saw_it_reopened_it_all_the_same(
        self, world: World
    ) -> None:
        world.source.holds("t")
        await drained(world)
        world.source.holds("late")
        await world.adopt()
        await world.drain()
        assert (await world.counting().run(wait=True)).marked == "reopened"
        await world.adopt()
        assert (await world.counting().run(wait=True)).marked == "drained"
        assert (await world.tally()).reopened == 1

    async def test_it_ends_again_after_the_late_one_and_a_clean_scan(self, world: World) -> None:
        world.source.holds("t")
        await drained(world)
        world.source.holds("late")
        await world.adopt()
        await world.counting().run(wait=True)
        await world.adopt()
        await world.drain()
        report = await world.counting().run(wait=True)
        assert (report.marked, report.status.state) == ("drained", DrainState.DRAINED)

    async def test_a_waiver_taken_back_reopens_it(self, world: World) -> None:
        world.source.holds("t")
        world.replayer.will("t", PermanentReplayError("other"))
        await world.adopt()
        await world.freeze()
        await world.adopt()
        await world.drain()
        await world.operations.waive([await world.record()], reason="r")
        assert (await world.counting().run(wait=True)).marked == "drained"
        await world.operations.unwaive([await world.record()], reason="r")
        report = await world.counting().run(wait=True)
        assert report.marked == "reopened"
        assert report.status.cause is StallCause.QUARANTINE

    async def test_a_thaw_and_a_later_freeze_end_on_their_own(self, world: World) -> None:
        await drained(world)
        await world.registry.thaw_issuance(reason="again")
        assert (await world.counting().run()).status.state is DrainState.IDLE
        await world.freeze()
        assert (await world.counting().run(wait=True)).status.state is DrainState.SETTLING
        await world.adopt()
        assert (await world.counting().run(wait=True)).marked == "drained"


class TestRecount:
    async def test_drained_is_not_said_before_a_recount_agreed(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        await world.adopt()
        await world.drain()
        report = await world.counting().run()
        assert report.status.state is DrainState.SETTLING
        assert "recount" in report.status.sentence
        found = await world.tallies.recount("token")
        assert found is None or found["differs"] == 0
        assert (await world.counting().run(wait=True)).status.state is DrainState.DRAINED

    async def test_counters_that_lie_are_set_right_and_nothing_hidden_is_drained(
        self, world: World
    ) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        await world.adopt()
        counters = world.store.keys.of("t").counters
        await world.store.write(lambda c: c.hset(counters, "legacy:pending", 0))
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.DRAINING
        assert report.tally.legacy[RefState.PENDING] == 1
        page = await world.operations.audit()
        assert "counters_mended" in [entry.event for entry in page.entries]

    async def test_a_store_that_refuses_the_recount_fails_no_census(self, world: World) -> None:
        await world.freeze()
        world.source.holds("t")
        await world.adopt()
        await world.drain()

        async def refuses(_: str) -> None:
            raise StoreRefusedError("walk its keys", "NOPERM")

        world.tallies.recount = refuses  # type: ignore[method-assign, assignment]
        report = await world.counting().run(wait=True)
        assert report.status.state is DrainState.SETTLING


class TestHalfCopiedChanges:
    async def half(self, world: World, *, dies_at: int) -> None:
        """A freeze whose declarer dies in its copying round at this partition."""
        at = world.store.at
        copies = 0

        async def dies(partition: int, name: str, *args: object) -> object:
            nonlocal copies
            if name.startswith("control_"):
                copies += 1
                if copies > dies_at:
                    raise StoreRefusedError("copy", "it died")
            return await at(partition, name, *args)  # type: ignore[arg-type]

        world.store.at = dies  # type: ignore[method-assign, assignment]
        with pytest.raises(HalfCopiedError, match=f"of {PARTITIONS} partitions"):
            await world.freeze()
        world.store.at = at  # type: ignore[method-assign]

    @pytest.mark.parametrize("dies_at", [1, PARTITIONS - 1, PARTITIONS + 1, 2 * PARTITIONS - 1])
    async def test_any_replicas_census_completes_them(
        self, world: World, peer: World, dies_at: int
    ) -> None:
        """The first round copies the word, the second brings the freeze into force."""
        for thread in many(12):
            world.source.holds(thread)
        await world.adopt()
        await self.half(world, dies_at=dies_at)
        report = await peer.counting().run()
        assert report.completed_copies
        assert (report.tally.copies_carrying, report.tally.baseline) == (PARTITIONS, 12)
        with pytest.raises(IssuanceFrozenError):
            await peer.registry.register(ref("new"))
        await peer.drain()
        assert (await peer.tally()).legacy[RefState.MIGRATED] == 12
        assert not (await peer.counting().run()).completed_copies

    async def test_until_then_nothing_is_claimed_and_the_drain_is_idle(self, world: World) -> None:
        for thread in many(12):
            world.source.holds(thread)
        await world.adopt()
        await self.half(world, dies_at=2)
        assert (await world.drain()).acquired == 0
        status = await world.status()
        assert status.state is DrainState.IDLE
        assert f"2 of {PARTITIONS}" in status.sentence

    async def test_a_late_copy_of_a_freeze_never_closes_what_was_thawed(self, world: World) -> None:
        await world.freeze()
        frozen = await world.control.read()
        await world.registry.thaw_issuance(reason="enough")
        await world.control._copy(frozen, "a late copy")
        await world.registry.register(ref())
        await world.counting().run()
        await world.registry.register(ref("another"))
        assert (await world.control.read()).freeze is None

    async def test_a_late_enforcement_of_a_freeze_brings_nothing_into_force(
        self, world: World
    ) -> None:
        await world.freeze()
        frozen = await world.control.read()
        await world.registry.thaw_issuance(reason="enough")
        answers = await world.control._everywhere("control_enforce", [frozen.epoch], "late")
        assert set(answers) == {b"other"}
        assert await world.store.meta("control_in_force", frozen.epoch) == b"other"

    async def test_a_pause_keeps_a_freezes_baseline(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        await world.drain()
        await world.control.pause(PassName.DRAIN, reason="r", actor="op")
        await world.control.resume(PassName.DRAIN, actor="op")
        assert (await world.tally()).baseline == 1
        assert not (await world.counting().run()).completed_copies


class TestHeartbeat:
    async def test_a_census_beats(self, world: World) -> None:
        await world.counting().run()
        assert (await world.control.read()).raw["heartbeat"]

    async def test_counting_is_the_same_on_every_replica(self, world: World, peer: World) -> None:
        await world.registry.register(ref("k", line=KERNEL))
        await world.registry.register(ref("l"), finalized=False)
        mine, theirs = await world.tally(), await peer.tally()
        assert mine.legacy == theirs.legacy
        assert mine.kernel == theirs.kernel
        assert mine.kernel[RefState.FINALIZED] == mine.legacy[RefState.OPEN] == 1
        assert mine.refused == dict.fromkeys(WriterLine, 0)
