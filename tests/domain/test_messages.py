"""Library messages to role form: agreeing with the library on the plain cases, going on where it gives up."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.messages import convert
from checkpointd.domain.plain import Broken, Named


def of(kind: str, content: Any = "", *, name: str = "", **fields: Any) -> Named:
    class_name = name or f"{kind.capitalize()}Message"
    module = f"langchain_core.messages.{kind}"
    return Named(module, class_name, {"content": content, "type": kind, **fields})


def one(element: Any) -> dict[str, Any]:
    (message,) = convert([element]).messages
    return dict(message)


def losses(*elements: Any) -> list[tuple[int, str, str]]:
    return [(loss.index, loss.kind, loss.detail) for loss in convert(elements).losses]


def call(call_id: str, **args: Any) -> dict[str, Any]:
    return {"name": "f", "args": args, "id": call_id, "type": "tool_call"}


class TestRoles:
    @pytest.mark.parametrize(
        ("kind", "role"),
        [
            ("human", "user"),
            ("ai", "assistant"),
            ("system", "system"),
            ("function", "function"),
            ("AIMessageChunk", "assistant"),
            ("HumanMessageChunk", "user"),
        ],
    )
    def test_a_type_has_one_role(self, kind: str, role: str) -> None:
        assert one(of(kind, "x")) == {"role": role, "content": "x"}

    def test_a_chat_message_has_its_own_role(self) -> None:
        assert one(of("chat", "x", role="developer"))["role"] == "developer"

    def test_a_tool_message_names_the_call_it_answers(self) -> None:
        assert one(of("tool", "22C", tool_call_id="c", name="")) == {
            "role": "tool",
            "content": "22C",
            "tool_call_id": "c",
        }

    def test_a_custom_class_converts_by_its_type(self) -> None:
        custom = Named("app.models", "Weird", {"content": "x", "type": "human", "extra": 1})
        assert one(custom) == {"role": "user", "content": "x"}
        assert losses(custom) == [
            (0, "custom_class", "app.models.Weird"),
            (0, "extra_field", "extra"),
        ]

    def test_an_unknown_type_becomes_the_role_and_is_listed(self) -> None:
        assert one(of("critic", "x"))["role"] == "critic"
        assert losses(of("critic", "x")) == [(0, "unknown_type", "critic")]

    def test_a_class_says_what_a_missing_type_does_not(self) -> None:
        assert one(Named("langchain.schema", "AIMessage", {"content": "x"}))["role"] == "assistant"

    @pytest.mark.parametrize(
        "raw",
        [
            {"role": "user", "content": "x"},
            {"type": "human", "content": "x"},
            {"type": "human", "data": {"content": "x"}},
            ["user", "x"],
            ("human", "x"),
            "x",
        ],
    )
    def test_messages_that_never_were_objects_convert_too(self, raw: Any) -> None:
        assert one(raw) == {"role": "user", "content": "x"}

    def test_what_is_no_message_is_left_out_and_listed(self) -> None:
        assert convert([7, {"a": 1}, None, of("human", "x")]).messages == (
            {"role": "user", "content": "x"},
        )
        assert [kind for _, kind, _ in losses(7, {"a": 1}, None)] == ["not_a_message"] * 3
        assert losses(Broken("cut"))[0][1] == "unreadable_value"

    def test_an_order_to_remove_is_no_message(self) -> None:
        removal = Named(
            "langchain_core.messages.modifier", "RemoveMessage", {"id": "m", "type": "remove"}
        )
        assert convert([removal]).messages == ()
        assert losses(removal) == [(0, "removal", "")]


class TestCalls:
    def test_a_call_is_a_function_with_json_arguments(self) -> None:
        assert one(of("ai", "", tool_calls=[call("c", city="Zürich")]))["tool_calls"] == [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "f", "arguments": '{"city": "Zürich"}'},
            }
        ]

    def test_a_tool_use_block_of_a_known_call_is_not_doubled(self) -> None:
        block = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        message = one(of("ai", [{"type": "text", "text": "hm"}, block], tool_calls=[call("c")]))
        assert message["content"] == "hm"
        assert len(message["tool_calls"]) == 1

    def test_a_tool_use_block_alone_is_a_call(self) -> None:
        block = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
        message = one(of("ai", [block]))
        assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'

    def test_calls_from_before_they_had_a_field_are_kept(self) -> None:
        old = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = one(of("ai", "", additional_kwargs={"tool_calls": [old]}))
        assert message["tool_calls"] == [old]

    def test_an_invalid_call_is_listed(self) -> None:
        bad = {"name": "f", "args": "{oops", "id": "bad", "error": "json"}
        element = of("ai", "x", invalid_tool_calls=[bad])
        assert "tool_calls" not in one(element)
        assert losses(element) == [(0, "invalid_tool_call", "bad")]

    def test_an_invalid_call_that_was_answered_is_kept(self) -> None:
        bad = {"name": "f", "args": "{oops", "id": "bad"}
        asked = of("ai", "x", invalid_tool_calls=[bad])
        first, _ = convert([asked, of("tool", "no", tool_call_id="bad")]).messages
        assert first["tool_calls"][0]["function"]["arguments"] == "{oops"

    def test_results_among_the_content_become_tool_messages_ahead_of_it(self) -> None:
        result = {"type": "tool_result", "tool_use_id": "c", "content": "22C", "is_error": True}
        said = of("human", [result, {"type": "text", "text": "and now?"}])
        assert convert([said]).messages == (
            {"role": "tool", "content": "22C", "tool_call_id": "c"},
            {"role": "user", "content": "and now?"},
        )
        assert convert([of("human", [result])]).messages[0]["role"] == "tool"
        assert (0, "tool_status", "error") in losses(said)


class TestContent:
    def test_text_survives_whatever_it_holds(self) -> None:
        text = 'nul \x00 lone \ud800 joined 👩‍💻 "quoted" \u2028'
        assert one(of("human", text))["content"] == text
        assert one(of("human", [{"type": "text", "text": text}]))["content"] == text

    def test_nothing_is_empty_text(self) -> None:
        for content in (None, "", []):
            assert one(of("ai", content))["content"] == ""

    @pytest.mark.parametrize(
        "block",
        [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
            },
            {"type": "image", "base64": "AA==", "mime_type": "image/png"},
            {"type": "image", "source_type": "base64", "data": "AA==", "mime_type": "image/png"},
            {"image": {"format": "png", "source": {"bytes": b"\x00"}}},
            {"type": "media", "mime_type": "image/png", "data": b"\x00"},
        ],
    )
    def test_every_dialects_image_is_one_kind_of_block(self, block: dict[str, Any]) -> None:
        assert one(of("human", [block]))["content"] == [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        ]

    def test_a_file_needs_no_name(self) -> None:
        block = {"type": "file", "base64": "AA==", "mime_type": "application/pdf"}
        assert one(of("human", [block]))["content"] == [
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}}
        ]

    def test_sound_says_its_format(self) -> None:
        block = {"type": "audio", "base64": "AA==", "mime_type": "audio/wav"}
        assert one(of("human", [block]))["content"] == [
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
        ]

    def test_a_file_may_be_known_by_its_id(self) -> None:
        for block in ({"file_id": "f1"}, {"source_type": "id", "id": "f1"}):
            assert one(of("human", [{"type": "file", **block}]))["content"] == [
                {"type": "file", "file": {"file_id": "f1"}}
            ]

    def test_content_of_another_kind_is_written_as_text(self) -> None:
        assert one(of("human", b"raw"))["content"] == "raw"
        assert one(of("human", b"\xff"))["content"] == "/w=="
        assert one(of("human", 7))["content"] == "7"
        assert one(of("human", {"type": "text", "text": "x"}))["content"] == "x"

    def test_pieces_of_a_call_that_never_became_one_are_listed(self) -> None:
        piece = {"type": "input_json_delta", "partial_json": "{"}
        assert losses(of("ai", [piece])) == [(0, "invalid_tool_call", "input_json_delta")]
        chunk = of("AIMessageChunk", "", tool_call_chunks=[{"id": "c"}])
        assert losses(chunk) == [(0, "invalid_tool_call", "tool_call_chunks")]
        assert losses(of("ai", "", tool_calls=["junk"])) == [(0, "invalid_tool_call", "str")]

    def test_a_block_of_another_type_passes_unchanged(self) -> None:
        block = {"type": "thinking", "thinking": "hm", "signature": "s"}
        element = of("ai", [block, "text"])
        assert one(element)["content"] == [block, {"type": "text", "text": "text"}]
        assert losses(element) == []

    def test_what_a_text_block_carries_beside_its_text_is_listed(self) -> None:
        block = {"type": "text", "text": "x", "citations": [1], "index": None}
        assert losses(of("ai", [block])) == [(0, "block_field", "citations")]


class TestJson:
    def test_not_a_number_becomes_null_and_is_listed(self) -> None:
        element = of("ai", [{"type": "x", "n": math.nan}], tool_calls=[call("c", n=math.inf)])
        message = one(element)
        assert message["content"] == [{"type": "x", "n": None}]
        assert message["tool_calls"][0]["function"]["arguments"] == '{"n": null}'
        assert [kind for _, kind, _ in losses(element)] == ["not_a_number"] * 2

    def test_values_of_other_classes_become_their_data(self) -> None:
        element = of("ai", [{"type": "x", "id": Named("uuid", "UUID", "ab"), "b": b"\x00", 3: 1}])
        assert one(element)["content"] == [{"type": "x", "id": "ab", "b": "AA==", "3": 1}]
        assert {detail for _, _, detail in losses(element)} == {"uuid.UUID", "bytes", "key"}

    def test_a_value_without_a_bottom_is_cut(self) -> None:
        deep: Any = "x"
        for _ in range(5_000):
            deep = [deep]
        assert json.dumps(one(of("ai", [{"type": "x", "deep": deep}])))

    @given(
        st.recursive(
            st.none() | st.floats() | st.text(),
            lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        )
    )
    def test_every_message_is_json(self, content: Any) -> None:
        for message in convert([of("human", content)]).messages:
            json.dumps(message, allow_nan=False)


class TestLosses:
    def test_each_message_lists_what_it_lost(self) -> None:
        element = of(
            "tool",
            "x",
            tool_call_id="c",
            artifact={"raw": 1},
            status="error",
            response_metadata={"model": "m"},
            additional_kwargs={"cache": True, "empty": None},
        )
        assert losses(of("human", "x"), element) == [
            (1, "metadata", "response_metadata"),
            (1, "additional_kwargs", "cache"),
            (1, "artifact", ""),
            (1, "tool_status", "error"),
        ]

    def test_a_plain_message_loses_nothing(self) -> None:
        plain = of("ai", "x", id="m1", name=None, tool_calls=[], example=False, usage_metadata=None)
        assert losses(plain) == []
