"""What a transcript owes, and where it may be cut."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.transcript import (
    OpenCall,
    asking_round,
    cut_before_open_call,
    open_calls,
    orphans,
)

USER: dict[str, Any] = {"role": "user", "content": "x"}
SAID: dict[str, Any] = {"role": "assistant", "content": "x"}


def asks(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": one} for one in ids]}


def answers(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": "x", "tool_call_id": call_id}


class TestOpenCalls:
    def test_an_answered_call_is_not_open(self) -> None:
        assert open_calls([USER, asks("a"), answers("a"), SAID]) == ()

    def test_an_unanswered_one_is(self) -> None:
        assert open_calls([USER, asks("a", "b"), answers("a")]) == (OpenCall(1, "b"),)

    def test_an_answer_before_the_call_does_not_count(self) -> None:
        assert open_calls([asks("a"), answers("a"), USER, asks("a")]) == (OpenCall(3, "a"),)

    def test_an_answer_closes_the_nearest_call_of_its_id(self) -> None:
        assert open_calls([asks("a"), USER, asks("a"), answers("a")]) == (OpenCall(0, "a"),)

    def test_they_come_in_the_order_of_asking(self) -> None:
        assert [one.index for one in open_calls([asks("b"), USER, asks("a"), USER, asks("b")])] == [
            0,
            2,
            4,
        ]


class TestOrphans:
    def test_an_answer_to_nothing_before_it_is_an_orphan(self) -> None:
        assert orphans([answers("a"), USER, asks("a"), answers("a")]) == (0,)

    def test_a_second_answer_is_none(self) -> None:
        assert orphans([asks("a"), answers("a"), answers("a")]) == ()


class TestAskingRound:
    def test_it_is_the_last_message_with_calls(self) -> None:
        assert asking_round([USER, asks("a"), answers("a"), asks("b", "c"), answers("b")]) == 3

    def test_a_user_who_spoke_has_ended_it(self) -> None:
        assert asking_round([USER, asks("a"), USER]) is None
        assert asking_round([]) is None


class TestCut:
    def test_the_record_ends_before_the_message_that_asked(self) -> None:
        assert cut_before_open_call([USER, SAID, USER, asks("a"), USER, SAID]) == (USER, SAID, USER)

    def test_a_cut_that_opens_another_call_goes_on(self) -> None:
        assert cut_before_open_call([USER, asks("a"), asks("b"), answers("a")]) == (USER,)

    def test_a_whole_transcript_stays_whole(self) -> None:
        whole = (USER, asks("a"), answers("a"))
        assert cut_before_open_call(whole) == whole

    @given(
        st.lists(
            st.one_of(
                st.just(USER),
                st.builds(asks, st.sampled_from("abc")),
                st.builds(answers, st.sampled_from("abc")),
            ),
            max_size=12,
        )
    )
    def test_what_is_kept_owes_nothing_and_is_a_beginning(self, messages: list[Any]) -> None:
        kept = cut_before_open_call(messages)
        assert open_calls(kept) == ()
        assert list(kept) == messages[: len(kept)]
