"""The converter against the library's own, which is the oracle for the plain cases and for no others."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.messages import convert
from checkpointd.domain.plain import Named

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    library = pytest.importorskip("langchain_core.messages")


def call(call_id: str, **args: Any) -> dict[str, Any]:
    return {"name": "f", "args": args, "id": call_id, "type": "tool_call"}


class TestAgainstTheLibrary:
    def test_the_two_agree_on_plain_messages(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        anthropic = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
        }
        use = {"type": "tool_use", "id": "u", "name": "g", "input": {"a": "é"}}
        text = {"type": "text", "text": "one"}
        messages = [
            library.SystemMessage("be nice"),
            library.HumanMessage("hi", name="ann"),
            library.HumanMessage([text, image]),
            library.HumanMessage([text, {"type": "text", "text": "two"}]),
            library.HumanMessage([anthropic, "tail"]),
            library.HumanMessage([{"type": "image", "url": "http://x/y.png"}]),
            library.AIMessage(
                "", tool_calls=[call("c", n=1.5, s="é", deep={"l": [1, None, True]})]
            ),
            library.AIMessage([text, use]),
            library.AIMessage([text, use], tool_calls=[call("u")]),
            library.AIMessage("no", additional_kwargs={"refusal": "no"}),
            library.AIMessageChunk("part"),
            library.ToolMessage("22C", tool_call_id="c", name="f"),
            library.ToolMessage([text], tool_call_id="c"),
            library.ChatMessage("note", role="developer"),
            library.FunctionMessage("r", name="f"),
            library.AIMessage([{"type": "thinking", "thinking": "hm"}, text]),
        ]
        elements = [
            Named(type(one).__module__, type(one).__name__, one.model_dump()) for one in messages
        ]
        expected = library.convert_to_openai_messages(messages)
        assert list(convert(elements).messages) == expected

    @given(
        texts=st.lists(st.text(max_size=20), max_size=4),
        args=st.dictionaries(
            st.text(max_size=5),
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            max_size=3,
        ),
    )
    def test_the_two_agree_on_any_text_and_arguments(
        self, texts: list[str], args: dict[str, Any]
    ) -> None:
        content = [{"type": "text", "text": text} for text in texts]
        message = library.AIMessage(content, tool_calls=[call("c", args=args)])
        element = Named("langchain_core.messages.ai", "AIMessage", message.model_dump())
        assert list(convert([element]).messages) == library.convert_to_openai_messages([message])
