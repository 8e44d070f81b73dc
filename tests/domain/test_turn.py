"""What a paused turn leaves behind: one encoding, refused where it cannot be accounted for."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.turn import (
    IDENTITY_FIELDS,
    VERSION,
    PauseClaims,
    TurnCheckpoint,
    captured_messages,
    stamped_turn,
)

TEXT_FIELDS = (*IDENTITY_FIELDS, "prompt")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=4).map(tuple)
turns = st.builds(
    TurnCheckpoint, messages=messages, **{field: st.text(max_size=20) for field in TEXT_FIELDS}
)

ASKED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "ask", "arguments": "{}"}}
    ],
}


class TestEncoding:
    @given(turns)
    def test_what_is_encoded_is_decoded(self, turn: TurnCheckpoint) -> None:
        again = TurnCheckpoint.decode(turn.encode())
        assert again == turn
        assert again.fields() == turn.fields()

    @given(turns, turns)
    def test_turns_are_equal_exactly_if_their_bytes_are(
        self, one: TurnCheckpoint, other: TurnCheckpoint
    ) -> None:
        assert (one == other) == (one.encode() == other.encode())
        assert one == replace(one)
        assert hash(one) == hash(replace(one))

    @given(turns)
    def test_the_order_in_which_a_message_was_built_does_not_show(
        self, turn: TurnCheckpoint
    ) -> None:
        turned = tuple(dict(reversed(list(message.items()))) for message in turn.messages)
        assert replace(turn, messages=turned).encode() == turn.encode()

    @given(turns)
    def test_text_and_bytes_and_the_mapping_itself_decode_alike(self, turn: TurnCheckpoint) -> None:
        raw = turn.encode()
        assert TurnCheckpoint.decode(raw.decode()) == turn
        assert TurnCheckpoint.decode(json.loads(raw)) == turn
        assert TurnCheckpoint.decode(turn.fields()) == turn

    def test_keys_are_sorted_spaces_left_out_and_only_ascii_written(self) -> None:
        turn = TurnCheckpoint(run_id="é", messages=({"role": "user", "content": "\0👩‍💻"},))
        raw = turn.encode()
        assert raw.isascii()
        assert raw.startswith(
            b'{"checkpoint_id":"","interrupt_id":"","messages":[{"content":"\\u0000'
        )
        assert raw.endswith(b'"version":1}')

    def test_one_and_true_are_different_turns(self) -> None:
        one = TurnCheckpoint(messages=({"n": 1},))
        assert one != TurnCheckpoint(messages=({"n": True},))
        assert one != TurnCheckpoint(messages=({"n": 1.0},))
        assert one != "a turn"

    def test_a_later_change_of_the_callers_message_does_not_reach_the_turn(self) -> None:
        message: dict[str, Any] = {"role": "user", "content": ["a"]}
        turn = TurnCheckpoint(messages=(message,))
        message["content"].append("b")
        assert turn.messages[0]["content"] == ["a"]

    def test_a_word_of_an_enumeration_is_kept_as_plain_text(self) -> None:
        class Role(StrEnum):
            USER = "user"

        turn = TurnCheckpoint(messages=({"role": Role.USER},))
        assert type(turn.messages[0]["role"]) is str
        assert turn.messages == ({"role": "user"},)


class TestWhatJsonCannotSay:
    @pytest.mark.parametrize(
        ("value", "named"),
        [
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (object(), "object"),
            (b"bytes", "bytes"),
            ({1: "a"}, "key 1"),
        ],
    )
    def test_it_is_refused_when_the_turn_is_made(self, value: object, named: str) -> None:
        with pytest.raises(ValueError, match=named):
            TurnCheckpoint(messages=({"role": "user"}, {"role": "user", "content": [value]}))

    def test_a_librarys_object_is_no_message(self) -> None:
        with pytest.raises(ValueError, match="message 0 is a SimpleNamespace, not a mapping"):
            TurnCheckpoint(messages=(SimpleNamespace(role="user"),))  # type: ignore[arg-type]

    def test_endless_nesting_is_refused(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(ValueError, match="nested too deeply"):
            TurnCheckpoint(messages=({"content": deep},))

    def test_an_id_that_is_not_text_is_refused(self) -> None:
        with pytest.raises(ValueError, match="run_id of a turn is text, not int"):
            TurnCheckpoint(run_id=7)  # type: ignore[arg-type]


class TestDecoding:
    @pytest.mark.parametrize("raw", [b"[]", b'"text"', b"null", b"7", None, 7, ["a"]])
    def test_anything_but_a_mapping_is_refused(self, raw: object) -> None:
        with pytest.raises(ValueError, match="not a mapping"):
            TurnCheckpoint.decode(raw)

    @pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None])
    def test_another_version_is_refused_and_both_are_named(self, version: object) -> None:
        with pytest.raises(ValueError, match=f"version '?{version}'? .* version {VERSION}"):
            TurnCheckpoint.decode({"version": version})

    def test_a_record_without_a_version_is_refused(self) -> None:
        with pytest.raises(ValueError, match=f"version None .* version {VERSION}"):
            TurnCheckpoint.decode({"run_id": "r"})

    @pytest.mark.parametrize("messages", ["text", {"role": "user"}, 7, True])
    def test_messages_that_are_not_a_list_are_refused(self, messages: object) -> None:
        with pytest.raises(ValueError, match="not a list"):
            TurnCheckpoint.decode({"version": 1, "messages": messages})

    @pytest.mark.parametrize("messages", [["text"], [None], [{"a": 1}, []]])
    def test_a_message_that_is_not_a_mapping_is_refused(self, messages: object) -> None:
        with pytest.raises(ValueError, match="not a mapping"):
            TurnCheckpoint.decode({"version": 1, "messages": messages})

    @pytest.mark.parametrize("absent", [{}, {"messages": None}, {"messages": []}])
    def test_absent_null_and_empty_messages_are_none_at_all(self, absent: dict[str, Any]) -> None:
        assert TurnCheckpoint.decode({"version": 1, **absent}).messages == ()

    def test_absent_and_null_texts_are_empty(self) -> None:
        assert TurnCheckpoint.decode({"version": 1, "prompt": None}) == TurnCheckpoint()

    def test_a_text_field_that_is_not_text_is_refused(self) -> None:
        with pytest.raises(ValueError, match="thread_id"):
            TurnCheckpoint.decode({"version": 1, "thread_id": 7})

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"{",
            b"\xff\xfe\xfa",
            b'{"version":1,"messages":[{"n":NaN}]}',
            b'{"version":1,"messages":[{"n":-Infinity}]}',
            b'{"version":1,"messages":[{"n":1e999}]}',
            b'{"version":1,"messages":' + b"[" * 200_000,
        ],
    )
    def test_what_is_not_json_is_refused(self, raw: bytes) -> None:
        with pytest.raises(ValueError, match="the record of a turn cannot be read"):
            TurnCheckpoint.decode(raw)

    @given(
        st.binary()
        | st.text()
        | json_values
        | st.fixed_dictionaries(
            {"version": st.just(1)},
            optional={"messages": json_values, **dict.fromkeys(TEXT_FIELDS, json_values)},
        )
    )
    def test_whatever_comes_is_a_turn_or_a_value_error(self, raw: object) -> None:
        try:
            turn = TurnCheckpoint.decode(raw)
        except ValueError:
            return
        assert TurnCheckpoint.decode(turn.encode()) == turn


class TestStamping:
    def test_every_id_comes_from_the_claims(self) -> None:
        claims = PauseClaims(
            **{field: f"claimed {field}" for field in IDENTITY_FIELDS}, jti="one mint"
        )
        other = TurnCheckpoint(
            **{field: f"own {field}" for field in IDENTITY_FIELDS},
            prompt="Which?",
            messages=(ASKED,),
        )
        turn = stamped_turn(other, claims)
        assert claims.disagreements(turn) == ()
        assert (turn.prompt, turn.messages) == ("Which?", (ASKED,))
        assert claims.disagreements(other) == IDENTITY_FIELDS

    def test_a_state_without_prompt_or_messages_leaves_them_empty(self) -> None:
        assert stamped_turn({}, PauseClaims(run_id="r")) == TurnCheckpoint(run_id="r")
        assert stamped_turn(object(), PauseClaims()) == TurnCheckpoint()


class TestCapturedMessages:
    def test_the_closed_rounds_are_kept_as_they_are(self) -> None:
        typed = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        assert captured_messages(SimpleNamespace(typed=typed)) == tuple(typed)

    @pytest.mark.parametrize("transcript", [None, object(), SimpleNamespace(typed=None), {}])
    def test_an_absent_transcript_has_no_rounds(self, transcript: object) -> None:
        assert captured_messages(transcript) == ()

    def test_the_open_round_asks_with_the_reserved_ids(self) -> None:
        captured = captured_messages(
            SimpleNamespace(typed=[{"role": "user", "content": "go"}]),
            SimpleNamespace(text="Let me ask."),
            [
                SimpleNamespace(tool_call_id="call_1", name="ask", arguments={"q": "Où?"}),
                {"id": "call_2", "name": "ask", "arguments": '{"q": "When?"}'},
            ],
        )
        assert captured[0] == {"role": "user", "content": "go"}
        assert captured[1:] == (
            {
                "role": "assistant",
                "content": "Let me ask.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "ask", "arguments": '{"q": "Où?"}'},
                    },
                    {
                        "id": "call_2",
                        "type": "function",
                        "function": {"name": "ask", "arguments": '{"q": "When?"}'},
                    },
                ],
            },
        )

    @pytest.mark.parametrize("turn", [None, SimpleNamespace(), SimpleNamespace(text=None)])
    def test_an_open_round_without_text_has_empty_content(self, turn: object) -> None:
        request = SimpleNamespace(id="call_1", name="ask", arguments=None)
        (message,) = captured_messages(None, turn, [request])
        assert message == ASKED

    def test_without_requests_the_round_is_closed_whatever_was_said(self) -> None:
        assert captured_messages(None, SimpleNamespace(text="Done."), ()) == ()

    def test_a_request_without_a_reserved_id_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no reserved tool call id"):
            captured_messages(None, None, [SimpleNamespace(name="ask", arguments={})])

    def test_typed_messages_of_an_applications_own_become_plain_mappings(self) -> None:
        class Role(Enum):
            ASSISTANT = "assistant"

        @dataclass
        class Call:
            id: str
            name: str
            arguments: dict[str, Any]

        @dataclass
        class Said:
            role: Role
            content: str
            tool_calls: tuple[Call, ...] = ()

        typed = [Said(Role.ASSISTANT, "", (Call("call_1", "ask", {}),))]
        assert captured_messages({"typed": typed}) == (ASKED,)

    def test_an_answer_keeps_the_call_that_it_answers(self) -> None:
        answer = SimpleNamespace(role="tool", content="42", tool_call_id="call_1", name="ask")
        asked = SimpleNamespace(role="assistant", content=None, tool_calls=ASKED["tool_calls"])
        assert captured_messages({"typed": (asked, answer)}) == (
            ASKED,
            {"role": "tool", "content": "42", "tool_call_id": "call_1", "name": "ask"},
        )

    def test_an_object_without_a_role_is_no_message(self) -> None:
        with pytest.raises(ValueError, match="has no role"):
            captured_messages({"typed": [object()]})
