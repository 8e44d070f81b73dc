"""The registry in memory keeps the contract, and what it promises beside it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from checkpointd.domain.errors import CheckpointExpiredError, LeaseLostError
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import RefState, WriterLine
from checkpointd.registry.memory import MemoryRegistry

from .contract import HOUR, RegistryContract, Story, ids_of, kernel, legacy

TTL = timedelta(seconds=15)


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 29, 1, 59, 59, 123_456, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(clock: ManualClock) -> MemoryRegistry:
    return MemoryRegistry(clock, lease_ttl=TTL, actor="test")


@pytest.fixture
def peer(registry: MemoryRegistry) -> MemoryRegistry:
    """Two users of one registry object: there is no other process to have."""
    return registry


@pytest.fixture
def story(registry: MemoryRegistry) -> Story:
    async def record_of(thread_id: str, checkpoint_id: str) -> RefRecord:
        records = registry.records_of(thread_id)
        return next(r for r in records if r.ref.checkpoint_id == checkpoint_id)

    return record_of


class TestMemoryRegistry(RegistryContract):
    """The whole contract, on the model."""


class TestCrashWindow:
    async def test_it_outlives_its_grace_in_the_microsecond_it_is_that_old(
        self, registry: MemoryRegistry, clock: ManualClock
    ) -> None:
        await registry.register(kernel(finalized=False))
        clock.now = kernel().created_at + HOUR - timedelta(microseconds=1)
        assert (await registry.reconcile_crash_expiry(grace=HOUR)).expired == ()
        clock.now += timedelta(microseconds=1)
        assert len((await registry.reconcile_crash_expiry(grace=HOUR)).expired) == 1

    async def test_an_extended_one_outlives_a_whole_grace_more(
        self, registry: MemoryRegistry, clock: ManualClock
    ) -> None:
        await registry.register(kernel(finalized=False))
        await registry.extend("t", "k-1")
        clock.now += HOUR - timedelta(microseconds=1)
        assert (await registry.reconcile_crash_expiry(grace=HOUR)).expired == ()
        clock.now += timedelta(microseconds=1)
        assert len((await registry.reconcile_crash_expiry(grace=HOUR)).expired) == 1

    async def test_a_crash_keeps_the_grace_it_was_judged_by_and_who_judged(
        self, registry: MemoryRegistry, story: Story
    ) -> None:
        await registry.register(kernel(finalized=False))
        await registry.reconcile_crash_expiry(grace=HOUR)
        record = await story("t", "k-1")
        assert (record.grace_s, record.by) == (3600.0, "test")

    async def test_a_whole_ref_that_an_operator_expired_is_not_late_when_finalized_again(
        self, registry: MemoryRegistry, story: Story
    ) -> None:
        await registry.register(kernel())
        await registry.expire("t", "k-1", "reason")
        with pytest.raises(CheckpointExpiredError):
            await registry.finalize("t", "k-1")
        assert (await story("t", "k-1")).late_at is None


class TestLease:
    async def test_it_runs_out_at_its_ttl_and_then_commits_nothing(
        self, registry: MemoryRegistry, clock: ManualClock
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            clock.now += TTL
            with pytest.raises(LeaseLostError):
                await registry.commit_replay(lease, kernel(), "b-1")
        assert ids_of(await registry.refs_for("t")) == ["l-1"]

    async def test_it_holds_until_just_before(
        self, registry: MemoryRegistry, clock: ManualClock
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            clock.now += TTL - timedelta(microseconds=1)
            await registry.commit_replay(lease, kernel(), "b-1")

    async def test_who_comes_after_it_ran_out_has_a_higher_fence_and_the_next_attempt(
        self, registry: MemoryRegistry, clock: ManualClock, story: Story
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as first:
            clock.now += TTL
            assert (await story("t", "l-1")).state is RefState.REPLAYING
            async with registry.migration_lock("t", "l-1") as second:
                assert second.fence > first.fence
                assert (first.attempt, second.attempt) == (1, 2)

    async def test_leaving_late_does_not_release_the_next_holders(
        self, registry: MemoryRegistry, clock: ManualClock
    ) -> None:
        await registry.register(legacy())
        late = registry.migration_lock("t", "l-1")
        await late.__aenter__()
        clock.now += TTL
        async with registry.migration_lock("t", "l-1") as lease:
            await late.__aexit__(None, None, None)
            await registry.commit_replay(lease, kernel(), "b-1")

    async def test_an_attempt_that_died_stays_counted_when_the_next_is_given_back(
        self, registry: MemoryRegistry, clock: ManualClock, story: Story
    ) -> None:
        await registry.register(legacy())
        await registry.migration_lock("t", "l-1").__aenter__()
        clock.now += TTL
        async with registry.migration_lock("t", "l-1"):
            pass
        record = await story("t", "l-1")
        assert (record.state, record.attempts) == (RefState.RETRYABLE, 1)

    async def test_it_carries_the_newest_boundary_of_the_legacy_line(
        self, registry: MemoryRegistry
    ) -> None:
        await registry.register(legacy())
        for step, line in ((3, WriterLine.LEGACY), (2, WriterLine.LEGACY), (9, WriterLine.KERNEL)):
            await registry.mark_safe_boundary("t", sequence=step, digest="d", writer_line=line)
        async with registry.migration_lock("t", "l-1") as lease:
            assert lease.boundary is not None
            assert lease.boundary.sequence == 3


class TestDue:
    async def test_what_was_asked_for_comes_first_then_the_oldest(
        self, registry: MemoryRegistry
    ) -> None:
        for thread, day in (("c", 3), ("a", 1), ("b", 2)):
            await registry.register(legacy(thread_id=thread, day=day))
        assert [ref.thread_id for ref in registry.due()] == ["a", "b", "c"]
        await registry.request_replay("c")
        assert [ref.thread_id for ref in registry.due()] == ["c", "a", "b"]

    async def test_what_is_being_replayed_or_done_is_not_due(
        self, registry: MemoryRegistry
    ) -> None:
        await registry.register(legacy("l-1"))
        await registry.register(legacy("l-2"))
        async with registry.migration_lock("t", "l-1") as lease:
            assert ids_of(registry.due()) == ["l-2"]
            await registry.commit_replay(lease, kernel(), "b-1")
        assert ids_of(registry.due()) == ["l-2"]


class TestCounts:
    async def test_they_count_each_ref_in_its_state(self, registry: MemoryRegistry) -> None:
        await registry.register(legacy("l-1"))
        await registry.register(legacy("l-2", finalized=False))
        async with registry.migration_lock("t", "l-1") as lease:
            await registry.commit_replay(lease, kernel(), "b-1")
        assert registry.counts() == {
            (WriterLine.LEGACY, RefState.MIGRATED): 1,
            (WriterLine.LEGACY, RefState.OPEN): 1,
            (WriterLine.KERNEL, RefState.FINALIZED): 1,
        }


class TestClock:
    async def test_without_one_it_is_the_machines(self) -> None:
        registry = MemoryRegistry()
        began = datetime.now(UTC)
        assert began <= await registry.now() <= datetime.now(UTC)

    async def test_one_that_is_naive_is_refused(self) -> None:
        registry = MemoryRegistry(lambda: datetime(2026, 1, 1))  # noqa: DTZ001 - the point
        with pytest.raises(ValueError, match="no zone"):
            await registry.now()
