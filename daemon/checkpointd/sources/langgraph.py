"""LangGraph's rows read as legacy state: the head judged, its messages whole, its questions found.

Reads any store through ``RawRows``. One thread's trouble stays its own: whatever is wrong
with its rows, the answer is a state with the verdict ``UNREADABLE``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from checkpointd.domain import head as heads
from checkpointd.domain.errors import UnreadableStateError
from checkpointd.domain.legacy import HeadReading, LegacyState, Message, Question, Verdict
from checkpointd.domain.messages import Conversion, LossKind, convert
from checkpointd.domain.plain import fields_of, text_of
from checkpointd.domain.questions import (
    call_of_send,
    canonical,
    only_open_call,
    prompt_of,
    second_copy,
)
from checkpointd.domain.states import FailureReason
from checkpointd.domain.transcript import asking_round, ledger
from checkpointd.sources.identity import identity_of
from checkpointd.sources.levels import Asked, Level, Levels
from checkpointd.sources.rows import RawRows
from checkpointd.sources.times import created_at

_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What data of an unforeseen shape raises; a store's own errors are none of these."""

_Blocker = tuple[FailureReason | None, str]
_FREE: _Blocker = (None, "")


class LangGraphReader:
    """Judges the checkpoints of one store. Holds nothing between two calls."""

    def __init__(
        self,
        rows: RawRows,
        *,
        max_record: int,
        breakpoints: tuple[str, ...] = (),
        messages_channel: str = "messages",
    ) -> None:
        self._rows = rows
        self._max_record = max_record
        self._breakpoints = breakpoints
        self._channel = messages_channel

    def head(self, thread_id: str) -> HeadReading | None:
        """The thread's head and, beside one that may have crashed, its last good turn."""
        parents = dict(self._rows.links(thread_id, ""))
        head_id = heads.causal_leaf(parents.items())
        state = self.state(thread_id, head_id) if parents else None
        if state is None:
            return None
        if state.verdict in (Verdict.OPEN, Verdict.FAILED):
            return HeadReading(head=state, ancestor=self._ancestor(thread_id, head_id, parents))
        return HeadReading(head=state)

    def state(self, thread_id: str, checkpoint_id: str) -> LegacyState | None:
        """One checkpoint, judged; ``None`` if it is not there."""
        levels = Levels(
            self._rows, thread_id, max_record=self._max_record, messages_channel=self._channel
        )
        try:
            level = levels.load("", checkpoint_id)
            return None if level is None else self._judged(levels, level)
        except UnreadableStateError as error:
            return _unreadable(thread_id, checkpoint_id, error.why)
        except _MALFORMED as error:
            why = f"its rows have an unforeseen shape ({type(error).__name__})"
            return _unreadable(thread_id, checkpoint_id, why)

    def _ancestor(
        self, thread_id: str, head_id: str, parents: dict[str, str | None]
    ) -> LegacyState | None:
        """The nearest closed and answered ancestor. The walk ends at the first unreadable one."""
        seen = {head_id}
        ancestor_id = parents.get(head_id)
        while ancestor_id and ancestor_id not in seen:
            seen.add(ancestor_id)
            state = self.state(thread_id, ancestor_id)
            if state is None or state.verdict is Verdict.UNREADABLE:
                return None
            if state.verdict is Verdict.CLOSED and state.blocker is None:
                return state
            ancestor_id = parents.get(ancestor_id)
        return None

    def _judged(self, levels: Levels, level: Level) -> LegacyState:
        verdict, tasks = self._verdict(levels, level)
        if not verdict.is_settled:
            return _state(levels, level, verdict)
        own = level.transcript() if verdict is Verdict.PAUSED else level.messages()
        if own is None:
            why = f"it has no channel {self._channel!r}"
            return _state(levels, level, verdict, blocked=(FailureReason.NO_SAFE_BOUNDARY, why))
        root = convert(own)
        if verdict is Verdict.CLOSED:
            blocked = _no_messages(root) or _blocked(root.messages)
            return _state(levels, level, verdict, root, blocked=blocked)
        asked = levels.questions(level, tasks) or [self._unwritten(level, own)]
        return _paused(levels, level, root, asked)

    def _verdict(self, levels: Levels, level: Level) -> tuple[Verdict, tuple[heads.Task, ...]]:
        """The verdict, and the tasks that wait."""
        tasks = levels.waiting(level) if level.nodes else ()
        verdict = heads.judge(level.nodes, level.step, waits=bool(tasks))
        if verdict is Verdict.OPEN and self._stopped_without_a_task(level):
            return Verdict.PAUSED, ()
        return verdict, tasks

    def _stopped_without_a_task(self, level: Level) -> bool:
        return bool(
            heads.paused_by_application(level.values, level.writes)
            or heads.stands_before(level.nodes, self._breakpoints, level.step)
        )

    def _unwritten(self, level: Level, elements: list[Any]) -> Asked:
        """The question of a pause that no task wrote down: the application's own, or a breakpoint's."""
        if channel := heads.paused_by_application(level.values, level.writes):
            pause = fields_of(level.values[channel]) or {}
            payload = {**pause, "request": pause.get("request_input") or pause.get("request")}
            interrupt = heads.Interrupt(payload, text_of(pause.get("interrupt_id")))
        else:
            node = heads.stands_before(level.nodes, self._breakpoints, level.step)
            text = f"stopped before {node}: go on?"
            interrupt = heads.Interrupt({"name": "breakpoint", "question": text})
        return Asked(task_id="", namespace="", interrupt=interrupt, send=None, elements=elements)


def _paused(levels: Levels, level: Level, root: Conversion, asked: Sequence[Asked]) -> LegacyState:
    """A paused state: one question per innermost waiting task, each with its transcript."""
    notes = level.notes
    questions, losses = [], dict.fromkeys(root.losses)
    blocked = _no_messages(root) or _FREE
    for one in asked:
        own = convert(one.elements)
        losses |= dict.fromkeys(own.losses)
        questions.append(_question(one, own.messages, notes))
        if blocked is _FREE:
            # A call that the root has open is being worked on by the graph that asks.
            rounds = {asking_round(root.messages), asking_round(own.messages)}
            blocked = _blocked(own.messages, asking=rounds)
    return _state(
        levels,
        level,
        Verdict.PAUSED,
        Conversion(root.messages, tuple(losses)),
        questions=_told_apart(questions),
        blocked=blocked,
    )


def _question(asked: Asked, messages: tuple[Message, ...], notes: dict[str, Any]) -> Question:
    """The payload's own words come first, then the row's, then what the transcript implies."""
    payload = asked.interrupt.payload
    said = fields_of(payload) or {}
    interrupt_id = text_of(said.get("interrupt_id")) or asked.interrupt.interrupt_id
    tool_call_id = (
        text_of(said.get("tool_call_id"))
        or (call_of_send(asked.send) if asked.send else "")
        or only_open_call(messages)
    )
    if payload is None:
        payload = second_copy(notes, tool_call_id=tool_call_id, interrupt_id=interrupt_id)
    return Question(
        task_id=asked.task_id,
        namespace=asked.namespace,
        interrupt_id=interrupt_id,
        tool_call_id=tool_call_id,
        name=text_of(said.get("name")),
        prompt=prompt_of(payload),
        messages=messages,
    )


def _told_apart(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Questions that namespace, task and call do not tell apart, numbered; repeated ones once."""
    kept: dict[tuple[str, str, str], list[Question]] = {}
    for question in questions:
        alike = kept.setdefault((question.namespace, question.task_id, question.tool_call_id), [])
        if question not in alike:
            alike.append(question)
    return tuple(
        replace(question, task_id=f"{question.task_id}#{number}") if number > 1 else question
        for alike in kept.values()
        for number, question in enumerate(alike, start=1)
    )


def _blocked(messages: Sequence[Message], *, asking: Collection[int | None] = ()) -> _Blocker:
    """Why a transcript is no boundary: an answer to nothing, or a call open outside ``asking``."""
    owed = ledger(messages)
    if owed.orphans:
        why = f"message {owed.orphans[0]} is the answer to a call that is not before it"
        return FailureReason.NO_SAFE_BOUNDARY, why
    if left := [call for call in owed.open if call.index not in asking]:
        why = f"call {left[0].call_id!r} of message {left[0].index} was never answered"
        return FailureReason.UNANSWERED_CALL, why
    return _FREE


def _no_messages(conversion: Conversion) -> _Blocker | None:
    """A channel of that name that holds other things: migrated, it would be an empty conversation."""
    kinds = {loss.kind for loss in conversion.losses}
    if conversion.messages or LossKind.NOT_A_MESSAGE not in kinds:
        return None
    return FailureReason.NO_SAFE_BOUNDARY, "what its messages channel holds are no messages"


def _state(
    levels: Levels,
    level: Level,
    verdict: Verdict,
    conversion: Conversion | None = None,
    *,
    questions: tuple[Question, ...] = (),
    blocked: _Blocker = _FREE,
) -> LegacyState:
    conversion = conversion or Conversion()
    blocker, detail = blocked
    return LegacyState(
        thread_id=levels.thread_id,
        checkpoint_id=level.checkpoint_id,
        created_at=created_at(level.ts, level.checkpoint_id),
        verdict=verdict,
        sequence=level.sequence,
        digest=digest_of(conversion.messages, questions),
        blocker=blocker,
        detail=detail,
        messages=conversion.messages,
        questions=questions,
        losses=conversion.losses,
        identity=identity_of(levels.thread_id, level.values),
    )


def digest_of(messages: Sequence[Message], questions: Sequence[Question]) -> str:
    """SHA-256 over the canonical JSON of the messages and the questions; equal in every store."""
    content = {"messages": list(messages), "questions": [asdict(one) for one in questions]}
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _unreadable(thread_id: str, checkpoint_id: str, why: str) -> LegacyState:
    """A state that says only what its key says."""
    return LegacyState(
        thread_id=thread_id,
        checkpoint_id=checkpoint_id,
        created_at=created_at(None, checkpoint_id),
        verdict=Verdict.UNREADABLE,
        blocker=FailureReason.UNREADABLE,
        detail=why,
        identity=identity_of(thread_id, {}),
    )
