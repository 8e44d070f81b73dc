"""What the client does with a store that says no, says nothing, or has no connection to spare."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import redis

from checkpointd.app.daemon import Daemon
from checkpointd.domain.errors import StoreError, StoreRefusedError, StoreUnreachableError
from checkpointd.domain.refusals import REFUSALS, refusal_of
from checkpointd.registry.connect import Connecting
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

from .conftest import bundled_server, installed_server, oldest_server
from .drains import a_world, drain_through
from .proxy import Line, mute_port
from .servers import ClusterOfNodes, Node, Watched, free_port, wait_until
from .whole import settings_for

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()
SERVERS = {"oldest": oldest_server, "installed": installed_server, "valkey": bundled_server}


def url_of(node: Node) -> str:
    return f"redis://127.0.0.1:{node.port}"


# Refusals -----------------------------------------------------------------------------------------


@dataclass
class Trouble:
    """A server in a state in which it refuses, and how it is brought out of it."""

    node: Node
    cure: Callable[[], object]
    reads_too: bool = False


@contextmanager
def no_replicas(binary: str) -> Iterator[Trouble]:
    with Node(binary=binary) as node:
        node.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        yield Trouble(node, lambda: node.ask("CONFIG", "SET", "min-replicas-to-write", 0))


@contextmanager
def read_only(binary: str) -> Iterator[Trouble]:
    with Node(binary=binary) as primary, Node(binary=binary) as node:
        node.ask("REPLICAOF", "127.0.0.1", primary.port)
        yield Trouble(node, lambda: node.ask("REPLICAOF", "NO", "ONE"))


@contextmanager
def primary_down(binary: str) -> Iterator[Trouble]:
    with Node(("--replica-serve-stale-data", "no"), binary=binary) as node:
        node.ask("REPLICAOF", "127.0.0.1", free_port())
        yield Trouble(node, lambda: node.ask("REPLICAOF", "NO", "ONE"), reads_too=True)


@contextmanager
def full(binary: str) -> Iterator[Trouble]:
    with Node(binary=binary) as node:
        node.ask("CONFIG", "SET", "maxmemory", "1")
        yield Trouble(node, lambda: node.ask("CONFIG", "SET", "maxmemory", "0"))


@contextmanager
def busy(binary: str) -> Iterator[Trouble]:
    with Node(("--lua-time-limit", "20"), binary=binary) as node:

        def spin() -> None:
            with redis.Redis(port=node.port) as client, contextlib.suppress(redis.RedisError):
                client.eval("while true do end", 0)

        spinning = threading.Thread(target=spin)
        spinning.start()
        wait_until(lambda: _says(node, "BUSY"), "the busy script")
        yield Trouble(node, lambda: node.ask("SCRIPT", "KILL"), reads_too=True)
        with contextlib.suppress(redis.RedisError):
            node.ask("SCRIPT", "KILL")
        spinning.join(5)


def _says(node: Node, word: str) -> bool:
    try:
        node.ask("GET", "x")
    except redis.RedisError as error:
        return word in f"{error.status_code} {error}"
    return False


@contextmanager
def loading(binary: str) -> Iterator[Trouble]:
    with Node(binary=binary) as node:
        with redis.Redis(port=node.port) as client:
            client.mset({f"k{n}": "v" * 64 for n in range(3_000)})
            client.save()
        node.kill()
        node.options = (
            "--key-load-delay",
            "500",
            "--loading-process-events-interval-bytes",
            "1024",
        )
        node.start(wait=False)
        wait_until(lambda: _says(node, "LOADING"), "the reading of its data")

        yield Trouble(node, lambda: None, reads_too=True)


@contextmanager
def guarded(binary: str) -> Iterator[Trouble]:
    with Node(binary=binary) as node:
        node.ask("CONFIG", "SET", "requirepass", "p")
        node.login = {"password": "p"}
        yield Trouble(node, lambda: node.ask("CONFIG", "SET", "requirepass", ""), reads_too=True)


@contextmanager
def denied(binary: str) -> Iterator[Trouble]:
    with Node(binary=binary) as node:
        node.ask("ACL", "SETUSER", "hand", "on", ">h", "+@all", "~*", "&*")
        node.login = {"username": "hand", "password": "h"}
        node.ask("ACL", "SETUSER", "default", "-hset")
        yield Trouble(node, lambda: node.ask("ACL", "SETUSER", "default", "+@all"))


TROUBLES: dict[str, tuple[Callable[[str], Any], bool]] = {
    "NOREPLICAS": (no_replicas, True),
    "READONLY": (read_only, True),
    "MASTERDOWN": (primary_down, True),
    "BUSY": (busy, True),
    "LOADING": (loading, True),
    "OOM": (full, False),
    "NOAUTH": (guarded, False),
    "NOPERM": (denied, False),
}


class TestARefusal:
    @pytest.mark.parametrize(
        ("word", "server"),
        # A Redis 6.2 could not be slowed down in its loading, so it is not seen at it.
        [(w, s) for w in TROUBLES for s in SERVERS if (w, s) != ("LOADING", "oldest")],
    )
    async def test_is_named_classed_and_over_when_its_cause_is(
        self, word: str, server: str
    ) -> None:
        trouble_of, transient = TROUBLES[word]
        with trouble_of(SERVERS[server]()) as trouble:
            store = Store(Connecting(url=url_of(trouble.node)), namespace="n", partitions=2)
            try:
                asked: list[Callable[[], Any]] = []
                if (word, server) != ("NOREPLICAS", "oldest"):  # 6.2 lets scripts pass
                    asked.append(lambda: store.claim_place(environment="default"))
                if word != "MASTERDOWN":  # a plain write is told READONLY before that
                    asked.append(lambda: store.write(lambda c: c.hset("{n:x}", "f", "1")))
                if trouble.reads_too:
                    asked.append(lambda: store.read(lambda c: c.hgetall("{n:x}")))
                    asked.append(lambda: store.read_many([("HGETALL", "{n:x}")] * 2))
                for ask in asked:
                    with pytest.raises(StoreRefusedError, match=word) as refused:
                        await ask()
                    assert refused.value.word == word
                    assert refused.value.transient == transient
                await asyncio.to_thread(trouble.cure)
                await self._recovers(store)
            finally:
                await store.aclose()

    @staticmethod
    async def _recovers(store: Store) -> None:
        async with asyncio.timeout(10):
            while True:
                try:
                    await store.claim_place(environment="default")
                except StoreError:
                    await asyncio.sleep(0.05)
                else:
                    return

    async def test_of_an_unknown_user_or_password_is_for_a_person(self) -> None:
        with guarded(installed_server()) as trouble:
            how = Connecting(url=url_of(trouble.node), password=lambda: "not-it")
            with pytest.raises(StoreRefusedError, match="WRONGPASS") as refused:
                await Store.open(how)
        assert not refused.value.transient
        assert "not-it" not in str(refused.value)

    async def test_for_want_of_slots_is_transient(self) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        with Node(options, binary=installed_server()) as node:
            node.ask("CLUSTER", "ADDSLOTS", *range(100))
            with pytest.raises(StoreRefusedError, match="CLUSTERDOWN") as refused:
                await Store.open(f"redis+cluster://127.0.0.1:{node.port}")
        assert refused.value.transient

    async def test_for_want_of_connections_is_transient(self) -> None:
        with (
            Node(("--maxclients", "1"), binary=installed_server()) as node,
            redis.Redis(port=node.port) as client,
        ):
            client.ping()
            with pytest.raises(StoreRefusedError, match="MAXCLIENTS") as refused:
                await Store.open(url_of(node))
        assert refused.value.transient

    def test_that_is_about_one_command_only_is_none_of_the_stores(self) -> None:
        assert refusal_of("WRONGTYPE Operation against a key holding the wrong kind").word == ""
        assert refusal_of("ERR the OOM of something else").word == "OOM"
        assert all(refusal_of(f"{word} told so").word == word for word in REFUSALS)


class TestAPausedDrain:
    async def test_spends_no_attempt_while_the_store_refuses(self) -> None:
        """NOREPLICAS comes and goes in mid-drain; nothing is quarantined, all is migrated."""
        with Node(binary=installed_server()) as node:

            async def hiccup() -> None:
                for count in (1, 0, 1, 0):
                    node.ask("CONFIG", "SET", "min-replicas-to-write", count)
                    await asyncio.sleep(0.4)

            async with a_world(url_of(node)) as world:
                await drain_through(world, happens=hiccup)
                records = [await world.registry.records_of(t) for t in world.replayer.threads]
        assert max(r.attempts for lot in records for r in lot) == 1


# Readiness ----------------------------------------------------------------------------------------


class TestReadiness:
    @pytest.mark.parametrize("word", ["NOREPLICAS", "READONLY", "OOM", "NOPERM"])
    async def test_follows_what_the_store_takes(
        self, monkeypatch: pytest.MonkeyPatch, word: str
    ) -> None:
        """A store that can be read and not written is no store to be ready with."""
        monkeypatch.setattr("checkpointd.app.daemon.CENSUS_EVERY", timedelta(milliseconds=200))
        switches: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
            "NOREPLICAS": (
                ("CONFIG", "SET", "min-replicas-to-write", 1),
                ("CONFIG", "SET", "min-replicas-to-write", 0),
            ),
            "READONLY": (("REPLICAOF", "127.0.0.1", free_port()), ("REPLICAOF", "NO", "ONE")),
            "OOM": (("CONFIG", "SET", "maxmemory", 1), ("CONFIG", "SET", "maxmemory", 0)),
            "NOPERM": (
                ("ACL", "SETUSER", "daemon", "-hset"),
                ("ACL", "SETUSER", "daemon", "+@all"),
            ),
        }
        with Node(binary=installed_server()) as node:
            node.ask("ACL", "SETUSER", "daemon", "on", ">d", "+@all", "~*")
            settings = settings_for(
                f"redis://daemon:d@127.0.0.1:{node.port}",
                endpoint__listen="127.0.0.1:0",
                source__url="",
            )
            started: asyncio.Queue[str] = asyncio.Queue()
            daemon = Daemon(settings, actor="test", on_started=started.put_nowait)
            running = asyncio.create_task(daemon.run(), name="daemon")
            address = await asyncio.wait_for(started.get(), 10)
            breaks, heals = switches[word]
            await _page_says(address, "the store answers")
            node.ask(*breaks)
            await _page_says(address, word)
            node.ask(*heals)
            await _page_says(address, "the store answers")
            daemon.stop()
            await running


async def _page_says(address: str, what: str) -> None:
    async with asyncio.timeout(10):
        while what not in await asyncio.to_thread(_page, f"{address}/readyz?verbose"):  # noqa: ASYNC110 - a page has no event to wait on
            await asyncio.sleep(0.05)


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - of our own
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())


# Connections --------------------------------------------------------------------------------------


class TestAPoolSmallerThanTheTasks:
    @pytest.mark.parametrize("kind", ["alone", "cluster", "sentinel"])
    async def test_makes_them_wait_and_fails_none(
        self, kind: str, request: pytest.FixtureRequest
    ) -> None:
        fixture = {"alone": "installed", "cluster": "clustered", "sentinel": "sentinels"}[kind]
        where: Node | ClusterOfNodes | Watched = request.getfixturevalue(fixture)
        url = url_of(where) if isinstance(where, Node) else where.url
        how = Connecting(url=url, max_connections=2, timeout_s=5)
        store = await Store.open(how, namespace=f"pool-{next(_NUMBERS)}", partitions=8)
        registry = RedisRegistry(store, actor="test")
        try:
            seen = await asyncio.gather(
                *(registry.is_authoritative(f"t-{n}", "c") for n in range(200)),
                *(registry.request_replay(f"t-{n}") for n in range(200)),
            )
            assert not any(seen)
        finally:
            await store.aclose()


class TestHalfOpenConnections:
    async def test_cost_one_timeout_for_all_of_them(self, installed: Node) -> None:
        """Eight idle connections whose other end is gone without a word, as after a firewall's nap."""
        port = free_port()
        with Line(port, installed.port) as line:
            how = Connecting(url=f"redis://127.0.0.1:{port}", timeout_s=0.4, read_retries=2)
            store = await Store.open(how, namespace=f"half-{next(_NUMBERS)}", partitions=8)
            keys = [keys.counters for keys in store.keys.all]
            await asyncio.gather(*(store.read(lambda c, k=k: c.hgetall(k)) for k in keys))
            assert line.accepted >= 8
            line.forget()
            began = time.monotonic()
            for key in keys:
                assert await store.read(lambda c, k=key: c.hgetall(k)) == {}
            with pytest.raises(StoreUnreachableError):
                await store.meta("heartbeat", 1, 1)
            await store.meta("heartbeat", 1, 1)
            took_s = time.monotonic() - began
            await store.aclose()
        assert took_s < 4 * 0.4 + 1


class TestAStoreThatNeverAnswers:
    @pytest.mark.parametrize(
        "url",
        [
            "redis://127.0.0.1:{port}",
            "redis://:p@127.0.0.1:{port}",
            "redis+sentinel://127.0.0.1:{port},127.0.0.1:{port}/tended",
            "redis+cluster://127.0.0.1:{port},127.0.0.1:{port}",
        ],
    )
    @pytest.mark.parametrize("found", [True, False], ids=["writing", "reading"])
    async def test_is_given_up_within_five_seconds(self, url: str, *, found: bool) -> None:
        with mute_port() as port:
            began = time.monotonic()
            with pytest.raises(StoreUnreachableError, match="cannot be reached"):
                await Store.open(url.format(port=port), found=found)
            assert time.monotonic() - began < 5
