"""What a paused task asks: the payload it interrupted with, read as a question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from checkpointd.domain.head import Send
from checkpointd.domain.legacy import Message
from checkpointd.domain.plain import fields_of, json_safe, silent, text_of
from checkpointd.domain.transcript import asking_round, open_calls

REQUEST_KEY = "ask_user_request:"
PAYLOAD_KEY = "interrupt_payload:"
"""Where applications keep a second copy of what they asked; usually absent."""

_QUESTION_KEYS = ("question", "prompt", "message", "text")


def prompt_of(payload: Any) -> str:
    """The question's text, or the payload as canonical JSON where it has none; empty for none."""
    if payload is None:
        return ""
    if isinstance(payload, str):
        return payload
    return _question_text(payload) or canonical(json_safe(payload, silent))


def canonical(value: Any) -> str:
    """The one JSON text of ``value``: keys sorted, no spaces, non-ASCII escaped."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def second_copy(metadata: Mapping[str, Any], *, tool_call_id: str, interrupt_id: str) -> Any:
    """What the metadata says was asked, for a payload that is lost; ``None`` if it does not."""
    for key in (f"{REQUEST_KEY}{tool_call_id}", f"{PAYLOAD_KEY}{interrupt_id}"):
        stored = metadata.get(key)
        if isinstance(stored, str):
            try:
                return json.loads(stored)
            except (ValueError, RecursionError):
                return stored
        if stored is not None:
            return stored
    return None


def call_of_send(send: Send) -> str:
    """The id of the one tool call that a send carries; empty if it carries none or several."""
    found = list(dict.fromkeys(_calls_in(send.argument)))
    return found[0] if len(found) == 1 else ""


def only_open_call(messages: Sequence[Message]) -> str:
    """The id of the one open call, or of the one open call of the round that is asking."""
    unanswered = open_calls(messages)
    if len(unanswered) > 1:
        round_index = asking_round(messages)
        unanswered = tuple(call for call in unanswered if call.index == round_index)
    return unanswered[0].call_id if len(unanswered) == 1 else ""


def _question_text(payload: Any) -> str:
    fields = fields_of(payload)
    if fields is None:
        return ""
    for inner in (fields, fields_of(fields.get("request")), fields_of(fields.get("payload"))):
        if inner is None:
            continue
        several = inner.get("questions")
        if isinstance(several, list | tuple):
            texts = [
                text_of((fields_of(one) or {}).get("question")) or text_of(one) for one in several
            ]
            if any(texts):
                return "\n".join(text for text in texts if text)
        if text := next((text for key in _QUESTION_KEYS if (text := text_of(inner.get(key)))), ""):
            return text
    return ""


def _calls_in(argument: Any) -> list[str]:
    """Tool call ids in a send's argument: a list of calls, a call, or a call with its state."""
    if isinstance(argument, list | tuple):
        return [call_id for one in argument for call_id in _calls_in(one)]
    fields = fields_of(argument)
    if fields is None:
        return []
    if "tool_call" in fields:
        return _calls_in(fields["tool_call"])
    call_id = text_of(fields.get("id"))
    return (
        [call_id]
        if call_id and "name" in fields and ("args" in fields or "function" in fields)
        else []
    )
