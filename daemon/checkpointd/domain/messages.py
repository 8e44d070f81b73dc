"""Library messages to plain mappings in role form, each with a list of what it lost.

Written over plain data and not with the library: a record bound to an importable class
becomes unreadable when the library moves, and the library's own converter gives up the
whole list for one odd message. Here every message converts for itself, by its ``type``,
whatever class it was of; what role form has no place for is listed, never dropped in
silence. A message's own id is bookkeeping of the old store and not counted as a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from checkpointd.domain.blocks import calls_unknown_to, read_content, role_form_call
from checkpointd.domain.history import is_removal
from checkpointd.domain.legacy import Message, MessageLoss
from checkpointd.domain.plain import Broken, Named, fields_of, text_of


class LossKind(StrEnum):
    """What a message could not carry over. A closed set: the words are counted in reports."""

    CUSTOM_CLASS = "custom_class"
    """Of a class that is not the library's: converted by its type, the class forgotten."""
    UNKNOWN_TYPE = "unknown_type"
    """Of a type that names no known role: the type became the role."""
    NOT_A_MESSAGE = "not_a_message"
    """A value among the messages that is none; left out."""
    REMOVAL = "removal"
    """An order to remove a message, left standing among them; left out."""
    EXTRA_FIELD = "extra_field"
    ADDITIONAL_KWARGS = "additional_kwargs"
    METADATA = "metadata"
    """Token counts and what a provider said of its answer."""
    ARTIFACT = "artifact"
    TOOL_STATUS = "tool_status"
    """That a tool failed; its text is kept."""
    INVALID_TOOL_CALL = "invalid_tool_call"
    BLOCK_FIELD = "block_field"
    NOT_A_NUMBER = "not_a_number"
    FOREIGN_VALUE = "foreign_value"
    """A value that JSON has no word for: written as text or as its data."""
    UNREADABLE_VALUE = "unreadable_value"
    TOO_DEEP = "too_deep"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A whole list converted. ``MessageLoss.index`` counts in the list that was given."""

    messages: tuple[Message, ...] = ()
    losses: tuple[MessageLoss, ...] = ()


_ROLES = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "function",
}
_LIBRARY = ("langchain", "langchain_core", "langgraph")
_METADATA = ("response_metadata", "usage_metadata")
_CARRIED = frozenset(
    [
        "content",
        "type",
        "role",
        "name",
        "id",
        "tool_calls",
        "tool_call_id",
        "additional_kwargs",
        "invalid_tool_calls",
        "artifact",
        "status",
        "example",
        "tool_call_chunks",
        "chunk_position",
    ]
) | frozenset(_METADATA)


def convert(elements: Sequence[Any]) -> Conversion:
    """Every element as zero or more role-form messages, in order.

    An invalid tool call is kept only where a tool message answers it: without the call
    that answer would answer nothing.
    """
    answered = frozenset(
        text_of(fields.get("tool_call_id"))
        for element in elements
        if (fields := fields_of(element)) is not None and "tool_call_id" in fields
    )
    messages: list[Message] = []
    losses: list[MessageLoss] = []
    for index, element in enumerate(elements):
        one = _One(index=index, answered=answered)
        messages.extend(one.convert(element))
        losses.extend(one.losses)
    return Conversion(tuple(messages), tuple(losses))


@dataclass(slots=True)
class _One:
    """The conversion of one element, and what it lost so far."""

    index: int
    answered: frozenset[str]
    losses: list[MessageLoss] = field(default_factory=list)

    def note(self, kind: str, detail: str) -> None:
        self.losses.append(
            MessageLoss(index=self.index, kind=LossKind(kind).value, detail=detail[:200])
        )

    def convert(self, element: Any) -> list[Message]:
        if is_removal(element):
            self.note(LossKind.REMOVAL, "")
            return []
        shape = _shape(element)
        if shape is None:
            is_broken = isinstance(element, Broken)
            word = LossKind.UNREADABLE_VALUE if is_broken else LossKind.NOT_A_MESSAGE
            self.note(word, type(element).__name__)
            return []
        kind, fields = shape
        if isinstance(element, Named) and element.module.partition(".")[0] not in _LIBRARY:
            self.note(LossKind.CUSTOM_CLASS, element.path)
        return self._role_form(self._role(kind, fields), fields)

    def _role(self, kind: str, fields: Mapping[str, Any]) -> str:
        if kind == "chat":
            return text_of(fields.get("role")) or "user"
        role = _ROLES.get(kind)
        if role is None:
            self.note(LossKind.UNKNOWN_TYPE, kind)
            return kind
        extra = fields_of(fields.get("additional_kwargs")) or {}
        return text_of(extra.get("__openai_role__")) or role

    def _role_form(self, role: str, fields: Mapping[str, Any]) -> list[Message]:
        extra = fields_of(fields.get("additional_kwargs")) or {}
        content = read_content(fields.get("content"), self.note)
        calls = self._calls(fields, extra)
        calls += calls_unknown_to(calls, content.calls)
        calls += calls_unknown_to(calls, self._answered_invalid_calls(fields))
        message: dict[str, Any] = {"role": role, "content": content.value}
        if calls:
            message["tool_calls"] = calls
        if role == "tool":
            message["tool_call_id"] = text_of(fields.get("tool_call_id"))
        if name := text_of(fields.get("name")):
            message["name"] = name
        if refusal := text_of(extra.get("refusal")):
            message["refusal"] = refusal
        self._note_what_is_left(fields, extra)
        results = [self._result(call_id, raw) for call_id, raw in content.results]
        if results and not content.blocks and not calls:
            return results
        # Results first: a provider wants them right after the message that asked.
        return [*results, message]

    def _calls(self, fields: Mapping[str, Any], extra: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The calls of a message; before they had a field they were an additional keyword."""
        stored = fields.get("tool_calls") or (
            extra.get("tool_calls") if not fields.get("invalid_tool_calls") else None
        )
        calls = []
        for call in stored if isinstance(stored, list | tuple) else ():
            one = fields_of(call)
            if one is None:
                self.note(LossKind.INVALID_TOOL_CALL, type(call).__name__)
                continue
            inner = fields_of(one.get("function"))
            name, arguments = (
                (one.get("name"), one.get("args", {}))
                if inner is None
                else (inner.get("name"), inner.get("arguments", ""))
            )
            calls.append(role_form_call(one.get("id"), name, arguments, self.note))
        return calls

    def _answered_invalid_calls(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        kept = []
        stored = fields.get("invalid_tool_calls")
        for call in stored if isinstance(stored, list | tuple) else ():
            one = fields_of(call) or {}
            if (call_id := text_of(one.get("id"))) and call_id in self.answered:
                arguments = text_of(one.get("args"))
                kept.append(role_form_call(call_id, one.get("name"), arguments, self.note))
            else:
                self.note(LossKind.INVALID_TOOL_CALL, call_id or text_of(one.get("name")))
        return kept

    def _result(self, call_id: str, raw: Any) -> Message:
        content = read_content(raw, self.note)
        return {"role": "tool", "content": content.value, "tool_call_id": call_id}

    def _note_what_is_left(self, fields: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        """List what role form has no place for."""
        if spoken_of := [key for key in _METADATA if fields.get(key)]:
            self.note(LossKind.METADATA, ", ".join(spoken_of))
        kept = {"refusal", "tool_calls", "__openai_role__"}
        if lost := sorted(str(key) for key in extra if key not in kept and extra[key]):
            self.note(LossKind.ADDITIONAL_KWARGS, ", ".join(lost))
        if fields.get("artifact") is not None:
            self.note(LossKind.ARTIFACT, "")
        if fields.get("status") == "error":
            self.note(LossKind.TOOL_STATUS, "error")
        if fields.get("tool_call_chunks") and not (
            fields.get("tool_calls") or fields.get("invalid_tool_calls")
        ):
            self.note(LossKind.INVALID_TOOL_CALL, "tool_call_chunks")
        for key in fields.keys() - _CARRIED:
            if fields[key] is not None:
                self.note(LossKind.EXTRA_FIELD, str(key))


def _shape(element: Any) -> tuple[str, Mapping[str, Any]] | None:
    """The type of a message and its fields, in any form that graphs accept; ``None`` for none."""
    if isinstance(element, str):
        return "human", {"content": element}
    if isinstance(element, list | tuple):
        if len(element) == 2 and element[0] in (*_ROLES, "placeholder"):
            return str(element[0]), {"content": element[1]}
        return None
    fields = fields_of(element)
    if fields is None:
        return None
    inner = fields_of(fields.get("data"))
    if inner is not None and "content" in inner and "content" not in fields:
        return _kind(text_of(fields.get("type")), ""), inner
    if "content" not in fields and "tool_calls" not in fields:
        return None
    name = element.name if isinstance(element, Named) else ""
    stated, role = text_of(fields.get("type")), text_of(fields.get("role"))
    if stated or name.endswith(("Message", "MessageChunk")):
        return _kind(stated, name), fields
    return (role if role in _ROLES else "chat", fields) if role else None


def _kind(stated: str, class_name: str) -> str:
    """``AIMessageChunk`` and ``AIMessage`` as ``ai``; a type that is stated comes first."""
    word = stated or class_name
    for ending in ("MessageChunk", "Message"):
        if word.endswith(ending) and word != ending:
            return word.removesuffix(ending).lower()
    return word
