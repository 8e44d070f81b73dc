"""Where a thread stands, from its records alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.refs import CheckpointRef, MigrationLink
from checkpointd.domain.standing import RefRecord, explain, first_state, newest_first, resolve
from checkpointd.domain.states import FailureReason, RefState, ThreadStanding, WriterLine

BORN = datetime(2026, 3, 1, tzinfo=UTC)
CHANGED = datetime(2026, 3, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEGACY, KERNEL = WriterLine.LEGACY, WriterLine.KERNEL


def record(
    name: str = "c",
    state: RefState = RefState.FINALIZED,
    *,
    day: int = 0,
    became: str = "",
    reason: str = "",
    code: FailureReason | None = None,
    detail: str = "",
    opened_at: datetime | None = None,
) -> RefRecord:
    expired = state is RefState.EXPIRED
    kernel = state is RefState.FINALIZED
    ref = CheckpointRef(
        "t",
        name,
        KERNEL if kernel else LEGACY,
        BORN + timedelta(days=day),
        finalized=state is not RefState.OPEN,
        expired=expired,
        expired_reason=reason if expired else "",
        expired_at=CHANGED if expired else None,
    )
    link = MigrationLink("t", name, became, "b", CHANGED) if became else None
    return RefRecord(
        ref=ref,
        state=state,
        changed_at=CHANGED,
        link=link,
        reason=reason,
        code=code,
        detail=detail,
        opened_at=opened_at,
    )


class TestFirstState:
    @pytest.mark.parametrize(
        ("line", "finalized", "expired", "state"),
        [
            (KERNEL, True, False, RefState.FINALIZED),
            (LEGACY, True, False, RefState.PENDING),
            (KERNEL, False, False, RefState.OPEN),
            (LEGACY, False, False, RefState.OPEN),
            (KERNEL, True, True, RefState.EXPIRED),
            (LEGACY, False, True, RefState.EXPIRED),
        ],
    )
    def test_it_follows_from_line_and_flags(
        self, line: WriterLine, finalized: bool, expired: bool, state: RefState
    ) -> None:
        ref = CheckpointRef("t", "c", line, BORN, finalized=finalized, expired=expired)
        assert first_state(ref) is state


class TestResumable:
    @pytest.mark.parametrize("state", list(RefState))
    def test_a_ref_is_unless_it_is_open_expired_or_waived(self, state: RefState) -> None:
        barred = (RefState.OPEN, RefState.EXPIRED, RefState.WAIVED)
        assert record("c", state).is_resumable == (state not in barred)


class TestCrashWindow:
    def test_it_is_outlived_when_exactly_grace_old(self) -> None:
        opened = record("c", RefState.OPEN)
        assert opened.outlived(grace=HOUR, now=BORN + HOUR)
        assert not opened.outlived(grace=HOUR, now=BORN + HOUR - timedelta(microseconds=1))

    def test_an_extended_one_is_judged_by_its_extension(self) -> None:
        opened = record("c", RefState.OPEN, opened_at=BORN + HOUR)
        assert opened.window_began == BORN + HOUR
        assert not opened.outlived(grace=HOUR, now=BORN + HOUR)
        assert opened.outlived(grace=HOUR, now=BORN + 2 * HOUR)

    def test_a_ref_from_the_future_never_outlives_it_however_early_it_was_extended(self) -> None:
        opened = record("c", RefState.OPEN, opened_at=BORN - 9 * HOUR)
        assert not opened.outlived(grace=HOUR, now=BORN - HOUR)

    @pytest.mark.parametrize("state", [s for s in RefState if s is not RefState.OPEN])
    def test_only_an_open_ref_has_one(self, state: RefState) -> None:
        assert not record("c", state).outlived(grace=HOUR, now=BORN + 9 * HOUR)


class TestCause:
    def test_a_failure_is_told_by_its_word_and_detail(self) -> None:
        failed = record(
            "c", RefState.QUARANTINED, code=FailureReason.UNANSWERED_CALL, detail="call-7"
        )
        assert failed.cause == "unanswered_call: call-7"
        assert replace(failed, detail="").cause == "unanswered_call"

    def test_the_operator_who_waived_it_has_the_last_word(self) -> None:
        waived = record("c", RefState.WAIVED, reason="customer left", code=FailureReason.TIMEOUT)
        assert waived.cause == "customer left"

    def test_without_a_failure_it_is_the_reason(self) -> None:
        assert record("c", RefState.PENDING, reason="released").cause == "released"
        assert record("c", RefState.PENDING).cause == ""


class TestResolve:
    def test_nothing_resolves_to_none(self) -> None:
        assert resolve([]) is None

    def test_the_newest_resumable_wins_in_whatever_order_they_come(self) -> None:
        old, good = record("old", day=1), record("good", day=2)
        rest = [record("open", RefState.OPEN, day=3), record("dead", RefState.EXPIRED, day=4)]
        for order in permutations([old, good, *rest]):
            assert resolve(order) == good.ref

    def test_equally_old_ones_are_told_apart_by_id(self) -> None:
        assert resolve([record("b"), record("a")]) == record("b").ref

    @pytest.mark.parametrize(
        "state",
        [RefState.PENDING, RefState.REPLAYING, RefState.RETRYABLE, RefState.QUARANTINED],
    )
    def test_a_legacy_ref_is_resumable_until_the_drain_has_dealt_with_it(
        self, state: RefState
    ) -> None:
        assert resolve([record("l", state)]) == record("l", state).ref

    def test_a_waived_one_is_not(self) -> None:
        assert resolve([record("l", RefState.WAIVED, day=2), record("k")]) == record("k").ref

    def test_a_migrated_one_is_followed(self) -> None:
        target, between = record("k", day=0), record("between", day=1)
        old = record("l", RefState.MIGRATED, day=2, became="k")
        assert resolve([target, between, old]) == target.ref

    @pytest.mark.parametrize("end", [RefState.EXPIRED, RefState.OPEN, None])
    def test_a_link_to_what_cannot_resume_is_skipped(self, end: RefState | None) -> None:
        old = record("l", RefState.MIGRATED, day=2, became="k")
        targets = [record("k", end, day=2)] if end else []
        earlier = record("earlier", day=1)
        assert resolve([old, *targets, earlier]) == earlier.ref
        assert resolve([old, *targets]) is None


class TestExplain:
    @pytest.mark.parametrize(
        ("state", "standing"),
        [
            (RefState.OPEN, ThreadStanding.OPEN),
            (RefState.PENDING, ThreadStanding.MIGRATING),
            (RefState.REPLAYING, ThreadStanding.MIGRATING),
            (RefState.RETRYABLE, ThreadStanding.MIGRATING),
            (RefState.QUARANTINED, ThreadStanding.QUARANTINED),
            (RefState.WAIVED, ThreadStanding.WAIVED),
            (RefState.FINALIZED, ThreadStanding.RESUMABLE),
            (RefState.EXPIRED, ThreadStanding.EXPIRED),
        ],
    )
    def test_each_state_has_its_word(self, state: RefState, standing: ThreadStanding) -> None:
        explanation = explain("t", [record("c", state)])
        assert explanation.standing is standing
        assert explanation.ref == record("c", state).ref

    def test_no_refs_are_unknown(self) -> None:
        explanation = explain("t", [])
        assert explanation.standing is ThreadStanding.UNKNOWN
        assert (explanation.ref, explanation.reason, explanation.at) == (None, "", None)

    @pytest.mark.parametrize("state", [s for s in RefState if s is not RefState.EXPIRED])
    def test_the_newest_that_has_not_expired_decides(self, state: RefState) -> None:
        newest = record("l", state, day=3, became="k" if state is RefState.MIGRATED else "")
        rest = [record("dead", RefState.EXPIRED, day=4), record("k", day=1)]
        wanted = explain("t", [newest, record("k", day=1)])
        assert explain("t", [newest, *rest]) == wanted
        assert wanted.standing is not ThreadStanding.EXPIRED

    def test_a_migrated_one_speaks_for_what_it_became(self) -> None:
        old = record("l", RefState.MIGRATED, day=2, became="k")
        explanation = explain("t", [old, record("k", day=2)])
        assert explanation.standing is ThreadStanding.RESUMABLE
        assert explanation.ref == record("k", day=2).ref

    def test_one_whose_target_died_is_passed_over(self) -> None:
        old = record("l", RefState.MIGRATED, day=2, became="k")
        dead = record("k", RefState.EXPIRED, day=2, reason="why")
        assert explain("t", [old, dead]).standing is ThreadStanding.EXPIRED
        assert explain("t", [old, dead]).reason == "why"
        waits = record("earlier", RefState.PENDING, day=1)
        assert explain("t", [old, dead, waits]).standing is ThreadStanding.MIGRATING

    def test_one_whose_target_is_open_gives_the_word_to_it(self) -> None:
        old = record("l", RefState.MIGRATED, day=2, became="k")
        assert explain("t", [old, record("k", RefState.OPEN)]).standing is ThreadStanding.OPEN

    def test_an_expired_thread_tells_of_its_newest_ref(self) -> None:
        first = record("a", RefState.EXPIRED, day=1, reason="first")
        last = record("b", RefState.EXPIRED, day=2, reason="last")
        explanation = explain("t", [last, first])
        assert (explanation.ref, explanation.reason) == (last.ref, "last")
        assert explanation.at == CHANGED

    def test_an_open_one_tells_since_when(self) -> None:
        assert explain("t", [record("c", RefState.OPEN)]).at == BORN
        extended = record("c", RefState.OPEN, opened_at=BORN + HOUR)
        assert explain("t", [extended]).at == BORN + HOUR

    def test_a_quarantined_one_tells_why(self) -> None:
        stuck = record("c", RefState.QUARANTINED, code=FailureReason.ABSENT, detail="no rows")
        explanation = explain("t", [stuck])
        assert (explanation.reason, explanation.at) == ("absent: no rows", CHANGED)


records = st.builds(
    record,
    st.sampled_from("abc"),
    st.sampled_from([state for state in RefState if state is not RefState.MIGRATED]),
    day=st.integers(0, 3),
) | st.builds(
    record,
    st.sampled_from("lm"),
    st.just(RefState.MIGRATED),
    day=st.integers(0, 3),
    became=st.sampled_from("abcx"),
)
some = st.lists(records, max_size=5, unique_by=lambda r: r.ref.checkpoint_id)


class TestTogether:
    @given(some, st.randoms(use_true_random=False))
    def test_the_order_in_which_records_come_does_not_matter(self, given_records, random) -> None:  # type: ignore[no-untyped-def]
        shuffled = list(given_records)
        random.shuffle(shuffled)
        assert resolve(shuffled) == resolve(given_records)
        assert explain("t", shuffled) == explain("t", given_records)

    @given(some)
    def test_what_is_explained_as_resumable_is_what_is_resolved(
        self, given_records: list[RefRecord]
    ) -> None:
        explanation = explain("t", given_records)
        if explanation.standing is ThreadStanding.RESUMABLE:
            assert explanation.ref == resolve(given_records)

    @given(some)
    def test_what_is_resolved_may_resume(self, given_records: list[RefRecord]) -> None:
        resolved = resolve(given_records)
        resumable = [r.ref for r in given_records if r.is_resumable]
        assert resolved in resumable if resolved else True

    @given(some)
    def test_newest_first_is_the_order_of_refs_backwards(
        self, given_records: list[RefRecord]
    ) -> None:
        orders = [r.ref.order for r in newest_first(given_records)]
        assert orders == sorted(orders, reverse=True)
