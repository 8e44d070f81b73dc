"""What a paused turn leaves behind, so that another process can continue it.

Messages are plain mappings in role form, never a library's objects: a record that
is bound to an importable class becomes unreadable when the library moves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NoReturn

from typing_extensions import override

from checkpointd.domain.errors import CorruptRecordError, shortened
from checkpointd.domain.legacy import Message

VERSION = 1
"""The only version of the encoding that this build reads and writes."""

IDENTITY_FIELDS = (
    "run_id",
    "session_id",
    "thread_id",
    "checkpoint_id",
    "scope_hash",
    "tool_call_id",
    "interrupt_id",
    "name",
)
"""What a turn and the claims on it must agree in."""


def canonical_json(value: object) -> bytes:
    """``value`` as JSON with sorted keys, no spaces and non-ASCII escaped; NaN is a ``ValueError``."""
    return json.dumps(
        value, allow_nan=False, ensure_ascii=True, separators=(",", ":"), sort_keys=True
    ).encode("ascii")


def strict_json(raw: str | bytes | bytearray) -> Any:
    """The value of the JSON text ``raw``; a ``ValueError`` also for NaN and for endless nesting."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseClaims:
    """What the token of a pause says: which turn waits, on what, and which mint this is."""

    run_id: str = ""
    session_id: str = ""
    thread_id: str = ""
    checkpoint_id: str = ""
    scope_hash: str = ""
    tool_call_id: str = ""
    interrupt_id: str = ""
    name: str = ""
    jti: str = ""
    """One per mint, so two pauses on one reserved call stay apart."""

    def fields(self) -> dict[str, str]:
        """The claims by name."""
        return asdict(self)

    def disagreements(self, turn: TurnCheckpoint) -> tuple[str, ...]:
        """The names of the identity fields in which ``turn`` differs; empty if it is theirs."""
        return tuple(name for name in IDENTITY_FIELDS if getattr(self, name) != getattr(turn, name))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnCheckpoint:
    """A paused (or closed) turn, whole enough to be continued by another process.

    The messages are copied on the way in: later changes of the caller's do not reach
    them, and anything that JSON cannot say is a ``ValueError`` here, not at the write.

    Two turns are equal if their bytes are: by Python's own rule ``1 == 1.0 == True``,
    and equal turns would then be stored as different bytes.
    """

    run_id: str = ""
    session_id: str = ""
    thread_id: str = ""
    checkpoint_id: str = ""
    scope_hash: str = ""
    tool_call_id: str = ""
    interrupt_id: str = ""
    name: str = ""
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    version: int = VERSION

    def __post_init__(self) -> None:
        for field in (*IDENTITY_FIELDS, "prompt"):
            value = getattr(self, field)
            if not isinstance(value, str):
                raise ValueError(f"the {field} of a turn is text, not {type(value).__name__}")
        object.__setattr__(self, "messages", plain_messages(self.messages))

    def fields(self) -> dict[str, Any]:
        """The turn as one plain mapping; ``decode`` takes it back."""
        texts = {field: getattr(self, field) for field in (*IDENTITY_FIELDS, "prompt")}
        return {**texts, "messages": list(self.messages), "version": self.version}

    def encode(self) -> bytes:
        """The turn as canonical JSON; equal turns give equal bytes in every process."""
        return canonical_json(self.fields())

    @classmethod
    def decode(cls, raw: object) -> TurnCheckpoint:
        """The turn that ``raw`` (JSON text, its bytes, or the mapping itself) holds.

        ``CorruptRecordError``, a ``ValueError``, for anything but a mapping, for a version
        other than this build's, and for messages that are not a list of mappings. Absent
        or null messages and texts are empty.
        """
        try:
            value = strict_json(raw) if isinstance(raw, str | bytes | bytearray) else raw
            return cls._from_mapping(value)
        except ValueError as error:
            raise CorruptRecordError("a turn", str(error)) from error

    @classmethod
    def _from_mapping(cls, value: object) -> TurnCheckpoint:
        if not isinstance(value, Mapping):
            raise ValueError(f"it is a {type(value).__name__}, not a mapping")
        version = value.get("version")
        if type(version) is not int or version != VERSION:
            raise ValueError(
                f"it has version {shortened(version)} and this build reads version {VERSION}; "
                "read it with the release that wrote it"
            )
        messages = value.get("messages")
        if messages is not None and not isinstance(messages, list | tuple):
            raise ValueError(f"its messages are a {type(messages).__name__}, not a list")
        texts = {
            field: value[field]
            for field in (*IDENTITY_FIELDS, "prompt")
            if value.get(field) is not None
        }
        return cls(**texts, messages=tuple(messages or ()), version=version)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TurnCheckpoint):
            return NotImplemented
        return self.encode() == other.encode()

    @override
    def __hash__(self) -> int:
        return hash(self.encode())


def stamped_turn(state: object, claims: PauseClaims) -> TurnCheckpoint:
    """The turn of ``state`` under the ids of ``claims``.

    Only ``prompt`` and ``messages`` are read from ``state``, an object or a mapping; ids
    that it may carry are ignored, so a record cannot disagree with its own token.
    """
    return TurnCheckpoint(
        **{field: getattr(claims, field) for field in IDENTITY_FIELDS},
        prompt=_part(state, "prompt") or "",
        messages=tuple(_part(state, "messages") or ()),
    )


def captured_messages(
    transcript: object, turn: object = None, requests: Iterable[object] = ()
) -> tuple[Message, ...]:
    """The closed rounds of ``transcript``, and the asking message of the round still open.

    With ``requests`` the assistant message that asked is added, with one tool call for each
    request under its reserved id: without it a continued conversation holds an answer to
    a question that was never asked, and strict providers reject it.

    ``transcript.typed`` is the sequence of messages (absent: none), ``turn.text`` what the
    assistant said beside its calls. A request has ``tool_call_id`` (or ``id``), ``name`` and
    ``arguments``. All of them may be objects or mappings.
    """
    closed = [_role_form(message) for message in _part(transcript, "typed") or ()]
    calls = [_tool_call(request) for request in requests]
    if calls:
        text = _part(turn, "text") or ""
        closed.append({"role": "assistant", "content": text, "tool_calls": calls})
    return plain_messages(closed)


def plain_messages(messages: Iterable[object]) -> tuple[Message, ...]:
    """Copies of ``messages`` that JSON can say; a ``ValueError`` names what it cannot."""
    return tuple(_plain_message(message, index) for index, message in enumerate(messages))


def _plain_message(message: object, index: int) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {index} is a {type(message).__name__}, not a mapping")
    try:
        plain: Message = _plain(message)
    except RecursionError:
        raise ValueError(f"message {index} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"message {index} {error}") from None
    return plain


def _plain(value: object) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"holds {value}, which is not JSON")
            return float(value)
        case Mapping():
            return {_plain_key(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            raise ValueError(f"holds a {type(value).__name__}, which is not JSON")


def _plain_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"has the key {shortened(key)}, which is not text")
    return str.__str__(key)


def _part(whole: object, *names: str) -> Any:
    """The first of ``names`` that the object or mapping ``whole`` has and that is not ``None``."""
    for name in names:
        found = whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name, None)
        if found is not None:
            return found
    return None


def _role_form(message: object) -> Message:
    if isinstance(message, Mapping):
        return message
    role = _part(message, "role")
    if role is None:
        raise ValueError(f"a {type(message).__name__} has no role and is no message")
    form: dict[str, Any] = {
        "role": role.value if isinstance(role, Enum) else role,
        "content": _part(message, "content") or "",
    }
    if calls := _part(message, "tool_calls"):
        form["tool_calls"] = [_tool_call(call) for call in calls]
    for optional in ("tool_call_id", "name"):
        if found := _part(message, optional):
            form[optional] = found
    return form


def _tool_call(request: object) -> Message:
    if isinstance(request, Mapping) and "function" in request:
        return request
    call_id = _part(request, "tool_call_id", "id")
    if not call_id:
        raise ValueError(
            f"the request {shortened(_part(request, 'name'))} has no reserved tool call id; an "
            "answer to it could not be matched"
        )
    arguments = _part(request, "arguments", "args")
    if not isinstance(arguments, str):
        arguments = json.dumps(
            _plain({} if arguments is None else arguments), ensure_ascii=False, allow_nan=False
        )
    function = {"name": _part(request, "name") or "", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}
