"""Adopt brings the books up to what the source shows, and never twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from checkpointd.domain.errors import (
    PermanentReplayError,
    SourceUnreachableError,
    StoreUnreachableError,
    WrongStoreError,
)
from checkpointd.domain.legacy import ThreadSketch, Verdict
from checkpointd.domain.reports import AdoptReport
from checkpointd.domain.states import (
    AdoptOutcome,
    DrainState,
    FailureReason,
    Hold,
    PassName,
    PassOutcome,
    RefState,
    WriterLine,
)

from .world import KERNEL, OLD, YOUNG, World, many, ref

pytestmark = pytest.mark.server

CLOSED, PAUSED, OPEN, FAILED = Verdict.CLOSED, Verdict.PAUSED, Verdict.OPEN, Verdict.FAILED
MINUTE = timedelta(minutes=1)


def counted(report: AdoptReport) -> dict[str, int]:
    return {str(word): n for word, n in report.outcomes.items() if n}


class TestNewHeads:
    @pytest.mark.parametrize(
        ("verdict", "blocker"),
        [
            (CLOSED, None),
            (CLOSED, FailureReason.UNANSWERED_CALL),
            (CLOSED, FailureReason.NO_SAFE_BOUNDARY),
            (Verdict.UNREADABLE, FailureReason.UNREADABLE),
        ],
    )
    async def test_a_head_that_its_writer_is_done_with_is_due_at_once(
        self, world: World, verdict: Verdict, blocker: FailureReason | None
    ) -> None:
        head = world.source.holds("t", verdict=verdict, blocker=blocker)
        report = await world.adopt()
        assert report.outcomes[AdoptOutcome.NEW] == 1
        record = await world.record()
        assert (record.state, record.hold) == (RefState.PENDING, Hold.NONE)
        assert record.ref.writer_line is WriterLine.LEGACY
        assert record.ref.finalized
        assert record.ref.created_at == head.created_at

    async def test_a_closed_heads_boundary_is_marked(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        (boundary,) = await world.registry.boundaries_for("t")
        assert boundary.boundary_id == (await world.record()).boundary_id
        assert boundary.digest == "digest-c1"

    async def test_a_blocked_head_has_no_boundary(self, world: World) -> None:
        world.source.holds("t", blocker=FailureReason.UNANSWERED_CALL)
        await world.adopt()
        assert await world.registry.boundaries_for("t") == ()

    async def test_a_paused_head_is_finalized_and_held(self, world: World) -> None:
        world.source.holds("t", verdict=PAUSED)
        await world.adopt()
        record = await world.record()
        assert (record.state, record.hold) == (RefState.PENDING, Hold.PAUSED)

    @pytest.mark.parametrize("verdict", [OPEN, FAILED])
    async def test_a_head_that_may_be_running_opens_a_window_as_old_as_its_checkpoint(
        self, world: World, verdict: Verdict
    ) -> None:
        head = world.source.holds("t", verdict=verdict, age=YOUNG)
        await world.adopt()
        record = await world.record()
        assert record.state is RefState.OPEN
        assert record.ref.created_at == record.opened_at == head.created_at
        assert await world.reconcile() == []

    async def test_an_open_head_older_than_the_grace_expires_once(self, world: World) -> None:
        world.source.holds("t", verdict=OPEN)
        await world.adopt()
        assert await world.reconcile() == ["t/c1"]
        await world.adopt()
        assert await world.reconcile() == []

    async def test_a_head_too_young_to_judge_is_left_for_the_next_scan(self, world: World) -> None:
        world.source.holds("t", age=timedelta(seconds=30))
        report = await world.adopt(source_settle=MINUTE)
        assert (report.too_young, report.adopted) == (1, 0)
        assert not await world.registry.refs_for("t")
        assert (await world.adopt(source_settle=timedelta(seconds=1))).adopted == 1

    async def test_the_report_says_what_was_found_with_a_few_ids(self, world: World) -> None:
        for thread in many(7):
            world.source.holds(thread)
        world.source.holds("q", blocker=FailureReason.UNANSWERED_CALL)
        report = await world.adopt()
        assert report.threads == 8
        assert report.verdicts == {"CLOSED": 8}
        assert report.blockers == {"unanswered_call": 1}
        assert len(report.samples["CLOSED"]) == 5
        assert report.samples["unanswered_call"] == ("q",)
        assert report.complete

    async def test_one_threads_trouble_is_not_anothers(self, world: World) -> None:
        for thread in many(5):
            world.source.holds(thread)

        async def trips(thread: str) -> None:
            if thread == "t-002":
                raise RuntimeError("a bug in reading just this")

        world.source.before_head = trips
        report = await world.adopt()
        assert report.adopted == 4
        assert report.outcome is PassOutcome.ERROR
        assert not report.clean
        (trouble,) = report.troubles
        assert "t-002" in trouble

    async def test_a_record_that_cannot_be_read_is_named_and_keeps_the_scan_from_clean(
        self, world: World
    ) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        key = world.store.keys.thread("t")
        raw = await world.store.read(lambda c: c.hget(key, "cc1"))
        await world.store.write(lambda c: c.hset(key, "cc1", "7\x1fof another build"))
        report = await world.adopt()
        assert report.outcomes[AdoptOutcome.UNREADABLE] == 1
        assert not report.clean
        assert "'t' cannot be read" in report.troubles[0]
        await world.store.write(lambda c: c.hset(key, "cc1", raw))

    async def test_a_source_that_is_down_fails_the_pass_and_lets_the_turn_go(
        self, world: World, peer: World
    ) -> None:
        world.source.holds("t")
        world.source.down = True
        with pytest.raises(SourceUnreachableError):
            await world.adopt()
        world.source.down = False
        assert (await peer.adopt()).adopted == 1

    async def test_a_registry_accounts_for_one_source(self, world: World) -> None:
        await world.adopt()
        world.source.identity = "fake://another"
        with pytest.raises(WrongStoreError, match="fake://legacy"):
            await world.adopt()


class TestRescans:
    async def test_a_second_scan_changes_nothing(self, world: World) -> None:
        world.source.holds("closed")
        world.source.holds("paused", verdict=PAUSED)
        world.source.holds("open", "c1")
        world.source.holds("open", "c2", OPEN)
        world.source.holds("bad", verdict=Verdict.UNREADABLE)
        first = await world.adopt()
        assert first.adopted == 5
        before = {t: await world.registry.records_of(t) for t in world.source.threads}
        tally = await world.tally()
        second = await world.adopt()
        assert counted(second) == {"unchanged": 4}
        assert (second.adopted, second.fallbacks) == (0, 0)
        assert {t: await world.registry.records_of(t) for t in world.source.threads} == before
        assert (await world.tally()).transitions == tally.transitions

    async def test_a_known_closed_head_costs_only_the_id_query(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        world.source.reads.clear()
        await world.adopt()
        assert world.source.reads == ["page"]

    async def test_a_kernel_ref_of_that_id_is_not_touched(self, world: World) -> None:
        mine = await world.registry.register(ref(line=KERNEL))
        world.source.holds("t")
        assert counted(await world.adopt()) == {"unchanged": 1}
        assert await world.registry.refs_for("t") == (mine,)

    async def test_an_open_kernel_ref_of_that_id_is_not_closed_either(self, world: World) -> None:
        await world.registry.register(ref(line=KERNEL), finalized=False)
        world.source.holds("t")
        assert counted(await world.adopt()) == {"unchanged": 1}
        assert await world.state() is RefState.OPEN

    async def test_kernel_refs_beside_a_moving_thread_stay(self, world: World) -> None:
        await world.registry.register(ref(checkpoint="k1", line=KERNEL), finalized=False)
        world.source.holds("t", "k1")
        world.source.holds("t", "c2")
        await world.adopt()
        assert await world.state(checkpoint="k1") is RefState.OPEN

    async def test_a_linked_head_is_unchanged(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.migrates("t")
        assert counted(await world.adopt()) == {"unchanged": 1}
        assert await world.state() is RefState.MIGRATED

    async def test_an_expired_head_that_still_reads_as_open_stays_expired(
        self, world: World
    ) -> None:
        world.source.holds("t", verdict=OPEN)
        await world.adopt()
        await world.reconcile()
        assert counted(await world.adopt()) == {"unchanged": 1}
        assert await world.state() is RefState.EXPIRED

    async def test_what_an_operator_expired_is_not_doubted_by_a_scan(self, world: World) -> None:
        world.source.holds("t", verdict=OPEN)
        await world.adopt()
        await world.registry.expire("t", "c1", "not needed")
        world.source.turns("t", CLOSED)
        assert counted(await world.adopt()) == {"unchanged": 1}
        assert await world.state() is RefState.EXPIRED

    async def test_a_quarantined_head_stays_as_it_is(self, world: World) -> None:
        world.source.holds("t", blocker=FailureReason.UNANSWERED_CALL)
        await world.adopt()
        await world.freeze()
        await world.drain()
        assert counted(await world.adopt()) == {"unchanged": 1}
        assert await world.quarantined() == {"t": FailureReason.UNANSWERED_CALL}


class TestHeadsThatMoveOn:
    async def test_an_open_head_that_closed_is_closed_in_the_books(self, world: World) -> None:
        world.source.holds("t", verdict=OPEN, age=YOUNG)
        await world.adopt()
        world.source.turns("t", CLOSED)
        assert counted(await world.adopt()) == {"closed": 1}
        record = await world.record()
        assert (record.state, record.opened_at) == (RefState.PENDING, None)

    async def test_an_open_head_that_paused_is_closed_and_held(self, world: World) -> None:
        world.source.holds("t", verdict=OPEN, age=YOUNG)
        await world.adopt()
        world.source.turns("t", PAUSED)
        assert counted(await world.adopt()) == {"closed": 1}
        assert (await world.record()).hold is Hold.PAUSED

    @pytest.mark.parametrize("verdict", [CLOSED, PAUSED, OPEN])
    async def test_a_head_with_a_successor_is_superseded(
        self, world: World, verdict: Verdict
    ) -> None:
        world.source.holds("t", "c1", verdict, age=YOUNG)
        await world.adopt()
        world.source.holds("t", "c2", age=YOUNG)
        assert counted(await world.adopt()) == {"new": 1, "superseded": 1}
        assert await world.state() is RefState.EXPIRED
        assert (await world.record()).ref.expired_reason.startswith("superseded")
        assert await world.state(checkpoint="c2") is RefState.PENDING

    async def test_a_quarantined_head_with_a_successor_is_superseded(self, world: World) -> None:
        world.source.holds("t", blocker=FailureReason.UNANSWERED_CALL)
        await world.adopt()
        await world.freeze()
        await world.drain()
        world.source.holds("t", "c2")
        await world.adopt()
        assert await world.quarantined() == {}
        assert (await world.tally()).blocked[FailureReason.UNANSWERED_CALL] == 0

    async def test_a_ref_being_replayed_loses_its_lease_to_a_successor(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        lease = await world.claimed()
        world.source.holds("t", "c2")
        await world.adopt()
        assert not await world.ledger.renew(lease)
        assert await world.state() is RefState.EXPIRED

    async def test_a_scan_far_behind_supersedes_nothing_that_it_does_not_see(
        self, world: World
    ) -> None:
        world.source.holds("t", "c1")
        await world.registry.register(ref(checkpoint="c9", age=YOUNG), finalized=False)
        assert counted(await world.adopt()) == {"new": 1}
        assert await world.state(checkpoint="c9") is RefState.OPEN


class TestFallbacks:
    async def crashed_second_turn(self, world: World, *, age: timedelta = OLD) -> None:
        world.source.holds("t", "c1", age=age)
        world.source.holds("t", "c2", OPEN, age=age)
        report = await world.adopt()
        assert (counted(report), report.fallbacks) == ({"new": 1}, 1)

    async def test_the_last_good_turn_is_registered_finalized_and_waits_for_its_head(
        self, world: World
    ) -> None:
        await self.crashed_second_turn(world)
        record = await world.record()
        assert (record.state, record.hold) == (RefState.PENDING, Hold.FALLBACK)
        assert record.stands_in_for == "c2"
        assert (await world.record(checkpoint="c2")).fallback == "c1"

    async def test_it_is_not_claimed_while_its_head_may_run(self, world: World) -> None:
        await self.crashed_second_turn(world)
        await world.freeze()
        await world.make_due()
        report = await world.drain()
        assert (report.acquired, world.replayer.requests) == (0, [])
        assert (await world.tally()).on_hold == 1

    async def test_it_becomes_due_with_its_heads_expiry_and_is_migrated(self, world: World) -> None:
        await self.crashed_second_turn(world)
        await world.freeze()
        assert await world.reconcile() == ["t/c2"]
        assert (await world.record()).hold is Hold.NONE
        await world.drain()
        assert await world.state() is RefState.MIGRATED
        resolved = await world.registry.resolve("t")
        assert resolved is not None
        assert resolved.writer_line is KERNEL

    async def test_it_becomes_due_when_an_operator_expires_the_head(self, world: World) -> None:
        await self.crashed_second_turn(world)
        await world.registry.expire("t", "c2", "it hangs")
        assert (await world.record()).hold is Hold.NONE

    @pytest.mark.parametrize("verdict", [CLOSED, PAUSED])
    async def test_it_is_superseded_when_the_head_closes(
        self, world: World, verdict: Verdict
    ) -> None:
        await self.crashed_second_turn(world, age=YOUNG)
        world.source.turns("t", verdict)
        assert counted(await world.adopt()) == {"closed": 1}
        assert await world.state() is RefState.EXPIRED
        assert await world.state(checkpoint="c2") is RefState.PENDING

    async def test_it_is_superseded_when_the_application_finalizes_the_head(
        self, world: World
    ) -> None:
        await self.crashed_second_turn(world, age=YOUNG)
        await world.registry.finalize("t", "c2")
        assert await world.state() is RefState.EXPIRED

    async def test_it_is_superseded_when_a_migrator_links_the_open_head(self, world: World) -> None:
        await self.crashed_second_turn(world, age=YOUNG)
        await world.migrates("t", "c2")
        assert await world.state() is RefState.EXPIRED

    async def test_it_is_superseded_when_the_head_moves_on_to_a_closed_one(
        self, world: World
    ) -> None:
        await self.crashed_second_turn(world, age=YOUNG)
        world.source.holds("t", "c3", age=YOUNG)
        await world.adopt()
        states = [await world.state(checkpoint=c) for c in ("c1", "c2", "c3")]
        assert states == [RefState.EXPIRED, RefState.EXPIRED, RefState.PENDING]

    @pytest.mark.parametrize("expired_first", [False, True])
    async def test_it_is_handed_over_to_a_newer_open_head(
        self, world: World, expired_first: bool
    ) -> None:
        await self.crashed_second_turn(world)
        if expired_first:
            await world.reconcile()
        world.source.holds("t", "c3", OPEN, age=YOUNG)
        report = await world.adopt()
        assert (report.fallbacks, counted(report)["new"]) == (0, 1)
        record = await world.record()
        assert (record.state, record.hold) == (RefState.PENDING, Hold.FALLBACK)
        assert record.stands_in_for == "c3"
        assert await world.state(checkpoint="c2") is RefState.EXPIRED
        await world.registry.expire("t", "c3", "crashed too")
        assert (await world.record()).hold is Hold.NONE

    async def test_a_pending_head_becomes_the_fallback_of_an_open_successor(
        self, world: World
    ) -> None:
        world.source.holds("t", "c1")
        await world.adopt()
        world.source.holds("t", "c2", OPEN, age=YOUNG)
        assert counted(await world.adopt()) == {"new": 1}
        record = await world.record()
        assert (record.state, record.hold, record.stands_in_for) == (
            RefState.PENDING,
            Hold.FALLBACK,
            "c2",
        )

    async def test_a_last_good_turn_that_its_writer_never_finalized_stands_in_as_well(
        self, world: World
    ) -> None:
        await world.registry.register(ref("t", "c1"), finalized=False)
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        await world.adopt()
        record = await world.record()
        assert (record.state, record.hold) == (RefState.PENDING, Hold.FALLBACK)
        assert await world.reconcile() == ["t/c2"]
        assert (await world.record()).hold is Hold.NONE

    async def test_one_that_nobody_knew_of_when_its_head_expired_is_due_when_it_is_found(
        self, world: World
    ) -> None:
        await world.registry.register(ref("t", "c2"), finalized=False)
        await world.reconcile()
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        assert (await world.adopt()).fallbacks == 1
        assert (await world.adopt()).fallbacks == 0
        await world.freeze()
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_a_known_one_of_a_head_that_an_operator_expired_is_not_superseded(
        self, world: World
    ) -> None:
        await world.registry.register(ref("t", "c1"))
        await world.registry.register(ref("t", "c2"), finalized=False)
        await world.registry.expire("t", "c2", "it hangs")
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        await world.adopt()
        await world.freeze()
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_a_superseded_one_is_reinstated_when_its_successor_is_left_unfinished(
        self, world: World
    ) -> None:
        """What becomes of a thread must not hang on how often it was looked at."""
        world.source.holds("t", "c1")
        await world.adopt()
        world.source.holds("t", "c2", PAUSED)
        await world.adopt()
        assert await world.state() is RefState.EXPIRED
        world.source.turns("t", OPEN)  # the pause was answered, and the answer's turn crashed
        world.source.holds("t", "c3", OPEN)
        await world.adopt()
        record = await world.record()
        assert (record.state, record.hold, record.reason) == (
            RefState.PENDING,
            Hold.FALLBACK,
            "",
        )
        assert await world.reconcile() == ["t/c3"]
        await world.freeze()
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_an_open_kernel_head_takes_no_legacy_ref_for_its_fallback(
        self, world: World
    ) -> None:
        await world.registry.register(ref("t", "c2", line=KERNEL), finalized=False)
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        assert (await world.adopt()).fallbacks == 0

    @pytest.mark.parametrize("expired", [True, False])
    async def test_a_quarantined_one_waits_for_its_head_once_it_is_released(
        self, world: World, expired: bool
    ) -> None:
        world.source.holds("t", "c1")
        world.replayer.will("t", PermanentReplayError("other"))
        await world.adopt()
        await world.freeze()
        await world.drain()
        world.source.holds("t", "c2", OPEN)
        await world.adopt()
        if expired:
            await world.reconcile()
        await world.operations.release([await world.record()], reason="mended")
        await world.drain()
        record = await world.record()
        if expired:
            assert record.state is RefState.MIGRATED
        else:
            assert (record.state, record.hold) == (RefState.PENDING, Hold.FALLBACK)

    async def test_a_head_that_crashed_in_its_first_turn_has_none(self, world: World) -> None:
        world.source.holds("t", "c1", FAILED)
        assert (await world.adopt()).fallbacks == 0
        await world.reconcile()
        assert (await world.tally()).legacy[RefState.PENDING] == 0


class TestClosedAfterExpiry:
    @pytest.mark.parametrize("verdict", [CLOSED, PAUSED])
    async def test_a_writer_that_ran_on_past_its_expiry_leads_to_quarantine(
        self, world: World, verdict: Verdict
    ) -> None:
        world.source.holds("t", verdict=OPEN)
        await world.adopt()
        await world.reconcile()
        world.source.turns("t", verdict)
        assert counted(await world.adopt()) == {"closed": 1}
        assert await world.quarantined() == {"t": FailureReason.CLOSED_AFTER_EXPIRY}

    async def test_a_release_is_the_way_back_and_it_migrates(self, world: World) -> None:
        world.source.holds("t", verdict=OPEN)
        await world.adopt()
        await world.reconcile()
        world.source.turns("t", CLOSED)
        await world.adopt()
        await world.freeze()
        await world.drain()
        assert world.replayer.requests == []
        records = [r async for r in world.operations.quarantined()]
        result = await world.operations.release(records, reason="it had ended after all")
        assert len(result.done) == 1
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_a_fallback_that_was_not_migrated_yet_is_superseded_by_it(
        self, world: World
    ) -> None:
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        await world.adopt()
        await world.reconcile()
        world.source.turns("t", CLOSED)
        await world.adopt()
        assert await world.state(checkpoint="c1") is RefState.EXPIRED
        assert await world.state(checkpoint="c2") is RefState.QUARANTINED


class TestPausedHeads:
    async def test_it_is_not_claimed_before_the_freeze_had_settled(self, world: World) -> None:
        world.source.holds("t", verdict=PAUSED)
        for _ in range(2):
            await world.adopt()
        await world.freeze()
        await world.drain()
        assert world.replayer.requests == []
        assert (await world.status()).state is DrainState.SETTLING

    async def test_a_scan_begun_after_that_which_sees_it_unchanged_makes_it_due(
        self, world: World
    ) -> None:
        world.source.holds("t", verdict=PAUSED)
        await world.adopt()
        await world.freeze()
        await world.adopt()
        record = await world.record()
        assert (record.hold, record.confirmed_at is not None) == (Hold.NONE, True)
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_a_scan_within_the_settling_time_confirms_nothing(self, world: World) -> None:
        world.source.holds("t", verdict=PAUSED)
        await world.adopt()
        await world.freeze()
        await world.adopt(freeze_settle=MINUTE)
        assert (await world.record()).hold is Hold.PAUSED

    async def test_one_that_is_new_to_the_scan_waits_for_the_next(self, world: World) -> None:
        await world.freeze()
        world.source.holds("t", verdict=PAUSED)
        await world.adopt()
        assert (await world.record()).hold is Hold.PAUSED
        await world.adopt()
        assert (await world.record()).hold is Hold.NONE

    async def test_one_that_was_open_to_the_last_scan_waits_for_the_next(
        self, world: World
    ) -> None:
        world.source.holds("t", verdict=OPEN, age=YOUNG)
        await world.adopt()
        await world.freeze()
        world.source.turns("t", PAUSED)
        await world.adopt()
        assert (await world.record()).hold is Hold.PAUSED
        await world.adopt()
        assert (await world.record()).hold is Hold.NONE

    async def test_what_was_confirmed_under_an_earlier_freeze_is_confirmed_anew(
        self, world: World
    ) -> None:
        world.source.holds("t", verdict=PAUSED)
        await world.adopt()
        await world.freeze()
        await world.adopt()
        await world.registry.thaw_issuance(reason="not today")
        await world.freeze()
        await world.drain()
        assert world.replayer.requests == []
        assert (await world.record()).hold is Hold.PAUSED
        await world.adopt()
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_an_answered_one_is_closed_by_its_successor(self, world: World) -> None:
        world.source.holds("t", "c1", PAUSED)
        await world.adopt()
        await world.freeze()
        world.source.holds("t", "c2")
        await world.adopt()
        await world.drain()
        assert await world.state(checkpoint="c1") is RefState.EXPIRED
        assert await world.state(checkpoint="c2") is RefState.MIGRATED

    async def test_one_that_its_thread_does_not_have_any_more_is_superseded(
        self, world: World
    ) -> None:
        world.source.holds("t", "c1", PAUSED)
        await world.adopt()
        await world.freeze()
        world.source.forgets("t")
        world.source.holds("t", "c2")
        await world.adopt()
        await world.drain()
        assert await world.state(checkpoint="c1") is RefState.EXPIRED
        assert await world.state(checkpoint="c2") is RefState.MIGRATED

    async def test_one_whose_thread_is_deleted_ends_as_absent(self, world: World) -> None:
        world.source.holds("gone", verdict=PAUSED)
        world.source.holds("there", verdict=PAUSED)
        await world.adopt()
        world.source.forgets("gone")
        await world.adopt()
        assert (await world.record("gone")).hold is Hold.PAUSED
        await world.freeze()
        await world.adopt()
        await world.drain()
        assert await world.quarantined() == {"gone": FailureReason.ABSENT}
        assert await world.state("there") is RefState.MIGRATED


class TestRefsOfTheApplication:
    """The application may issue its legacy refs itself; a scan finds them registered."""

    async def test_an_open_one_is_closed_when_the_source_shows_it_whole(self, world: World) -> None:
        await world.registry.register(ref(), finalized=False)
        world.source.holds("t")
        assert counted(await world.adopt()) == {"closed": 1}
        assert await world.state() is RefState.PENDING

    async def test_a_finalized_one_is_unchanged_and_migrates(self, world: World) -> None:
        await world.registry.register(ref())
        world.source.holds("t")
        assert counted(await world.adopt()) == {"unchanged": 1}
        await world.freeze()
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_a_finalized_pause_waits_for_its_confirmation_like_any(
        self, world: World
    ) -> None:
        await world.registry.register(ref())
        world.source.holds("t", verdict=PAUSED)
        await world.freeze()
        await world.adopt()
        await world.drain()
        assert world.replayer.requests == []
        await world.adopt()
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_one_that_the_thread_moved_on_from_is_superseded(self, world: World) -> None:
        await world.registry.register(ref(checkpoint="c1"))
        world.source.holds("t", "c1")
        world.source.holds("t", "c2")
        assert counted(await world.adopt()) == {"new": 1, "superseded": 1}

    async def test_one_without_a_row_is_left_to_the_grace(self, world: World) -> None:
        await world.registry.register(ref("crashed-early"), finalized=False)
        await world.adopt()
        assert await world.state("crashed-early") is RefState.OPEN
        assert await world.reconcile() == ["crashed-early/c1"]


class TestThreadsThatCannotBeRegistered:
    @pytest.mark.parametrize("thread", ["bad\nid", "x" * 513, "\ud800"])
    async def test_they_are_counted_and_reported(self, world: World, thread: str) -> None:
        world.source.extra_sketches = [ThreadSketch(thread_id=thread, head_id="c1")]
        world.source.holds("good")
        report = await world.adopt()
        assert counted(report) == {"unregistrable": 1, "new": 1}
        assert (await world.tally()).unregistrable == 1

    async def test_a_thread_without_a_root_checkpoint_is_one(self, world: World) -> None:
        world.source.extra_sketches = [ThreadSketch(thread_id="rootless")]
        assert counted(await world.adopt()) == {"unregistrable": 1}


class TestScanInPages:
    async def test_a_stopped_scan_goes_on_where_it_was_on_another_replica(
        self, world: World, peer: World
    ) -> None:
        for thread in many(10):
            world.source.holds(thread)
        scan = world.adopting(page=4, on_page=lambda: scan.stop())
        first = await scan.run()
        assert (first.threads, first.complete) == (4, False)
        second = await peer.adopting(page=4).run()
        assert (second.threads, second.complete) == (6, True)
        assert (await world.tally()).legacy[RefState.PENDING] == 10

    async def test_what_its_first_half_found_counts_at_its_end(self, world: World) -> None:
        await world.freeze()
        world.source.holds("a", age=timedelta(seconds=1))
        world.source.holds("b")
        scan = world.adopting(page=1, source_settle=MINUTE, on_page=lambda: scan.stop())
        await scan.run()
        world.source.forgets("b")
        report = await world.adopting(page=1, source_settle=MINUTE).run()
        assert report.complete
        assert not report.clean
        assert (await world.tally()).scan_young == 1

    async def test_a_replica_that_died_between_pages_holds_nobody_up_for_long(
        self, world: World, peer: World
    ) -> None:
        for thread in many(4):
            world.source.holds(thread)

        def dies() -> None:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await world.adopting(page=2, on_page=dies).run()
        report = await peer.adopting(page=2).run()
        assert report.complete
        assert (await peer.tally()).legacy[RefState.PENDING] == 4

    async def test_a_scan_that_lost_its_turn_stops_and_says_so(self, world: World) -> None:
        for thread in many(4):
            world.source.holds(thread)
        turn = world.store.keys.turn_of("adopt")

        async def takes_over(_: str) -> None:
            await world.store.write(lambda c: c.set(turn, "another"))

        world.source.before_head = takes_over
        report = await world.adopt(page=2)
        assert not report.complete
        assert report.troubles == ("another replica took the scan over",)

    async def test_a_store_that_fails_ends_the_scan(self, world: World) -> None:
        world.source.holds("t")

        async def fails(*_: object, **__: object) -> object:
            raise StoreUnreachableError("there", "no route")

        world.books.adopt = fails  # type: ignore[method-assign, assignment]
        with pytest.raises(StoreUnreachableError):
            await world.adopt()

    async def test_two_replicas_never_scan_at_once(self, world: World, peer: World) -> None:
        for thread in many(4):
            world.source.holds(thread)
        reports = await asyncio.gather(world.adopt(), peer.adopt())
        assert sorted(bool(r.skipped) for r in reports) == [False, True]
        assert sum(r.adopted for r in reports) == 4

    async def test_a_scan_within_the_interval_is_skipped_as_done(
        self, world: World, peer: World
    ) -> None:
        await world.adopt(force=False)
        report = await peer.adopt(force=False)
        assert "interval" in report.skipped
        assert report.outcome is PassOutcome.SKIPPED

    async def test_paused_it_scans_nothing(self, world: World) -> None:
        world.source.holds("t")
        await world.control.pause(PassName.ADOPT, reason="maintenance", actor="op")
        report = await world.adopt()
        assert report.outcome is PassOutcome.HELD
        assert "maintenance" in report.skipped
        assert world.source.reads == []


class TestCleanScan:
    async def test_the_first_unchanged_scan_after_the_freeze_is_clean(self, world: World) -> None:
        world.source.holds("t")
        await world.freeze()
        assert not (await world.adopt()).clean
        assert (await world.adopt()).clean

    async def test_a_birth_during_the_scan_voids_it(self, world: World) -> None:
        await world.freeze()
        world.source.holds("a", verdict=OPEN, age=YOUNG)
        await world.adopt()

        async def registers(_: str) -> None:
            await world.registry.register(ref("late"), issuance=False)

        world.source.before_head = registers
        report = await world.adopt()
        assert report.complete
        assert not report.clean

    async def test_a_later_birth_voids_it(self, world: World) -> None:
        await world.freeze()
        await world.adopt()
        await world.counting().run(wait=True)
        assert (await world.status()).state is DrainState.DRAINED
        await world.registry.register(ref("late"), issuance=False)
        await world.migrates("late")
        await world.counting().run(wait=True)
        assert (await world.status()).state is DrainState.SETTLING

    async def test_a_migration_does_not_void_it(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        assert (await world.adopt()).clean
        await world.drain()
        await world.counting().run(wait=True)
        assert (await world.status()).state is DrainState.DRAINED

    async def test_a_supersession_voids_it(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        assert (await world.adopt()).clean
        world.source.holds("t", "c2")
        await world.drain()
        await world.drain()
        assert await world.state(checkpoint="c2") is RefState.MIGRATED
        await world.counting().run(wait=True)
        assert (await world.status()).state is DrainState.SETTLING

    async def test_a_scan_begun_before_the_freeze_had_settled_does_not_count(
        self, world: World
    ) -> None:
        await world.adopt()
        await world.freeze()
        await world.counting().run(wait=True)
        assert (await world.status()).state is DrainState.SETTLING

    async def test_an_owed_scan_ignores_the_interval(self, world: World) -> None:
        await world.adopt(force=False)
        await world.freeze()
        report = await world.adopt(force=False)
        assert report.complete
        assert report.clean

    async def test_it_is_not_made_before_the_freeze_has_settled(self, world: World) -> None:
        await world.adopt(force=False)
        await world.freeze()
        assert (await world.adopt(force=False, freeze_settle=MINUTE)).skipped

    async def test_an_owed_scan_that_was_not_clean_is_made_again_after_a_breath(
        self, world: World
    ) -> None:
        world.source.holds("t")
        await world.freeze()
        assert not (await world.adopt(force=False)).clean
        assert "not clean" in (await world.adopt(force=False)).skipped
        await world.set_meta(scan_completed=1)
        assert (await world.adopt(force=False)).clean

    async def test_once_it_is_on_record_the_interval_holds_again(self, world: World) -> None:
        await world.freeze()
        await world.adopt(force=False)
        assert "interval" in (await world.adopt(force=False)).skipped

    async def test_too_young_heads_are_no_clean_scan(self, world: World) -> None:
        await world.freeze()
        world.source.holds("t", age=timedelta(seconds=1))
        assert not (await world.adopt(source_settle=MINUTE)).clean

    async def test_a_deleted_thread_is_no_obstacle(self, world: World) -> None:
        world.source.holds("t", verdict=OPEN, age=YOUNG)
        await world.adopt()

        async def deletes(thread: str) -> None:
            world.source.threads.pop(thread, None)

        world.source.before_head = deletes
        report = await world.adopt()
        assert report.complete
        assert report.outcome is PassOutcome.SUCCESS
        assert await world.state() is RefState.OPEN
