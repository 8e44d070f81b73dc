"""Whatever happens in whatever order, once it stops happening the passes bring it to an end."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from checkpointd.domain.errors import (
    CheckpointdError,
    PermanentReplayError,
    SourceUnreachableError,
    TransientReplayError,
)
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.states import (
    CRASH_EXPIRY_REASON,
    UNFINISHED,
    DrainState,
    PassName,
    RefState,
    StallCause,
)

from .world import ATTEMPTS, OLD, YOUNG, World, ref

pytestmark = pytest.mark.server

STEPS = 60
ROUNDS = 12
A_MOMENT = timedelta(microseconds=1)


class Life:
    """Things that applications, operators and accidents do, drawn by a seed."""

    def __init__(self, seed: int, world: World, peer: World) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a seed to tell again by
        self.world, self.peer = world, peer
        self.checkpoints = 0

    async def step(self) -> None:
        deed = self.rng.choice(
            [
                *[self.thread_moves_on] * 6,
                *[self.scan, self.drain, self.reconcile, self.census] * 2,
                self.open_head_ends,
                self.thread_is_deleted,
                self.application_registers,
                self.application_finalizes,
                self.owner_is_killed,
                self.leases_run_out,
                self.operator_decides,
                self.replayer_is_rude,
                self.source_fails,
                self.freeze_or_thaw,
                self.all_at_once,
            ]
        )
        await deed()

    def one(self) -> World:
        return self.rng.choice([self.world, self.peer])

    def thread(self) -> str:
        return f"t-{self.rng.randrange(8)}"

    async def thread_moves_on(self) -> None:
        self.checkpoints += 1
        verdicts = [Verdict.CLOSED] * 3 + [Verdict.OPEN] * 2 + [Verdict.PAUSED, Verdict.FAILED]
        self.world.source.holds(
            self.thread(),
            f"c{self.checkpoints:03}",
            self.rng.choice(verdicts),
            age=self.rng.choice([OLD, YOUNG]),
        )

    async def open_head_ends(self) -> None:
        for thread, states in self.world.source.threads.items():
            if states and states[-1].verdict is Verdict.OPEN:
                self.world.source.turns(thread, self.rng.choice([Verdict.CLOSED, Verdict.PAUSED]))
                return

    async def thread_is_deleted(self) -> None:
        if self.rng.random() < 0.2:
            self.world.source.threads.pop(self.thread(), None)

    async def scan(self) -> None:
        await self.one().adopt(page=self.rng.choice([1, 3, 100]))

    async def drain(self) -> None:
        await self.one().drain(concurrency=self.rng.choice([1, 4]))

    async def reconcile(self) -> None:
        await self.one().reconcile()

    async def census(self) -> None:
        await self.one().counting().run(wait=True)

    async def application_registers(self) -> None:
        states = self.world.source.threads.get(self.thread())
        if states:
            head = states[-1]
            known = ref(head.thread_id, head.checkpoint_id, at=head.created_at)
            await self.one().registry.register(known, finalized=self.rng.random() < 0.5)

    async def application_finalizes(self) -> None:
        states = self.world.source.threads.get(self.thread())
        if states and states[-1].verdict is not Verdict.OPEN:
            await self.one().registry.finalize(states[-1].thread_id, states[-1].checkpoint_id)

    async def owner_is_killed(self) -> None:
        partition = self.rng.randrange(4)
        world = self.one()
        peek = await world.ledger.peek(partition, 2)
        if peek.word == "go" and peek.due:
            taken = world.ledger.drawn(peek.due)
            await world.ledger.claim(partition, taken, most=2, max_attempts=ATTEMPTS)

    async def leases_run_out(self) -> None:
        await self.world.break_leases()

    async def operator_decides(self) -> None:
        operations = self.one().operations
        records = [r async for r in operations.quarantined()]
        verb = self.rng.choice([operations.release, operations.waive])
        await verb(records[:2], reason="r")

    async def replayer_is_rude(self) -> None:
        error = self.rng.choice(
            [TransientReplayError("t"), PermanentReplayError("other"), RuntimeError("r")]
        )
        self.world.replayer.will(self.thread(), error)

    async def source_fails(self) -> None:
        async def fails(_: str) -> None:
            self.world.source.before_head = None
            raise SourceUnreachableError("there", "once")

        self.world.source.before_head = fails

    async def freeze_or_thaw(self) -> None:
        if self.rng.random() < 0.7:
            await self.world.freeze()
        else:
            await self.world.registry.thaw_issuance(reason="r")

    async def all_at_once(self) -> None:
        """Two replicas at the same work, while a thread moves on under them."""
        a, b = self.world, self.peer
        await asyncio.gather(
            a.drain(), b.drain(), a.adopt(), b.adopt(), self.thread_moves_on(), a.reconcile()
        )


async def comes_to_rest(world: World) -> str:
    """Nothing happens any more but the passes; what was open has crashed."""
    world.source.before_head = None
    world.replayer.plans.clear()
    await world.freeze()
    await world.control.resume(PassName.DRAIN, actor="op")
    for _ in range(ROUNDS):
        await world.break_leases()
        await world.adopt()
        await world.reconcile(grace=A_MOMENT)
        await world.drain()
        report = await world.counting().run(wait=True)
        if report.status.state is DrainState.DRAINED:
            return "drained"
    stuck = [r for s in UNFINISHED async for r in world.operations.in_state(s)]
    assert report.status.cause is StallCause.QUARANTINE, (report.status.sentence, stuck)
    return "quarantine"


class TestConvergence:
    @pytest.mark.parametrize("seed", range(500))
    async def test_any_history_ends_drained_or_with_all_its_blockers_named(
        self, world: World, peer: World, seed: int
    ) -> None:
        life = Life(seed, world, peer)
        await world.freeze()
        for _ in range(STEPS):
            try:
                await life.step()
            except (CheckpointdError, KeyError):
                continue  # refused, unknown or out of reach: the passes' and callers' daily bread
        end = await comes_to_rest(world)
        tally = await world.tally()
        left = {s: n for s, n in tally.legacy.items() if n and s is not RefState.QUARANTINED}
        assert left.keys() <= {RefState.MIGRATED, RefState.WAIVED, RefState.EXPIRED}
        assert (tally.legacy[RefState.QUARANTINED] > 0) is (end == "quarantine")
        assert sum(tally.blocked.values()) == tally.legacy[RefState.QUARANTINED]
        for thread, states in world.source.threads.items():
            await self.is_accounted_for(world, thread, states[-1].checkpoint_id)

    async def is_accounted_for(self, world: World, thread: str, head: str) -> None:
        """The head has an end that an operator can read, and a good turn was not thrown away."""
        records = {r.ref.checkpoint_id: r for r in await world.registry.records_of(thread)}
        states = {s.checkpoint_id: s for s in world.source.threads[thread]}
        end = records[head].state
        if states[head].verdict.is_settled:
            assert end in {RefState.MIGRATED, RefState.QUARANTINED, RefState.WAIVED}, records
            return
        good = [s.checkpoint_id for s in states.values() if s.verdict is Verdict.CLOSED]
        if end is RefState.EXPIRED and good:
            fallback = records[good[-1]]
            if fallback.state is RefState.EXPIRED:
                # It had crashed by the registry's own account, or a pause had come after it.
                later = list(states)[list(states).index(good[-1]) + 1 :]
                paused = any(states[c].verdict is Verdict.PAUSED for c in later)
                assert paused or fallback.reason == CRASH_EXPIRY_REASON, (head, records)
