"""Each row of the lease table, on a real server: what it takes, what it leaves, and that it is done once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.passes.world import ATTEMPTS, KERNEL, World, many, opened, ref

from checkpointd.domain.errors import (
    AlreadyMigratedError,
    CommitRefusedError,
    LeaseBusyError,
    LeaseLostError,
    UnknownCheckpointError,
)
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.refs import Lease, to_us
from checkpointd.domain.states import (
    FailureReason,
    Hold,
    PassName,
    RefState,
    ReplayOutcome,
    WriterLine,
)
from checkpointd.registry.keys import member
from checkpointd.registry.ledger import Claim, Taken
from checkpointd.registry.store import Store

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()
TTL_MS = 15_000
MINE, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
"""Tokens of two holders."""
SOON = timedelta(minutes=5)


@pytest.fixture
async def world(redis_server: Any) -> AsyncIterator[World]:
    """At its end its counters and indexes equal a recount, and every lease key has a TTL."""
    async with opened(redis_server.url, f"ledger-{next(_NUMBERS)}") as made:
        yield made
        for key, ttl_ms in (await leases(made)).items():
            assert 0 < ttl_ms <= TTL_MS, key


async def leases(world: World) -> dict[str, int]:
    """Every lease key of the registry, with what is left of its TTL in milliseconds."""
    keys = [k async for k in world.store.client.scan_iter(f"{{{world.store.keys.namespace}:*")]
    return {k.decode(): await world.store.client.pttl(k) for k in keys if b":lease:" in k}


async def held_by(world: World, thread: str = "t", checkpoint: str = "c1") -> str | None:
    """The value of a ref's lease."""
    raw = await world.store.client.get(world.store.keys.lease(thread, checkpoint))
    return raw.decode() if raw else None


async def books(world: World) -> dict[str, Any]:
    """All that the store holds, but for the TTLs and due times that a renewal moves on."""
    client, found = world.store.client, {}
    async for key in client.scan_iter(f"{{{world.store.keys.namespace}:*", count=1000):
        match await client.type(key):
            case b"hash":
                found[key.decode()] = await client.hgetall(key)
            case b"string":
                found[key.decode()] = await client.get(key)
            case b"zset":
                found[key.decode()] = sorted(await client.zrange(key, 0, -1))
            case b"stream":
                found[key.decode()] = await client.xrange(key)
    return found


async def due_at(world: World, thread: str = "t", checkpoint: str = "c1") -> int | None:
    """When a ref is due, microseconds; ``None`` if it is not in that index."""
    score = await world.store.client.zscore(
        world.store.keys.of(thread).due, member(thread, checkpoint)
    )
    return None if score is None else int(score)


async def now_us(world: World) -> int:
    return to_us(await world.store.now())


async def pending(world: World, *threads: str) -> None:
    """Frozen, with these threads' refs due."""
    for thread in threads or ("t",):
        await world.registry.register(ref(thread), issuance=False)
    await world.freeze()


def in_one_partition(world: World, count: int) -> list[str]:
    """Threads that one claim can take."""
    mine = world.store.keys.index
    return [t for t in many(40 * count) if mine(t) == mine("t-000")][:count]


async def claim(world: World, taken: tuple[Taken, ...], **how: Any) -> Claim:
    partition = world.store.keys.index(taken[0][0])
    asked = {"most": len(taken), "max_attempts": ATTEMPTS} | how
    return await world.ledger.claim(partition, taken, **asked)


async def peeked(world: World) -> list[tuple[str, str]]:
    peeks = [await world.ledger.peek(p, 100) for p in range(world.store.keys.partitions)]
    return sorted(pair for peek in peeks for pair in peek.due)


async def taken_over(world: World) -> tuple[Lease, Lease]:
    """A stale holder's lease of a ref, and that of the one who has it now."""
    stale = await world.claimed()
    await world.break_leases()
    return stale, await world.claimed()


async def once(world: World, step: Callable[[], Awaitable[Any]]) -> tuple[Any, Any]:
    """Both answers of a step that is sent twice; the second changed nothing."""
    first = await step()
    after = await books(world)
    second = await step()
    assert await books(world) == after
    return first, second


class TestPeek:
    async def test_it_names_what_is_due_earliest_first_and_writes_nothing(
        self, world: World
    ) -> None:
        threads = in_one_partition(world, 4)
        await pending(world, *threads)
        keys = world.store.keys.of(threads[0])
        later = await now_us(world) + 10**9
        for score, thread in ((3, threads[0]), (1, threads[1]), (2, threads[2])):
            await world.store.client.zadd(keys.due, {member(thread, "c1"): score})
        await world.store.client.zadd(keys.due, {member(threads[3], "c1"): later})
        partition = world.store.keys.index(threads[0])
        first, second = await once(world, lambda: world.ledger.peek(partition, 10))
        assert first == second
        assert first.word == "go"
        assert [t for t, _ in first.due] == [threads[1], threads[2], threads[0]]

    async def test_it_looks_at_no_more_than_it_is_asked_to(self, world: World) -> None:
        threads = in_one_partition(world, 4)
        await pending(world, *threads)
        peek = await world.ledger.peek(world.store.keys.index(threads[0]), 2)
        assert len(peek.due) == 2

    async def test_its_word_is_the_one_that_a_claim_would_be_given(self, world: World) -> None:
        await world.registry.register(ref(), issuance=False)
        partition, taken = world.store.keys.index("t"), world.ledger.drawn([("t", "c1")])

        async def words() -> tuple[str, str]:
            canary = (await world.ledger.peek(partition, 1)).word
            return canary, (await claim(world, taken)).word

        assert await words() == ("not_frozen", "not_frozen")
        await world.freeze()
        await world.control.pause(PassName.DRAIN, reason="r", actor="op")
        assert await words() == ("paused", "paused")
        await world.control.resume(PassName.DRAIN, actor="op")
        epoch = (await world.control.read()).epoch
        await world.control.halt(reason="r", actor="a", epoch=epoch)
        assert await words() == ("halted", "halted")
        await world.control.resume(PassName.DRAIN, actor="op", refs=1)
        assert await words() == ("canary", "canary")
        assert await leases(world) == {}

    async def test_a_freeze_of_the_kernel_line_alone_lets_nothing_be_claimed(
        self, world: World
    ) -> None:
        await world.registry.register(ref(), issuance=False)
        await world.freeze(KERNEL)
        assert (await world.ledger.peek(world.store.keys.index("t"), 1)).word == "not_frozen"
        assert (await claim(world, world.ledger.drawn([("t", "c1")]))).word == "not_frozen"


class TestClaim:
    async def test_it_counts_the_attempt_and_issues_the_fence_beforehand(
        self, world: World
    ) -> None:
        await pending(world)
        lease = await world.claimed()
        record = await world.record()
        assert (record.state, record.attempts, record.lease) == (
            RefState.REPLAYING,
            1,
            lease.value,
        )
        assert await held_by(world) == lease.value
        assert lease.attempt == 1

    async def test_it_is_due_again_when_its_lease_would_end(self, world: World) -> None:
        await pending(world)
        before = await now_us(world)
        await world.claimed()
        due = await due_at(world)
        assert due is not None
        assert before + TTL_MS * 1000 <= due <= await now_us(world) + TTL_MS * 1000
        assert await peeked(world) == []

    async def test_sent_again_it_is_given_what_it_was_given(self, world: World) -> None:
        threads = in_one_partition(world, 5)
        await pending(world, *threads)
        taken = world.ledger.drawn([(t, "c1") for t in threads])
        first, second = await once(world, lambda: claim(world, taken, most=3))

        def told(answer: Claim) -> list[tuple[str, str, int]]:
            return [(x.thread_id, x.value, x.attempt) for x in answer.leases]

        assert told(first) == told(second)
        assert len(first.leases) == 3
        assert {lease.attempt for lease in first.leases} == {1}

    async def test_another_with_other_tokens_takes_none_of_them(self, world: World) -> None:
        await pending(world)
        mine = await world.claimed()
        other = await claim(world, world.ledger.drawn([("t", "c1")]))
        assert (other.leases, other.busy) == ((), 1)
        assert await held_by(world) == mine.value
        assert (await world.record()).attempts == 1

    async def test_a_busy_ref_is_moved_to_the_end_of_its_lease(self, world: World) -> None:
        await pending(world)
        await world.claimed()
        await world.make_due()
        assert await peeked(world) == [("t", "c1")]
        taken = world.ledger.drawn([("t", "c1")])
        await once(world, lambda: claim(world, taken))
        left_ms = (await leases(world))[world.store.keys.lease("t", "c1")]
        due, now = await due_at(world), await now_us(world)
        assert due is not None
        assert abs(due - (now + left_ms * 1000)) < 500_000
        assert await peeked(world) == []

    async def test_busy_refs_keep_no_other_from_being_claimed(self, world: World) -> None:
        threads = in_one_partition(world, 4)
        await pending(world, *threads)
        for thread in threads[:3]:
            await world.claimed(thread)
        answer = await claim(world, world.ledger.drawn([(t, "c1") for t in threads]), most=1)
        assert [lease.thread_id for lease in answer.leases] == [threads[3]]
        assert answer.busy == 3

    async def test_fences_rise_from_one_lease_of_a_partition_to_the_next(
        self, world: World
    ) -> None:
        threads = in_one_partition(world, 3)
        await pending(world, *threads)
        fences = [(await world.claimed(t)).fence for t in threads]
        await world.break_leases()
        fences += [(await world.claimed(t)).fence for t in threads]
        assert fences == sorted(set(fences))

    async def test_a_ref_that_has_spent_its_attempts_goes_to_quarantine(self, world: World) -> None:
        await pending(world)
        for attempt in range(1, ATTEMPTS + 1):
            assert (await world.claimed()).attempt == attempt
            await world.break_leases()
        taken = world.ledger.drawn([("t", "c1")])
        first, second = await once(world, lambda: claim(world, taken))
        assert second.leases == ()
        (record,) = first.quarantined
        assert record.attempts == ATTEMPTS
        record = await world.record()
        assert (record.state, record.code) == (
            RefState.QUARANTINED,
            FailureReason.ATTEMPTS_EXHAUSTED,
        )
        assert await due_at(world) is None
        assert await leases(world) == {}

    async def test_a_lease_that_lives_is_not_quarantined_under_its_holder(
        self, world: World
    ) -> None:
        await pending(world)
        for _ in range(ATTEMPTS - 1):
            await world.claimed()
            await world.break_leases()
        last = await world.claimed()
        await world.make_due()
        answer = await claim(world, world.ledger.drawn([("t", "c1")]))
        assert (answer.busy, answer.quarantined) == (1, ())
        committed = await world.ledger.commit(last, "new", KERNEL, "b")
        assert committed.outcome is ReplayOutcome.MIGRATED

    @pytest.mark.parametrize("how", ["migrated", "expired", "unknown"])
    async def test_what_is_not_to_be_claimed_is_taken_out_of_the_index(
        self, world: World, how: str
    ) -> None:
        await pending(world)
        if how == "migrated":
            await world.migrates("t")
        elif how == "expired":
            await world.registry.expire("t", "c1", "r")
        name = "unknown" if how == "unknown" else "c1"
        keys = world.store.keys.of("t")
        await world.store.client.zadd(keys.due, {member("t", name): 1})
        taken = world.ledger.drawn([("t", name)])
        first, second = await once(world, lambda: claim(world, taken))
        assert first.leases == second.leases == ()
        assert await due_at(world, checkpoint=name) is None

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"9\x1fp\x1fl\x1f1",
            b"1\x1fz\x1fl\x1f1",
            b"\xff\xfe",
            b"1\x1fp\x1fl\x1fsoon",
            b"1\x1fp\x1fl\x1f1" + 5 * b"\x1f" + b"\xff",
        ],
        ids=["empty", "version", "state", "garbage", "time", "text"],
    )
    async def test_a_corrupt_record_in_the_index_stops_no_other(
        self, redis_server: Any, raw: bytes
    ) -> None:
        namespace = f"ledger-{next(_NUMBERS)}"
        store = await Store.open(redis_server.url, namespace=namespace, partitions=4)
        world = World(store)  # whose books are not in order, so nobody looks at them in the end
        bad, good = in_one_partition(world, 2)
        await pending(world, bad, good)
        await store.client.hset(store.keys.thread(bad), "cc1", raw)
        for _ in range(ATTEMPTS + 1):
            await world.break_leases()
            answer = await claim(world, world.ledger.drawn([(bad, "c1"), (good, "c1")]))
            assert [lease.thread_id for lease in answer.leases] == [good]
            assert answer.corrupt + len(answer.quarantined) == 1
            await world.ledger.release(answer.leases[0])
        assert await peeked(world) == [(good, "c1")]
        await store.aclose()

    async def test_a_canary_must_be_shown_and_be_the_one_in_force(self, world: World) -> None:
        await pending(world)
        await world.control.pause(PassName.DRAIN, reason="r", actor="op")
        await world.control.resume(PassName.DRAIN, actor="op", refs=2)
        peek = await world.ledger.peek(world.store.keys.index("t"), 1)
        assert (peek.word, peek.canary) == ("canary", (await world.control.read()).canary)
        taken = world.ledger.drawn([("t", "c1")])
        for shown in ("", "12345"):
            assert (await claim(world, taken, canary=shown)).word == "canary"
        assert (await claim(world, taken, canary=peek.canary)).word == "go"

    async def test_a_canary_that_is_over_opens_nothing(self, world: World) -> None:
        await pending(world)
        await world.control.resume(PassName.DRAIN, actor="op", refs=2)
        epoch = (await world.control.read()).canary
        await world.control.resume(PassName.DRAIN, actor="op")
        taken = world.ledger.drawn([("t", "c1")])
        assert (await claim(world, taken, canary=epoch)).word == "canary"
        assert (await claim(world, taken)).word == "go"


class TestAcquire:
    async def test_sent_again_it_is_the_same_lease(self, world: World) -> None:
        await pending(world)
        first, second = await once(world, lambda: world.ledger.acquire("t", "c1", token=MINE))
        assert (first.value, first.attempt) == (second.value, second.attempt)
        assert first.attempt == 1
        assert await held_by(world) == first.value

    async def test_another_is_told_how_long_it_is_busy(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        with pytest.raises(LeaseBusyError) as busy:
            await world.ledger.acquire("t", "c1", token=OTHER)
        assert 0 < busy.value.remaining_s <= TTL_MS / 1000
        assert await held_by(world) == lease.value

    async def test_a_migrated_ref_says_what_it_became_and_nothing_is_taken(
        self, world: World
    ) -> None:
        await pending(world)
        await world.migrates("t")
        with pytest.raises(AlreadyMigratedError, match="by-hand-c1"):
            await world.ledger.acquire("t", "c1", token=MINE)
        assert await leases(world) == {}

    async def test_what_is_not_to_be_replayed_is_refused(self, world: World) -> None:
        await world.registry.register(ref("e"), issuance=False)
        await world.registry.expire("e", "c1", "r")
        await world.registry.register(ref("k", line=KERNEL))
        for thread, reason in (("e", "not_authoritative"), ("k", "writer_line")):
            with pytest.raises(CommitRefusedError, match=reason):
                await world.ledger.acquire(thread, "c1", token=MINE)
        with pytest.raises(UnknownCheckpointError):
            await world.ledger.acquire("t", "nothing", token=MINE)
        assert await leases(world) == {}

    async def test_its_fence_is_of_the_same_count_as_a_claims(self, world: World) -> None:
        await pending(world)
        claimed = await world.claimed()
        await world.break_leases()
        assert (await world.ledger.acquire("t", "c1", token=MINE)).fence > claimed.fence

    async def test_a_ref_under_a_hold_whose_holder_died_comes_back_to_the_drain(
        self, world: World
    ) -> None:
        """Or it would be replaying for good, in no index, and the drain never at its end."""
        await pending(world)
        await world.ledger.release(await world.claimed(), hold=Hold.PAUSED)
        await world.ledger.acquire("t", "c1", token=OTHER)
        assert await due_at(world) is not None
        await world.break_leases()
        assert (await world.claimed()).attempt == 2


class TestRenew:
    async def test_it_holds_the_lease_for_another_ttl_and_the_ref_out_of_sight(
        self, world: World
    ) -> None:
        await pending(world)
        lease = await world.claimed()
        await world.store.client.pexpire(world.store.keys.lease("t", "c1"), 500)
        await world.make_due()
        assert await once(world, lambda: world.ledger.renew(lease)) == (True, True)
        (left_ms,) = (await leases(world)).values()
        assert left_ms > TTL_MS - 5_000
        assert await peeked(world) == []

    async def test_a_stale_holder_is_told_so_and_prolongs_nothing(self, world: World) -> None:
        await pending(world)
        stale, _ = await taken_over(world)
        await world.store.client.pexpire(world.store.keys.lease("t", "c1"), 5_000)
        assert await once(world, lambda: world.ledger.renew(stale)) == (False, False)
        (left_ms,) = (await leases(world)).values()
        assert left_ms <= 5_000

    async def test_a_lease_that_ran_out_is_not_made_again(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        await world.break_leases()
        assert not await world.ledger.renew(lease)
        assert await leases(world) == {}

    async def test_the_whole_value_counts_and_not_the_fence_alone(self, world: World) -> None:
        """After a lossy failover two holders were seen with one fence."""
        await pending(world)
        lease = await world.claimed()
        key = world.store.keys.lease("t", "c1")
        await world.store.client.set(key, f"{lease.fence}:another", px=TTL_MS)
        assert not await world.ledger.renew(lease)
        assert not await world.ledger.release(lease)
        with pytest.raises(LeaseLostError):
            await world.ledger.commit(lease, "new", KERNEL, "b")
        assert await held_by(world) == f"{lease.fence}:another"


class TestRelease:
    async def test_it_gives_the_attempt_back_once(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        assert await once(world, lambda: world.ledger.release(lease)) == (True, False)
        record = await world.record()
        assert (record.state, record.attempts, record.lease) == (RefState.PENDING, 0, "")
        assert await peeked(world) == [("t", "c1")]
        assert await leases(world) == {}

    async def test_a_ref_that_had_failed_before_is_retryable_again(self, world: World) -> None:
        await pending(world)
        await world.claimed()
        await world.break_leases()
        await world.ledger.release(await world.claimed(), again_in=SOON)
        record = await world.record()
        assert (record.state, record.attempts) == (RefState.RETRYABLE, 1)
        due = await due_at(world)
        assert due is not None
        assert due > await now_us(world)

    async def test_under_a_hold_it_is_not_due(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        answers = await once(world, lambda: world.ledger.release(lease, hold=Hold.PAUSED))
        assert answers == (True, False)
        assert await due_at(world) is None
        assert (await world.record()).hold is Hold.PAUSED

    async def test_a_foreign_lease_is_not_touched(self, world: World) -> None:
        await pending(world)
        stale, other = await taken_over(world)
        assert await once(world, lambda: world.ledger.release(stale)) == (False, False)
        assert await held_by(world) == other.value
        assert (await world.record()).attempts == 2

    async def test_by_token_gives_back_a_claim_whose_reply_was_never_seen(
        self, world: World
    ) -> None:
        await pending(world, *many(8))
        taken = world.ledger.drawn([(t, "c1") for t in many(8)])
        for one in taken[:5]:
            await claim(world, (one,))
        assert await once(world, lambda: world.ledger.release_tokens(taken)) == (5, 0)
        assert await leases(world) == {}
        assert {(await world.record(t)).attempts for t in many(8)} == {0}
        assert len(await peeked(world)) == 8

    async def test_by_token_a_foreign_lease_is_not_touched(self, world: World) -> None:
        await pending(world)
        other = await world.claimed()
        stray = world.ledger.drawn([("t", "c1")])
        assert await once(world, lambda: world.ledger.release_tokens(stray)) == (0, 0)
        assert await held_by(world) == other.value

    async def test_by_token_an_acquired_lease_is_given_back(self, world: World) -> None:
        await pending(world)
        await world.ledger.acquire("t", "c1", token=MINE)
        assert await world.ledger.release_tokens([("t", "c1", MINE)]) == 1
        assert await leases(world) == {}


class TestFail:
    async def fails(self, world: World, lease: Lease, *, permanent: bool = False) -> Any:
        return await world.ledger.fail(
            lease,
            reason=FailureReason.REPLAY_ERROR,
            detail="it broke",
            permanent=permanent,
            again_in=SOON,
            max_attempts=ATTEMPTS,
        )

    async def test_it_is_due_again_after_the_back_off(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        before = await now_us(world)
        answers = await once(world, lambda: self.fails(world, lease))
        assert answers == (RefState.RETRYABLE, RefState.RETRYABLE)
        record = await world.record()
        assert (record.code, record.detail) == (FailureReason.REPLAY_ERROR, "it broke")
        assert record.attempts == 1
        due = await due_at(world)
        assert due is not None
        assert due - before >= SOON // timedelta(microseconds=1)
        assert await leases(world) == {}

    async def test_for_good_it_is_quarantined_for_its_reason(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        answers = await once(world, lambda: self.fails(world, lease, permanent=True))
        assert answers == (RefState.QUARANTINED, RefState.QUARANTINED)
        assert await world.quarantined() == {"t": FailureReason.REPLAY_ERROR}
        assert await due_at(world) is None

    async def test_its_last_attempt_is_quarantined_with_the_reason_in_words(
        self, world: World
    ) -> None:
        await pending(world)
        for _ in range(ATTEMPTS - 1):
            await world.claimed()
            await world.break_leases()
        assert await self.fails(world, await world.claimed()) is RefState.QUARANTINED
        record = await world.record()
        assert record.code is FailureReason.ATTEMPTS_EXHAUSTED
        assert record.detail == "replay_error: it broke"

    async def test_its_failure_is_counted_once(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        await self.fails(world, lease)
        await self.fails(world, lease)
        assert await world.control.replays() == (1, 1)

    @pytest.mark.parametrize("permanent", [False, True])
    @pytest.mark.parametrize("now", ["another_holds_it", "it_ran_out", "migrated", "expired"])
    async def test_a_stale_holder_writes_nothing(
        self, world: World, now: str, permanent: bool
    ) -> None:
        stale, before = await overtaken(world, now)
        assert await self.fails(world, stale, permanent=permanent) is None
        assert await books(world) == before


async def overtaken(world: World, how: str) -> tuple[Lease, dict[str, Any]]:
    """A lease that is over, how it came to that, and the books since."""
    await pending(world)
    lease = await world.claimed()
    await world.break_leases()
    match how:
        case "another_holds_it":
            await world.claimed()
        case "migrated":
            await world.migrates("t")
        case "expired":
            await world.registry.expire("t", "c1", "r")
    return lease, await books(world)


class TestCommit:
    async def test_it_registers_and_links_in_one_step(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        first, second = await once(world, lambda: world.ledger.commit(lease, "new", KERNEL, "b"))
        assert first == second
        assert first.outcome is ReplayOutcome.MIGRATED
        link = await world.registry.migration_of("t", "c1")
        assert link == first.link
        assert (first.link.checkpoint_id, first.link.boundary_id) == ("new", "b")
        legacy, new = await world.record(), await world.record(checkpoint="new")
        assert (legacy.state, new.state) == (RefState.MIGRATED, RefState.FINALIZED)
        assert new.replay_of == "c1"
        assert new.ref.created_at == legacy.ref.created_at
        assert await leases(world) == {}
        assert await due_at(world) is None

    async def test_another_id_is_told_of_the_first_link(self, world: World) -> None:
        await pending(world)
        lease = await world.claimed()
        await world.ledger.commit(lease, "new", KERNEL, "b")
        before = await books(world)
        again = await world.ledger.commit(lease, "newer", KERNEL, "b")
        assert (again.outcome, again.link.checkpoint_id) == (ReplayOutcome.ALREADY_MIGRATED, "new")
        assert await books(world) == before

    async def test_the_same_id_by_another_lease_is_not_its_own(self, world: World) -> None:
        await pending(world)
        stale, holder = await taken_over(world)
        await world.ledger.commit(holder, "new", KERNEL, "b")
        again = await world.ledger.commit(stale, "new", KERNEL, "b")
        assert again.outcome is ReplayOutcome.ALREADY_MIGRATED

    @pytest.mark.parametrize("now", ["another_holds_it", "it_ran_out", "expired"])
    async def test_a_stale_holder_writes_nothing(self, world: World, now: str) -> None:
        stale, before = await overtaken(world, now)
        with pytest.raises(LeaseLostError):
            await world.ledger.commit(stale, "new", KERNEL, "b")
        assert await books(world) == before

    @pytest.mark.parametrize(
        ("became", "line", "reason"),
        [
            ("new", WriterLine.LEGACY, FailureReason.WRITER_LINE),
            ("c1", KERNEL, FailureReason.WRITER_LINE),
            ("old", KERNEL, FailureReason.WRITER_LINE),
            ("theirs", KERNEL, FailureReason.ID_CONFLICT),
            ("open", KERNEL, FailureReason.ID_CONFLICT),
        ],
    )
    async def test_what_may_not_be_linked_is_refused_and_the_lease_stays(
        self, world: World, became: str, line: WriterLine, reason: FailureReason
    ) -> None:
        await world.registry.register(ref(checkpoint="old"), issuance=False)
        await world.registry.register(ref(checkpoint="open", line=KERNEL), finalized=False)
        await pending(world)
        first = await world.claimed(checkpoint="old")
        await world.ledger.commit(first, "theirs", KERNEL, "b")
        lease = await world.claimed()
        before = await books(world)
        with pytest.raises(CommitRefusedError) as refused:
            await world.ledger.commit(lease, became, line, "b")
        assert refused.value.reason == reason
        assert await books(world) == before
        assert await held_by(world) == lease.value

    async def test_one_that_is_refused_keeps_none_beside_it_from_being_linked(
        self, world: World
    ) -> None:
        """They go to the store as one script."""
        threads = in_one_partition(world, 3)
        await pending(world, *threads)
        held = [await world.claimed(t) for t in threads]
        await world.registry.expire(threads[1], "c1", "meanwhile")
        before = world.store.scripts.round_trips
        answers = await asyncio.gather(
            *(world.ledger.commit(lease, "new", KERNEL, "b") for lease in held),
            return_exceptions=True,
        )
        assert world.store.scripts.round_trips == before + 1
        assert [type(a).__name__ for a in answers] == ["Committed", "LeaseLostError", "Committed"]


class TestSupersede:
    """Adoption's step under a lease: the thread moved on from the ref that is held."""

    async def moved_on(self, world: World, lease: Lease) -> Any:
        head = world.source.threads["t"][-1]
        return await world.books.adopt(
            head, hold=Hold.NONE, confirming=False, moved_on=["c1"], guard=lease
        )

    async def test_the_new_head_is_registered_and_the_ref_expires_in_one_step(
        self, world: World
    ) -> None:
        await pending(world)
        lease = await world.claimed()
        world.source.holds("t", "c2", Verdict.CLOSED)
        births = await world.books.births()
        first, second = await once(world, lambda: self.moved_on(world, lease))
        assert (first.word, first.superseded) == ("new", 1)
        assert second.superseded == 0
        old, new = await world.record(), await world.record(checkpoint="c2")
        assert (old.state, new.state) == (RefState.EXPIRED, RefState.PENDING)
        assert "superseded" in old.reason
        assert await leases(world) == {}
        assert await world.books.births() == births + 2, "it voids the clean scan"

    @pytest.mark.parametrize("now", ["another_holds_it", "it_ran_out", "migrated", "expired"])
    async def test_a_stale_holder_writes_nothing(self, world: World, now: str) -> None:
        stale, before = await overtaken(world, now)
        world.source.holds("t", "c2", Verdict.CLOSED)
        assert (await self.moved_on(world, stale)).word == "stale"
        assert await books(world) == before
