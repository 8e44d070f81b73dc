"""What every registry promises. Collected only through a subclass, one for each implementation.

A subclass gives the fixtures ``registry``, ``peer`` (a second registry on the same store, as
another process would have it) and ``story`` (the record behind a ref). The store's clock is
never moved: a ref is made old by the ``created_at`` it is registered with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from checkpointd.domain.errors import (
    AlreadyMigratedError,
    CheckpointExpiredError,
    CommitRefusedError,
    InvalidIdError,
    IssuanceFrozenError,
    LeaseBusyError,
    LeaseLostError,
    UnknownCheckpointError,
    WriterLineChangedError,
)
from checkpointd.domain.refs import CheckpointRef, Lease, MigrationLink, SafeBoundaryMarker
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import (
    CRASH_EXPIRY_REASON,
    FailureReason,
    RefState,
    ThreadStanding,
    WriterLine,
)
from checkpointd.registry.port import CheckpointRegistry

LEGACY, KERNEL = WriterLine.LEGACY, WriterLine.KERNEL
FIRST_DAY = datetime(2024, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
HOUR = timedelta(hours=1)

Story = Callable[[str, str], Awaitable[RefRecord]]
Age = Callable[..., Awaitable[CheckpointRef]]

AWKWARD_IDS = (
    'a:b{c}|"d" é👩‍💻',
    "case",
    "Case",
    "CASE",
    "caf\u00e9",
    "cafe\u0301",
    "nb\u00a0sp",
    "nb sp",
    " ",
    "zero\u200bwidth",
    "line\u2028separator",
    "\ufeff",
    "%s*?[a-z]^$\\1",
    "{",
    "}{",
    "'; DROP TABLE refs; --",
    "../../etc/passwd",
    "0",
    "-1",
    "nan",
    "null",
    "true",
    "c",
    "b:c",
    ">l",
    "x" * 512,
    "é" * 256,
    "👩‍💻" * 46 + "x" * 6,
)
BAD_IDS = (
    pytest.param("", id="empty"),
    pytest.param("a\x00b", id="nul"),
    pytest.param("a\nb", id="newline"),
    pytest.param("\x1f", id="unit separator"),
    pytest.param("\x7f", id="delete"),
    pytest.param("\x85", id="next line"),
    pytest.param("\ud800", id="lone surrogate"),
    pytest.param("x" * 513, id="513 bytes"),
    pytest.param("é" * 257, id="514 bytes in 257 characters"),
    pytest.param("x" * 10_000_000, id="10 MB"),
)


def kernel(
    checkpoint_id: str = "k-1", *, thread_id: str = "t", day: int = 0, finalized: bool = True
) -> CheckpointRef:
    return CheckpointRef(
        thread_id, checkpoint_id, KERNEL, FIRST_DAY + timedelta(days=day), finalized=finalized
    )


def legacy(
    checkpoint_id: str = "l-1", *, thread_id: str = "t", day: int = 0, finalized: bool = True
) -> CheckpointRef:
    return replace(
        kernel(checkpoint_id, thread_id=thread_id, day=day, finalized=finalized),
        writer_line=LEGACY,
    )


def ids_of(refs: tuple[CheckpointRef, ...]) -> list[str]:
    return [ref.checkpoint_id for ref in refs]


async def linked(
    registry: CheckpointRegistry, old: CheckpointRef, new: CheckpointRef
) -> MigrationLink:
    """Both refs registered, and the one linked to the other."""
    await registry.register(old)
    await registry.register(new)
    return await registry.record_migration(
        old.thread_id, old.checkpoint_id, checkpoint_id=new.checkpoint_id, boundary_id="b-1"
    )


class RegistryContract:
    """What every registry promises."""

    @pytest.fixture
    def age(self, registry: CheckpointRegistry) -> Age:
        """Registers a ref that is ``old`` by the registry's own clock; by default an open one."""

        async def register_aged(
            checkpoint_id: str = "k-1",
            *,
            old: timedelta,
            thread_id: str = "t",
            line: WriterLine = KERNEL,
            finalized: bool = False,
        ) -> CheckpointRef:
            created_at = await registry.now() - old
            return await registry.register(
                CheckpointRef(thread_id, checkpoint_id, line, created_at, finalized=finalized)
            )

        return register_aged

    # register -----------------------------------------------------------------------------

    async def test_registering_returns_what_is_stored(self, registry: CheckpointRegistry) -> None:
        ref = kernel()
        assert await registry.register(ref) == ref
        assert await registry.refs_for("t") == (ref,)

    async def test_what_one_process_registers_another_knows(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(kernel())
        assert await peer.is_authoritative("t", "k-1")
        assert await peer.refs_for("t") == (kernel(),)

    async def test_finalized_true_keeps_the_flag_of_a_ref_that_is_open(
        self, registry: CheckpointRegistry
    ) -> None:
        stored = await registry.register(kernel(finalized=False), finalized=True)
        assert stored.finalized is False
        assert not await registry.is_resumable("t", "k-1")

    @pytest.mark.parametrize("ref", [kernel("c"), legacy("c")], ids=["kernel", "legacy"])
    async def test_finalized_false_opens_a_crash_window(
        self, registry: CheckpointRegistry, ref: CheckpointRef
    ) -> None:
        stored = await registry.register(ref, finalized=False)
        assert stored == replace(ref, finalized=False)
        assert not await registry.is_resumable("t", "c")
        assert (await registry.explain("t")).standing is ThreadStanding.OPEN

    async def test_registering_again_returns_the_stored_ref_unchanged(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        first = await registry.register(kernel(day=1))
        assert await peer.register(kernel(day=9)) == first
        assert await registry.refs_for("t") == (first,)

    async def test_registering_again_never_finalizes(self, registry: CheckpointRegistry) -> None:
        opened = await registry.register(kernel(), finalized=False)
        assert await registry.register(kernel(), finalized=True) == opened
        assert not await registry.is_resumable("t", "k-1")

    async def test_registering_again_never_reopens(self, registry: CheckpointRegistry) -> None:
        whole = await registry.register(kernel())
        assert await registry.register(kernel(), finalized=False) == whole
        assert await registry.is_resumable("t", "k-1")

    async def test_registering_again_never_revives(self, registry: CheckpointRegistry) -> None:
        await registry.register(kernel())
        gone = await registry.expire("t", "k-1", "reason")
        assert await registry.register(kernel()) == gone
        assert not await registry.is_resumable("t", "k-1")

    @pytest.mark.parametrize("again", ["register", "register_replay"])
    @pytest.mark.parametrize(
        ("first", "second"),
        [(legacy("c"), kernel("c")), (kernel("c"), legacy("c"))],
        ids=["legacy first", "kernel first"],
    )
    async def test_a_writer_line_never_changes(
        self,
        registry: CheckpointRegistry,
        first: CheckpointRef,
        second: CheckpointRef,
        again: str,
    ) -> None:
        await registry.register(first)
        asked = (
            registry.register(second)
            if again == "register"
            else registry.register_replay(second, legacy_checkpoint_id="l-0")
        )
        with pytest.raises(WriterLineChangedError) as refused:
            await asked
        assert (refused.value.known, refused.value.asked) == (
            first.writer_line,
            second.writer_line,
        )
        assert await registry.refs_for("t") == (first,)

    async def test_another_line_is_refused_as_such_while_frozen_and_after_expiry(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy("c"))
        await registry.expire("t", "c", "gone")
        await registry.freeze_issuance(reason="cut-over")
        with pytest.raises(WriterLineChangedError):
            await registry.register(kernel("c"))
        with pytest.raises(WriterLineChangedError):
            await registry.register(kernel("c"), issuance=False)

    async def test_a_ref_that_comes_expired_is_stored_as_that(
        self, registry: CheckpointRegistry
    ) -> None:
        gone = kernel().expire("imported as expired", FIRST_DAY)
        stored = await registry.register(gone)
        assert (stored.expired, stored.expired_reason) == (True, "imported as expired")
        assert not await registry.is_resumable("t", "k-1")
        assert (await registry.explain("t")).standing is ThreadStanding.EXPIRED

    async def test_one_ref_registered_by_many_at_once_is_one_ref(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        answers = await asyncio.gather(
            *(
                (registry if i % 2 else peer).register(kernel(day=i), finalized=bool(i % 3))
                for i in range(12)
            )
        )
        assert len(set(answers)) == 1
        assert await registry.refs_for("t") == (answers[0],)

    @pytest.mark.parametrize(
        "created_at",
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(2038, 1, 19, 3, 14, 8, 1, tzinfo=UTC),
            datetime(2261, 7, 4, 5, 6, 7, 890_123, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ],
        ids=lambda moment: str(moment.year),
    )
    @pytest.mark.parametrize("line", list(WriterLine))
    @pytest.mark.parametrize("finalized", [True, False], ids=["finalized", "open"])
    async def test_a_time_comes_back_to_the_microsecond(
        self,
        registry: CheckpointRegistry,
        created_at: datetime,
        line: WriterLine,
        finalized: bool,
    ) -> None:
        ref = CheckpointRef("t", "c", line, created_at, finalized=finalized)
        assert await registry.register(ref) == ref
        assert await registry.refs_for("t") == (ref,)

    # ids ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("awkward", AWKWARD_IDS, ids=lambda text: ascii(text)[:24])
    async def test_a_thread_with_any_id_lives_a_whole_life(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry, awkward: str
    ) -> None:
        became = f"k{awkward[:-1]}"
        await registry.register(legacy(awkward, thread_id=awkward), finalized=False)
        await peer.extend(awkward, awkward)
        await registry.finalize(awkward, awkward)
        marked = await peer.mark_safe_boundary(
            awkward, sequence=3, digest=awkward, writer_line=LEGACY, boundary_id=awkward
        )
        assert await registry.boundaries_for(awkward) == (marked,)
        assert (marked.boundary_id, marked.thread_id, marked.digest) == (awkward,) * 3
        assert await registry.request_replay(awkward) == 1
        async with registry.migration_lock(awkward, awkward) as lease:
            with pytest.raises(LeaseBusyError):
                async with peer.migration_lock(awkward, awkward):
                    pass
            link = await registry.commit_replay(
                lease, kernel(became, thread_id=awkward, day=5), awkward
            )
        assert await peer.migration_of(awkward, awkward) == link
        assert (link.thread_id, link.legacy_checkpoint_id) == (awkward, awkward)
        assert (link.checkpoint_id, link.boundary_id) == (became, awkward)
        resumed = await peer.resolve(awkward)
        assert resumed is not None
        assert resumed.checkpoint_id == became
        await peer.expire(awkward, became, "end")
        assert await registry.resolve(awkward) is None
        assert (await registry.explain(awkward)).standing is ThreadStanding.EXPIRED

    async def test_checkpoints_of_all_these_ids_stay_apart_in_one_thread(
        self, registry: CheckpointRegistry
    ) -> None:
        for checkpoint_id in AWKWARD_IDS:
            await registry.register(kernel(checkpoint_id))
        assert ids_of(await registry.refs_for("t")) == sorted(AWKWARD_IDS)
        await registry.expire("t", "Case", "this one alone")
        assert [r.checkpoint_id for r in await registry.refs_for("t") if r.expired] == ["Case"]

    async def test_threads_of_all_these_ids_stay_apart(self, registry: CheckpointRegistry) -> None:
        for thread_id in AWKWARD_IDS:
            await registry.register(kernel(thread_id=thread_id))
        for thread_id in AWKWARD_IDS:
            assert await registry.refs_for(thread_id) == (kernel(thread_id=thread_id),)

    async def test_a_thread_and_a_checkpoint_never_run_into_each_other(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy("b:c", thread_id="a"))
        await registry.register(legacy("c", thread_id="a:b"))
        async with (
            registry.migration_lock("a", "b:c") as one,
            registry.migration_lock("a:b", "c") as other,
        ):
            assert one.value != other.value
        assert ids_of(await registry.refs_for("a")) == ["b:c"]
        assert ids_of(await registry.refs_for("a:b")) == ["c"]

    async def test_a_boundary_and_a_checkpoint_of_one_id_never_meet(
        self, registry: CheckpointRegistry
    ) -> None:
        ref = await registry.register(kernel("same"))
        marked = await registry.mark_safe_boundary(
            "t", sequence=1, digest="d", writer_line=KERNEL, boundary_id="same"
        )
        assert await registry.refs_for("t") == (ref,)
        assert await registry.boundaries_for("t") == (marked,)

    @pytest.mark.parametrize("bad", BAD_IDS)
    async def test_an_id_that_cannot_name_anything_is_refused_by_every_verb(
        self, registry: CheckpointRegistry, bad: str
    ) -> None:
        await registry.register(legacy())
        r = registry
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: r.register_replay(kernel(), legacy_checkpoint_id=bad),
            lambda: r.finalize(bad, "c"),
            lambda: r.finalize("t", bad),
            lambda: r.extend(bad, "c"),
            lambda: r.extend("t", bad),
            lambda: r.expire(bad, "c", "reason"),
            lambda: r.expire("t", bad, "reason"),
            lambda: r.is_authoritative(bad, "c"),
            lambda: r.is_authoritative("t", bad),
            lambda: r.is_resumable(bad, "c"),
            lambda: r.is_resumable("t", bad),
            lambda: r.refs_for(bad),
            lambda: r.resolve(bad),
            lambda: r.explain(bad),
            lambda: r.boundaries_for(bad),
            lambda: r.request_replay(bad),
            lambda: r.migration_of(bad, "l-1"),
            lambda: r.migration_of("t", bad),
            lambda: r.mark_safe_boundary(bad, sequence=1, digest="d", writer_line=LEGACY),
            lambda: r.mark_safe_boundary(
                "t", sequence=1, digest="d", writer_line=LEGACY, boundary_id=bad
            ),
            lambda: r.record_migration(bad, "l-1", checkpoint_id="k-1", boundary_id="b-1"),
            lambda: r.record_migration("t", bad, checkpoint_id="k-1", boundary_id="b-1"),
            lambda: r.record_migration("t", "l-1", checkpoint_id=bad, boundary_id="b-1"),
            lambda: r.record_migration("t", "l-1", checkpoint_id="k-1", boundary_id=bad),
            lambda: r.migration_lock(bad, "l-1").__aenter__(),
            lambda: r.migration_lock("t", bad).__aenter__(),
        )
        for number, call in enumerate(calls):
            with pytest.raises(InvalidIdError) as refused:
                await call()
            assert len(str(refused.value)) < 400, f"call {number}"
        assert await registry.refs_for("t") == (legacy(),)

    # finalize -----------------------------------------------------------------------------

    async def test_finalizing_closes_the_crash_window(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(kernel(), finalized=False)
        assert await peer.finalize("t", "k-1") == kernel()
        assert await registry.is_resumable("t", "k-1")

    async def test_a_finalized_legacy_ref_waits_for_the_drain_and_may_resume(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy(), finalized=False)
        await registry.finalize("t", "l-1")
        assert await registry.is_resumable("t", "l-1")
        assert (await registry.explain("t")).standing is ThreadStanding.MIGRATING

    async def test_finalizing_again_is_a_no_op_that_returns_the_ref(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel(), finalized=False)
        assert await registry.finalize("t", "k-1") == await registry.finalize("t", "k-1")

    async def test_finalizing_a_migrated_ref_is_a_no_op(self, registry: CheckpointRegistry) -> None:
        link = await linked(registry, legacy(), kernel())
        await registry.finalize("t", "l-1")
        assert await registry.migration_of("t", "l-1") == link
        assert (await registry.explain("t")).standing is ThreadStanding.RESUMABLE

    async def test_finalizing_works_while_frozen(self, registry: CheckpointRegistry) -> None:
        await registry.register(kernel(), finalized=False)
        await registry.freeze_issuance(reason="cut-over")
        assert (await registry.finalize("t", "k-1")).finalized

    async def test_finalizing_the_unknown_is_refused(self, registry: CheckpointRegistry) -> None:
        with pytest.raises(UnknownCheckpointError) as refused:
            await registry.finalize("t", "never")
        assert isinstance(refused.value, KeyError)
        assert "never" in str(refused.value)
        assert not await registry.is_authoritative("t", "never")

    async def test_finalizing_an_expired_ref_is_refused_and_never_revives_it(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel(), finalized=False)
        gone = await registry.expire("t", "k-1", "the operator said so")
        with pytest.raises(CheckpointExpiredError) as refused:
            await registry.finalize("t", "k-1")
        assert isinstance(refused.value, ValueError)
        assert (refused.value.reason, refused.value.at) == ("the operator said so", gone.expired_at)
        assert await registry.refs_for("t") == (gone,)

    async def test_a_late_finalize_is_stamped_once(
        self, registry: CheckpointRegistry, age: Age, story: Story
    ) -> None:
        await age(old=2 * HOUR)
        await registry.reconcile_crash_expiry(grace=HOUR)
        assert (await story("t", "k-1")).late_at is None
        began = await registry.now()
        with pytest.raises(CheckpointExpiredError):
            await registry.finalize("t", "k-1")
        stamped = await story("t", "k-1")
        assert stamped.late_at is not None
        assert began <= stamped.late_at <= await registry.now()
        with pytest.raises(CheckpointExpiredError):
            await registry.finalize("t", "k-1")
        assert await story("t", "k-1") == stamped

    # extend -------------------------------------------------------------------------------

    async def test_extending_starts_the_crash_window_anew(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        ref = await age(old=2 * HOUR)
        assert await registry.extend("t", "k-1") == ref
        report = await registry.reconcile_crash_expiry(grace=HOUR)
        assert (report.expired, report.inspected) == ((), 1)

    async def test_extending_again_starts_it_anew_again(
        self, registry: CheckpointRegistry, age: Age, story: Story
    ) -> None:
        await age(old=2 * HOUR)
        await registry.extend("t", "k-1")
        first = (await story("t", "k-1")).window_began
        await registry.extend("t", "k-1")
        assert (await story("t", "k-1")).window_began >= first
        assert (await registry.reconcile_crash_expiry(grace=HOUR)).expired == ()

    async def test_extending_leaves_created_at_and_with_it_the_order(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel("older", day=1, finalized=False))
        await registry.register(kernel("newer", day=2))
        await registry.extend("t", "older")
        assert ids_of(await registry.refs_for("t")) == ["older", "newer"]

    async def test_extending_a_finalized_ref_changes_nothing(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel())
        assert await registry.extend("t", "k-1") == kernel()
        assert (await registry.reconcile_crash_expiry(grace=HOUR)).inspected == 0

    async def test_extending_the_unknown_or_the_expired_is_refused(
        self, registry: CheckpointRegistry
    ) -> None:
        with pytest.raises(UnknownCheckpointError):
            await registry.extend("t", "never")
        await registry.register(kernel(), finalized=False)
        gone = await registry.expire("t", "k-1", "reason")
        with pytest.raises(CheckpointExpiredError):
            await registry.extend("t", "k-1")
        assert await registry.refs_for("t") == (gone,)

    # expire -------------------------------------------------------------------------------

    @pytest.mark.parametrize("finalized", [True, False], ids=["finalized", "open"])
    @pytest.mark.parametrize("ref", [kernel("c"), legacy("c")], ids=["kernel", "legacy"])
    async def test_an_expired_ref_keeps_its_reason_and_time_and_may_not_resume(
        self,
        registry: CheckpointRegistry,
        peer: CheckpointRegistry,
        ref: CheckpointRef,
        finalized: bool,
    ) -> None:
        await registry.register(ref, finalized=finalized)
        began = await registry.now()
        gone = await peer.expire("t", "c", "Kunde hat gekündigt: 100 %")
        assert gone.expired_at is not None
        assert began <= gone.expired_at <= await registry.now()
        assert gone == replace(ref, finalized=finalized).expire(
            "Kunde hat gekündigt: 100 %", gone.expired_at
        )
        assert await registry.refs_for("t") == (gone,)
        assert await registry.is_authoritative("t", "c")
        assert not await registry.is_resumable("t", "c")
        assert await registry.resolve("t") is None

    async def test_expiring_again_keeps_the_first_reason_and_time(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(kernel())
        first = await registry.expire("t", "k-1", "first")
        assert await peer.expire("t", "k-1", "second") == first

    async def test_expiring_the_unknown_is_refused(self, registry: CheckpointRegistry) -> None:
        with pytest.raises(UnknownCheckpointError):
            await registry.expire("t", "never", "reason")
        assert await registry.refs_for("t") == ()

    async def test_a_migrated_ref_is_not_expired(self, registry: CheckpointRegistry) -> None:
        link = await linked(registry, legacy(), kernel())
        assert not (await registry.expire("t", "l-1", "reason")).expired
        assert await registry.migration_of("t", "l-1") == link

    async def test_an_expired_ref_leaves_the_reconcilers_and_the_drains_sight(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel(finalized=False))
        await registry.register(legacy())
        await registry.expire("t", "k-1", "reason")
        await registry.expire("t", "l-1", "reason")
        assert (await registry.reconcile_crash_expiry(grace=HOUR)).inspected == 0
        assert await registry.request_replay("t") == 0

    async def test_a_replay_under_way_cannot_commit_once_its_ref_is_expired(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            await peer.expire("t", "l-1", "the operator said so")
            with pytest.raises(LeaseLostError):
                await registry.commit_replay(lease, kernel(), "b-1")
        assert not await registry.is_authoritative("t", "k-1")
        assert await registry.migration_of("t", "l-1") is None

    # questions ----------------------------------------------------------------------------

    async def test_the_unknown_is_not_authoritative_and_not_resumable(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel())
        assert not await registry.is_authoritative("t", "other")
        assert not await registry.is_authoritative("other", "k-1")
        assert not await registry.is_resumable("t", "other")

    async def test_a_finalized_ref_is_resumable(self, registry: CheckpointRegistry) -> None:
        await registry.register(kernel())
        await registry.register(legacy())
        assert await registry.is_resumable("t", "k-1")
        assert await registry.is_resumable("t", "l-1")

    async def test_refs_come_oldest_first_and_by_id_where_they_are_equally_old(
        self, registry: CheckpointRegistry
    ) -> None:
        for name, day in (("z", 1), ("b", 2), ("a", 2), ("B", 2), ("é", 2), ("c", 0), ("10", 2)):
            await registry.register(kernel(name, day=day))
        assert ids_of(await registry.refs_for("t")) == ["c", "z", "10", "B", "a", "b", "é"]

    async def test_a_microsecond_decides_the_order(self, registry: CheckpointRegistry) -> None:
        later = replace(kernel("a"), created_at=FIRST_DAY + timedelta(microseconds=1))
        await registry.register(later)
        await registry.register(kernel("b"))
        assert ids_of(await registry.refs_for("t")) == ["b", "a"]
        assert await registry.resolve("t") == later

    async def test_an_unknown_thread_has_no_refs_and_resolves_to_none(
        self, registry: CheckpointRegistry
    ) -> None:
        assert await registry.refs_for("nobody") == ()
        assert await registry.resolve("nobody") is None
        assert await registry.boundaries_for("nobody") == ()
        assert await registry.request_replay("nobody") == 0
        assert await registry.migration_of("nobody", "l-1") is None

    # resolve ------------------------------------------------------------------------------

    async def test_the_newest_resumable_ref_is_resolved(self, registry: CheckpointRegistry) -> None:
        await registry.register(kernel("old", day=1))
        await registry.register(kernel("good", day=2))
        await registry.register(kernel("dead", day=3))
        await registry.register(kernel("open", day=4, finalized=False))
        await registry.expire("t", "dead", "reason")
        assert await registry.resolve("t") == kernel("good", day=2)

    async def test_of_equally_old_refs_the_greater_id_is_resolved(
        self, registry: CheckpointRegistry
    ) -> None:
        for name in ("b", "c", "a"):
            await registry.register(kernel(name))
        assert await registry.resolve("t") == kernel("c")

    async def test_a_legacy_ref_that_was_not_drained_yet_is_resolved(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        assert await registry.resolve("t") == legacy()

    async def test_a_migrated_ref_is_followed_to_what_it_became(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel("between", day=3))
        await linked(registry, legacy(day=5), kernel(day=1))
        assert await registry.resolve("t") == kernel(day=1)

    @pytest.mark.parametrize("how", ["expired", "open"])
    async def test_a_link_to_what_cannot_resume_is_skipped(
        self, registry: CheckpointRegistry, how: str
    ) -> None:
        await registry.register(kernel("earlier", day=1))
        await linked(registry, legacy(day=5), kernel(day=5, finalized=how != "open"))
        if how == "expired":
            await registry.expire("t", "k-1", "reason")
        assert await registry.resolve("t") == kernel("earlier", day=1)

    async def test_nothing_resumable_resolves_to_none(self, registry: CheckpointRegistry) -> None:
        await registry.register(kernel(finalized=False))
        await linked(registry, legacy("l-2"), kernel("k-2"))
        await registry.expire("t", "k-2", "reason")
        assert await registry.resolve("t") is None

    # explain ------------------------------------------------------------------------------

    async def test_an_unknown_thread_is_explained_as_unknown(
        self, registry: CheckpointRegistry
    ) -> None:
        explanation = await registry.explain("nobody")
        assert explanation.standing is ThreadStanding.UNKNOWN
        assert (explanation.thread_id, explanation.ref) == ("nobody", None)

    async def test_an_open_thread_is_explained_with_the_begin_of_its_window(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel("done", day=1))
        opened = await registry.register(kernel("under way", day=2, finalized=False))
        explanation = await registry.explain("t")
        assert explanation.standing is ThreadStanding.OPEN
        assert (explanation.ref, explanation.at) == (opened, opened.created_at)

    async def test_a_resumable_thread_is_explained_with_the_ref_to_resume(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel())
        explanation = await registry.explain("t")
        assert (explanation.standing, explanation.ref) == (ThreadStanding.RESUMABLE, kernel())
        assert explanation.at is not None

    async def test_a_migrated_thread_is_resumable_at_what_it_became(
        self, registry: CheckpointRegistry
    ) -> None:
        await linked(registry, legacy(day=5), kernel(day=5))
        explanation = await registry.explain("t")
        assert explanation.standing is ThreadStanding.RESUMABLE
        assert explanation.ref == kernel(day=5)

    async def test_a_thread_being_replayed_is_explained_as_migrating(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        assert (await registry.explain("t")).standing is ThreadStanding.MIGRATING
        async with registry.migration_lock("t", "l-1"):
            during = await registry.explain("t")
        assert (during.standing, during.ref) == (ThreadStanding.MIGRATING, legacy())
        assert (await registry.explain("t")).standing is ThreadStanding.MIGRATING

    async def test_an_expired_head_gives_way_to_the_newest_ref_that_is_not(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel("good", day=1))
        await registry.register(kernel("crashed", day=2, finalized=False))
        await registry.expire("t", "crashed", "reason")
        explanation = await registry.explain("t")
        assert explanation.standing is ThreadStanding.RESUMABLE
        assert explanation.ref == kernel("good", day=1)

    async def test_a_thread_that_expired_as_a_whole_is_explained_by_its_newest_ref(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel("first", day=1))
        await registry.register(kernel("last", day=2))
        last = await registry.expire("t", "last", "why the last")
        await registry.expire("t", "first", "why the first")
        explanation = await registry.explain("t")
        assert explanation.standing is ThreadStanding.EXPIRED
        assert (explanation.ref, explanation.reason) == (last, "why the last")
        assert explanation.at == last.expired_at

    # freeze and thaw ----------------------------------------------------------------------

    async def test_nothing_is_frozen_to_begin_with(self, registry: CheckpointRegistry) -> None:
        assert await registry.freeze_in_force() is None

    @pytest.mark.parametrize("line", list(WriterLine))
    async def test_a_freeze_closes_issuance_for_every_process_once_it_returned(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry, line: WriterLine
    ) -> None:
        freeze = await registry.freeze_issuance(reason="cut-over on Monday")
        assert await peer.freeze_in_force() == freeze
        for process in (registry, peer):
            for thread in ("a", "b", "c", "d", "e", "f", "g", "h"):
                with pytest.raises(IssuanceFrozenError) as refused:
                    await process.register(
                        replace(kernel("new", thread_id=thread), writer_line=line)
                    )
                assert isinstance(refused.value, RuntimeError)
                assert "cut-over on Monday" in str(refused.value)
                assert "new" in str(refused.value)
                assert not await process.is_authoritative(thread, "new")

    async def test_a_freeze_says_since_when_and_which_lines(
        self, registry: CheckpointRegistry
    ) -> None:
        began = await registry.now()
        freeze = await registry.freeze_issuance(reason="r", lines=(LEGACY,))
        assert (freeze.reason, freeze.lines) == ("r", (LEGACY,))
        assert began <= freeze.at <= await registry.now()
        assert await registry.freeze_in_force() == freeze

    async def test_a_line_that_is_not_frozen_goes_on(self, registry: CheckpointRegistry) -> None:
        await registry.freeze_issuance(reason="r", lines=(LEGACY,))
        assert await registry.register(kernel()) == kernel()
        with pytest.raises(IssuanceFrozenError):
            await registry.register(legacy())

    async def test_catching_up_the_books_is_not_issuance(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.freeze_issuance(reason="r")
        assert await registry.register(legacy(), issuance=False) == legacy()
        assert await registry.is_resumable("t", "l-1")

    async def test_registering_a_known_ref_again_is_not_issuance(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        opened = await registry.register(kernel(finalized=False))
        await registry.freeze_issuance(reason="r")
        assert await peer.register(kernel()) == opened

    async def test_reads_and_expiry_go_on_while_frozen(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        await age("crashed", old=2 * HOUR)
        await registry.register(kernel())
        await registry.freeze_issuance(reason="r")
        assert await registry.resolve("t") == kernel()
        assert ids_of((await registry.reconcile_crash_expiry(grace=HOUR)).expired) == ["crashed"]
        assert (await registry.extend("t", "k-1")) == kernel()
        assert (await registry.expire("t", "k-1", "reason")).expired

    async def test_freezing_again_returns_the_first_freeze(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        first = await registry.freeze_issuance(reason="first", lines=(LEGACY,))
        assert await peer.freeze_issuance(reason="second") == first
        assert await registry.freeze_in_force() == first
        assert await registry.register(kernel()) == kernel()

    async def test_of_two_freezes_at_once_one_is_first_for_both(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        answers = await asyncio.gather(
            registry.freeze_issuance(reason="one"), peer.freeze_issuance(reason="two")
        )
        assert answers[0] == answers[1] == await registry.freeze_in_force()

    async def test_a_thaw_opens_issuance_again_for_every_process(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.freeze_issuance(reason="r")
        await peer.thaw_issuance(reason="done")
        assert await registry.freeze_in_force() is None
        for process, thread in ((registry, "a"), (peer, "b")):
            assert await process.register(legacy(thread_id=thread))

    async def test_thawing_what_is_not_frozen_is_a_no_op(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.thaw_issuance(reason="nothing to do")
        await registry.freeze_issuance(reason="r")
        await registry.thaw_issuance(reason="done")
        await registry.thaw_issuance(reason="done again")
        assert await registry.freeze_in_force() is None
        assert await registry.register(legacy()) == legacy()

    async def test_a_later_freeze_is_one_of_its_own(self, registry: CheckpointRegistry) -> None:
        await registry.freeze_issuance(reason="first", lines=(LEGACY,))
        await registry.thaw_issuance(reason="done")
        later = await registry.freeze_issuance(reason="second")
        assert (later.reason, later.lines) == ("second", (LEGACY, KERNEL))
        with pytest.raises(IssuanceFrozenError, match="second"):
            await registry.register(kernel())

    async def test_a_freeze_of_no_line_is_refused(self, registry: CheckpointRegistry) -> None:
        with pytest.raises(ValueError, match="no line"):
            await registry.freeze_issuance(reason="r", lines=())
        assert await registry.freeze_in_force() is None

    # register_replay ----------------------------------------------------------------------

    async def test_a_replay_is_registered_as_any_ref_is(self, registry: CheckpointRegistry) -> None:
        assert await registry.register_replay(kernel(), legacy_checkpoint_id="l-1") == kernel()
        assert await registry.resolve("t") == kernel()

    async def test_a_replay_of_a_known_ref_survives_a_freeze(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        await registry.freeze_issuance(reason="r")
        assert await peer.register_replay(kernel(), legacy_checkpoint_id="l-1") == kernel()

    async def test_an_expired_ref_is_still_one_that_the_registry_accounts_for(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        await registry.expire("t", "l-1", "reason")
        await registry.freeze_issuance(reason="r")
        assert await registry.register_replay(kernel(), legacy_checkpoint_id="l-1") == kernel()

    @pytest.mark.parametrize("lines", [(LEGACY, KERNEL), (LEGACY,)], ids=["all", "legacy"])
    async def test_while_frozen_a_replay_of_a_ref_never_seen_is_refused(
        self, registry: CheckpointRegistry, lines: tuple[WriterLine, ...]
    ) -> None:
        await registry.register(legacy("l-1", thread_id="another thread"))
        await registry.freeze_issuance(reason="cut-over", lines=lines)
        with pytest.raises(IssuanceFrozenError, match="only state that the registry accounts for"):
            await registry.register_replay(kernel(), legacy_checkpoint_id="l-1")
        assert not await registry.is_authoritative("t", "k-1")

    async def test_registering_a_replay_again_returns_the_stored_ref_also_while_frozen(
        self, registry: CheckpointRegistry
    ) -> None:
        first = await registry.register_replay(kernel(day=1), legacy_checkpoint_id="l-1")
        await registry.freeze_issuance(reason="r")
        again = await registry.register_replay(kernel(day=9), legacy_checkpoint_id="l-1")
        assert again == first

    # boundaries ---------------------------------------------------------------------------

    async def test_a_boundarys_id_is_derived_from_what_it_marks(
        self, registry: CheckpointRegistry
    ) -> None:
        marked = await registry.mark_safe_boundary("t", sequence=7, digest="d", writer_line=LEGACY)
        assert marked.boundary_id == SafeBoundaryMarker.derive_id("t", 7, "d")
        assert (marked.thread_id, marked.sequence, marked.digest) == ("t", 7, "d")
        assert marked.writer_line is LEGACY
        assert marked.created_at <= await registry.now()

    async def test_marking_again_returns_the_stored_marker(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        first = await registry.mark_safe_boundary("t", sequence=7, digest="d", writer_line=LEGACY)
        again = await peer.mark_safe_boundary("t", sequence=7, digest="d", writer_line=LEGACY)
        assert again == first
        assert await registry.boundaries_for("t") == (first,)

    async def test_a_given_id_adopts_the_marker_under_it_and_is_kept(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        first = await registry.mark_safe_boundary(
            "t", sequence=7, digest="d", writer_line=LEGACY, boundary_id="theirs"
        )
        again = await peer.mark_safe_boundary(
            "t", sequence=8, digest="other", writer_line=KERNEL, boundary_id="theirs"
        )
        assert first.boundary_id == "theirs"
        assert again == first
        assert await registry.boundaries_for("t") == (first,)

    async def test_a_digest_that_could_not_be_stored_is_refused(
        self, registry: CheckpointRegistry
    ) -> None:
        for bad in ("a\x1fb", "\x00", "x" * 513):
            with pytest.raises(InvalidIdError):
                await registry.mark_safe_boundary("t", sequence=1, digest=bad, writer_line=LEGACY)
        empty = await registry.mark_safe_boundary("t", sequence=1, digest="", writer_line=LEGACY)
        assert await registry.boundaries_for("t") == (empty,)

    async def test_another_step_digest_or_thread_is_another_boundary(
        self, registry: CheckpointRegistry
    ) -> None:
        marked = [
            await registry.mark_safe_boundary(
                thread, sequence=step, digest=digest, writer_line=LEGACY
            )
            for thread, step, digest in (("t", 1, "d"), ("t", 2, "d"), ("t", 1, "e"), ("u", 1, "d"))
        ]
        assert len({marker.boundary_id for marker in marked}) == 4
        assert len(await registry.boundaries_for("t")) == 3
        assert await registry.boundaries_for("u") == (marked[3],)

    async def test_boundaries_come_oldest_first(self, registry: CheckpointRegistry) -> None:
        for step in (-1, 0, 2, 9, 10, 11):
            await registry.mark_safe_boundary("t", sequence=step, digest="d", writer_line=LEGACY)
        steps = [marker.sequence for marker in await registry.boundaries_for("t")]
        assert steps == [-1, 0, 2, 9, 10, 11]

    async def test_boundaries_go_on_while_frozen_and_make_no_ref(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.freeze_issuance(reason="r")
        await registry.mark_safe_boundary("t", sequence=1, digest="d", writer_line=LEGACY)
        assert await registry.refs_for("t") == ()
        assert (await registry.explain("t")).standing is ThreadStanding.UNKNOWN

    # migration_lock -----------------------------------------------------------------------

    async def test_a_lock_is_exclusive_across_processes(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1"):
            for process in (registry, peer):
                with pytest.raises(LeaseBusyError) as busy:
                    async with process.migration_lock("t", "l-1"):
                        pass
                assert 0 < busy.value.remaining_s <= 3600

    async def test_a_busy_lock_stays_with_its_holder(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            with pytest.raises(LeaseBusyError):
                async with peer.migration_lock("t", "l-1"):
                    pass
            link = await registry.commit_replay(lease, kernel(), "b-1")
        assert link.checkpoint_id == "k-1"

    async def test_of_many_who_ask_at_once_one_gets_the_lock(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        others_were_told = asyncio.Event()
        busy = 0

        async def ask(process: CheckpointRegistry) -> Lease | None:
            nonlocal busy
            try:
                async with process.migration_lock("t", "l-1") as lease:
                    await asyncio.wait_for(others_were_told.wait(), 10)
                    return lease
            except LeaseBusyError:
                busy += 1
                if busy == 7:
                    others_were_told.set()
                return None

        leases = await asyncio.gather(*(ask((registry, peer)[i % 2]) for i in range(8)))
        assert sum(lease is not None for lease in leases) == 1

    async def test_leaving_gives_the_lock_and_the_attempt_back(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as first:
            pass
        async with peer.migration_lock("t", "l-1") as second:
            pass
        assert first.attempt == second.attempt == 1
        assert first.token != second.token
        assert await registry.request_replay("t") == 1

    async def test_fences_rise(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy("l-1"))
        await registry.register(legacy("l-2"))
        fences = []
        for process, name in ((registry, "l-1"), (peer, "l-2"), (peer, "l-1"), (registry, "l-2")):
            async with process.migration_lock("t", name) as lease:
                fences.append(lease.fence)
        assert fences == sorted(set(fences))

    async def test_a_lease_names_its_ref_and_carries_what_a_replay_needs(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            pass
        assert (lease.thread_id, lease.checkpoint_id) == ("t", "l-1")
        assert lease.created_at == legacy().created_at
        assert len(lease.token) == 32

    async def test_a_failing_body_releases_and_its_own_error_comes_out(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        with pytest.raises(ZeroDivisionError):
            async with registry.migration_lock("t", "l-1"):
                raise ZeroDivisionError
        async with peer.migration_lock("t", "l-1") as lease:
            assert lease.attempt == 1

    async def test_a_cancelled_body_releases(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        inside = asyncio.Event()

        async def hold() -> None:
            async with registry.migration_lock("t", "l-1"):
                inside.set()
                await asyncio.Event().wait()

        holder = asyncio.create_task(hold())
        await asyncio.wait_for(inside.wait(), 10)
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        async with peer.migration_lock("t", "l-1"):
            pass

    async def test_a_ref_that_has_its_link_is_not_locked(
        self, registry: CheckpointRegistry
    ) -> None:
        await linked(registry, legacy(), kernel())
        with pytest.raises(AlreadyMigratedError) as refused:
            async with registry.migration_lock("t", "l-1"):
                pass
        assert refused.value.became == "k-1"

    async def test_only_a_legacy_ref_that_is_whole_can_be_locked(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(kernel())
        await registry.register(legacy("dead"))
        await registry.expire("t", "dead", "reason")
        await registry.register(legacy("open", finalized=False))
        for name, error in (
            ("never", UnknownCheckpointError),
            ("k-1", CommitRefusedError),
            ("dead", CommitRefusedError),
            ("open", CommitRefusedError),
        ):
            with pytest.raises(error):
                async with registry.migration_lock("t", name):
                    pass
        assert (await registry.finalize("t", "open")).finalized

    # record_migration ---------------------------------------------------------------------

    async def test_a_link_says_what_became_of_a_ref(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry, story: Story
    ) -> None:
        began = await registry.now()
        link = await linked(registry, legacy(), kernel())
        assert replace(link, at=began) == MigrationLink("t", "l-1", "k-1", "b-1", began)
        assert began <= link.at <= await registry.now()
        assert await peer.migration_of("t", "l-1") == link
        assert (await story("t", "l-1")).state is RefState.MIGRATED
        assert (await story("t", "k-1")).replay_of == "l-1"

    async def test_a_ref_without_a_link_answers_none(self, registry: CheckpointRegistry) -> None:
        await registry.register(legacy())
        await registry.register(kernel())
        assert await registry.migration_of("t", "l-1") is None
        assert await registry.migration_of("t", "k-1") is None
        assert await registry.migration_of("t", "never") is None

    async def test_the_first_link_wins(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        first = await linked(registry, legacy(), kernel())
        await registry.register(kernel("k-2"))
        again = await peer.record_migration("t", "l-1", checkpoint_id="k-2", boundary_id="another")
        assert again == first == await peer.migration_of("t", "l-1")

    async def test_of_many_links_at_once_one_wins_and_all_are_told(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        for i in range(8):
            await registry.register(kernel(f"k-{i}"))
        links = await asyncio.gather(
            *(
                (registry, peer)[i % 2].record_migration(
                    "t", "l-1", checkpoint_id=f"k-{i}", boundary_id="b"
                )
                for i in range(8)
            )
        )
        assert len(set(links)) == 1
        assert await registry.migration_of("t", "l-1") == links[0]

    async def test_a_migrated_ref_leaves_the_drains_sight_and_its_lease_is_gone(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        await registry.register(kernel("k-1"))
        async with registry.migration_lock("t", "l-1") as lease:
            link = await peer.record_migration("t", "l-1", checkpoint_id="k-1", boundary_id="b")
            assert await registry.commit_replay(lease, kernel("k-2"), "b") == link
        assert not await registry.is_authoritative("t", "k-2")
        assert await registry.request_replay("t") == 0

    async def test_a_link_closes_the_crash_window_of_an_open_legacy_ref(
        self, registry: CheckpointRegistry
    ) -> None:
        await linked(registry, legacy(finalized=False), kernel())
        assert (await registry.reconcile_crash_expiry(grace=HOUR)).inspected == 0
        assert await registry.resolve("t") == kernel()

    async def test_what_was_never_registered_is_not_linked(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        with pytest.raises(UnknownCheckpointError, match="k-1"):
            await registry.record_migration("t", "l-1", checkpoint_id="k-1", boundary_id="b")
        await registry.register(kernel())
        with pytest.raises(UnknownCheckpointError, match="never"):
            await registry.record_migration("t", "never", checkpoint_id="k-1", boundary_id="b")
        assert await registry.migration_of("t", "l-1") is None

    async def test_only_legacy_becomes_kernel(self, registry: CheckpointRegistry) -> None:
        for ref in (legacy("l-1"), legacy("l-2"), kernel("k-1"), kernel("k-2")):
            await registry.register(ref)
        for old, new in (("k-1", "k-2"), ("l-1", "l-2"), ("k-1", "l-1"), ("l-1", "l-1")):
            with pytest.raises(WriterLineChangedError):
                await registry.record_migration("t", old, checkpoint_id=new, boundary_id="b")
        assert await registry.migration_of("t", "l-1") is None

    async def test_an_expired_ref_is_not_linked(self, registry: CheckpointRegistry) -> None:
        await registry.register(legacy())
        await registry.register(kernel())
        await registry.expire("t", "l-1", "reason")
        with pytest.raises(CheckpointExpiredError):
            await registry.record_migration("t", "l-1", checkpoint_id="k-1", boundary_id="b")
        assert await registry.migration_of("t", "l-1") is None

    async def test_two_legacy_refs_never_become_one(self, registry: CheckpointRegistry) -> None:
        await linked(registry, legacy("l-1"), kernel())
        await registry.register(legacy("l-2"))
        with pytest.raises(CommitRefusedError) as refused:
            await registry.record_migration("t", "l-2", checkpoint_id="k-1", boundary_id="b")
        assert refused.value.reason == FailureReason.ID_CONFLICT
        assert await registry.migration_of("t", "l-2") is None

    # commit_replay ------------------------------------------------------------------------

    async def test_a_commit_registers_and_links_in_one_step(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            link = await registry.commit_replay(lease, kernel(), "b-1")
        assert (link.checkpoint_id, link.boundary_id) == ("k-1", "b-1")
        assert await peer.migration_of("t", "l-1") == link
        assert await peer.is_resumable("t", "k-1")
        assert (await peer.explain("t")).standing is ThreadStanding.RESUMABLE

    async def test_a_late_replay_does_not_take_the_conversation_back_in_time(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy(day=1))
        await registry.register(kernel("went on", day=2))
        async with registry.migration_lock("t", "l-1") as lease:
            await registry.commit_replay(lease, kernel("replayed", day=9), "b-1")
        assert await registry.resolve("t") == kernel("went on", day=2)
        assert kernel("replayed", day=1) in await registry.refs_for("t")

    async def test_a_commit_needs_no_exemption_from_a_freeze(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        await registry.freeze_issuance(reason="r")
        async with registry.migration_lock("t", "l-1") as lease:
            await registry.commit_replay(lease, kernel(), "b-1")
        assert await registry.resolve("t") == kernel()

    async def test_a_replay_under_way_may_still_commit_after_a_thaw(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        await registry.freeze_issuance(reason="r")
        async with registry.migration_lock("t", "l-1") as lease:
            await peer.thaw_issuance(reason="never mind")
            await registry.commit_replay(lease, kernel(), "b-1")
        assert await registry.resolve("t") == kernel()

    async def test_committing_again_returns_the_link_with_or_without_the_lease(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            link = await registry.commit_replay(lease, kernel(), "b-1")
            assert await registry.commit_replay(lease, kernel(), "b-1") == link
        assert await peer.commit_replay(lease, kernel(), "b-1") == link
        assert ids_of(await registry.refs_for("t")) == ["k-1", "l-1"]

    async def test_a_second_replay_is_told_of_the_first_and_writes_nothing(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            link = await registry.commit_replay(lease, kernel("k-1"), "b-1")
        assert await peer.commit_replay(lease, kernel("k-2"), "b-2") == link
        assert not await registry.is_authoritative("t", "k-2")

    @pytest.mark.parametrize("how", ["left", "other token", "other fence", "other ref"])
    async def test_a_holder_whose_lease_is_not_the_locks_value_writes_nothing(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry, how: str
    ) -> None:
        await registry.register(legacy())
        await registry.register(legacy("l-2"))
        async with peer.migration_lock("t", "l-1") as lease:
            stale = {
                "left": lease,
                "other token": replace(lease, token="0" * 32),
                "other fence": replace(lease, fence=lease.fence + 1),
                "other ref": replace(lease, checkpoint_id="l-2"),
            }[how]
            if how != "left":
                with pytest.raises(LeaseLostError):
                    await registry.commit_replay(stale, kernel(), "b-1")
        with pytest.raises(LeaseLostError) as lost:
            await registry.commit_replay(stale, kernel(), "b-1")
        assert lost.value.fence == stale.fence
        assert not await registry.is_authoritative("t", "k-1")
        assert await registry.migration_of("t", "l-1") is None
        assert await registry.migration_of("t", "l-2") is None

    async def test_a_holder_is_not_helped_by_the_next_ones_lease(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as first:
            pass
        async with peer.migration_lock("t", "l-1") as second:
            with pytest.raises(LeaseLostError):
                await registry.commit_replay(first, kernel("k-1"), "b-1")
            link = await peer.commit_replay(second, kernel("k-2"), "b-1")
        assert ids_of(await registry.refs_for("t")) == ["k-2", "l-1"]
        assert await registry.migration_of("t", "l-1") == link

    @pytest.mark.parametrize(
        ("taken", "reason"),
        [
            ("open", FailureReason.ID_CONFLICT),
            ("expired", FailureReason.ID_CONFLICT),
            ("linked", FailureReason.ID_CONFLICT),
            ("legacy", FailureReason.WRITER_LINE),
            ("itself", FailureReason.WRITER_LINE),
        ],
    )
    async def test_a_new_id_that_is_taken_is_refused_and_nothing_is_written(
        self, registry: CheckpointRegistry, taken: str, reason: FailureReason
    ) -> None:
        await registry.register(legacy())
        new = "k-1"
        match taken:
            case "open":
                await registry.register(kernel(finalized=False))
            case "expired":
                await registry.register(kernel())
                await registry.expire("t", "k-1", "reason")
            case "linked":
                await linked(registry, legacy("l-2"), kernel())
            case "legacy":
                await registry.register(legacy("k-1"))
            case "itself":
                new = "l-1"
        before = await registry.refs_for("t")
        async with registry.migration_lock("t", "l-1") as lease:
            with pytest.raises(CommitRefusedError) as refused:
                await registry.commit_replay(lease, kernel(new), "b-1")
            assert refused.value.reason == reason
            assert (await registry.commit_replay(lease, kernel("k-9"), "b-1")).at
        after = await registry.refs_for("t")
        assert set(before) < set(after)
        assert ids_of(tuple(set(after) - set(before))) == ["k-9"]

    async def test_a_replay_that_made_a_legacy_ref_is_refused(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            with pytest.raises(CommitRefusedError) as refused:
                await registry.commit_replay(lease, legacy("l-2"), "b-1")
        assert refused.value.reason == FailureReason.WRITER_LINE
        assert await registry.refs_for("t") == (legacy(),)

    async def test_a_replay_into_another_thread_is_refused(
        self, registry: CheckpointRegistry
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            with pytest.raises(CommitRefusedError) as refused:
                await registry.commit_replay(lease, kernel(thread_id="u"), "b-1")
        assert refused.value.reason == FailureReason.BINDING_MISMATCH
        assert await registry.refs_for("u") == ()
        assert await registry.migration_of("t", "l-1") is None

    @pytest.mark.parametrize("how", ["register", "register_replay"])
    async def test_a_replay_that_registered_its_checkpoint_itself_is_linked(
        self, registry: CheckpointRegistry, how: str
    ) -> None:
        await registry.register(legacy())
        if how == "register":
            made = await registry.register(kernel(day=3))
        else:
            made = await registry.register_replay(kernel(day=3), legacy_checkpoint_id="l-1")
        async with registry.migration_lock("t", "l-1") as lease:
            await registry.commit_replay(lease, kernel(day=3), "b-1")
        assert await registry.resolve("t") == made

    async def test_after_a_commit_leaving_the_lock_is_quiet_and_the_ref_stays_migrated(
        self, registry: CheckpointRegistry, story: Story
    ) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1") as lease:
            await registry.commit_replay(lease, kernel(), "b-1")
        assert (await story("t", "l-1")).state is RefState.MIGRATED
        assert (await story("t", "l-1")).attempts == 1

    # reconcile ----------------------------------------------------------------------------

    async def test_an_overdue_crash_window_is_closed_with_its_reason(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        ref = await age(old=2 * HOUR)
        report = await registry.reconcile_crash_expiry(grace=HOUR)
        (gone,) = report.expired
        assert gone == ref.expire(CRASH_EXPIRY_REASON, gone.expired_at or FIRST_DAY)
        assert gone.expired_at is not None
        assert report.grace_seconds == 3600
        assert report.at <= await registry.now()
        assert await registry.refs_for("t") == (gone,)

    async def test_a_ref_exactly_grace_old_has_outlived_it(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        await age(old=HOUR)
        assert len((await registry.reconcile_crash_expiry(grace=HOUR)).expired) == 1

    async def test_only_overdue_open_refs_are_expired_and_all_open_ones_inspected(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        for thread in ("a", "b", "c", "d", "e"):
            await age("overdue", old=2 * HOUR, thread_id=thread)
            await age("overdue legacy", old=2 * HOUR, thread_id=thread, line=LEGACY)
            await age("in grace", old=HOUR / 2, thread_id=thread)
            await age("from the future", old=-2 * HOUR, thread_id=thread)
            await age("whole", old=2 * HOUR, thread_id=thread, finalized=True)
            await age("whole legacy", old=2 * HOUR, thread_id=thread, line=LEGACY, finalized=True)
        report = await registry.reconcile_crash_expiry(grace=HOUR)
        assert {ref.checkpoint_id for ref in report.expired} == {"overdue", "overdue legacy"}
        assert (len(report.expired), report.inspected) == (10, 20)
        for thread in ("a", "b", "c", "d", "e"):
            assert await registry.is_resumable(thread, "whole")
            assert await registry.is_resumable(thread, "whole legacy")

    async def test_a_ref_from_the_future_is_never_expired_not_even_once_extended(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        await age(old=-HOUR)
        await age("extended", old=-HOUR)
        await registry.extend("t", "extended")
        report = await registry.reconcile_crash_expiry(grace=timedelta(microseconds=1))
        assert (report.expired, report.inspected) == ((), 2)

    async def test_a_second_pass_reports_no_ref_again(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry, age: Age
    ) -> None:
        await age(old=2 * HOUR)
        await registry.reconcile_crash_expiry(grace=HOUR)
        for process in (registry, peer):
            report = await process.reconcile_crash_expiry(grace=HOUR)
            assert (report.expired, report.inspected) == ((), 0)

    async def test_a_second_pass_keeps_the_first_time(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        await age(old=2 * HOUR)
        await registry.reconcile_crash_expiry(grace=HOUR)
        before = await registry.refs_for("t")
        await registry.reconcile_crash_expiry(grace=HOUR)
        assert await registry.refs_for("t") == before

    async def test_passes_at_once_report_each_ref_once_between_them(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry, age: Age
    ) -> None:
        for i in range(30):
            await age(old=2 * HOUR, thread_id=f"t-{i}")
        reports = await asyncio.gather(
            *((registry, peer)[i % 2].reconcile_crash_expiry(grace=HOUR) for i in range(6))
        )
        reported = [ref.thread_id for report in reports for ref in report.expired]
        assert sorted(reported) == sorted(f"t-{i}" for i in range(30))

    async def test_a_finalize_and_a_pass_at_once_never_both_win(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry, age: Age
    ) -> None:
        threads = [f"t-{i}" for i in range(20)]
        for thread in threads:
            await age(old=2 * HOUR, thread_id=thread)
        finalized, report = await asyncio.gather(
            asyncio.gather(
                *(peer.finalize(thread, "k-1") for thread in threads), return_exceptions=True
            ),
            registry.reconcile_crash_expiry(grace=HOUR),
        )
        expired = {ref.thread_id for ref in report.expired}
        for thread, answer in zip(threads, finalized, strict=True):
            assert isinstance(answer, CheckpointExpiredError) == (thread in expired)
            assert await registry.is_resumable(thread, "k-1") == (thread not in expired)

    async def test_a_pass_finds_refs_whatever_their_ids_are(
        self, registry: CheckpointRegistry, age: Age
    ) -> None:
        for awkward in AWKWARD_IDS:
            await age(awkward, old=2 * HOUR, thread_id=awkward)
        report = await registry.reconcile_crash_expiry(grace=HOUR)
        assert sorted(ref.thread_id for ref in report.expired) == sorted(AWKWARD_IDS)
        for awkward in AWKWARD_IDS:
            (ref,) = await registry.refs_for(awkward)
            assert ref.expired

    @pytest.mark.parametrize("grace", [timedelta(0), timedelta(microseconds=-1)])
    async def test_a_grace_that_is_not_positive_is_refused(
        self, registry: CheckpointRegistry, age: Age, grace: timedelta
    ) -> None:
        ref = await age(old=2 * HOUR)
        with pytest.raises(ValueError, match="grace"):
            await registry.reconcile_crash_expiry(grace=grace)
        assert await registry.refs_for("t") == (ref,)

    # request_replay -----------------------------------------------------------------------

    async def test_a_request_counts_the_threads_refs_that_wait_for_the_drain(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        await registry.register(legacy("waits"))
        await registry.register(legacy("waits too", day=1))
        await registry.register(legacy("open", finalized=False))
        await registry.register(legacy("dead"))
        await registry.expire("t", "dead", "reason")
        await registry.register(kernel())
        await registry.register(legacy("of another", thread_id="u"))
        assert await peer.request_replay("t") == 2
        assert await registry.request_replay("t") == 2

    async def test_a_ref_being_replayed_is_not_moved(self, registry: CheckpointRegistry) -> None:
        await registry.register(legacy())
        async with registry.migration_lock("t", "l-1"):
            assert await registry.request_replay("t") == 0
        assert await registry.request_replay("t") == 1

    # clock --------------------------------------------------------------------------------

    async def test_the_clock_is_aware_and_does_not_run_back(
        self, registry: CheckpointRegistry, peer: CheckpointRegistry
    ) -> None:
        first, second = await registry.now(), await peer.now()
        assert first.utcoffset() == timedelta(0)
        assert first <= second
