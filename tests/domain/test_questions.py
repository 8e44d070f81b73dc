"""Payloads read as questions."""

from __future__ import annotations

from typing import Any

import pytest

from checkpointd.domain.head import Send
from checkpointd.domain.plain import Named
from checkpointd.domain.questions import (
    call_of_send,
    only_open_call,
    prompt_of,
    second_copy,
)

CALL = {"name": "f", "args": {}, "id": "c", "type": "tool_call"}


class TestPrompt:
    @pytest.mark.parametrize(
        ("payload", "prompt"),
        [
            (None, ""),
            ("Sure?", "Sure?"),
            ({"question": "Sure?", "x": 1}, "Sure?"),
            ({"request": {"questions": [{"question": "A?"}, {"question": "B?"}]}}, "A?\nB?"),
            ({"questions": ["A?", 3]}, "A?"),
            ({"payload": {"prompt": "Well?"}}, "Well?"),
            ({"b": 1, "a": "é"}, '{"a":"\\u00e9","b":1}'),
            ({"n": float("nan")}, '{"n":null}'),
            (Named("app", "Ask", {"question": "Sure?"}), "Sure?"),
            ([1, 2], "[1,2]"),
        ],
    )
    def test_it_is_the_question_or_the_payload(self, payload: Any, prompt: str) -> None:
        assert prompt_of(payload) == prompt


class TestCalls:
    @pytest.mark.parametrize(
        ("argument", "call_id"),
        [
            ([CALL], "c"),
            (CALL, "c"),
            ({"__type": "tool_call_with_context", "tool_call": CALL, "state": {}}, "c"),
            ([CALL, {**CALL, "id": "d"}], ""),
            ({"id": "not-a-call"}, ""),
            ("text", ""),
        ],
    )
    def test_a_send_may_carry_one(self, argument: Any, call_id: str) -> None:
        assert call_of_send(Send("tools", argument)) == call_id

    def test_the_one_open_call_is_meant_and_of_several_that_of_the_asking_round(self) -> None:
        asks = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}
        later = {"role": "assistant", "content": "", "tool_calls": [{"id": "b"}]}
        both = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}, {"id": "b"}]}
        assert only_open_call([asks]) == "a"
        assert only_open_call([asks, later]) == "b"
        assert only_open_call([both]) == ""
        assert only_open_call([]) == ""


class TestSecondCopy:
    def test_it_is_found_by_the_call_or_by_the_interrupt(self) -> None:
        notes = {"ask_user_request:c": '{"a": 1}', "interrupt_payload:i": {"b": 2}}
        assert second_copy(notes, tool_call_id="c", interrupt_id="") == {"a": 1}
        assert second_copy(notes, tool_call_id="", interrupt_id="i") == {"b": 2}
        assert second_copy(notes, tool_call_id="x", interrupt_id="y") is None
        assert second_copy({"ask_user_request:c": "{"}, tool_call_id="c", interrupt_id="") == "{"
