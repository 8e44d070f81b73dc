"""The registry's values."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.errors import InvalidIdError
from checkpointd.domain.refs import (
    EPOCH,
    CheckpointRef,
    IssuanceFreeze,
    Lease,
    MigrationLink,
    ReconciliationReport,
    SafeBoundaryMarker,
    derived_id,
    from_us,
    to_us,
)
from checkpointd.domain.states import ALL_LINES, WriterLine

BORN = datetime(2026, 3, 1, 12, 0, 0, 250_001, tzinfo=UTC)
HOUR = timedelta(hours=1)
MOMENTS = st.datetimes(timezones=st.just(UTC))


def ref(*, finalized: bool = True, created_at: datetime = BORN) -> CheckpointRef:
    return CheckpointRef("t", "c", WriterLine.KERNEL, created_at, finalized=finalized)


class TestMicroseconds:
    @given(MOMENTS)
    def test_a_moment_comes_back_exactly(self, moment: datetime) -> None:
        assert from_us(to_us(moment)) == moment

    @given(MOMENTS, MOMENTS)
    def test_they_keep_the_order(self, one: datetime, other: datetime) -> None:
        assert (to_us(one) < to_us(other)) == (one < other)

    def test_another_zone_names_the_same_microsecond(self) -> None:
        elsewhere = BORN.astimezone(timezone(timedelta(hours=5, minutes=45)))
        assert to_us(elsewhere) == to_us(BORN)
        assert from_us(to_us(elsewhere)).tzinfo is UTC

    def test_a_naive_moment_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no zone"):
            to_us(datetime(2026, 1, 1))  # noqa: DTZ001 - the point

    def test_the_epoch_is_zero(self) -> None:
        assert (to_us(EPOCH), from_us(0)) == (0, EPOCH)


class TestDerivedId:
    def test_equal_parts_give_the_equal_id_in_every_release(self) -> None:
        assert derived_id("a", 1) == derived_id("a", 1) == "4e05abd6911b81cca42657fbc9599aa8"

    def test_no_two_lists_of_parts_read_alike(self) -> None:
        lists = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("1:a", "bc")]
        assert len({derived_id(*parts) for parts in lists}) == len(lists)

    @given(st.lists(st.text(), max_size=4))
    def test_it_is_a_valid_id_of_32_hexadecimal_digits(self, parts: list[str]) -> None:
        made = derived_id(*parts)
        assert len(made) == 32
        assert int(made, 16) >= 0


class TestCheckpointRef:
    def test_it_is_finalized_and_not_expired_unless_it_says_so(self) -> None:
        made = CheckpointRef("t", "c", WriterLine.KERNEL, BORN)
        assert (made.finalized, made.expired) == (True, False)
        assert (made.expired_reason, made.expired_at) == ("", None)

    def test_its_line_may_be_given_as_a_word(self) -> None:
        assert CheckpointRef("t", "c", "legacy", BORN).writer_line is WriterLine.LEGACY  # type: ignore[arg-type]

    def test_an_unknown_line_is_refused(self) -> None:
        with pytest.raises(ValueError, match="other"):
            CheckpointRef("t", "c", "other", BORN)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("thread_id", "checkpoint_id"), [("", "c"), ("t", ""), ("t", "a\nb")])
    def test_an_id_that_cannot_name_anything_is_refused(
        self, thread_id: str, checkpoint_id: str
    ) -> None:
        with pytest.raises(InvalidIdError):
            CheckpointRef(thread_id, checkpoint_id, WriterLine.KERNEL, BORN)

    def test_a_naive_time_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no zone"):
            ref(created_at=datetime(2026, 1, 1))  # noqa: DTZ001 - the point

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            ref().finalized = False  # type: ignore[misc]

    def test_finalizing_gives_a_new_value_and_leaves_the_old(self) -> None:
        opened = ref(finalized=False)
        assert opened.finalize() == ref()
        assert not opened.finalized

    def test_expiring_gives_a_new_value_and_leaves_the_old(self) -> None:
        whole = ref()
        gone = whole.expire("why", BORN + HOUR)
        assert (gone.expired, gone.expired_reason, gone.expired_at) == (True, "why", BORN + HOUR)
        assert gone.finalized
        assert not whole.expired

    def test_expiring_twice_keeps_the_first_reason_and_time(self) -> None:
        gone = ref().expire("first", BORN)
        assert gone.expire("second", BORN + HOUR) == gone

    @given(st.lists(st.tuples(MOMENTS, st.sampled_from("abAé")), max_size=8))
    def test_the_order_is_by_time_then_by_id(self, made: list[tuple[datetime, str]]) -> None:
        refs = [CheckpointRef("t", name, WriterLine.KERNEL, at) for at, name in made]
        assert [r.order for r in sorted(refs, key=lambda r: r.order)] == sorted(made)


class TestCrashWindow:
    def test_a_ref_exactly_grace_old_has_outlived_it(self) -> None:
        assert ref(finalized=False).outlived(grace=HOUR, now=BORN + HOUR)

    def test_a_microsecond_earlier_it_has_not(self) -> None:
        just_before = BORN + HOUR - timedelta(microseconds=1)
        assert not ref(finalized=False).outlived(grace=HOUR, now=just_before)

    @given(MOMENTS)
    def test_a_finalized_ref_never_outlives_its_grace(self, now: datetime) -> None:
        assert not ref().outlived(grace=timedelta(microseconds=1), now=now)

    def test_an_expired_ref_does_not_outlive_it_again(self) -> None:
        gone = ref(finalized=False).expire("why", BORN)
        assert not gone.outlived(grace=HOUR, now=BORN + 2 * HOUR)

    def test_a_ref_from_the_future_has_not_outlived_it(self) -> None:
        assert not ref(finalized=False).outlived(grace=timedelta(microseconds=1), now=BORN - HOUR)


class TestBoundary:
    def test_its_id_tells_thread_step_and_digest_apart(self) -> None:
        ids = {
            SafeBoundaryMarker.derive_id(*parts)
            for parts in (
                ("t", 1, "d"),
                ("u", 1, "d"),
                ("t", 2, "d"),
                ("t", 1, "e"),
                ("t1", 1, "d"),
            )
        }
        assert len(ids) == 5

    def test_a_retry_derives_the_same(self) -> None:
        assert SafeBoundaryMarker.derive_id("t", 1, "d") == SafeBoundaryMarker.derive_id(
            "t", 1, "d"
        )


class TestOtherValues:
    def test_a_freeze_closes_all_lines_unless_it_names_some(self) -> None:
        assert IssuanceFreeze("r", BORN).lines == ALL_LINES

    def test_a_report_is_empty_to_begin_with(self) -> None:
        report = ReconciliationReport(BORN, 60.0)
        assert (report.expired, report.inspected) == ((), 0)

    def test_a_lease_is_its_fence_and_its_token(self) -> None:
        lease = Lease(thread_id="t", checkpoint_id="c", fence=7, token="ab")  # noqa: S106
        assert (lease.value, lease.name) == ("7:ab", "t/c")

    @pytest.mark.parametrize(
        "value",
        [
            SafeBoundaryMarker("b", "t", 1, "d", WriterLine.LEGACY, BORN),
            MigrationLink("t", "l", "k", "b", BORN),
            IssuanceFreeze("r", BORN),
            ReconciliationReport(BORN, 60.0),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_none_of_them_can_be_changed_and_all_can_be_hashed(self, value: object) -> None:
        assert hash(value) == hash(dataclasses.replace(value))  # type: ignore[type-var]
        name = dataclasses.fields(value)[0].name  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, "other")
