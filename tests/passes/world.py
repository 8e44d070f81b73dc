"""A registry, a source and a replayer of one test, and the passes over them.

The store is a real server. The source and the replayer are lists in memory that do what a test
tells them. Nobody waits for time: a ref is old because it was created long ago, a lease is over
because its owner asked for a millisecond, a due time has come because ``make_due`` moved it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from checkpointd.domain.drain import DrainRules, assess
from checkpointd.domain.errors import SourceUnreachableError
from checkpointd.domain.legacy import HeadReading, LegacyState, SourcePage, ThreadSketch, Verdict
from checkpointd.domain.refs import CheckpointRef, Lease, to_us
from checkpointd.domain.reports import AdoptReport, DrainReport, ReplayEnd
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import FailureReason, PassName, RefState, WriterLine
from checkpointd.domain.tally import DrainStatus, StoreTally
from checkpointd.leases.keeper import Keeper
from checkpointd.passes.adopt import Adopt
from checkpointd.passes.census import Census
from checkpointd.passes.drain import Drain
from checkpointd.passes.reconcile import Reconcile
from checkpointd.passes.replaying import Replaying
from checkpointd.registry.books import AdoptionBooks
from checkpointd.registry.control import Control
from checkpointd.registry.expiry import Expiry
from checkpointd.registry.ledger import DrainLedger
from checkpointd.registry.operations import Operations
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store
from checkpointd.registry.tallies import Tallies
from checkpointd.replay.port import Replayed, ReplayRequest

PARTITIONS = 4
GRACE = timedelta(hours=1)
OLD = timedelta(hours=2)
YOUNG = timedelta(minutes=30)
ATTEMPTS = 3
LEGACY, KERNEL = WriterLine.LEGACY, WriterLine.KERNEL


def ref(
    thread: str = "t",
    checkpoint: str = "c1",
    *,
    age: timedelta = OLD,
    line: WriterLine = LEGACY,
    at: datetime | None = None,
) -> CheckpointRef:
    """A ref as an application would issue it, created so long ago."""
    return CheckpointRef(thread, checkpoint, line, at or datetime.now(UTC) - age)


class FakeSource:
    """Threads of scripted checkpoints; the last one of a thread is its head."""

    identity = "fake://legacy"

    def __init__(self) -> None:
        self.threads: dict[str, list[LegacyState]] = {}
        self.down = False
        self.reads: list[str] = []
        self.before_head: Callable[[str], Awaitable[None]] | None = None
        self.extra_sketches: list[ThreadSketch] = []

    def holds(
        self,
        thread: str,
        checkpoint: str = "c1",
        verdict: Verdict = Verdict.CLOSED,
        *,
        age: timedelta = OLD,
        at: datetime | None = None,
        blocker: FailureReason | None = None,
        **more: Any,
    ) -> LegacyState:
        """Put a new head on the thread, older checkpoints staying where they are."""
        states = self.threads.setdefault(thread, [])
        if verdict is Verdict.UNREADABLE:
            blocker = FailureReason.UNREADABLE
        state = LegacyState(
            thread_id=thread,
            checkpoint_id=checkpoint,
            created_at=at or datetime.now(UTC) - age + timedelta(microseconds=len(states)),
            verdict=verdict,
            sequence=len(states),
            digest=f"digest-{checkpoint}" if blocker is None else "",
            blocker=blocker,
            **more,
        )
        states.append(state)
        return state

    def turns(self, thread: str, verdict: Verdict) -> None:
        """The head reads otherwise now, though it is the same checkpoint."""
        old = self.threads[thread].pop()
        self.holds(thread, old.checkpoint_id, verdict, at=old.created_at)

    def forgets(self, thread: str) -> None:
        """The thread is deleted."""
        del self.threads[thread]

    async def page(self, after: str, limit: int) -> SourcePage:
        self._answer("page")
        later = sorted(thread for thread in self.threads if thread > after)
        sketches = [
            ThreadSketch(
                thread_id=thread,
                head_id=self.threads[thread][-1].checkpoint_id,
                checkpoint_ids=frozenset(s.checkpoint_id for s in self.threads[thread]),
            )
            for thread in later[:limit]
        ]
        more = len(later) > limit
        if not more:
            sketches += self.extra_sketches
        return SourcePage(
            threads=tuple(sketches), next_after=sketches[-1].thread_id if more else None
        )

    async def head(self, thread_id: str) -> HeadReading | None:
        self._answer(f"head {thread_id}")
        if self.before_head is not None:
            await self.before_head(thread_id)
        states = self.threads.get(thread_id)
        if not states:
            return None
        head = states[-1]
        ancestor = None
        if head.verdict in (Verdict.OPEN, Verdict.FAILED):
            good = [s for s in states[:-1] if s.verdict is Verdict.CLOSED and s.blocker is None]
            ancestor = good[-1] if good else None
        return HeadReading(head=head, ancestor=ancestor)

    async def state(self, thread_id: str, checkpoint_id: str) -> LegacyState | None:
        self._answer(f"state {thread_id}")
        for state in self.threads.get(thread_id, ()):
            if state.checkpoint_id == checkpoint_id:
                return state
        return None

    async def aclose(self) -> None:
        return None

    def _answer(self, what: str) -> None:
        self.reads.append(what)
        if self.down:
            raise SourceUnreachableError(self.identity, "it is down")


Behaviour = BaseException | str | Callable[[ReplayRequest], Awaitable[str]]


class FakeReplayer:
    """Does what a thread's list says, one entry a replay; then it succeeds."""

    def __init__(self) -> None:
        self.plans: dict[str, deque[Behaviour]] = {}
        self.always: dict[str, Behaviour] = {}
        self.requests: list[ReplayRequest] = []
        self.down: BaseException | None = None

    def will(self, thread: str, *behaviours: Behaviour) -> None:
        self.plans.setdefault(thread, deque()).extend(behaviours)

    @property
    def threads(self) -> list[str]:
        """The threads that were replayed, in order."""
        return [request.thread_id for request in self.requests]

    async def replay(self, request: ReplayRequest) -> Replayed:
        self.requests.append(request)
        if self.down is not None:
            raise self.down
        plan = self.plans.get(request.thread_id)
        step = plan.popleft() if plan else self.always.get(request.thread_id)
        if step is None:
            return Replayed(request.idempotency_key)
        if isinstance(step, BaseException):
            raise step
        return Replayed(step if isinstance(step, str) else await step(request))

    async def aclose(self) -> None:
        return None


@dataclass
class World:
    """One registry and everything that works on it."""

    store: Store
    actor: str = "test"
    lease_ttl: timedelta = timedelta(seconds=15)
    source: FakeSource = field(default_factory=FakeSource)
    replayer: FakeReplayer = field(default_factory=FakeReplayer)
    ends: list[ReplayEnd] = field(default_factory=list)
    _drains: list[Drain] = field(default_factory=list)
    _censuses: list[Census] = field(default_factory=list)
    now_s: float = 1000.0
    """The drain's clock, where a test moves it."""

    def __post_init__(self) -> None:
        self.registry = RedisRegistry(self.store, actor=self.actor)
        self.control = Control(self.store)
        self.expiry = Expiry(self.store)
        self.books = AdoptionBooks(self.store, actor=self.actor)
        self.ledger = DrainLedger(self.store, actor=self.actor, lease_ttl=self.lease_ttl)
        self.operations = Operations(self.store, actor=self.actor)
        self.tallies = Tallies(self.store)
        self.keeper = Keeper(self.ledger.renew, ttl_s=15, deadline_s=10, renew_every_s=2)

    # Passes --------------------------------------------------------------------------------------

    def reconciling(
        self, *, grace: timedelta = GRACE, max_expiries: int = 1000, replica: str = "a"
    ) -> Reconcile:
        return Reconcile(
            self.expiry, self.control, grace=grace, max_expiries=max_expiries, replica=replica
        )

    def adopting(
        self,
        *,
        every: timedelta = timedelta(minutes=5),
        page: int = 100,
        source_settle: timedelta = timedelta(0),
        freeze_settle: timedelta = timedelta(0),
        on_page: Callable[[], None] = lambda: None,
    ) -> Adopt:
        return Adopt(
            self.books,
            self.control,
            self.source,
            every=every,
            page=page,
            source_settle=source_settle,
            freeze_settle=freeze_settle,
            on_page=on_page,
        )

    def draining(
        self,
        *,
        concurrency: int = 8,
        timeout: timedelta = timedelta(seconds=20),
        source: bool = True,
        backoff: timedelta = timedelta(0),
        clock: Callable[[], float] = time.monotonic,
        truncate: bool = False,
        ledger: DrainLedger | None = None,
    ) -> Drain:
        """A drain; its failed refs are due again at once unless ``backoff`` says otherwise."""
        replaying = Replaying(
            ledger or self.ledger,
            self.registry,
            self.books,
            self.keeper,
            self.replayer,
            self.source if source else None,
            timeout=timeout,
            max_attempts=ATTEMPTS,
            backoff_base=backoff,
            backoff_cap=backoff,
            truncate_unanswered=truncate,
            rng=random.Random(1),  # noqa: S311 - the same draws in each run
        )

        async def pause(reason: str) -> None:
            await self.control.pause(PassName.DRAIN, reason=reason, actor=self.actor)

        drain = Drain(
            ledger or self.ledger,
            self.control,
            self.keeper,
            replaying,
            concurrency=concurrency,
            max_attempts=ATTEMPTS,
            idle_for=timedelta(seconds=15),
            report_end=self.ends.append,
            pause=pause,
            clock=clock,
            rng=random.Random(1),  # noqa: S311 - the same draws in each run
        )
        self._drains.append(drain)
        return drain

    def counting(self, *, rules: DrainRules | None = None, replica: str = "a") -> Census:
        census = Census(
            self.tallies,
            self.control,
            self.expiry,
            rules=rules or self.rules,
            grace=GRACE,
            replica=replica,
        )
        self._censuses.append(census)
        return census

    rules = DrainRules(has_source=True, settle=timedelta(0))

    async def adopt(self, *, force: bool = True, **how: Any) -> AdoptReport:
        return await self.adopting(**how).run(force=force)

    async def drain(self, **how: Any) -> DrainReport:
        """Drain until nothing is due."""
        return await self.draining(**how).run(within=timedelta(days=1), wait=True)

    async def reconcile(self, **how: Any) -> list[str]:
        """The checkpoints that one pass expired."""
        report = await self.reconciling(**how).run()
        return sorted(f"{r.thread_id}/{r.checkpoint_id}" for r in report.expired)

    async def status(self, rules: DrainRules | None = None) -> DrainStatus:
        return assess(await self.tally(), rules or self.rules)

    async def tally(self) -> StoreTally:
        return await self.tallies.read(grace=GRACE)

    async def freeze(self, *lines: WriterLine) -> None:
        await self.registry.freeze_issuance(reason="retiring it", lines=lines or (LEGACY,))

    # Looking -------------------------------------------------------------------------------------

    async def record(self, thread: str = "t", checkpoint: str = "c1") -> RefRecord:
        record = await self.registry.record_of(thread, checkpoint)
        assert record is not None, f"{thread}/{checkpoint} is not registered"
        return record

    async def state(self, thread: str = "t", checkpoint: str = "c1") -> RefState:
        return (await self.record(thread, checkpoint)).state

    async def quarantined(self) -> dict[str, FailureReason | None]:
        return {r.ref.thread_id: r.code async for r in self.operations.quarantined()}

    async def events(self, thread: str) -> list[str]:
        page = await self.operations.audit(thread=thread)
        return [entry.event for entry in page.entries]

    # Moving time ---------------------------------------------------------------------------------

    async def set_meta(self, **fields: str | int) -> None:
        key = self.store.keys.meta
        await self.store.write(lambda c: c.hset(key, mapping=fields))

    async def beat_was(self, ago: timedelta) -> None:
        """The last heartbeat was so long ago."""
        await self.set_meta(heartbeat=to_us(datetime.now(UTC) - ago))

    async def make_due(self) -> None:
        """Every back-off and every busy ref's wait is over."""
        for keys in self.store.keys.all:
            for name in await self.store.members(keys.due):
                await self.store.write(lambda c, k=keys.due, n=name: c.zadd(k, {n: 1}))

    async def break_leases(self) -> None:
        """Every lease has run out, as if nobody had renewed it."""
        for keys in self.store.keys.all:
            for name in await self.store.members(keys.due):
                thread, _, checkpoint = name.decode().partition("\x1f")
                lease = self.store.keys.lease(thread, checkpoint)
                await self.store.write(lambda c, k=lease: c.delete(k))
        await self.make_due()

    async def claimed(self, thread: str = "t", checkpoint: str = "c1") -> Lease:
        """The lease of a ref that another process took, and whose owner is free to die."""
        partition = self.store.keys.index(thread)
        claim = await self.ledger.claim(
            partition, self.ledger.drawn([(thread, checkpoint)]), most=1, max_attempts=ATTEMPTS
        )
        assert len(claim.leases) == 1, claim
        return claim.leases[0]

    async def migrates(self, thread: str, checkpoint: str = "c1") -> None:
        """By hand, as a migrator of the application's own would."""
        new = ref(thread, f"by-hand-{checkpoint}", line=KERNEL)
        await self.registry.register(new)
        await self.registry.record_migration(
            thread, checkpoint, checkpoint_id=new.checkpoint_id, boundary_id="b"
        )

    async def aclose(self) -> None:
        for drain in self._drains:
            await drain.settle(timedelta(0))
        for census in self._censuses:
            await census.aclose()


@asynccontextmanager
async def opened(url: str, namespace: str, **how: Any) -> AsyncIterator[World]:
    """A world; at its end its books are held against its refs."""
    store = await Store.open(url, namespace=namespace, partitions=PARTITIONS, environment="test")
    world = World(store, **how)
    try:
        yield world
        await world.aclose()
        verification = await world.operations.verify()
        assert verification.findings == ()
    finally:
        await world.aclose()
        await store.aclose()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Let the loop turn until it is so."""
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - the store has no event to wait on
            await asyncio.sleep(0)


class Gate:
    """A replay that waits at a gate: ``entered`` tells that it is there, ``open`` lets it on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, request: ReplayRequest) -> str:
        self.entered.set()
        await self.released.wait()
        return request.idempotency_key

    async def reached(self) -> None:
        async with asyncio.timeout(10):
            await self.entered.wait()

    def open(self) -> None:
        self.released.set()


def many(n: int, prefix: str = "t") -> Sequence[str]:
    return [f"{prefix}-{i:03}" for i in range(n)]
