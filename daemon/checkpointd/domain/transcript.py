"""What a transcript still owes: calls that nobody answered, answers that nobody asked for.

Ids may be reused from turn to turn, so order decides and sets of ids are not enough:
an answer belongs to the nearest call before it that is still open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointd.domain.legacy import Message


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call without an answer after it; ``index`` is that of the message that asked."""

    index: int
    call_id: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that a transcript owes, read in one go."""

    open: tuple[OpenCall, ...] = ()
    orphans: tuple[int, ...] = ()
    """The tool messages that carry the id of no call before them."""


def ledger(messages: Sequence[Message]) -> Ledger:
    """Match every tool message with the nearest open call before it that has its id.

    A second answer to an answered call is no orphan: it does answer something.
    """
    owed: dict[str, list[int]] = {}
    orphans = []
    for index, message in enumerate(messages):
        for call_id in dict.fromkeys(call_ids(message)):
            owed.setdefault(call_id, []).append(index)
        if message.get("role") == "tool":
            asked = owed.get(str(message.get("tool_call_id") or ""))
            if asked is None:
                orphans.append(index)
            elif asked:
                asked.pop()
    still_open = [OpenCall(index, call_id) for call_id, asked in owed.items() for index in asked]
    return Ledger(tuple(sorted(still_open, key=lambda call: call.index)), tuple(orphans))


def open_calls(messages: Sequence[Message]) -> tuple[OpenCall, ...]:
    """The calls without an answer after them, in the order in which they were made."""
    return ledger(messages).open


def orphans(messages: Sequence[Message]) -> tuple[int, ...]:
    """The indexes of the tool messages that answer nothing before them."""
    return ledger(messages).orphans


def call_ids(message: Message) -> tuple[str, ...]:
    """The ids of the calls that ``message`` makes."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return ()
    return tuple(str(call.get("id") or "") for call in calls)


def asking_round(messages: Sequence[Message]) -> int | None:
    """The index of the assistant message whose calls are being worked on; ``None`` if none is.

    The last one with calls, unless a user has spoken since: then its round is over,
    answered or not.
    """
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            return None
        if call_ids(messages[index]):
            return index
    return None


def cut_before_open_call(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The longest beginning of ``messages`` that leaves no call open; all of it if none is."""
    kept = tuple(messages)
    while unanswered := open_calls(kept):
        kept = kept[: unanswered[0].index]
    return kept
