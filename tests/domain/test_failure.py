"""What an exception out of a replay means for its ref: a row for each."""

from __future__ import annotations

import asyncio

import pytest

from checkpointd.domain.errors import (
    CommitRefusedError,
    InvalidIdError,
    PermanentReplayError,
    ReplayerUnreachableError,
    SourceUnreachableError,
    StoreRefusedError,
    TransientReplayError,
    UnreadableStateError,
)
from checkpointd.domain.failure import meaning_of
from checkpointd.domain.states import FailureReason, ThrottleReason


class TestMeaning:
    @pytest.mark.parametrize(
        ("error", "reason", "permanent", "throttle"),
        [
            (TransientReplayError("busy"), "replay_error", False, None),
            (PermanentReplayError("absent", "gone"), "absent", True, None),
            (PermanentReplayError("of my own making"), "other", True, None),
            (UnreadableStateError("t", "cut off"), "unreadable", True, None),
            (CommitRefusedError("t", "c", "id_conflict"), "id_conflict", True, None),
            (CommitRefusedError("t", "c", "not_authoritative"), "not_authoritative", True, None),
            (CommitRefusedError("t", "c", "writer_line"), "writer_line", True, None),
            (StoreRefusedError("commit", "OOM"), "store_refused", False, None),
            (SourceUnreachableError("there", "down"), "other", False, "source"),
            (ReplayerUnreachableError("refused"), "replay_error", False, "replayer"),
            (InvalidIdError("checkpoint_id", "", "empty"), "replay_error", False, None),
            (TimeoutError("its own"), "replay_error", False, None),
            (asyncio.CancelledError(), "replay_error", False, None),
            (ZeroDivisionError("division by zero"), "replay_error", False, None),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
    )
    def test_each_error_has_one(
        self, error: BaseException, reason: str, permanent: bool, throttle: str | None
    ) -> None:
        failure = meaning_of(error)
        assert failure.reason is FailureReason(reason)
        assert failure.permanent is permanent
        assert failure.throttle is (ThrottleReason(throttle) if throttle else None)

    def test_past_the_deadline_it_is_a_timeout_whatever_was_raised(self) -> None:
        failure = meaning_of(TimeoutError(), timed_out=True)
        assert (failure.reason, failure.permanent) == (FailureReason.TIMEOUT, False)

    def test_an_unknown_error_is_named_in_the_detail(self) -> None:
        assert meaning_of(ZeroDivisionError("oops")).detail == "ZeroDivisionError: oops"

    def test_an_error_without_words_is_named_by_its_class(self) -> None:
        assert "AssertionError" in meaning_of(AssertionError()).detail

    def test_the_time_that_was_asked_for_is_kept(self) -> None:
        assert meaning_of(TransientReplayError("429", retry_after_s=7)).retry_after_s == 7

    def test_a_permanent_reason_without_detail_explains_itself(self) -> None:
        assert meaning_of(PermanentReplayError("absent")).detail == "absent"
