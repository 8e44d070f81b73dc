"""Recording and loading a paused turn: every promise of the store, with what a second call does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checkpointd.domain.errors import (
    CheckpointLostError,
    InteractionConfigurationError,
    PauseCheckpointNotFoundError,
    PayloadBindingError,
    StoreUnreachableError,
)
from checkpointd.domain.turn import IDENTITY_FIELDS, PauseClaims, TurnCheckpoint
from checkpointd.turnstate.memory import MemoryCommandPort
from checkpointd.turnstate.store import TurnCheckpointStore

Claimed = Callable[..., PauseClaims]
SAID = ({"role": "user", "content": "Which one?"},)


class BrokenPort:
    """A port whose store is down."""

    async def write_metadata(self, *_: Any) -> None:
        raise StoreUnreachableError("nowhere", "down")

    async def read_metadata(self, *_: Any) -> object:
        raise StoreUnreachableError("nowhere", "down")


class SpyPort(MemoryCommandPort):
    """A port that remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, str]] = []
        self.read: list[str] = []

    async def write_metadata(
        self, thread_id: str, checkpoint_id: str, key: str, value: bytes, task_id: str
    ) -> None:
        self.written.append((key, task_id))
        await super().write_metadata(thread_id, checkpoint_id, key, value, task_id)

    async def read_metadata(self, thread_id: str, checkpoint_id: str, key: str) -> object:
        self.read.append(key)
        return await super().read_metadata(thread_id, checkpoint_id, key)


@pytest.fixture
def port() -> SpyPort:
    return SpyPort()


@pytest.fixture
def store(port: SpyPort) -> TurnCheckpointStore:
    return TurnCheckpointStore(port)


@pytest.fixture
def turn(claims: PauseClaims) -> TurnCheckpoint:
    return TurnCheckpointStore.stamped_turn({"prompt": "Which?", "messages": SAID}, claims)


class TestRecording:
    async def test_the_key_is_the_mint_and_the_task_is_the_run(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims, turn: TurnCheckpoint
    ) -> None:
        assert await store.record(claims, turn) is True
        assert port.written == [("turn_state:mint-1", "run-1")]

    async def test_again_is_the_same_answer(
        self, store: TurnCheckpointStore, claims: PauseClaims, turn: TurnCheckpoint
    ) -> None:
        assert await store.record(claims, turn)
        assert await store.record(claims, turn)
        assert await store.load(claims) == turn

    async def test_two_pauses_on_one_reserved_call_stay_apart(
        self, store: TurnCheckpointStore, claimed: Claimed
    ) -> None:
        one, two = claimed(jti="mint-1"), claimed(jti="mint-2")
        await store.record(one, store.stamped_turn({"prompt": "first"}, one))
        await store.record(two, store.stamped_turn({"prompt": "second"}, two))
        assert (await store.load(one)).prompt == "first"
        assert (await store.load(two)).prompt == "second"

    async def test_a_failing_port_is_an_answer_and_not_an_error(
        self, claims: PauseClaims, turn: TurnCheckpoint
    ) -> None:
        assert await TurnCheckpointStore(BrokenPort()).record(claims, turn) is False

    async def test_without_a_port_nothing_lands(
        self, claims: PauseClaims, turn: TurnCheckpoint
    ) -> None:
        assert await TurnCheckpointStore().record(claims, turn) is False

    async def test_claims_without_a_jti_are_refused(
        self, store: TurnCheckpointStore, claimed: Claimed, turn: TurnCheckpoint
    ) -> None:
        with pytest.raises(PayloadBindingError, match="no jti"):
            await store.record(claimed(jti=""), turn)


class TestLoading:
    async def test_the_port_is_read_on_every_call(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims, turn: TurnCheckpoint
    ) -> None:
        await store.record(claims, turn)
        assert await store.load(claims) == turn
        await store.record(claims, replace(turn, prompt="changed"))
        assert (await store.load(claims)).prompt == "changed"
        assert port.read == ["turn_state:mint-1"] * 2

    async def test_without_a_port_it_says_so(self, claims: PauseClaims) -> None:
        with pytest.raises(InteractionConfigurationError, match="no command port"):
            await TurnCheckpointStore().load(claims)

    async def test_a_missing_turn_is_lost(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims
    ) -> None:
        with pytest.raises(CheckpointLostError):
            await store.load(claims)
        assert port.written == []

    @pytest.mark.parametrize("older", ["ask_user_request:call_1", "interrupt_payload:i-1"])
    async def test_a_pause_older_than_turn_states_can_be_shown_but_not_continued(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims, older: str
    ) -> None:
        await port.write_metadata(claims.thread_id, claims.checkpoint_id, older, b"{}", "run")
        with pytest.raises(PauseCheckpointNotFoundError, match="not continued from here"):
            await store.load(claims)
        assert [key for key, _ in port.written] == [older]

    async def test_an_older_key_at_another_checkpoint_or_call_proves_nothing(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims
    ) -> None:
        await port.write_metadata(
            claims.thread_id, "another", "ask_user_request:call_1", b"{}", "run"
        )
        await port.write_metadata(
            claims.thread_id, claims.checkpoint_id, "ask_user_request:call_2", b"{}", "run"
        )
        with pytest.raises(CheckpointLostError):
            await store.load(claims)

    async def test_claims_without_call_or_interrupt_have_no_older_key(
        self, store: TurnCheckpointStore, port: SpyPort, claimed: Claimed
    ) -> None:
        claims = claimed(tool_call_id="", interrupt_id="")
        for key in ("ask_user_request:", "interrupt_payload:"):
            await port.write_metadata(claims.thread_id, claims.checkpoint_id, key, b"{}", "run")
        with pytest.raises(CheckpointLostError):
            await store.load(claims)

    async def test_a_turn_state_is_preferred_to_an_older_key(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims, turn: TurnCheckpoint
    ) -> None:
        await port.write_metadata(
            claims.thread_id, claims.checkpoint_id, "ask_user_request:call_1", b"{}", "run"
        )
        await store.record(claims, turn)
        assert await store.load(claims) == turn

    @pytest.mark.parametrize(
        "raw", [b"", b"{", b"[]", b'{"version":2}', b'{"version":1,"messages":7}']
    )
    async def test_what_cannot_be_read_or_accounted_for_is_refused(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims, raw: bytes
    ) -> None:
        await port.write_metadata(
            claims.thread_id, claims.checkpoint_id, "turn_state:mint-1", raw, "run"
        )
        with pytest.raises(PayloadBindingError, match="cannot be continued"):
            await store.load(claims)
        with pytest.raises(PayloadBindingError):
            await store.find(claims)

    @pytest.mark.parametrize("field", IDENTITY_FIELDS)
    async def test_a_turn_of_another_pause_is_refused(
        self,
        store: TurnCheckpointStore,
        port: SpyPort,
        claims: PauseClaims,
        turn: TurnCheckpoint,
        field: str,
    ) -> None:
        other: Any = {field: "another"}
        await store.record(claims, replace(turn, **other))
        with pytest.raises(PayloadBindingError, match=field):
            await store.load(claims)
        with pytest.raises(PayloadBindingError):
            await store.find(claims)

    async def test_claims_without_a_jti_are_refused(
        self, store: TurnCheckpointStore, claimed: Claimed
    ) -> None:
        with pytest.raises(PayloadBindingError, match="no jti"):
            await store.load(claimed(jti=""))
        with pytest.raises(PayloadBindingError, match="no jti"):
            await store.find(claimed(jti=""))

    async def test_a_port_that_cannot_be_read_is_not_an_absence(self, claims: PauseClaims) -> None:
        with pytest.raises(StoreUnreachableError):
            await TurnCheckpointStore(BrokenPort()).find(claims)


class TestFinding:
    async def test_what_is_there_is_found(
        self, store: TurnCheckpointStore, claims: PauseClaims, turn: TurnCheckpoint
    ) -> None:
        await store.record(claims, turn)
        assert await store.find(claims) == turn

    async def test_the_three_absences_are_none(
        self, store: TurnCheckpointStore, port: SpyPort, claims: PauseClaims
    ) -> None:
        assert await TurnCheckpointStore().find(claims) is None
        assert await store.find(claims) is None
        await port.write_metadata(
            claims.thread_id, claims.checkpoint_id, "interrupt_payload:i-1", b"{}", "run"
        )
        assert await store.find(claims) is None


class TestWiring:
    def test_it_is_wired_if_there_is_a_port(self, store: TurnCheckpointStore) -> None:
        assert store.wired
        assert not TurnCheckpointStore().wired
