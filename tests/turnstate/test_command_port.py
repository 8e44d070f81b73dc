"""What every command port promises: in memory, on a real Redis, in real LangGraph savers."""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from checkpointd.domain.errors import StoreRefusedError, StoreUnreachableError
from checkpointd.turnstate.memory import MemoryCommandPort
from checkpointd.turnstate.ports import CommandPort
from checkpointd.turnstate.redis import RedisCommandPort
from checkpointd.turnstate.saver import LangGraphCommandPort
from checkpointd.turnstate.store import TurnCheckpointStore

THREAD = 'a:b{c}|"d" é👩‍💻'
OTHER_THREAD = 'A:b{c}|"d" é👩‍💻'
KEPT = b'{"version":1,"text":"\\u00e9"}'


class CommandPortContract:
    """What every port promises. Collected only through a subclass."""

    async def test_what_was_never_written_is_none(self, port: CommandPort) -> None:
        assert await port.read_metadata(THREAD, "c1", "turn_state:a") is None

    async def test_what_was_written_is_read_back(self, port: CommandPort) -> None:
        await port.write_metadata(THREAD, "c1", "turn_state:a", KEPT, "run")
        assert await port.read_metadata(THREAD, "c1", "turn_state:a") == KEPT

    async def test_the_same_bytes_again_are_a_success(self, port: CommandPort) -> None:
        for _ in range(3):
            await port.write_metadata(THREAD, "c1", "turn_state:a", KEPT, "run")
        assert await port.read_metadata(THREAD, "c1", "turn_state:a") == KEPT

    async def test_the_same_bytes_of_another_task_are_a_success(self, port: CommandPort) -> None:
        await port.write_metadata(THREAD, "c1", "turn_state:a", KEPT, "run")
        await port.write_metadata(THREAD, "c1", "turn_state:a", KEPT, "another run")
        assert await port.read_metadata(THREAD, "c1", "turn_state:a") == KEPT

    @pytest.mark.parametrize("task_id", ["run", "another run"])
    async def test_other_bytes_replace_the_first_or_are_refused_aloud(
        self, port: CommandPort, task_id: str
    ) -> None:
        await port.write_metadata(THREAD, "c1", "turn_state:a", KEPT, "run")
        try:
            await port.write_metadata(THREAD, "c1", "turn_state:a", b"{}", task_id)
        except StoreRefusedError:
            assert await port.read_metadata(THREAD, "c1", "turn_state:a") == KEPT
        else:
            assert await port.read_metadata(THREAD, "c1", "turn_state:a") == b"{}"

    async def test_two_keys_of_one_task_do_not_overwrite_each_other(
        self, port: CommandPort
    ) -> None:
        await port.write_metadata(THREAD, "c1", "turn_state:a", b"a", "run")
        await port.write_metadata(THREAD, "c1", "turn_state:b", b"b", "run")
        assert await port.read_metadata(THREAD, "c1", "turn_state:a") == b"a"
        assert await port.read_metadata(THREAD, "c1", "turn_state:b") == b"b"

    async def test_threads_and_checkpoints_are_apart(self, port: CommandPort) -> None:
        await port.write_metadata(THREAD, "c1", "turn_state:a", b"1", "run")
        await port.write_metadata(THREAD, "c2", "turn_state:a", b"2", "run")
        await port.write_metadata(OTHER_THREAD, "c1", "turn_state:a", b"3", "run")
        found = [
            await port.read_metadata(thread, checkpoint, "turn_state:a")
            for thread, checkpoint in ((THREAD, "c1"), (THREAD, "c2"), (OTHER_THREAD, "c1"))
        ]
        assert found == [b"1", b"2", b"3"]

    async def test_a_run_without_an_id_can_write(self, port: CommandPort) -> None:
        await port.write_metadata(THREAD, "c1", "turn_state:a", KEPT, "")
        assert await port.read_metadata(THREAD, "c1", "turn_state:a") == KEPT

    async def test_another_process_reads_the_turn_that_this_one_paused(
        self, port: CommandPort, claimed: Any
    ) -> None:
        claims = claimed(thread_id=THREAD, checkpoint_id="c1")
        store = TurnCheckpointStore(port)
        turn = store.stamped_turn({"messages": [{"role": "user", "content": "é👩‍💻\0"}]}, claims)
        assert await store.record(claims, turn)
        assert await store.record_pauses([claims])
        assert await TurnCheckpointStore(port).load(claims) == turn
        assert await TurnCheckpointStore(port).pauses_of(THREAD, "c1") == (claims,)


class TestMemoryPort(CommandPortContract):
    @pytest.fixture
    def port(self) -> CommandPort:
        return MemoryCommandPort()


def hash_of(thread_id: str) -> bytes:
    return b"{turns:%d}:%s" % (zlib.crc32(thread_id.encode()) % 16, thread_id.encode())


@pytest.mark.server
class TestRedisPort(CommandPortContract):
    @pytest.fixture(params=[False, True], ids=["bytes", "decoded"])
    async def client(
        self, redis_server: Any, request: pytest.FixtureRequest
    ) -> AsyncIterator[Redis]:
        redis_server.flush()
        async with Redis.from_url(redis_server.url, decode_responses=request.param) as client:
            yield client

    @pytest.fixture
    def port(self, client: Redis) -> CommandPort:
        return RedisCommandPort(client, hash_of)

    @pytest.fixture
    def look(self, redis_server: Any) -> Iterator[SyncRedis]:
        """What the store holds, seen from outside."""
        with SyncRedis.from_url(redis_server.url) as client:
            yield client

    async def test_a_thread_has_one_hash_beside_the_registrys_keys(
        self, port: CommandPort, look: SyncRedis
    ) -> None:
        await port.write_metadata(THREAD, "c1", "turn_state:a", b"1", "run")
        await port.write_metadata(THREAD, "c2", "turn_state:a", b"2", "run")
        assert look.keys("*") == [hash_of(THREAD)]
        assert look.hgetall(hash_of(THREAD)) == {
            b"c1\x1fturn_state:a": b"1",
            b"c2\x1fturn_state:a": b"2",
        }

    async def test_a_store_that_answers_no_is_named(
        self, port: CommandPort, look: SyncRedis
    ) -> None:
        look.set(hash_of(THREAD), b"not a hash")
        with pytest.raises(StoreRefusedError, match="WRONGTYPE"):
            await port.write_metadata(THREAD, "c1", "turn_state:a", b"1", "run")
        with pytest.raises(StoreRefusedError, match="WRONGTYPE"):
            await port.read_metadata(THREAD, "c1", "turn_state:a")


class TestRedisOutOfReach:
    async def test_a_store_that_is_not_there_is_unreachable(self, tmp_path: Path) -> None:
        async with Redis(
            unix_socket_path=str(tmp_path / "nobody"), retry=Retry(NoBackoff(), 0)
        ) as client:
            port = RedisCommandPort(client, hash_of, where="unix://nobody")
            with pytest.raises(StoreUnreachableError, match="unix://nobody"):
                await port.write_metadata(THREAD, "c1", "turn_state:a", b"1", "run")
            with pytest.raises(StoreUnreachableError):
                await port.read_metadata(THREAD, "c1", "turn_state:a")


def a_checkpoint(checkpoint_id: str) -> Any:
    from langgraph.checkpoint.base import empty_checkpoint

    return {**empty_checkpoint(), "id": checkpoint_id}


PLACES = ((THREAD, "c1"), (THREAD, "c2"), (OTHER_THREAD, "c1"))


def place(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


class SaverContract(CommandPortContract):
    """What a port over a saver promises besides. The fixture ``saver`` has ``PLACES``."""

    @pytest.fixture
    def port(self, saver: Any) -> CommandPort:
        return LangGraphCommandPort(saver)

    async def test_a_write_that_cannot_be_read_back_is_refused(self, port: CommandPort) -> None:
        with pytest.raises(StoreRefusedError, match="does not have that checkpoint"):
            await port.write_metadata(THREAD, "gone", "turn_state:a", b"1", "run")

    async def test_a_turn_at_a_checkpoint_that_is_gone_did_not_land(
        self, port: CommandPort, claimed: Any
    ) -> None:
        claims = claimed(thread_id=THREAD, checkpoint_id="gone")
        store = TurnCheckpointStore(port)
        assert not await store.record(claims, store.stamped_turn({}, claims))

    async def test_values_of_older_builds_are_readable(
        self, port: CommandPort, saver: Any, claimed: Any
    ) -> None:
        config = {"configurable": {"thread_id": THREAD, "checkpoint_ns": "", "checkpoint_id": "c1"}}
        writes = [("ask_user_request:call_1", {"question": "Which?"})]
        try:
            await saver.aput_writes(config, writes, "task")
        except NotImplementedError:
            saver.put_writes(config, writes, "task")
        found = await port.read_metadata(THREAD, "c1", "ask_user_request:call_1")
        assert found == {"question": "Which?"}


class TestInMemorySaverPort(SaverContract):
    @pytest.fixture
    def saver(self) -> Any:
        memory = pytest.importorskip("langgraph.checkpoint.memory")
        saver = memory.InMemorySaver()
        for thread_id, checkpoint_id in PLACES:
            saver.put(place(thread_id), a_checkpoint(checkpoint_id), {}, {})
        return saver


class TestSqliteSaverPort(SaverContract):
    """Has no async verbs: the port goes to its sync ones in a thread."""

    @pytest.fixture
    def saver(self, tmp_path: Path) -> Iterator[Any]:
        sqlite = pytest.importorskip("langgraph.checkpoint.sqlite")
        with sqlite.SqliteSaver.from_conn_string(os.fspath(tmp_path / "s.sqlite")) as saver:
            for thread_id, checkpoint_id in PLACES:
                saver.put(place(thread_id), a_checkpoint(checkpoint_id), {}, {})
            yield saver


class TestAsyncSqliteSaverPort(SaverContract):
    @pytest.fixture
    async def saver(self, tmp_path: Path) -> AsyncIterator[Any]:
        sqlite = pytest.importorskip("langgraph.checkpoint.sqlite.aio")
        path = os.fspath(tmp_path / "s.sqlite")
        async with sqlite.AsyncSqliteSaver.from_conn_string(path) as saver:
            for thread_id, checkpoint_id in PLACES:
                await saver.aput(place(thread_id), a_checkpoint(checkpoint_id), {}, {})
            yield saver


class TestBesideARunningGraph:
    async def test_a_turn_state_does_not_get_in_the_way_of_the_graphs_own_resume(
        self, claimed: Any
    ) -> None:
        graphs = pytest.importorskip("langgraph.graph")
        types = pytest.importorskip("langgraph.types")
        memory = pytest.importorskip("langgraph.checkpoint.memory")
        saver = memory.InMemorySaver()
        builder = graphs.StateGraph(dict)
        builder.add_node("ask", lambda _: {"answer": types.interrupt("Which?")})
        builder.add_edge(graphs.START, "ask")
        graph = builder.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": THREAD}}
        await graph.ainvoke({"question": "?"}, config)
        paused = (await graph.aget_state(config)).config["configurable"]["checkpoint_id"]

        claims = claimed(thread_id=THREAD, checkpoint_id=paused)
        store = TurnCheckpointStore(LangGraphCommandPort(saver))
        assert await store.record(claims, store.stamped_turn({"prompt": "Which?"}, claims))
        assert await graph.ainvoke(types.Command(resume="that one"), config) == {
            "answer": "that one"
        }
        assert (await store.load(claims)).prompt == "Which?"
