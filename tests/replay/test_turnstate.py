"""The built-in replayer: what the source holds becomes turns, under keys that repeat nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from checkpointd.domain.errors import (
    PayloadBindingError,
    PermanentReplayError,
    TransientReplayError,
)
from checkpointd.domain.legacy import LegacyState, Question, Verdict
from checkpointd.domain.refs import derived_id
from checkpointd.domain.states import FailureReason
from checkpointd.domain.turn import PauseClaims, TurnCheckpoint
from checkpointd.replay.port import ReplayRequest
from checkpointd.replay.turnstate import TurnstateReplayer
from checkpointd.turnstate.memory import MemoryCommandPort
from checkpointd.turnstate.store import TurnCheckpointStore

Legacy = Callable[..., LegacyState]
Asked = Callable[..., ReplayRequest]

USER = {"role": "user", "content": "hello"}
ASKING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": call, "type": "function", "function": {"name": "ask", "arguments": "{}"}}
        for call in ("call_a1", "call_a2")
    ],
}


def question(call: str, **changes: Any) -> Question:
    given: dict[str, Any] = {
        "task_id": f"task-{call}",
        "tool_call_id": call,
        "interrupt_id": "shared",
        "name": "ask",
        "prompt": f"{call}?",
        "messages": (USER, ASKING),
    }
    return Question(**{**given, **changes})


@pytest.fixture
def store() -> TurnCheckpointStore:
    return TurnCheckpointStore(MemoryCommandPort())


@pytest.fixture
def replayer(store: TurnCheckpointStore) -> TurnstateReplayer:
    return TurnstateReplayer(store)


async def recorded(
    store: TurnCheckpointStore, request: ReplayRequest
) -> list[tuple[PauseClaims, TurnCheckpoint]]:
    pauses = await store.pauses_of(request.thread_id, request.idempotency_key)
    return [(claims, await store.load(claims)) for claims in pauses]


class LosingRecorder:
    """Keeps turns until the n-th write, which does not land."""

    def __init__(self, lands: int) -> None:
        self.lands = lands
        self.store = TurnCheckpointStore(MemoryCommandPort())

    def _landed(self) -> bool:
        self.lands -= 1
        return self.lands >= 0

    async def record(self, claims: PauseClaims, checkpoint: TurnCheckpoint) -> bool:
        return self._landed() and await self.store.record(claims, checkpoint)

    async def record_pauses(self, pauses: Sequence[PauseClaims]) -> bool:
        return self._landed() and await self.store.record_pauses(pauses)


class TestAClosedThread:
    async def test_it_becomes_one_turn_with_all_its_messages(
        self, replayer: TurnstateReplayer, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        request = asked(legacy(messages=(USER, {"role": "assistant", "content": "hi"})))
        replayed = await replayer.replay(request)
        assert replayed.checkpoint_id == request.idempotency_key
        ((claims, turn),) = await recorded(store, request)
        assert [message["content"] for message in turn.messages] == ["hello", "hi"]
        assert (turn.prompt, turn.tool_call_id, turn.interrupt_id, turn.name) == ("", "", "", "")
        assert (claims.run_id, claims.session_id) == ("run-1", "é👩‍💻")
        assert claims.scope_hash == "0123456789abcdef"
        assert claims.checkpoint_id == request.idempotency_key


class TestAPausedThread:
    async def test_each_question_becomes_a_turn_of_its_own(
        self, replayer: TurnstateReplayer, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        questions = (question("call_a1"), question("call_a2"))
        request = asked(legacy(verdict=Verdict.PAUSED, questions=questions))
        await replayer.replay(request)
        kept = await recorded(store, request)
        assert [(turn.tool_call_id, turn.prompt) for _, turn in kept] == [
            ("call_a1", "call_a1?"),
            ("call_a2", "call_a2?"),
        ]
        assert all(turn.messages == (USER, ASKING) for _, turn in kept)
        assert {turn.interrupt_id for _, turn in kept} == {"shared"}

    async def test_the_jti_is_a_hash_of_what_names_the_question(
        self, replayer: TurnstateReplayer, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        questions = (question("call_a1", namespace="child:1", task_id="t1"),)
        request = asked(legacy(verdict=Verdict.PAUSED, questions=questions))
        await replayer.replay(request)
        ((claims, _),) = await recorded(store, request)
        assert claims.jti == derived_id(
            request.thread_id,
            request.legacy_checkpoint_id,
            request.boundary.boundary_id,
            "child:1",
            "t1",
            "call_a1",
        )

    async def test_a_breakpoint_in_a_running_graph_is_a_question_too(
        self, replayer: TurnstateReplayer, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        questions = (question("", name="breakpoint"),)
        request = asked(legacy(verdict=Verdict.OPEN, questions=questions))
        await replayer.replay(request)
        ((claims, _),) = await recorded(store, request)
        assert claims.name == "breakpoint"

    async def test_two_questions_under_one_key_are_not_made_one(
        self, replayer: TurnstateReplayer, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        questions = (question("call_a1"), question("call_a1", prompt="another"))
        request = asked(legacy(verdict=Verdict.PAUSED, questions=questions))
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(request)
        assert refused.value.reason == FailureReason.ID_CONFLICT
        assert await recorded(store, request) == []


class TestRepeating:
    async def test_a_second_replay_writes_the_same_bytes_under_the_same_keys(
        self, legacy: Legacy, asked: Asked
    ) -> None:
        port = MemoryCommandPort()
        replayer = TurnstateReplayer(TurnCheckpointStore(port))
        state = legacy(verdict=Verdict.PAUSED, questions=(question("call_a1"), question("call_a2")))
        first = await replayer.replay(asked(state))
        written = dict(port._values)
        again = await replayer.replay(asked(state, attempt=2, fence=99))
        assert again == first
        assert port._values == written

    @pytest.mark.parametrize("lands", [0, 1, 2])
    async def test_a_record_that_does_not_land_is_tried_again_and_listed_only_when_whole(
        self, legacy: Legacy, asked: Asked, lands: int
    ) -> None:
        recorder = LosingRecorder(lands)
        replayer = TurnstateReplayer(recorder)
        questions = (question("call_a1"), question("call_a2"))
        request = asked(legacy(verdict=Verdict.PAUSED, questions=questions))
        with pytest.raises(TransientReplayError, match="did not land"):
            await replayer.replay(request)
        assert await recorded(recorder.store, request) == []
        recorder.lands = 3
        await replayer.replay(request)
        assert len(await recorded(recorder.store, request)) == 2


class TestWhatIsNotReplayed:
    @pytest.mark.parametrize("blocker", list(FailureReason))
    async def test_a_blocked_state_is_refused_with_its_own_reason(
        self,
        replayer: TurnstateReplayer,
        store: TurnCheckpointStore,
        legacy: Legacy,
        asked: Asked,
        blocker: FailureReason,
    ) -> None:
        request = asked(legacy(blocker=blocker, detail="because"))
        with pytest.raises(PermanentReplayError, match="because") as refused:
            await replayer.replay(request)
        assert refused.value.reason == blocker
        assert await recorded(store, request) == []

    async def test_a_state_that_is_gone_is_absent(
        self, replayer: TurnstateReplayer, asked: Asked
    ) -> None:
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(asked(None))
        assert refused.value.reason == FailureReason.ABSENT

    @pytest.mark.parametrize(
        "changes", [{"thread_id": "another"}, {"checkpoint_id": "another"}], ids=str
    )
    async def test_the_state_of_another_conversation_is_not_replayed_into_this_one(
        self, replayer: TurnstateReplayer, legacy: Legacy, asked: Asked, changes: dict[str, str]
    ) -> None:
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(asked(legacy(**changes)))
        assert refused.value.reason == FailureReason.BINDING_MISMATCH

    async def test_a_boundary_of_another_thread_is_refused(
        self, replayer: TurnstateReplayer, legacy: Legacy, asked: Asked
    ) -> None:
        request = asked(legacy())
        foreign = replace(request.boundary, thread_id="another")
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(replace(request, boundary=foreign))
        assert refused.value.reason == FailureReason.BINDING_MISMATCH

    @pytest.mark.parametrize(
        ("verdict", "reason"),
        [
            (Verdict.OPEN, FailureReason.NO_SAFE_BOUNDARY),
            (Verdict.FAILED, FailureReason.NO_SAFE_BOUNDARY),
            (Verdict.UNREADABLE, FailureReason.UNREADABLE),
        ],
    )
    async def test_a_verdict_that_forbids_it_counts_though_no_blocker_was_named(
        self,
        replayer: TurnstateReplayer,
        legacy: Legacy,
        asked: Asked,
        verdict: Verdict,
        reason: FailureReason,
    ) -> None:
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(asked(legacy(verdict=verdict)))
        assert refused.value.reason == reason

    async def test_messages_that_json_cannot_say_are_unreadable(
        self, replayer: TurnstateReplayer, legacy: Legacy, asked: Asked
    ) -> None:
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(asked(legacy(messages=({"n": float("nan")},))))
        assert refused.value.reason == FailureReason.UNREADABLE

    async def test_a_recorder_that_refuses_the_binding_is_a_mismatch(
        self, legacy: Legacy, asked: Asked
    ) -> None:
        class Refusing(LosingRecorder):
            async def record(self, claims: PauseClaims, checkpoint: TurnCheckpoint) -> bool:
                raise PayloadBindingError("no")

        with pytest.raises(PermanentReplayError) as refused:
            await TurnstateReplayer(Refusing(0)).replay(asked(legacy()))
        assert refused.value.reason == FailureReason.BINDING_MISMATCH


class TestACallThatNobodyAnswered:
    ABANDONED = (USER, ASKING, {"role": "user", "content": "never mind"})

    async def test_by_the_operators_leave_the_record_ends_before_the_message_that_asked(
        self, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        replayer = TurnstateReplayer(store, unanswered="truncate")
        request = asked(legacy(blocker=FailureReason.UNANSWERED_CALL, messages=self.ABANDONED))
        await replayer.replay(request)
        ((_, turn),) = await recorded(store, request)
        assert turn.messages == (USER,)

    async def test_a_pending_question_is_never_cut_away(
        self, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        replayer = TurnstateReplayer(store, unanswered="truncate")
        state = legacy(
            verdict=Verdict.PAUSED,
            blocker=FailureReason.UNANSWERED_CALL,
            questions=(question("call_b1"),),
            messages=self.ABANDONED,
        )
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(asked(state))
        assert refused.value.reason == FailureReason.UNANSWERED_CALL

    async def test_no_other_blocker_is_cut_away(
        self, store: TurnCheckpointStore, legacy: Legacy, asked: Asked
    ) -> None:
        replayer = TurnstateReplayer(store, unanswered="truncate")
        with pytest.raises(PermanentReplayError) as refused:
            await replayer.replay(asked(legacy(blocker=FailureReason.NO_SAFE_BOUNDARY)))
        assert refused.value.reason == FailureReason.NO_SAFE_BOUNDARY

    def test_a_word_that_is_no_choice_is_refused(self, store: TurnCheckpointStore) -> None:
        with pytest.raises(ValueError, match="drop"):
            TurnstateReplayer(store, unanswered="drop")
