"""The model and two Redis registries on one store, driven side by side by hypothesis.

Each step is done on the model and, by one of the two, on the store; both must answer alike, but
for the times at which they answered. Two steps at once must answer as one of their two orders
would have. At the end all that is kept of every ref is compared, and the store's counters and
indexes with a recount.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    rule,
    run_state_machine_as_test,
)

from checkpointd.domain.errors import CheckpointdError, IssuanceFrozenError
from checkpointd.domain.refs import (
    EPOCH,
    MICROSECOND,
    CheckpointRef,
    Explanation,
    IssuanceFreeze,
    Lease,
    MigrationLink,
    ReconciliationReport,
    SafeBoundaryMarker,
    to_us,
)
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import UNFINISHED, FailureReason, Hold, RefState, WriterLine
from checkpointd.registry.control import ThawedMeanwhileError
from checkpointd.registry.keys import member
from checkpointd.registry.memory import MemoryRegistry
from checkpointd.registry.port import CheckpointRegistry
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

pytestmark = pytest.mark.server

GRACE = timedelta(hours=1)
LEASE_TTL = timedelta(hours=1)
"""Longer than any run: neither clock is to end a lease here."""
AGES = (timedelta(hours=3), timedelta(hours=2), timedelta(minutes=20), timedelta(hours=-2))
"""Overdue, overdue, in grace, from the future: none within seconds of a limit."""
THREADS = ("a:b", 'A:b{|"é👩‍💻')
LEGACY_IDS = ("l:1", "l\u00a02")
KERNEL_IDS = ("k:1", "K:1", "}k{")
IDS = LEGACY_IDS + KERNEL_IDS
BOUNDARY_IDS = ("l:1", "theirs")

_NAMESPACES = (f"machine-{n}" for n in itertools.count())

T = TypeVar("T")
Call = Callable[[CheckpointRegistry], Awaitable[Any]]


@dataclass(frozen=True)
class Step:
    """One verb with its arguments, to be called on any registry."""

    verb: str
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)

    def __call__(self, registry: CheckpointRegistry) -> Awaitable[Any]:
        answer: Awaitable[Any] = getattr(registry, self.verb)(*self.args, **self.named)
        return answer


@dataclass(frozen=True)
class New:
    """A step that registers; its age becomes a time once the run knows the store's clock."""

    thread_id: str
    checkpoint_id: str
    old: timedelta
    whole: bool
    other_line: bool
    named: dict[str, Any]
    replay_of: str = ""

    def at(self, base: datetime) -> Step:
        legacy = (self.checkpoint_id in LEGACY_IDS) != self.other_line
        ref = CheckpointRef(
            self.thread_id,
            self.checkpoint_id,
            WriterLine.LEGACY if legacy else WriterLine.KERNEL,
            base - self.old,
            finalized=self.whole,
        )
        if self.replay_of:
            return Step("register_replay", (ref,), {"legacy_checkpoint_id": self.replay_of})
        return Step("register", (ref,), self.named)


threads = st.sampled_from(THREADS)
ids = st.sampled_from(IDS)
seldom = st.sampled_from([False] * 7 + [True])
lines = st.sampled_from([(WriterLine.LEGACY,), tuple(WriterLine)])

registrations = st.builds(
    New,
    thread_id=threads,
    checkpoint_id=st.sampled_from(LEGACY_IDS) | ids,
    old=st.sampled_from(AGES),
    whole=st.booleans(),
    other_line=seldom,
    named=st.fixed_dictionaries(
        {}, optional={"finalized": st.booleans(), "issuance": st.booleans()}
    ),
    replay_of=st.sampled_from(["", "", "", *LEGACY_IDS]),
)
named_refs = st.one_of(
    st.builds(
        Step,
        st.sampled_from(["finalize", "extend", "is_authoritative", "is_resumable", "migration_of"]),
        st.tuples(threads, ids),
    ),
    st.builds(
        Step, st.just("expire"), st.tuples(threads, ids, st.sampled_from(["one", "zwei\n 2"]))
    ),
)
links = st.builds(
    Step,
    st.just("record_migration"),
    st.tuples(threads, st.sampled_from(LEGACY_IDS) | ids),
    st.fixed_dictionaries(
        {
            "checkpoint_id": st.sampled_from(KERNEL_IDS) | ids,
            "boundary_id": st.sampled_from(BOUNDARY_IDS),
        }
    ),
)
of_threads = st.builds(
    Step,
    st.sampled_from(["refs_for", "resolve", "explain", "boundaries_for", "request_replay"]),
    st.tuples(threads),
)
boundaries = st.builds(
    Step,
    st.just("mark_safe_boundary"),
    st.tuples(threads),
    st.fixed_dictionaries(
        {
            "sequence": st.sampled_from([-1, 0, 1, 12]),
            "digest": st.sampled_from(["", "d", "é:|"]),
            "writer_line": st.sampled_from(list(WriterLine)),
        },
        optional={"boundary_id": st.sampled_from(BOUNDARY_IDS)},
    ),
)
store_wide = st.one_of(
    st.builds(Step, st.just("reconcile_crash_expiry"), st.just(()), st.just({"grace": GRACE})),
    st.builds(
        Step,
        st.just("freeze_issuance"),
        st.just(()),
        st.fixed_dictionaries({"reason": st.sampled_from(["one", "two"]), "lines": lines}),
    ),
    st.builds(Step, st.just("thaw_issuance"), st.just(()), st.just({"reason": "done"})),
    st.builds(Step, st.just("freeze_in_force")),
)
steps = st.one_of(
    registrations, registrations, named_refs, named_refs, links, of_threads, boundaries, store_wide
)


def timeless(answer: Any) -> Any:
    """An answer without the time at which it was given; whether there is one still shows."""
    match answer:
        case CheckpointRef():
            return replace(answer, expired_at=EPOCH if answer.expired_at else None)
        case MigrationLink():
            return replace(answer, at=EPOCH)
        case SafeBoundaryMarker():
            return replace(answer, created_at=EPOCH)
        case IssuanceFreeze():
            return replace(answer, at=EPOCH)
        case Explanation():
            return replace(
                answer, ref=timeless(answer.ref), at=EPOCH if answer.at is not None else None
            )
        case ReconciliationReport():
            expired = frozenset(timeless(ref) for ref in answer.expired)
            assert len(expired) == len(answer.expired)
            return (answer.grace_seconds, answer.inspected, expired)
        case tuple():
            return tuple(timeless(part) for part in answer)
        case _:
            return answer


def unlocked(answer: Any) -> Any:
    """As ``timeless``, without what two passes that overlap may count differently."""
    whole = timeless(answer)
    return whole[::2] if isinstance(answer, ReconciliationReport) else whole


async def told(call: Awaitable[Any], seen: Callable[[Any], Any] = timeless) -> Any:
    """What a step answered, or the decision that its error stands for."""
    try:
        return seen(await call)
    except CheckpointdError as error:
        facts = ("thread_id", "checkpoint_id", "reason", "known", "asked", "became", "line")
        return (type(error), *(getattr(error, fact, None) for fact in facts))


def decision(answer: Any) -> Any:
    """The kind of error that ``told`` tells of; ``None`` for anything else."""
    first = answer[0] if isinstance(answer, tuple) and answer else None
    return first if isinstance(first, type) else None


def story(record: RefRecord) -> RefRecord:
    """What is kept of a ref, without times, signatures and the fences, which are each store's."""
    return replace(
        record,
        ref=timeless(record.ref),
        link=timeless(record.link),
        changed_at=None,
        by="",
        lease="",
        late_at=EPOCH if record.late_at else None,
        opened_at=EPOCH if record.opened_at else None,
    )


def thawed_meanwhile(calls: tuple[Call, Call], answers: Sequence[Any]) -> int | None:
    """Which of two steps at once was a freeze that the other thawed before it was in force.

    It cannot return "in force", which it never was, nor does the model know such a moment.
    """
    for n in (0, 1):
        beside = calls[1 - n]
        thawed = isinstance(beside, Step) and beside.verb == "thaw_issuance"
        if thawed and decision(answers[n]) is ThawedMeanwhileError:
            return n
    return None


def without(answers: Sequence[Any], masked: int | None) -> list[Any]:
    return [None if n == masked else answer for n, answer in enumerate(answers)]


@dataclass(frozen=True)
class Held:
    """One lease as the model gave it, and as the store did."""

    thread_id: str
    checkpoint_id: str
    model: Lease
    store: Lease
    model_lock: AbstractAsyncContextManager[Lease]
    store_lock: AbstractAsyncContextManager[Lease]


class RegistriesSideBySide(RuleBasedStateMachine):
    """The model beside two processes on one store."""

    url: str
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.refused: Counter[WriterLine] = Counter()
        self.locks: list[Held] = []
        self.agreed = True
        """False from a disagreement on, so that the end does not cover it with another."""

    @initialize(there=st.lists(registrations, max_size=6))
    def open_the_store(self, there: list[New]) -> None:
        self.runner.run(self._open())
        for new in there:
            step = self._made(new)
            self._run(self._one(step, step, 0))

    async def _open(self) -> None:
        namespace = next(_NAMESPACES)
        self.stores = [
            await Store.open(self.url, namespace=namespace, partitions=4, environment="test")
            for _ in range(2)
        ]
        self.processes = [
            RedisRegistry(store, actor=f"process {n}", lease_ttl=LEASE_TTL)
            for n, store in enumerate(self.stores)
        ]
        self.base = self.now = await self.stores[0].now()
        self.model = MemoryRegistry(lambda: self.now, lease_ttl=LEASE_TTL)

    async def _tick(self) -> None:
        """The model's clock shows the store's time."""
        self.now = await self.stores[0].now()

    def _made(self, step: Step | New) -> Step:
        return step.at(self.base) if isinstance(step, New) else step

    def _run(self, step: Coroutine[Any, Any, T]) -> T:
        self.agreed = False
        answer = self.runner.run(step)
        self.agreed = True
        return answer

    # What is done ---------------------------------------------------------------------------

    @rule(step=steps, by=st.integers(0, 1))
    def one_step(self, step: Step | New, by: int) -> None:
        self._run(self._one(self._made(step), self._made(step), by))

    async def _one(self, on_model: Call, on_store: Call, by: int) -> None:
        await self._tick()
        expected = await told(on_model(self.model))
        assert await told(on_store(self.processes[by])) == expected
        self._count_refusal(expected)
        await self._compare(self.processes[1 - by])

    @rule(step=steps, again=steps)
    def two_steps_at_once(self, step: Step | New, again: Step | New) -> None:
        one, other = self._made(step), self._made(again)
        self._run(self._race((one, one), (other, other)))

    async def _race(self, one: tuple[Call, Call], other: tuple[Call, Call]) -> None:
        """Each is the call for the model and the call for the store."""
        await self._tick()
        given = await asyncio.gather(
            told(one[1](self.processes[0]), unlocked), told(other[1](self.processes[1]), unlocked)
        )
        masked = thawed_meanwhile((one[1], other[1]), given)
        found = (without(given, masked), await self._state(self.processes[0]))
        wanted: list[object] = []
        for order in ((0, 1), (1, 0)):
            model = copy.deepcopy(self.model)
            answers: list[Any] = [None, None]
            for n in order:
                self.now += MICROSECOND
                answers[n] = await told((one, other)[n][0](model), unlocked)
            wanted.append((without(answers, masked), await self._state(model)))
            if wanted[-1] == found:
                # Done again, not swapped in: the locks under way hold on to this very model.
                for n in order:
                    self.now += MICROSECOND
                    self._count_refusal(await told((one, other)[n][0](self.model), unlocked))
                return
        assert found in wanted

    def _count_refusal(self, answer: Any) -> None:
        if decision(answer) is IssuanceFrozenError:
            self.refused[answer[-1]] += 1

    @rule(
        target=held,
        thread_id=threads,
        checkpoint_id=st.sampled_from(LEGACY_IDS) | ids,
        by=st.integers(0, 1),
    )
    def lock(self, thread_id: str, checkpoint_id: str, by: int) -> Any:
        return self._run(self._lock(thread_id, checkpoint_id, by))

    async def _lock(self, thread_id: str, checkpoint_id: str, by: int) -> Held | None:
        await self._tick()
        ours = self.model.migration_lock(thread_id, checkpoint_id)
        theirs = self.processes[by].migration_lock(thread_id, checkpoint_id)
        leases = [await told(lock.__aenter__()) for lock in (ours, theirs)]
        if not isinstance(leases[0], Lease):
            if isinstance(leases[1], Lease):
                await theirs.__aexit__(None, None, None)
            assert leases[1] == leases[0]
            return None
        assert isinstance(leases[1], Lease)
        assert leases[1].attempt == leases[0].attempt
        assert leases[1].created_at == leases[0].created_at
        held = Held(thread_id, checkpoint_id, leases[0], leases[1], ours, theirs)
        self.locks.append(held)
        await self._compare(self.processes[1 - by])
        return held

    @rule(held=consumes(held))
    def leave(self, held: Held | None) -> None:
        if held is not None:
            self.locks.remove(held)
            self._run(self._leave(held))

    async def _leave(self, held: Held) -> None:
        await self._tick()
        for lock in (held.model_lock, held.store_lock):
            await lock.__aexit__(None, None, None)
        await self._compare(self.processes[0])

    def _commit(
        self, held: Held, new: str, old: timedelta, *, other_line: bool, forged: bool = False
    ) -> tuple[Call, Call]:
        line = WriterLine.LEGACY if other_line else WriterLine.KERNEL
        ref = CheckpointRef(held.thread_id, new, line, self.base - old)
        ours, theirs = (
            replace(lease, token="0" * 32) if forged else lease
            for lease in (held.model, held.store)
        )
        return (
            lambda registry: registry.commit_replay(ours, ref, "theirs"),
            lambda registry: registry.commit_replay(theirs, ref, "theirs"),
        )

    @rule(
        held=held,
        new=st.sampled_from(KERNEL_IDS) | ids,
        old=st.sampled_from(AGES),
        other_line=seldom,
        forged=seldom,
        by=st.integers(0, 1),
    )
    def commit(
        self, held: Held | None, new: str, old: timedelta, other_line: bool, forged: bool, by: int
    ) -> None:
        if held is not None:
            calls = self._commit(held, new, old, other_line=other_line, forged=forged)
            self._run(self._one(*calls, by))

    @rule(held=held, new=st.sampled_from(KERNEL_IDS), step=steps)
    def commit_beside_another_step(self, held: Held | None, new: str, step: Step | New) -> None:
        if held is not None:
            calls = self._commit(held, new, AGES[0], other_line=False)
            other = self._made(step)
            self._run(self._race(calls, (other, other)))

    @rule(held=held, one=st.sampled_from(KERNEL_IDS), other=st.sampled_from(KERNEL_IDS))
    def two_commits_at_once(self, held: Held | None, one: str, other: str) -> None:
        if held is not None:
            calls = (
                self._commit(held, one, AGES[0], other_line=False),
                self._commit(held, other, AGES[1], other_line=False),
            )
            self._run(self._race(*calls))

    # What must then be true -----------------------------------------------------------------

    async def _state(self, registry: MemoryRegistry | RedisRegistry) -> Any:
        """All that a registry keeps, as it may be compared."""
        threads: list[Any] = []
        for thread_id in THREADS:
            records = registry.records_of(thread_id)
            known = records if isinstance(records, tuple) else await records
            threads.append([story(record) for record in known])
            threads.append(list(timeless(await registry.boundaries_for(thread_id))))
        return (threads, timeless(await registry.freeze_in_force()))

    async def _compare(self, process: RedisRegistry) -> None:
        (threads, freeze), (wanted, frozen) = [
            await self._state(registry) for registry in (process, self.model)
        ]
        assert freeze == frozen
        for kept, modelled in zip(threads, wanted, strict=True):
            assert len(kept) == len(modelled)
            for one, model in zip(kept, modelled, strict=True):
                assert one == model

    async def _compare_answers(self, process: RedisRegistry) -> None:
        for thread_id in THREADS:
            for verb in ("refs_for", "resolve", "explain", "boundaries_for"):
                step = Step(verb, (thread_id,))
                assert await told(step(process)) == await told(step(self.model))
            for checkpoint_id in IDS:
                for verb in ("migration_of", "is_authoritative", "is_resumable"):
                    step = Step(verb, (thread_id, checkpoint_id))
                    assert await told(step(process)) == await told(step(self.model))

    async def _recount(self) -> None:
        """The store's counters and indexes say what its refs say."""
        store = self.stores[0]
        records = [r for thread in THREADS for r in await self.processes[0].records_of(thread)]
        keys = store.keys.all
        counted: Counter[str] = Counter()
        for fields in await store.read_many([("HGETALL", k.counters) for k in keys]):
            pairs = (
                fields.items()
                if isinstance(fields, dict)
                else zip(*[iter(fields)] * 2, strict=True)
            )
            for name, value in pairs:
                counted[name.decode()] += int(value)
        by_state = Counter((r.ref.writer_line, r.state) for r in records)
        for line, state in itertools.product(WriterLine, RefState):
            assert counted[f"{line}:{state}"] == by_state[line, state], f"{line}:{state}"
        assert counted["expired:crash"] == sum(r.grace_s is not None for r in records)
        assert counted["expired:operator"] == sum(
            r.state is RefState.EXPIRED and r.grace_s is None for r in records
        )
        assert counted["late"] == sum(r.late_at is not None for r in records)
        assert all(counted[f"blocked:{reason}"] == 0 for reason in FailureReason)
        for line in WriterLine:
            assert counted[f"refused:{line}"] == self.refused[line]

        async def members(index: str) -> set[str]:
            found = await store.read_many([("ZRANGE", getattr(k, index), "0", "-1") for k in keys])
            return {name.decode() for lot in found for name in lot}

        legacy = [r for r in records if r.ref.writer_line is WriterLine.LEGACY]
        claimable = (RefState.PENDING, RefState.RETRYABLE, RefState.REPLAYING)
        assert await members("open") == names(r for r in records if r.state is RefState.OPEN)
        for record in records:
            if record.state is RefState.OPEN:
                key = store.keys.of(record.ref.thread_id).open
                name = member(record.ref.thread_id, record.ref.checkpoint_id)
                (score,) = await store.read_many([("ZSCORE", key, name)])
                assert int(float(score)) == to_us(record.window_began)
        assert await members("unfinished") == names(r for r in legacy if r.state in UNFINISHED)
        assert await members("due") == names(
            r for r in legacy if r.state in claimable and r.hold is Hold.NONE
        )
        assert await members("quarantined") == set()
        assert dict(by_state) == dict(self.model.counts())

    def teardown(self) -> None:
        try:
            if hasattr(self, "model"):
                self.runner.run(self._close())
        finally:
            self.runner.close()

    async def _close(self) -> None:
        try:
            for held in reversed(self.locks):
                await held.store_lock.__aexit__(None, None, None)
                await held.model_lock.__aexit__(None, None, None)
            if not self.agreed:
                return
            for process in self.processes:
                await self._compare(process)
                await self._compare_answers(process)
            await self._recount()
        finally:
            for store in self.stores:
                await store.aclose()


def names(records: Any) -> set[str]:
    return {member(r.ref.thread_id, r.ref.checkpoint_id) for r in records}


@pytest.mark.timeout(600)
def test_the_model_and_two_processes_on_one_store_answer_alike(redis_server: Any) -> None:
    class OnThisServer(RegistriesSideBySide):
        url = redis_server.url

    run_state_machine_as_test(OnThisServer)
