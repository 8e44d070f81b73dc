"""What a legacy store holds, as plain values: read once, judged without its graph, then replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from checkpointd.domain.states import FailureReason

Message = Mapping[str, Any]
"""A message in role form: JSON-safe, never a library's object."""


class Verdict(StrEnum):
    """What a checkpoint says of its thread, judged from its rows alone."""

    CLOSED = "CLOSED"
    PAUSED = "PAUSED"
    OPEN = "OPEN"
    FAILED = "FAILED"
    UNREADABLE = "UNREADABLE"

    @property
    def is_settled(self) -> bool:
        """Whether the writer is done with it: such a head is registered as finalized.

        An unreadable head counts as settled: left open it would expire, and the
        drain would end over a conversation that nobody has looked at.
        """
        return self not in (Verdict.OPEN, Verdict.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose conversation a thread is. ``scope_hash`` binds a turn to its tenant."""

    run_id: str = ""
    session_id: str = ""
    scope_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One pending question of a paused thread, with the transcript that leads up to it."""

    task_id: str
    namespace: str = ""
    interrupt_id: str = ""
    tool_call_id: str = ""
    name: str = ""
    prompt: str = ""
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLoss:
    """What one message could not carry over into role form."""

    index: int
    kind: str
    """A word of a closed set: see ``domain.messages``."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyState:
    """One legacy checkpoint, read whole and judged."""

    thread_id: str
    checkpoint_id: str
    created_at: datetime
    verdict: Verdict
    sequence: int = 0
    """The step number; 0 where the metadata is unreadable."""
    digest: str = ""
    """SHA-256 over the canonical JSON of the messages and questions."""
    blocker: FailureReason | None = None
    """Why this checkpoint has no safe boundary; ``None`` if it is one itself."""
    detail: str = ""
    messages: tuple[Message, ...] = ()
    questions: tuple[Question, ...] = ()
    losses: tuple[MessageLoss, ...] = ()
    identity: Identity = Identity()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReading:
    """A thread's head, and the last good turn to fall back to if the head crashed."""

    head: LegacyState
    ancestor: LegacyState | None = None
    """Only beside an OPEN or FAILED head: its nearest closed and answered ancestor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSketch:
    """A thread as the id query shows it: nothing decoded."""

    thread_id: str
    head_id: str = ""
    """The causal leaf of the root namespace; empty where there is no root checkpoint."""
    checkpoint_ids: frozenset[str] = frozenset()
    """Every root checkpoint seen in the same read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePage:
    """One page of threads. ``next_after`` is where the following page begins; ``None`` at the end."""

    threads: tuple[ThreadSketch, ...]
    next_after: str | None
