"""What a replay recorded, and how the holder of an old token finds it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from checkpointd.domain.errors import InteractionConfigurationError, PayloadBindingError
from checkpointd.domain.refs import MigrationLink
from checkpointd.domain.turn import PauseClaims
from checkpointd.turnstate.memory import MemoryCommandPort
from checkpointd.turnstate.pauses import PAUSES_KEY
from checkpointd.turnstate.store import TurnCheckpointStore

Claimed = Callable[..., PauseClaims]
LEGACY = "legacy-1"


@pytest.fixture
def store(port: MemoryCommandPort, claims: PauseClaims) -> TurnCheckpointStore:
    async def migration_of(thread_id: str, legacy_checkpoint_id: str) -> MigrationLink | None:
        if (thread_id, legacy_checkpoint_id) != (claims.thread_id, LEGACY):
            return None
        return MigrationLink(
            thread_id=thread_id,
            legacy_checkpoint_id=LEGACY,
            checkpoint_id=claims.checkpoint_id,
            boundary_id="b",
            at=datetime(2026, 1, 1, tzinfo=UTC),
        )

    return TurnCheckpointStore(port, migration_of=migration_of)


@pytest.fixture
def old(claimed: Claimed) -> Claimed:
    """The claims of a token minted before the drain: other checkpoint, a jti nobody stored."""
    return lambda **changes: claimed(
        **{"checkpoint_id": LEGACY, "jti": "stored nowhere", "run_id": "old run", **changes}
    )


class TestListingPauses:
    async def test_what_a_replay_listed_comes_back_in_order(
        self, store: TurnCheckpointStore, claimed: Claimed
    ) -> None:
        pauses = (claimed(jti="2"), claimed(jti="1", tool_call_id="call_2"))
        assert await store.record_pauses(pauses)
        assert await store.record_pauses(pauses)
        assert await store.pauses_of(pauses[0].thread_id, pauses[0].checkpoint_id) == pauses

    async def test_where_no_replay_recorded_anything_there_are_none(
        self, store: TurnCheckpointStore
    ) -> None:
        assert await store.pauses_of("t", "c") == ()

    async def test_a_list_holds_the_pauses_of_one_checkpoint(
        self, store: TurnCheckpointStore, claimed: Claimed
    ) -> None:
        with pytest.raises(PayloadBindingError):
            await store.record_pauses([claimed(), claimed(checkpoint_id="another")])
        with pytest.raises(PayloadBindingError):
            await store.record_pauses([])

    async def test_a_list_moved_from_another_checkpoint_is_refused(
        self, store: TurnCheckpointStore, port: MemoryCommandPort, claims: PauseClaims
    ) -> None:
        await store.record_pauses([claims])
        moved: Any = await port.read_metadata(claims.thread_id, claims.checkpoint_id, PAUSES_KEY)
        await port.write_metadata(claims.thread_id, "elsewhere", PAUSES_KEY, moved, "run")
        with pytest.raises(PayloadBindingError, match="of one checkpoint"):
            await store.pauses_of(claims.thread_id, "elsewhere")

    @pytest.mark.parametrize(
        "raw",
        [
            b"{",
            b"[]",
            b'{"version":2,"pauses":[]}',
            b'{"version":1}',
            b'{"version":1,"pauses":[7]}',
            b'{"version":1,"pauses":[{"jti":7}]}',
            b'{"version":1,"pauses":[{"token":"t"}]}',
        ],
    )
    async def test_a_list_that_cannot_be_read_is_refused(
        self, store: TurnCheckpointStore, port: MemoryCommandPort, raw: bytes
    ) -> None:
        await port.write_metadata("t", "c", PAUSES_KEY, raw, "run")
        with pytest.raises(PayloadBindingError, match="cannot be read"):
            await store.pauses_of("t", "c")

    async def test_a_failing_port_is_an_answer_and_not_an_error(self, claims: PauseClaims) -> None:
        class Broken(MemoryCommandPort):
            async def write_metadata(self, *_: Any) -> None:
                raise ConnectionError("down")

        assert await TurnCheckpointStore(Broken()).record_pauses([claims]) is False
        assert await TurnCheckpointStore().record_pauses([claims]) is False

    async def test_without_a_port_it_says_so(self, claims: PauseClaims) -> None:
        with pytest.raises(InteractionConfigurationError):
            await TurnCheckpointStore().pauses_of("t", "c")
        with pytest.raises(InteractionConfigurationError):
            await TurnCheckpointStore().migrated_claims(claims, LEGACY)

    async def test_without_a_registry_no_pause_can_be_followed(
        self, port: MemoryCommandPort, claims: PauseClaims
    ) -> None:
        with pytest.raises(InteractionConfigurationError, match="migration_of"):
            await TurnCheckpointStore(port).migrated_claims(claims, LEGACY)


class TestFollowingAnOldToken:
    async def test_it_leads_to_the_question_with_its_tool_call(
        self, store: TurnCheckpointStore, claimed: Claimed, old: Claimed
    ) -> None:
        one = claimed(tool_call_id="call_1", jti="derived 1")
        two = claimed(tool_call_id="call_2", jti="derived 2")
        await store.record_pauses([one, two])
        assert await store.migrated_claims(old(tool_call_id="call_1"), LEGACY) == one
        assert await store.migrated_claims(old(tool_call_id="call_2"), LEGACY) == two

    async def test_what_it_leads_to_can_be_loaded(
        self, store: TurnCheckpointStore, claims: PauseClaims, old: Claimed
    ) -> None:
        turn = store.stamped_turn({"prompt": "Which?"}, claims)
        await store.record(claims, turn)
        await store.record_pauses([claims])
        found = await store.migrated_claims(old(), LEGACY)
        assert found is not None
        assert await store.load(found) == turn

    @pytest.mark.parametrize(("held", "recorded"), [("", ""), ("call_1", ""), ("", "call_1")])
    async def test_an_interrupt_is_enough_where_a_side_knows_no_tool_call(
        self, store: TurnCheckpointStore, claimed: Claimed, old: Claimed, held: str, recorded: str
    ) -> None:
        pause = claimed(tool_call_id=recorded, interrupt_id="i-9")
        await store.record_pauses([pause, claimed(tool_call_id="", interrupt_id="i-0", jti="o")])
        found = await store.migrated_claims(old(tool_call_id=held, interrupt_id="i-9"), LEGACY)
        assert found == pause

    async def test_a_shared_interrupt_never_leads_to_another_tool_call(
        self, store: TurnCheckpointStore, claimed: Claimed, old: Claimed
    ) -> None:
        await store.record_pauses([claimed(tool_call_id="call_1")])
        assert await store.migrated_claims(old(tool_call_id="call_9"), LEGACY) is None

    async def test_between_two_that_match_it_does_not_guess(
        self, store: TurnCheckpointStore, claimed: Claimed, old: Claimed
    ) -> None:
        await store.record_pauses([claimed(tool_call_id="a"), claimed(tool_call_id="b", jti="2")])
        assert await store.migrated_claims(old(tool_call_id=""), LEGACY) is None

    async def test_one_call_that_asks_twice_is_told_apart_by_interrupt(
        self, store: TurnCheckpointStore, claimed: Claimed, old: Claimed
    ) -> None:
        one, two = claimed(interrupt_id="i-1"), claimed(interrupt_id="i-2", jti="2")
        await store.record_pauses([one, two])
        assert await store.migrated_claims(old(interrupt_id="i-2"), LEGACY) == two
        assert await store.migrated_claims(old(interrupt_id="i-3"), LEGACY) is None

    async def test_a_token_without_ids_leads_nowhere(
        self, store: TurnCheckpointStore, claimed: Claimed, old: Claimed
    ) -> None:
        await store.record_pauses([claimed(tool_call_id="", interrupt_id="")])
        held = old(tool_call_id="", interrupt_id="")
        assert await store.migrated_claims(held, LEGACY) is None

    async def test_a_ref_that_was_not_replayed_leads_nowhere(
        self, store: TurnCheckpointStore, claims: PauseClaims, old: Claimed
    ) -> None:
        assert await store.migrated_claims(old(), LEGACY) is None
        await store.record_pauses([claims])
        assert await store.migrated_claims(old(), "another ref") is None
