"""Scripts are done once, and nobody waits for ever: whatever becomes of server, line and caller."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from typing import Any

import pytest
from tests.faults.proxy import Proxy, Weather
from tests.passes.world import ATTEMPTS, KERNEL, World, ref

from checkpointd.domain.errors import StoreUnreachableError
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.refs import Lease
from checkpointd.domain.states import FailureReason, Hold
from checkpointd.registry.connect import Connecting
from checkpointd.registry.scripts import source_of
from checkpointd.registry.store import Store

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()
MINE = "0123456789abcdef" * 2
TIMEOUT_S = 0.2


@pytest.fixture
async def proxy(redis_server: Any) -> AsyncIterator[Proxy]:
    made = Proxy(redis_server.path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def place() -> str:
    """A namespace of the test's own, as long as any other's."""
    return f"scripts-{next(_NUMBERS):05}"


@pytest.fixture
async def near(redis_server: Any, place: str) -> AsyncIterator[World]:
    """A process on a sound line; it prepares, and looks at what became of it."""
    store = await Store.open(redis_server.url, namespace=place, partitions=1)
    yield World(store)
    await store.aclose()


@pytest.fixture
async def far(proxy: Proxy, near: World, place: str) -> AsyncIterator[World]:
    """A process on the same registry, whose every byte goes through the proxy."""
    store = await Store.open(f"redis://127.0.0.1:{proxy.port}/0", namespace=place, partitions=1)
    yield World(store)
    await store.aclose()


@pytest.fixture
async def apart(redis_server: Any) -> AsyncIterator[World]:
    """Another registry, in which nothing goes wrong."""
    name = f"scripts-{next(_NUMBERS):05}"
    store = await Store.open(redis_server.url, namespace=name, partitions=1)
    yield World(store)
    await store.aclose()


_TIME = re.compile(rb"\b1\d{15}\b")


async def books(world: World) -> dict[str, Any]:
    """All that the store holds, but for times, and for the registry's name."""
    client, name, found = world.store.client, world.store.keys.namespace, {}

    def plain(raw: Any) -> Any:
        match raw:
            case bytes():
                return _TIME.sub(b"TIME", raw)
            case dict():
                return {k: plain(v) for k, v in raw.items() if not k.startswith(b"ttf")}
            case list() | tuple():
                return [plain(x) for x in raw]
            case _:
                return raw

    async for key in client.scan_iter(f"{{{name}:*", count=1000):
        match await client.type(key):
            case b"hash":
                held = await client.hgetall(key)
            case b"string":
                held = await client.get(key)
            case b"zset":
                held = sorted(await client.zrange(key, 0, -1))
            case _:
                held = [fields for _, fields in await client.xrange(key)]
        found[key.decode().replace(name, "…")] = plain(held)
    return found


async def registered(world: World) -> None:
    await world.registry.register(ref(), issuance=False)


async def due(world: World) -> None:
    await registered(world)
    await world.freeze()


async def held(world: World) -> None:
    await due(world)
    await world.ledger.claim(0, [("t", "c1", MINE)], most=1, max_attempts=ATTEMPTS)


async def opened(world: World) -> None:
    await world.registry.register(ref(), finalized=False, issuance=False)


async def fails(world: World) -> Any:
    return await world.ledger.fail(
        await lease(world),
        reason=FailureReason.ABSENT,
        detail="d",
        permanent=True,
        again_in=timedelta(0),
        max_attempts=ATTEMPTS,
    )


async def quarantined(world: World) -> None:
    await held(world)
    await fails(world)


async def waived(world: World) -> None:
    await quarantined(world)
    await world.store.on_thread("waive", "t", "t", "c1", "r", "op", "")


async def with_kernel(world: World) -> None:
    await registered(world)
    await world.registry.register(ref(checkpoint="new", line=KERNEL))


async def came_back_late(world: World) -> None:
    await opened(world)
    await expire_overdue(world)
    await world.store.on_thread("finalize", "t", "t", "c1", "test")


async def paused_head(world: World) -> None:
    await held(world)
    await world.ledger.release(await lease(world), hold=Hold.PAUSED)


async def has_turn(world: World) -> None:
    await world.store.meta("take_turn", MINE, 60_000, turn="adopt")


async def allowed(world: World) -> None:
    await world.store.meta("expiry_allow", 10, "r", "op", "first")


async def held_back(world: World) -> None:
    await world.store.meta("expiry_hold", 7)


async def declared(world: World) -> None:
    await registered(world)
    await world.store.meta("control_freeze", "l", "r", "op")


async def copied(world: World) -> None:
    await declared(world)
    await copy(world)


async def copy(world: World) -> Any:
    word = (await world.control.read()).raw
    args = [word["epoch"], word["frozen"], "r", word["frozen_at"], "", "", ""]
    return await world.store.at(0, "control_copy", [], args)


async def resumable(world: World) -> None:
    await world.store.meta("control_pause", "drain", "r", "op")


async def nothing(_: World) -> None:
    return None


async def lease(world: World) -> Any:
    record = await world.record()
    fence, _, token = record.lease.partition(":")
    return Lease(thread_id="t", checkpoint_id="c1", fence=int(fence), token=token)


async def supersede(world: World) -> Any:
    head = world.source.holds("t", "c2", Verdict.CLOSED, at=ref().created_at)
    return await world.books.adopt(
        head, hold=Hold.NONE, confirming=False, moved_on=["c1"], guard=await lease(world)
    )


async def expire_overdue(world: World) -> Any:
    keys = world.store.keys
    return await world.store.at(
        0, "expire_overdue", [keys.thread("t")], [1, "a pass", "crashed", "t\x1fc1"]
    )


Step = Callable[[World], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A call of a script that has something to do, and what must be there for it."""

    before: Step
    call: Step
    once: bool = True
    """Whether sent twice it leaves exactly what it leaves when sent once."""


def on_thread(name: str, *args: Any, lease_of: str = "") -> Step:
    return lambda w: w.store.on_thread(name, "t", *args, lease_of=lease_of)


def meta(name: str, *args: Any, turn: str = "") -> Step:
    return lambda w: w.store.meta(name, *args, turn=turn)


CASES: dict[str, Case] = {
    "acquire": Case(registered, lambda w: w.ledger.acquire("t", "c1", token=MINE)),
    "adopt": Case(held, supersede),
    "claim": Case(
        due, lambda w: w.ledger.claim(0, [("t", "c1", MINE)], most=1, max_attempts=ATTEMPTS)
    ),
    "commit": Case(held, lambda w: _then(w, lambda x: w.ledger.commit(x, "new", KERNEL, "b"))),
    "control_copy": Case(declared, copy),
    "control_enforce": Case(copied, lambda w: w.store.at(0, "control_enforce", [], [1])),
    "control_freeze": Case(nothing, meta("control_freeze", "l", "r", "op")),
    "control_halt": Case(nothing, meta("control_halt", "r", "op", 0)),
    "control_in_force": Case(copied, meta("control_in_force", 1)),
    "control_pause": Case(nothing, meta("control_pause", "drain", "r", "op")),
    "control_resume": Case(resumable, meta("control_resume", "drain", 0, "op", 0, 0)),
    "control_thaw": Case(declared, meta("control_thaw", "r", "op")),
    "drain_mark": Case(due, meta("drain_mark", "drained", 5, 5)),
    "expire": Case(registered, on_thread("expire", "t", "c1", "r", "op", lease_of="c1")),
    "expire_overdue": Case(opened, expire_overdue),
    "expiry_allow": Case(held_back, meta("expiry_allow", 10, "r", "op", "second")),
    "expiry_hold": Case(nothing, meta("expiry_hold", 7)),
    "expiry_release": Case(held_back, meta("expiry_release", "mass")),
    "extend": Case(opened, on_thread("extend", "t", "c1")),
    "fail": Case(held, fails),
    "finalize": Case(opened, on_thread("finalize", "t", "c1", "op", 10**6)),
    "give_allowance": Case(allowed, meta("give_allowance", "allowed", 3, "", "second")),
    "give_turn": Case(has_turn, meta("give_turn", MINE, turn="adopt")),
    "heartbeat": Case(nothing, meta("heartbeat", 10**9, 10**9)),
    "let_go": Case(paused_head, on_thread("let_go", "t", "c1", "op")),
    "mark_boundary": Case(registered, on_thread("mark_boundary", "b", 1, "l", "digest", "c1")),
    "meta_create": Case(nothing, meta("meta_create", 1, 1, 1, "default")),
    "meta_put": Case(has_turn, meta("meta_put", MINE, "scan_young", "3", turn="adopt")),
    "peek": Case(due, lambda w: w.ledger.peek(0, 10)),
    "recount_note": Case(
        due, lambda w: w.store.at(0, "recount_note", [], [1, 5, 5, 5, 5, 5, 5, 5, 5])
    ),
    "record_migration": Case(
        with_kernel, on_thread("record_migration", "t", "c1", "new", "b", "op", lease_of="c1")
    ),
    "register": Case(nothing, lambda w: w.registry.register(ref(at=OLD_DAY), issuance=False)),
    "release": Case(held, lambda w: _then(w, w.ledger.release)),
    "release_quarantined": Case(
        quarantined, on_thread("release_quarantined", "t", "c1", "r", "op", "")
    ),
    "renew": Case(held, lambda w: _then(w, w.ledger.renew)),
    "request_replay": Case(due, on_thread("request_replay", "t")),
    "restore_late": Case(came_back_late, on_thread("restore_late", "t", "c1", 1, "r", "op")),
    "rights": Case(nothing, meta("rights", turn="rights")),
    "take_allowance": Case(allowed, meta("take_allowance", "allowed", 3), once=False),
    "take_turn": Case(nothing, meta("take_turn", MINE, 60_000, turn="adopt")),
    "unwaive": Case(waived, on_thread("unwaive", "t", "c1", "r", "op", "")),
    "waive": Case(quarantined, on_thread("waive", "t", "c1", "r", "op", "")),
}


async def _then(world: World, step: Callable[[Any], Awaitable[Any]]) -> Any:
    return await step(await lease(world))


OLD_DAY = ref().created_at


async def _ready(case: Case, *worlds: World) -> None:
    """All is there for the call, the line is open, and the server knows every script."""
    for world in worlds:
        await case.before(world)
    for name in CASES:
        await worlds[0].store.client.script_load(source_of(name)[0])


class TestEveryScript:
    def test_has_its_case_here(self) -> None:
        folder = resources.files("checkpointd.registry") / "lua"
        scripts = {f.name.removesuffix(".lua") for f in folder.iterdir() if f.name[-4:] == ".lua"}
        assert set(CASES) == scripts - {"prelude", "meta_prelude"}

    @pytest.mark.parametrize("name", sorted(CASES))
    async def test_is_done_once_where_the_server_forgot_it(
        self, near: World, apart: World, name: str
    ) -> None:
        case = CASES[name]
        await _ready(case, near, apart)
        await case.call(apart)
        await near.store.client.script_flush()
        await case.call(near)
        assert await books(near) == await books(apart)

    @pytest.mark.parametrize("name", sorted(n for n, case in CASES.items() if case.once))
    async def test_is_done_once_where_its_reply_is_lost(
        self, proxy: Proxy, near: World, far: World, apart: World, name: str
    ) -> None:
        case = CASES[name]
        await _ready(case, near, apart)
        await case.call(apart)
        await _with_its_reply_lost(proxy, far, name, case.call)
        assert await books(near) == await books(apart)

    async def test_what_was_taken_unheard_is_not_there_to_be_taken_again(
        self, proxy: Proxy, near: World, far: World
    ) -> None:
        """Less is used than was allowed then, never more."""
        await _ready(CASES["take_allowance"], near)
        await _with_its_reply_lost(proxy, far, "take_allowance", CASES["take_allowance"].call)
        assert int((await near.control.read()).raw["allowed"]) <= 7


async def _with_its_reply_lost(proxy: Proxy, world: World, name: str, call: Step) -> None:
    """The first reply to this script is lost with its connection."""
    run, lost = world.store.scripts._round_trip, proxy.replies_lost

    async def round_trip(calls: Any, **how: Any) -> Any:
        if proxy.replies_lost == lost and any(c[0] == name for c in calls):
            proxy.lose_replies(1)
        return await run(calls, **how)

    await world.store.meta("give_turn", "", turn="warm")  # the line is open
    world.store.scripts._round_trip = round_trip  # type: ignore[method-assign]
    await call(world)
    assert proxy.replies_lost == lost + 1


@pytest.fixture
async def deaf() -> AsyncIterator[int]:
    """The port of a server that takes every connection and never says a word."""
    writers: list[asyncio.StreamWriter] = []

    async def accepts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(accepts, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in writers:
        writer.transport.abort()


class TestSilence:
    def connecting(self, port: int) -> Connecting:
        return Connecting(
            url=f"redis://127.0.0.1:{port}/0", timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S
        )

    async def test_a_server_that_never_answers_is_out_of_reach_in_time(self, deaf: int) -> None:
        store = Store(self.connecting(deaf), namespace="deaf", partitions=1)
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError):
            await store.at(0, "peek", [], [1])
        assert time.monotonic() - began < 4 * TIMEOUT_S
        await store.aclose()

    async def test_a_line_that_goes_dead_is_noticed_in_time_and_used_again_later(
        self, proxy: Proxy, near: World, place: str
    ) -> None:
        store = await Store.open(self.connecting(proxy.port), namespace=place, partitions=1)
        world = World(store)
        await world.ledger.peek(0, 1)
        async with proxy.under(Weather.HOLE):
            began = time.monotonic()
            with pytest.raises(StoreUnreachableError):
                await world.ledger.peek(0, 1)
            assert time.monotonic() - began < 4 * TIMEOUT_S
        await world.ledger.peek(0, 1)
        await store.aclose()


class TestRoundTrips:
    async def test_all_calls_of_one_turn_of_the_loop_are_one(self, near: World) -> None:
        await near.ledger.peek(0, 1)  # the server knows the script from now on
        before = near.store.scripts.round_trips
        peeks = await asyncio.gather(*(near.ledger.peek(0, 1) for _ in range(30)))
        assert len(set(peeks)) == 1
        assert near.store.scripts.round_trips == before + 1

    async def test_each_is_given_its_own_answer(self, near: World) -> None:
        threads = [f"t{n}" for n in range(20)]
        refs = await asyncio.gather(
            *(near.registry.register(ref(t), issuance=False) for t in threads)
        )
        assert [r.thread_id for r in refs] == threads

    async def test_one_that_fails_takes_no_other_with_it(self, near: World) -> None:
        await near.store.client.set(near.store.keys.thread("bad"), "no hash")
        answers = await asyncio.gather(
            *(near.registry.register(ref(t), issuance=False) for t in ("a", "bad", "b")),
            return_exceptions=True,
        )
        assert [isinstance(a, Exception) for a in answers] == [False, True, False]

    async def test_a_server_that_forgot_all_costs_one_more(self, near: World) -> None:
        await near.store.client.script_flush()
        before = near.store.scripts.round_trips
        await asyncio.gather(*(near.ledger.peek(0, 1) for _ in range(10)))
        assert near.store.scripts.round_trips == before + 2

    async def test_a_pool_smaller_than_the_number_of_tasks_serves_them_all(
        self, redis_server: Any, near: World, place: str
    ) -> None:
        how = Connecting(url=redis_server.url, max_connections=2)
        store = await Store.open(how, namespace=place, partitions=1)
        world = World(store)

        async def works(n: int) -> None:
            await asyncio.sleep(0 * n)
            await world.registry.register(ref(f"t{n}"), issuance=False)
            assert (await world.record(f"t{n}")).attempts == 0

        await asyncio.gather(*(works(n) for n in range(60)))
        assert len((await world.ledger.peek(0, 100)).due) == 60
        await store.aclose()


class TestCancelledCalls:
    @pytest.mark.parametrize("turns", range(6))
    async def test_they_harm_neither_the_others_nor_those_that_come_after(
        self, near: World, turns: int
    ) -> None:
        """Whether or not the step is done: sent or not, its caller has gone."""
        calls = [
            asyncio.create_task(near.registry.register(ref(f"t{n}"), issuance=False))
            for n in range(5)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        calls[2].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        others = [a for n, a in enumerate(answers) if n != 2]
        assert [type(a).__name__ for a in others] == ["CheckpointRef"] * 4
        assert (await near.registry.register(ref("t2"), issuance=False)).thread_id == "t2"
        assert len((await near.ledger.peek(0, 100)).due) == 5

    async def test_a_cancelled_acquire_leaves_no_lease(self, near: World) -> None:
        await registered(near)

        async def locks() -> None:
            async with near.registry.migration_lock("t", "c1"):
                pytest.fail("it was cancelled before")

        for turns in range(5):
            task = asyncio.create_task(locks())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await near.store.scripts.settle()
            assert not await near.store.client.exists(near.store.keys.lease("t", "c1"))
            assert (await near.record()).attempts == 0
