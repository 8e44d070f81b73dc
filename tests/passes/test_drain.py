"""Drain claims due refs, replays them, commits or fails; what fails is its own ref's trouble alone."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta

import pytest

from checkpointd.domain.drain import DrainRules
from checkpointd.domain.errors import (
    IssuanceFrozenError,
    LeaseLostError,
    PermanentReplayError,
    ReplayerUnreachableError,
    StoreRefusedError,
    StoreUnreachableError,
    TransientReplayError,
    UnreadableStateError,
)
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.states import (
    DrainState,
    FailureReason,
    Hold,
    PassName,
    PassOutcome,
    RefState,
    ReplayOutcome,
    StallCause,
    ThrottleReason,
)
from checkpointd.passes.drain import CENSUSES_IDLE
from checkpointd.registry.ledger import DrainLedger
from checkpointd.replay.port import ReplayRequest, replay_key

from .world import ATTEMPTS, KERNEL, YOUNG, Gate, World, many, ref, until

pytestmark = pytest.mark.server

CLOSED, PAUSED, OPEN = Verdict.CLOSED, Verdict.PAUSED, Verdict.OPEN
FOREVER = timedelta(days=1)


async def frozen_with(world: World, *threads: str) -> None:
    """These threads adopted as closed, and legacy frozen."""
    for thread in threads:
        world.source.holds(thread)
    await world.adopt()
    await world.freeze()


class TestMigrating:
    async def test_a_due_ref_is_replayed_and_linked(self, world: World) -> None:
        await frozen_with(world, "t")
        report = await world.drain()
        assert report.outcomes == {ReplayOutcome.MIGRATED: 1}
        link = await world.registry.migration_of("t", "c1")
        assert link is not None
        assert link.checkpoint_id == world.replayer.requests[0].idempotency_key
        assert await world.state() is RefState.MIGRATED

    async def test_the_new_ref_is_as_old_as_the_legacy_one(self, world: World) -> None:
        await frozen_with(world, "t")
        await world.drain()
        new = await world.registry.resolve("t")
        assert new is not None
        assert new.created_at == (await world.record()).ref.created_at

    async def test_a_replayer_is_told_all_that_makes_a_second_time_harmless(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        await world.drain(timeout=timedelta(seconds=7))
        (request,) = world.replayer.requests
        assert (request.thread_id, request.legacy_checkpoint_id) == ("t", "c1")
        assert request.attempt == 1
        assert request.fence == world.ends[0].fence > 0
        assert request.state is not None
        assert request.boundary.digest == "digest-c1"
        assert request.idempotency_key == replay_key("t", "c1", request.boundary.boundary_id)
        assert timedelta(0) < request.deadline - datetime.now(UTC) <= timedelta(seconds=7)

    async def test_a_ref_without_a_boundary_has_it_found_in_the_source_and_marked(
        self, world: World
    ) -> None:
        await world.registry.register(ref())
        world.source.holds("t")
        await world.freeze()
        await world.drain()
        (boundary,) = await world.registry.boundaries_for("t")
        assert (await world.record()).boundary_id == boundary.boundary_id

    async def test_without_a_source_the_threads_marked_boundary_serves(self, world: World) -> None:
        await world.registry.register(ref("marked"))
        await world.registry.register(ref("bare"))
        marker = await world.registry.mark_safe_boundary(
            "marked", sequence=3, digest="d", writer_line=ref().writer_line
        )
        await world.freeze()
        await world.drain(source=False)
        assert world.replayer.requests[0].boundary == marker
        assert world.replayer.requests[0].state is None
        assert await world.quarantined() == {"bare": FailureReason.NO_SAFE_BOUNDARY}

    async def test_refs_of_the_new_line_are_not_touched(self, world: World) -> None:
        new = await world.registry.register(ref("k", line=KERNEL))
        await frozen_with(world, "t")
        await world.drain()
        assert await world.registry.refs_for("k") == (new,)
        assert world.replayer.threads == ["t"]

    async def test_three_looks_worth_of_refs_with_one_created_at_all_migrate(
        self, world: World
    ) -> None:
        moment = datetime(2024, 1, 1, tzinfo=UTC)
        for thread in many(90):
            world.source.holds(thread, at=moment)
        await world.adopt()
        await world.freeze()
        report = await world.drain(concurrency=8)
        assert report.outcomes == {ReplayOutcome.MIGRATED: 90}

    async def test_two_processes_replay_each_ref_once(self, world: World, peer: World) -> None:
        await frozen_with(world, *many(60))
        await asyncio.gather(world.drain(), peer.drain())
        assert sorted(world.replayer.threads) == list(many(60))
        ends = [end.outcome for end in (*world.ends, *peer.ends)]
        assert ends.count(ReplayOutcome.MIGRATED) == 60

    async def test_a_requested_thread_is_replayed_first(self, world: World) -> None:
        await frozen_with(world, *many(12))
        assert await world.registry.request_replay("t-011") == 1
        partition = world.store.keys.index("t-011")
        peek = await world.ledger.peek(partition, 1)
        assert peek.due == (("t-011", "c1"),)

    async def test_without_a_freeze_nothing_is_claimed(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        report = await world.drain()
        assert (report.waiting_for, report.acquired) == ("not_frozen", 0)

    async def test_a_freeze_of_the_new_line_alone_starts_no_drain(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze(KERNEL)
        report = await world.drain()
        assert (report.waiting_for, report.acquired) == ("not_frozen", 0)

    async def test_a_replay_under_way_commits_after_a_thaw(self, world: World) -> None:
        await frozen_with(world, "t")
        gate = Gate()
        world.replayer.will("t", gate)
        drain = world.draining()
        running = asyncio.create_task(drain.run(within=FOREVER, wait=True))
        await gate.reached()
        await world.registry.thaw_issuance(reason="changed our mind")
        gate.open()
        await running
        assert await world.state() is RefState.MIGRATED

    async def test_idle_it_asks_the_store_nothing_for_a_while(self, world: World) -> None:
        await world.freeze()
        drain = world.draining(clock=lambda: world.now_s)
        await drain.run(within=FOREVER)
        world.source.holds("t")
        await world.adopt()
        world.now_s += 10
        asked = world.store.scripts.round_trips
        assert (await drain.run(within=FOREVER)).acquired == 0
        assert world.store.scripts.round_trips == asked
        world.now_s += 15 * CENSUSES_IDLE
        assert (await drain.run(within=FOREVER)).acquired == 1
        await drain.settle(timedelta(seconds=5))

    async def test_stopped_by_a_pause_it_asks_again_when_a_census_would(self, world: World) -> None:
        await frozen_with(world, "t")
        await world.control.pause(PassName.DRAIN, reason="r", actor="op")
        drain = world.draining(clock=lambda: world.now_s)
        await drain.run(within=FOREVER)
        await world.control.resume(PassName.DRAIN, actor="op")
        assert (await drain.run(within=FOREVER)).acquired == 0
        world.now_s += 16
        assert (await drain.run(within=FOREVER)).acquired == 1
        await drain.settle(timedelta(seconds=5))

    async def test_woken_it_looks_at_once(self, world: World) -> None:
        await world.freeze()
        drain = world.draining()
        await drain.run(within=FOREVER)
        world.source.holds("t")
        await world.adopt()
        drain.wake()
        assert (await drain.run(within=FOREVER)).acquired == 1
        await drain.settle(timedelta(seconds=5))


class TestFailingReplays:
    @pytest.mark.parametrize(
        "error",
        [
            TransientReplayError("busy"),
            RuntimeError("a bug in the replayer"),
            KeyError("x"),
            TimeoutError("of its own, no deadline of ours"),
            AssertionError(),
            ExceptionGroup("several", [ValueError("one")]),
            asyncio.CancelledError("somebody inside was cancelled"),
            RecursionError(),
        ],
        ids=lambda e: type(e).__name__,
    )
    async def test_whatever_it_raises_is_tried_again_and_others_go_on(
        self, world: World, error: BaseException
    ) -> None:
        await frozen_with(world, "bad", "good")
        world.replayer.will("bad", error)
        report = await world.drain()
        assert report.outcomes == {ReplayOutcome.MIGRATED: 2, ReplayOutcome.RETRYABLE: 1}
        assert report.failures == {FailureReason.REPLAY_ERROR: 1}
        again = [r.attempt for r in world.replayer.requests if r.thread_id == "bad"]
        assert again == [1, 2]

    @pytest.mark.parametrize("answer", ["", "with\ncontrol", "x" * 513, "\ud800"])
    async def test_a_checkpoint_id_that_names_nothing_is_refused(
        self, world: World, answer: str
    ) -> None:
        await frozen_with(world, "t")

        async def answers(_: ReplayRequest) -> str:
            return answer

        world.replayer.will("t", answers)
        report = await world.drain()
        assert report.failures == {FailureReason.REPLAY_ERROR: 1}
        assert len(await world.registry.refs_for("t")) == 2
        assert await world.state() is RefState.MIGRATED

    async def test_an_answer_that_is_no_answer_is_its_refs_trouble_alone(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        world.replayer.replay = _nothing  # type: ignore[method-assign, assignment]
        report = await world.drain()
        assert report.failures == {FailureReason.REPLAY_ERROR: ATTEMPTS}
        assert await world.quarantined() == {"t": FailureReason.ATTEMPTS_EXHAUSTED}

    async def test_the_back_off_grows_with_the_attempts_and_is_waited_for(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        world.replayer.always["t"] = TransientReplayError("not now")
        await world.drain(backoff=timedelta(hours=1))
        record = await world.record()
        assert (record.state, record.attempts) == (RefState.RETRYABLE, 1)
        assert record.cause == "replay_error: not now"
        await world.drain(backoff=timedelta(hours=1))
        assert len(world.replayer.requests) == 1
        await world.make_due()
        await world.drain(backoff=timedelta(hours=1))
        assert (await world.record()).attempts == 2

    async def test_the_time_that_a_replayer_asks_for_is_given(self, world: World) -> None:
        await frozen_with(world, "t")
        world.replayer.will("t", TransientReplayError("429", retry_after_s=3600))
        await world.drain()
        await world.drain()
        assert len(world.replayer.requests) == 1
        assert await world.state() is RefState.RETRYABLE

    async def test_spent_attempts_end_in_quarantine_with_the_last_reason(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        world.replayer.always["t"] = TransientReplayError("never")
        await world.drain()
        assert len(world.replayer.requests) == ATTEMPTS
        record = await world.record()
        assert record.code is FailureReason.ATTEMPTS_EXHAUSTED
        assert record.detail == "replay_error: never"

    @pytest.mark.parametrize("reason", [r for r in FailureReason if r != "attempts_exhausted"])
    async def test_a_permanent_reason_quarantines_at_once(
        self, world: World, reason: FailureReason
    ) -> None:
        await frozen_with(world, "t")
        world.replayer.will("t", PermanentReplayError(reason, "so it is"))
        report = await world.drain()
        assert report.outcomes == {ReplayOutcome.QUARANTINED: 1}
        assert report.failures == {reason: 1}
        record = await world.record()
        assert (record.code, record.detail, record.attempts) == (reason, "so it is", 1)
        assert (await world.tally()).blocked[reason] == 1

    async def test_a_reason_outside_the_closed_set_becomes_other(self, world: World) -> None:
        await frozen_with(world, "t")
        world.replayer.will("t", PermanentReplayError("the_moon_is_full"))
        await world.drain()
        assert await world.quarantined() == {"t": FailureReason.OTHER}

    async def test_unreadable_state_quarantines(self, world: World) -> None:
        await frozen_with(world, "t")
        world.replayer.will("t", UnreadableStateError("t", "truncated"))
        await world.drain()
        assert await world.quarantined() == {"t": FailureReason.UNREADABLE}

    async def test_one_replay_that_never_returns_times_out_and_others_go_on(
        self, world: World
    ) -> None:
        await frozen_with(world, "hangs", *many(10))
        world.replayer.always["hangs"] = Gate()
        report = await world.drain(concurrency=2, timeout=timedelta(milliseconds=20))
        assert report.outcomes[ReplayOutcome.MIGRATED] == 10
        assert report.failures == {FailureReason.TIMEOUT: ATTEMPTS}
        assert await world.quarantined() == {"hangs": FailureReason.ATTEMPTS_EXHAUSTED}

    async def test_a_poison_ref_at_concurrency_one_lets_the_others_through_and_is_named(
        self, world: World
    ) -> None:
        await frozen_with(world, *many(5))
        world.replayer.always["t-002"] = RuntimeError("poison")
        await world.adopt()
        await world.drain(concurrency=1)
        await world.counting().run(wait=True)
        status = await world.status()
        assert (status.state, status.cause) == (DrainState.STALLED, StallCause.QUARANTINE)
        assert "attempts_exhausted" in status.sentence
        assert (await world.tally()).legacy[RefState.MIGRATED] == 4


class TestDyingOwners:
    async def test_a_ref_whose_owner_was_killed_is_claimed_again(self, world: World) -> None:
        await frozen_with(world, "t")
        await world.claimed()
        assert await world.state() is RefState.REPLAYING
        await world.drain()
        assert world.replayer.requests == []
        await world.break_leases()
        await world.drain()
        assert [r.attempt for r in world.replayer.requests] == [2]
        assert await world.state() is RefState.MIGRATED

    async def test_one_that_kills_every_owner_is_quarantined_by_the_claim_itself(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        for _ in range(ATTEMPTS):
            await world.claimed()
            await world.break_leases()
        report = await world.drain()
        assert world.replayer.requests == []
        assert report.outcomes == {ReplayOutcome.QUARANTINED: 1}
        assert await world.quarantined() == {"t": FailureReason.ATTEMPTS_EXHAUSTED}

    async def test_a_lease_ends_by_itself(self, world: World) -> None:
        await frozen_with(world, "t")
        brief = DrainLedger(world.store, actor="gone", lease_ttl=timedelta(milliseconds=1))
        partition = world.store.keys.index("t")
        taken = brief.drawn([("t", "c1")])
        await brief.claim(partition, taken, most=1, max_attempts=ATTEMPTS)

        async def is_migrated_by_another() -> bool:
            await world.drain()
            return await world.state() is RefState.MIGRATED

        await until(is_migrated_by_another)
        assert [end.attempt for end in world.ends] == [2]

    async def test_a_lost_lease_stops_the_replay_and_its_result_is_thrown_away(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        gate = Gate()
        world.replayer.will("t", gate)
        drain = world.draining()
        running = asyncio.create_task(drain.run(within=FOREVER))
        await gate.reached()
        await world.break_leases()
        await world.claimed()
        await world.keeper.tick()
        await drain.settle(timedelta(seconds=5))
        await running
        (end,) = world.ends
        assert (end.outcome, end.lost_phase) == (ReplayOutcome.LEASE_LOST, "before_commit")
        assert await world.state() is RefState.REPLAYING

    async def test_a_lease_lost_unseen_is_noticed_by_the_commit(self, world: World) -> None:
        await frozen_with(world, "t")

        async def loses(request: ReplayRequest) -> str:
            await world.registry.expire("t", "c1", "by hand, meanwhile")
            return request.idempotency_key

        world.replayer.will("t", loses)
        await world.drain()
        (end,) = world.ends
        assert (end.outcome, end.lost_phase) == (ReplayOutcome.LEASE_LOST, "at_commit")
        assert await world.registry.migration_of("t", "c1") is None
        assert len(await world.registry.refs_for("t")) == 1

    async def test_a_replay_that_another_beat_is_told_of_the_first_link(self, world: World) -> None:
        await frozen_with(world, "t")

        async def is_beaten(request: ReplayRequest) -> str:
            await world.migrates("t")
            return request.idempotency_key

        world.replayer.will("t", is_beaten)
        await world.drain()
        (end,) = world.ends
        assert (end.outcome, end.became) == (ReplayOutcome.ALREADY_MIGRATED, "by-hand-c1")

    async def test_a_stale_holder_cannot_quarantine_what_another_migrated(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")

        async def is_beaten(_: ReplayRequest) -> str:
            await world.migrates("t")
            raise PermanentReplayError(FailureReason.ABSENT)

        world.replayer.will("t", is_beaten)
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_a_commit_whose_reply_is_lost_is_asked_for_again(self, world: World) -> None:
        await frozen_with(world, "t")
        commit, lost = world.ledger.commit, ["once"]

        async def loses_its_reply(*args: object) -> object:
            committed = await commit(*args)  # type: ignore[arg-type]
            if lost:
                lost.clear()
                raise StoreUnreachableError("there", "connection reset")
            return committed

        world.ledger.commit = loses_its_reply  # type: ignore[method-assign, assignment]
        await world.drain()
        assert [end.outcome for end in world.ends] == [ReplayOutcome.MIGRATED]

    async def test_a_commit_that_the_keeper_takes_for_a_loss_is_looked_up(
        self, world: World
    ) -> None:
        """The commit deletes the lease; a renewal whose reply is faster finds it gone."""
        await frozen_with(world, "t")
        commit = world.ledger.commit

        async def is_slow_to_answer(*args: object) -> object:
            committed = await commit(*args)  # type: ignore[arg-type]
            ticking = asyncio.create_task(world.keeper.tick())
            await asyncio.wait([ticking])
            await asyncio.Event().wait()
            return committed

        world.ledger.commit = is_slow_to_answer  # type: ignore[method-assign, assignment]
        await world.drain()
        (end,) = world.ends
        assert end.outcome is ReplayOutcome.ALREADY_MIGRATED
        assert end.became == world.replayer.requests[0].idempotency_key

    @pytest.mark.parametrize("landed", [True, False])
    async def test_a_commit_that_is_not_answered_while_the_lease_lives_is_looked_up(
        self, world: World, landed: bool
    ) -> None:
        await frozen_with(world, "t")
        commit = world.ledger.commit

        async def is_never_heard(*args: object) -> object:
            if landed:
                await commit(*args)  # type: ignore[arg-type]
            for guard in tuple(world.keeper._guards):
                guard.deadline = 0.0
            raise StoreUnreachableError("there", "black hole")

        world.ledger.commit = is_never_heard  # type: ignore[method-assign, assignment]
        await world.drain()
        (end,) = world.ends
        lost = (ReplayOutcome.LEASE_LOST, "at_commit")
        linked = (ReplayOutcome.ALREADY_MIGRATED, "")
        assert (end.outcome, end.lost_phase) == (linked if landed else lost)

    async def test_a_lease_lost_before_a_supersession_supersedes_nothing(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        world.source.holds("t", "c2")

        async def loses(_: str) -> None:
            world.source.before_head = None
            await world.break_leases()

        world.source.before_head = loses
        drain = world.draining()
        await drain.run(within=timedelta(0))
        await drain.run(within=FOREVER, wait=True)
        assert world.ends[0].outcome is ReplayOutcome.LEASE_LOST
        assert world.ends[-1].outcome in {ReplayOutcome.SUPERSEDED, ReplayOutcome.MIGRATED}
        assert await world.state(checkpoint="c1") is RefState.EXPIRED

    async def test_a_shutdown_gives_the_lease_and_the_attempt_back(self, world: World) -> None:
        await frozen_with(world, "t")
        gate = Gate()
        world.replayer.will("t", gate)
        drain = world.draining()
        running = asyncio.create_task(drain.run(within=FOREVER))
        await gate.reached()
        assert await drain.settle(timedelta(0)) == 1
        await running
        record = await world.record()
        assert (record.state, record.attempts) == (RefState.PENDING, 0)
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_a_shutdown_lets_a_replay_finish_within_its_grace(self, world: World) -> None:
        await frozen_with(world, "a", "b")
        gate = Gate()
        world.replayer.always = {"a": gate, "b": gate}
        drain = world.draining(concurrency=1)
        running = asyncio.create_task(drain.run(within=FOREVER))
        await gate.reached()
        settling = asyncio.create_task(drain.settle(timedelta(seconds=5)))
        await asyncio.sleep(0)
        gate.open()
        assert await settling == 0
        await running

    async def test_a_claim_whose_reply_was_lost_gives_back_what_it_took(self, world: World) -> None:
        await frozen_with(world, "t")
        claim = world.ledger.claim

        async def loses_its_reply(*args: object, **more: object) -> object:
            await claim(*args, **more)  # type: ignore[arg-type]
            raise StoreUnreachableError("there", "connection reset")

        world.ledger.claim = loses_its_reply  # type: ignore[method-assign, assignment]
        drain = world.draining()
        report = await drain.run(within=FOREVER, wait=True)
        assert report.claim_errors == 1
        await drain.settle(timedelta(seconds=5))
        record = await world.record()
        assert (record.state, record.attempts) == (RefState.PENDING, 0)

    async def test_a_store_that_cannot_be_asked_fails_the_pass_with_its_reason(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")

        async def answers_nothing() -> list[int]:
            raise StoreUnreachableError("there", "no route")

        with_work = world.ledger.with_work
        world.ledger.with_work = answers_nothing  # type: ignore[method-assign]
        report = await world.drain()
        assert (report.outcome, report.claim_errors) == (PassOutcome.ERROR, 1)
        assert "no route" in report.troubles[0]
        world.ledger.with_work = with_work  # type: ignore[method-assign]
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_one_partition_that_will_not_answer_stops_no_other(self, world: World) -> None:
        await frozen_with(world, *many(20))
        peek, bad = world.ledger.peek, world.store.keys.index("t-000")

        async def fails_in_one(partition: int, most: int) -> object:
            if partition == bad:
                raise StoreRefusedError("peek", "MISCONF")
            return await peek(partition, most)

        world.ledger.peek = fails_in_one  # type: ignore[method-assign, assignment]
        report = await world.drain()
        others = [t for t in many(20) if world.store.keys.index(t) != bad]
        assert report.outcomes == {ReplayOutcome.MIGRATED: len(others)}
        assert report.outcome is PassOutcome.ERROR

    async def test_a_record_that_cannot_be_read_is_named_and_hides_no_other(
        self, world: World
    ) -> None:
        await frozen_with(world, "bad", "good")
        key = world.store.keys.thread("bad")
        raw = await world.store.read(lambda c: c.hget(key, "cc1"))
        await world.store.write(lambda c: c.hset(key, "cc1", "7\x1fof another build"))
        report = await world.drain()
        assert report.outcomes == {ReplayOutcome.MIGRATED: 1}
        assert report.troubles == ("1 records cannot be read",)
        await world.store.write(lambda c: c.hset(key, "cc1", raw))

    async def test_a_pause_between_look_and_claim_is_kept(self, world: World) -> None:
        await frozen_with(world, "t")
        claim = world.ledger.claim

        async def is_paused_first(*args: object, **more: object) -> object:
            await world.control.pause(PassName.DRAIN, reason="r", actor="op")
            return await claim(*args, **more)  # type: ignore[arg-type]

        world.ledger.claim = is_paused_first  # type: ignore[method-assign, assignment]
        report = await world.drain()
        assert (report.acquired, report.waiting_for) == (0, "paused")
        assert world.replayer.requests == []


class TestConcurrency:
    async def test_no_more_run_at_once_than_it_says_and_a_change_holds_at_once(
        self, world: World
    ) -> None:
        await frozen_with(world, *many(9))
        gate = Gate()
        world.replayer.always = dict.fromkeys(many(9), gate)
        drain = world.draining(concurrency=3)
        running = asyncio.create_task(drain.run(within=FOREVER, wait=True))

        async def is_full() -> bool:
            return len(world.replayer.requests) == 3

        await until(is_full)
        assert (drain.concurrency, drain.running) == (3, 3)
        drain.concurrency = 1
        assert drain.pace.room(1, now=0) == 0
        gate.open()
        await running
        assert (await world.tally()).legacy[RefState.MIGRATED] == 9


class TestRefusedCommits:
    @pytest.mark.parametrize("line", [KERNEL, ref().writer_line])
    async def test_an_id_that_is_taken_is_refused_and_nothing_is_linked(
        self, world: World, line: object
    ) -> None:
        await frozen_with(world, "t")
        taken = ref("t", "taken", line=line, age=YOUNG)  # type: ignore[arg-type]
        await world.registry.register(taken, finalized=False, issuance=False)
        world.replayer.will("t", "taken")
        await world.drain()
        reason = FailureReason.ID_CONFLICT if line is KERNEL else FailureReason.WRITER_LINE
        assert await world.quarantined() == {"t": reason}
        assert await world.registry.migration_of("t", "c1") is None
        assert await world.state("t", "taken") is RefState.OPEN

    async def test_two_refs_of_a_thread_never_become_one(self, world: World) -> None:
        await frozen_with(world, "t")
        await world.registry.register(ref("t", "c0"), issuance=False)
        await world.migrates("t", "c0")
        world.replayer.will("t", "by-hand-c0")
        await world.drain()
        assert await world.quarantined() == {"t": FailureReason.ID_CONFLICT}

    async def test_a_checkpoint_that_the_replayer_registered_itself_is_linked(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        await world.registry.register(ref("t", "own", line=KERNEL))
        world.replayer.will("t", "own")
        await world.drain()
        assert (await world.record()).link is not None


class TestLookingAgain:
    @pytest.mark.parametrize("successor", [CLOSED, PAUSED])
    async def test_a_ref_that_is_no_longer_the_head_is_superseded_not_replayed(
        self, world: World, successor: Verdict
    ) -> None:
        await frozen_with(world, "t")
        world.source.holds("t", "c2", successor)
        report = await world.drain()
        assert report.outcomes[ReplayOutcome.SUPERSEDED] == 1
        assert "c1" not in [r.legacy_checkpoint_id for r in world.replayer.requests]
        assert await world.state() is RefState.EXPIRED
        record = await world.record(checkpoint="c2")
        paused = successor is PAUSED
        assert record.state is (RefState.PENDING if paused else RefState.MIGRATED)
        assert record.hold is (Hold.PAUSED if paused else Hold.NONE)

    async def test_the_last_good_turn_of_a_new_open_head_is_kept_for_it(self, world: World) -> None:
        await frozen_with(world, "t")
        world.source.holds("t", "c2", OPEN)
        await world.drain()
        assert world.replayer.requests == []
        record = await world.record()
        assert (record.state, record.hold) == (RefState.PENDING, Hold.FALLBACK)
        assert (record.stands_in_for, record.attempts, record.lease) == ("c2", 0, "")
        assert await world.reconcile() == ["t/c2"]
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_the_last_good_turn_of_a_head_that_expired_unseen_is_replayed(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        await world.registry.register(ref("t", "c2"), finalized=False, issuance=False)
        await world.reconcile()
        world.source.holds("t", "c2", OPEN)
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_the_last_good_turn_before_a_head_that_was_linked_is_superseded(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        await world.registry.register(ref("t", "c2"), finalized=False, issuance=False)
        await world.migrates("t", "c2")
        world.source.holds("t", "c2", OPEN)
        report = await world.drain()
        assert report.outcomes == {ReplayOutcome.SUPERSEDED: 1}
        assert await world.state() is RefState.EXPIRED

    async def test_a_due_fallback_is_kept_for_the_next_open_head_as_well(
        self, world: World
    ) -> None:
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        await world.adopt()
        await world.freeze()
        await world.reconcile()
        world.source.holds("t", "c3", OPEN, age=YOUNG)
        await world.drain()
        record = await world.record()
        assert (record.hold, record.stands_in_for) == (Hold.FALLBACK, "c3")

    async def test_a_due_fallback_is_superseded_when_its_head_closed_after_all(
        self, world: World
    ) -> None:
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        await world.adopt()
        await world.freeze()
        await world.reconcile()
        world.source.turns("t", CLOSED)
        report = await world.drain()
        assert report.outcomes == {ReplayOutcome.SUPERSEDED: 1}
        assert await world.state(checkpoint="c1") is RefState.EXPIRED
        assert await world.quarantined() == {"t": FailureReason.CLOSED_AFTER_EXPIRY}

    async def test_a_thread_that_is_gone_is_absent_and_not_tried_for_ever(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        world.source.forgets("t")
        report = await world.drain()
        assert report.outcomes == {ReplayOutcome.QUARANTINED: 1}
        assert await world.quarantined() == {"t": FailureReason.ABSENT}

    async def test_a_fallback_that_is_gone_is_absent(self, world: World) -> None:
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", OPEN)
        await world.adopt()
        await world.freeze()
        await world.reconcile()
        del world.source.threads["t"][0]
        await world.drain()
        assert await world.quarantined() == {"t": FailureReason.ABSENT}

    @pytest.mark.parametrize(
        "blocker",
        [
            FailureReason.UNANSWERED_CALL,
            FailureReason.NO_SAFE_BOUNDARY,
            FailureReason.UNREADABLE,
        ],
    )
    async def test_a_head_that_is_no_boundary_is_quarantined_for_its_reason(
        self, world: World, blocker: FailureReason
    ) -> None:
        world.source.holds("t", blocker=blocker, detail="call_a1")
        await world.adopt()
        await world.freeze()
        await world.drain()
        assert world.replayer.requests == []
        assert await world.quarantined() == {"t": blocker}
        assert (await world.record()).detail == "call_a1"

    async def test_an_unanswered_call_may_be_cut_off_by_setting(self, world: World) -> None:
        world.source.holds("t", blocker=FailureReason.UNANSWERED_CALL)
        await world.adopt()
        await world.freeze()
        await world.drain(truncate=True)
        assert await world.state() is RefState.MIGRATED

    async def test_a_head_that_moves_between_read_and_commit_is_refused_and_the_new_one_adopted(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")

        async def is_overtaken(request: ReplayRequest) -> str:
            world.source.holds("t", "c2")
            await world.adopt()
            return request.idempotency_key

        world.replayer.will("t", is_overtaken)
        await world.drain()
        await world.drain()
        assert await world.registry.migration_of("t", "c1") is None
        assert await world.registry.migration_of("t", "c2") is not None

    async def test_a_finalized_head_that_reads_as_open_is_waited_for(self, world: World) -> None:
        await world.registry.register(ref())
        world.source.holds("t", verdict=OPEN)
        await world.freeze()
        report = await world.drain(backoff=timedelta(hours=1))
        assert set(report.outcomes) == {ReplayOutcome.RETRYABLE}
        assert world.replayer.requests == []


class TestDependenciesOutOfReach:
    async def test_an_unreachable_source_costs_nobody_an_attempt_and_throttles(
        self, world: World
    ) -> None:
        await frozen_with(world, *many(6))
        world.source.down = True
        drain = world.draining(concurrency=2)
        await drain.run(within=FOREVER, wait=True)
        assert drain.pace.throttled is ThrottleReason.SOURCE
        assert world.ends == []
        records = [await world.record(thread) for thread in many(6)]
        assert {(r.state, r.attempts) for r in records} == {(RefState.PENDING, 0)}

    async def test_it_is_probed_with_one_ref_and_resumed_unaided(self, world: World) -> None:
        await frozen_with(world, *many(6))
        world.replayer.down = ReplayerUnreachableError("connection refused")
        drain = world.draining(concurrency=4, clock=lambda: world.now_s)
        await drain.run(within=FOREVER, wait=True)
        assert drain.pace.throttled is ThrottleReason.REPLAYER
        world.replayer.requests.clear()
        await drain.run(within=FOREVER, wait=True)
        assert world.replayer.requests == []
        world.now_s += 1.5
        await drain.run(within=FOREVER, wait=True)
        assert len(world.replayer.requests) == 1
        world.replayer.down = None
        world.now_s += 1.5
        await drain.run(within=FOREVER, wait=True)
        assert len(world.replayer.requests) == 1
        world.now_s += 1
        await drain.run(within=FOREVER, wait=True)
        assert drain.pace.throttled is None
        assert (await world.tally()).legacy[RefState.MIGRATED] == 6

    async def test_with_nothing_left_to_hold_back_it_is_throttled_no_more(
        self, world: World
    ) -> None:
        await frozen_with(world, "t")
        world.source.down = True
        drain = world.draining(clock=lambda: world.now_s)
        await drain.run(within=FOREVER, wait=True)
        await world.migrates("t")
        world.now_s += 2
        await drain.run(within=FOREVER, wait=True)
        assert drain.pace.throttled is None

    async def test_throttled_it_is_not_stalled_and_has_no_eta(self, world: World) -> None:
        await frozen_with(world, *many(6))
        await world.set_meta(in_force_at=1, frozen_at=1)
        await world.counting().run(throttled=ThrottleReason.SOURCE)
        status = await world.status()
        assert status.state is DrainState.DRAINING
        assert status.eta_s is None
        assert "source" in status.sentence

    async def test_a_store_that_goes_away_abandons_the_replay_and_it_is_made_later(
        self, world: World
    ) -> None:
        await world.registry.register(ref())
        world.source.holds("t")
        await world.freeze()
        mark, gone = world.registry.mark_safe_boundary, ["once"]

        async def is_not_heard(*args: object, **more: object) -> object:
            if gone:
                raise StoreUnreachableError("there", gone.pop())
            return await mark(*args, **more)  # type: ignore[arg-type]

        world.registry.mark_safe_boundary = is_not_heard  # type: ignore[method-assign, assignment]
        await world.drain()
        assert [end.outcome for end in world.ends] == [ReplayOutcome.MIGRATED]
        assert [end.attempt for end in world.ends] == [1]


class TestPauseAndCanary:
    async def test_paused_it_claims_nothing_until_resumed(self, world: World) -> None:
        await frozen_with(world, "t")
        await world.control.pause(PassName.DRAIN, reason="a release", actor="op")
        report = await world.drain()
        assert (report.outcome, report.waiting_for) == (PassOutcome.HELD, "paused")
        status = await world.status()
        assert status.state is DrainState.PAUSED
        assert "a release" in status.sentence
        await world.control.resume(PassName.DRAIN, actor="op")
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    @pytest.mark.parametrize("n", [1, 5])
    async def test_a_canary_takes_so_many_refs_and_pauses_itself(
        self, world: World, n: int
    ) -> None:
        await frozen_with(world, *many(20))
        await world.control.pause(PassName.DRAIN, reason="first a look", actor="op")
        await world.control.resume(PassName.DRAIN, actor="op", refs=n)
        await world.drain()
        assert len(world.replayer.requests) == n
        assert (await world.status()).state is DrainState.PAUSED
        await world.drain()
        assert len(world.replayer.requests) == n

    async def test_two_replicas_share_one_canary(self, world: World, peer: World) -> None:
        await frozen_with(world, *many(20))
        await world.control.resume(PassName.DRAIN, actor="op", refs=6)
        await asyncio.gather(world.drain(), peer.drain())
        assert len(world.replayer.requests) <= 6
        await world.drain()
        assert len(world.replayer.requests) <= 6
        assert (await world.status()).state is DrainState.PAUSED

    async def test_after_a_canary_a_plain_resume_lets_all_go(self, world: World) -> None:
        await frozen_with(world, *many(10))
        await world.control.resume(PassName.DRAIN, actor="op", refs=2)
        await world.drain()
        await world.control.resume(PassName.DRAIN, actor="op")
        await world.drain()
        assert len(world.replayer.requests) == 10


class TestBreaker:
    async def test_half_of_fifty_failing_for_reasons_of_their_own_halts_the_drain(
        self, world: World
    ) -> None:
        await frozen_with(world, *many(50))
        for thread in many(25):
            world.replayer.will(thread, PermanentReplayError("other"))
        await world.drain()
        report = await world.counting().run()
        assert report.halted
        status = await world.status()
        assert status.state is DrainState.HALTED
        assert "25 of 50" in status.sentence

    async def test_halted_it_claims_nothing_and_resume_clears_it(self, world: World) -> None:
        await frozen_with(world, *many(50))
        for thread in many(30):
            world.replayer.will(thread, PermanentReplayError("other"))
        await world.drain()
        await world.counting().run()
        world.source.holds("next")
        await world.adopt()
        report = await world.drain()
        assert (report.waiting_for, report.acquired) == ("halted", 0)
        await world.control.resume(PassName.DRAIN, actor="op")
        assert not (await world.counting().run()).halted
        await world.drain()
        assert await world.state("next") is RefState.MIGRATED

    async def test_fewer_than_fifty_or_less_than_half_say_too_little(self, world: World) -> None:
        await frozen_with(world, *many(49))
        for thread in many(49):
            world.replayer.will(thread, PermanentReplayError("other"))
        await world.drain()
        assert not (await world.counting().run()).halted

    async def test_what_went_well_before_does_not_hide_a_bad_window(self, world: World) -> None:
        await frozen_with(world, *many(60))
        await world.drain()
        await world.counting().run()
        for thread in many(50, "bad"):
            world.source.holds(thread)
            world.replayer.will(thread, PermanentReplayError("other"))
        await world.adopt()
        await world.drain()
        assert (await world.counting().run()).halted

    async def test_an_unreachable_replayer_does_not_trip_it(self, world: World) -> None:
        await frozen_with(world, *many(60))
        world.replayer.down = ReplayerUnreachableError("refused")
        for _ in range(3):
            await world.drain(concurrency=60)
        assert (await world.tally()).replays_ended == 0


class TestOperatorsHand:
    async def quarantined_one(self, world: World) -> None:
        await frozen_with(world, "t")
        world.replayer.will("t", PermanentReplayError("binding_mismatch", "whose is it"))
        await world.drain()

    async def test_released_it_is_due_with_all_its_attempts(self, world: World) -> None:
        await frozen_with(world, "t")
        world.replayer.will("t", *[TransientReplayError("no")] * ATTEMPTS)
        await world.drain()
        await world.operations.release([await world.record()], reason="mended")
        assert (await world.record()).attempts == 0
        await world.drain()
        assert await world.state() is RefState.MIGRATED

    async def test_waived_it_lets_the_drain_end_and_is_not_resumable(self, world: World) -> None:
        await self.quarantined_one(world)
        await world.adopt()
        await world.operations.waive([await world.record()], reason="a test account")
        await world.counting().run(wait=True)
        status = await world.status()
        assert (status.state, status.progress) == (DrainState.DRAINED, 1.0)
        assert not await world.registry.is_resumable("t", "c1")
        assert (await world.tally()).legacy[RefState.WAIVED] == 1

    async def test_unwaived_it_is_back_for_its_old_reason(self, world: World) -> None:
        await self.quarantined_one(world)
        await world.operations.waive([await world.record()], reason="a mistake")
        await world.operations.unwaive([await world.record()], reason="it was one")
        assert await world.quarantined() == {"t": FailureReason.BINDING_MISMATCH}

    async def test_a_ref_restored_after_a_wrong_grace_migrates(self, world: World) -> None:
        world.source.holds("t", verdict=OPEN)
        await world.adopt()
        await world.reconcile()
        since = await world.registry.now()
        with pytest.raises(ValueError, match="expired"):
            await world.registry.finalize("t", "c1")
        world.source.turns("t", CLOSED)
        await world.operations.restore_late(since=since, reason="the grace was wrong")
        await world.freeze()
        await world.drain()
        assert await world.state() is RefState.MIGRATED


class TestFrozenMeansFrozen:
    async def test_no_process_issues_a_legacy_ref_beside_a_drain(
        self, world: World, peer: World
    ) -> None:
        await frozen_with(world, "t")
        for one in (world, peer):
            with pytest.raises(IssuanceFrozenError, match="retiring it"):
                await one.registry.register(ref("new"))
            await one.registry.register(ref(f"k-{one.actor}", line=KERNEL))
        await world.drain()
        assert (await world.tally()).refused[ref().writer_line] == 2


class TestLeavingNothingBehind:
    async def test_no_task_ends_with_an_error_that_nobody_saw(self, world: World) -> None:
        await frozen_with(world, *many(4))
        world.replayer.will("t-000", RuntimeError())
        world.replayer.will("t-001", LeaseLostError("somebody else's", 1))
        seen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        await world.drain()
        gc.collect()
        await asyncio.sleep(0)
        assert seen == []
        assert len(world.keeper) == 0

    async def test_what_a_drain_does_is_in_the_audit_with_its_actor(self, world: World) -> None:
        await frozen_with(world, "t")
        await world.drain()
        assert await world.events("t") == [
            "ref_adopted",
            "ref_claimed",
            "ref_registered",
            "ref_migrated",
        ]
        page = await world.operations.audit(thread="t")
        assert {entry.by for entry in page.entries} == {"test"}

    async def test_without_a_source_no_scan_is_owed(self, world: World) -> None:
        await world.registry.register(ref())
        await world.registry.mark_safe_boundary(
            "t", sequence=1, digest="d", writer_line=ref().writer_line
        )
        await world.freeze()
        await world.drain(source=False)
        await world.counting(rules=DrainRules()).run(wait=True)
        assert (await world.status(DrainRules())).state is DrainState.DRAINED


async def _nothing(_: ReplayRequest) -> None:
    return None
