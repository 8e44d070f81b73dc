"""The sample that real graphs left behind, once from its database to drained."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from checkpointd.domain.states import DrainState, FailureReason, RefState
from checkpointd.replay.turnstate import TurnstateReplayer
from checkpointd.sample import copy_to
from checkpointd.sources.opening import open_source
from checkpointd.turnstate.redis import RedisCommandPort
from checkpointd.turnstate.store import TurnCheckpointStore

from .world import World

pytestmark = pytest.mark.server


class TestTheSample:
    async def test_it_is_adopted_expired_drained_and_accounted_for(
        self, world: World, tmp_path: Path
    ) -> None:
        database = copy_to(tmp_path)
        before = database.read_bytes()
        source = open_source(f"sqlite://{database}")
        world.source = source  # type: ignore[assignment] # a real one
        turns = TurnCheckpointStore(
            RedisCommandPort(
                world.store.client,
                lambda thread: world.store.keys.turns(thread).encode(),
                where=world.store.where,
            ),
            migration_of=world.registry.migration_of,
        )
        world.replayer = TurnstateReplayer(turns)  # type: ignore[assignment] # the built-in one
        try:
            first = await world.adopt()
            assert (first.threads, first.adopted, first.fallbacks) == (25, 26, 1)
            second = await world.adopt()
            assert (second.threads, second.adopted) == (25, 0)
            assert len(await world.reconcile(grace=timedelta(seconds=1))) == 7
            await world.freeze()
            assert (await world.adopt()).complete
            await world.drain()
            tally = await world.tally()
            assert {s: n for s, n in tally.legacy.items() if n} == {
                RefState.MIGRATED: 18,
                RefState.EXPIRED: 7,
                RefState.QUARANTINED: 1,
            }
            assert await world.quarantined() == {
                "t:_:abandoned_pause": FailureReason.UNANSWERED_CALL
            }
            records = 0
            async for record in world.operations.in_state(RefState.MIGRATED):
                assert record.link is not None
                pauses = await turns.pauses_of(record.ref.thread_id, record.link.checkpoint_id)
                records += len(pauses)
            assert records == 19
            status = await world.status()
            assert (status.state, status.cause) == (DrainState.STALLED, "quarantine")
            held = [r async for r in world.operations.quarantined()]
            await world.operations.waive(held, reason="abandoned by its user")
            await world.adopt()
            report = await world.counting().run(wait=True)
            assert report.status.state is DrainState.DRAINED
            assert report.status.progress == 1.0
        finally:
            await source.aclose()
        assert database.read_bytes() == before
