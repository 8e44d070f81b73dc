"""The built-in replayer: what the source holds is recorded as turns, and nothing is run.

No application code takes part and no class that the data names is imported. Every id
is derived from the request, so a second replay writes the same bytes under the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from checkpointd.domain.errors import (
    PayloadBindingError,
    PermanentReplayError,
    TransientReplayError,
)
from checkpointd.domain.legacy import LegacyState, Message, Question, Verdict
from checkpointd.domain.refs import derived_id
from checkpointd.domain.states import FailureReason
from checkpointd.domain.transcript import cut_before_open_call
from checkpointd.domain.turn import PauseClaims, TurnCheckpoint, stamped_turn
from checkpointd.replay.port import Replayed, ReplayRequest


class Unanswered(StrEnum):
    """What becomes of a closed thread whose transcript ends in a call that nobody answered."""

    QUARANTINE = "quarantine"
    TRUNCATE = "truncate"
    """The record ends before the assistant message that asked."""


class TurnRecorder(Protocol):
    """Where turns are kept: the turn-state store, seen from here."""

    async def record(self, claims: PauseClaims, checkpoint: TurnCheckpoint) -> bool:
        """Keep the turn; say whether it landed. Never raises for a failing store."""
        ...

    async def record_pauses(self, pauses: Sequence[PauseClaims]) -> bool:
        """List what was kept at one checkpoint; say whether it landed."""
        ...


class TurnstateReplayer:
    """Records one turn for each pending question, or one for a closed thread."""

    def __init__(
        self, recorder: TurnRecorder, *, unanswered: Unanswered | str = Unanswered.QUARANTINE
    ) -> None:
        self._recorder = recorder
        self._unanswered = Unanswered(unanswered)

    async def replay(self, request: ReplayRequest) -> Replayed:
        """Record the turns of ``request.state`` at the checkpoint named by its key.

        The list of them comes last, so a replay that dies in between has listed nothing
        that is not there. Again: the same bytes.

        A record that did not land is a ``TransientReplayError``; a state that is absent,
        blocked, or of another thread or checkpoint a ``PermanentReplayError``.
        """
        state = _accepted(request)
        turns = self._turns(request, state)
        try:
            for claims, turn in turns:
                if not await self._recorder.record(claims, turn):
                    raise TransientReplayError(
                        f"the turn state of {request.legacy_checkpoint_id} did not land"
                    )
            if not await self._recorder.record_pauses([claims for claims, _ in turns]):
                raise TransientReplayError(
                    f"the list of pauses of {request.legacy_checkpoint_id} did not land"
                )
        except PayloadBindingError as error:
            raise PermanentReplayError(FailureReason.BINDING_MISMATCH, str(error)) from error
        return Replayed(request.idempotency_key)

    async def aclose(self) -> None:
        """Hold nothing, so let go of nothing."""

    def _turns(
        self, request: ReplayRequest, state: LegacyState
    ) -> list[tuple[PauseClaims, TurnCheckpoint]]:
        if blocker := _blocker(state):
            if not self._may_cut(state):
                raise PermanentReplayError(blocker, state.detail or f"it is {state.verdict}")
            return [_turn(request, state, _NO_QUESTION, cut_before_open_call(state.messages))]
        if not state.questions:
            return [_turn(request, state, _NO_QUESTION, state.messages)]
        turns = [_turn(request, state, asked, asked.messages) for asked in state.questions]
        if len({claims.jti for claims, _ in turns}) < len(turns):
            raise PermanentReplayError(
                FailureReason.ID_CONFLICT, "two of its questions have one namespace, task and call"
            )
        return turns

    def _may_cut(self, state: LegacyState) -> bool:
        """Whether the operator lets this state end before the call that nobody answered.

        Never where a question is pending: the cut would throw that question away, and
        somebody may be about to answer it.
        """
        return (
            state.blocker is FailureReason.UNANSWERED_CALL
            and state.verdict is Verdict.CLOSED
            and not state.questions
            and self._unanswered is Unanswered.TRUNCATE
        )


_NO_QUESTION = Question(task_id="")


def replay_jti(request: ReplayRequest, question: Question) -> str:
    """The jti of a replayed pause, whose own was stored nowhere. A second replay derives the same.

    Keyed by namespace, task and tool call, since two questions may share an interrupt id.
    """
    return derived_id(
        request.thread_id,
        request.legacy_checkpoint_id,
        request.boundary.boundary_id,
        question.namespace,
        question.task_id,
        question.tool_call_id,
    )


def _accepted(request: ReplayRequest) -> LegacyState:
    """The state of the request, if there is one and it is the one that was asked for."""
    state = request.state
    if state is None:
        raise PermanentReplayError(
            FailureReason.ABSENT, "the source does not hold this checkpoint any more"
        )
    asked = (request.thread_id, request.legacy_checkpoint_id)
    if (state.thread_id, state.checkpoint_id) != asked:
        raise PermanentReplayError(
            FailureReason.BINDING_MISMATCH, "the state read is of another thread or checkpoint"
        )
    if request.boundary.thread_id != request.thread_id:
        raise PermanentReplayError(
            FailureReason.BINDING_MISMATCH, "the boundary is of another thread"
        )
    return state


def _blocker(state: LegacyState) -> FailureReason | None:
    """Why this state may not be replayed; a verdict that forbids it counts though unexplained."""
    if state.blocker is not None:
        return state.blocker
    if state.verdict is Verdict.UNREADABLE:
        return FailureReason.UNREADABLE
    if not state.verdict.is_settled and not state.questions:
        return FailureReason.NO_SAFE_BOUNDARY
    return None


def _turn(
    request: ReplayRequest, state: LegacyState, question: Question, messages: Sequence[Message]
) -> tuple[PauseClaims, TurnCheckpoint]:
    claims = PauseClaims(
        run_id=state.identity.run_id,
        session_id=state.identity.session_id,
        thread_id=request.thread_id,
        checkpoint_id=request.idempotency_key,
        scope_hash=state.identity.scope_hash,
        tool_call_id=question.tool_call_id,
        interrupt_id=question.interrupt_id,
        name=question.name,
        jti=replay_jti(request, question),
    )
    try:
        return claims, stamped_turn({"prompt": question.prompt, "messages": messages}, claims)
    except ValueError as error:
        raise PermanentReplayError(FailureReason.UNREADABLE, str(error)) from error
