"""The store as the rest of the registry sees it: keys, scripts, bounded reads, and whose it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Self

import redis.exceptions as rx

from checkpointd.domain.errors import StoreError, StoreRefusedError, WrongStoreError
from checkpointd.domain.refs import from_us
from checkpointd.registry.connect import (
    Client,
    Connecting,
    close,
    connect,
    drop_idle,
    many,
    where,
)
from checkpointd.registry.keys import Keys
from checkpointd.registry.scripts import Arg, Scripts, classed, leads_elsewhere

SCHEMA = 1
"""The layout that this build writes."""

MIN_READER = 1
"""The oldest schema whose clients may work with a store that this build founds."""


class Store:
    """One registry's place in Redis or Valkey."""

    def __init__(self, how: Connecting, *, namespace: str, partitions: int) -> None:
        self.where = where(how.url)
        self.keys = Keys(namespace, partitions)
        self._reads: Client = connect(how, retried=True)
        self._writes: Client = connect(how, retried=False)
        self.scripts = Scripts(self._writes, self.where)
        self._on_error: Callable[[str], None] = lambda _: None

    @classmethod
    async def open(
        cls,
        how: Connecting | str,
        *,
        namespace: str = "checkpointd",
        partitions: int = 16,
        environment: str = "default",
        found: bool = True,
    ) -> Self:
        """Open the store and see that it is ours; found the registry if there is none.

        ``WrongStoreError`` if it was founded with another number of partitions, for
        another environment, or with a schema that this build cannot work with.
        With ``found=False`` nothing is written, and an empty store is accepted.
        """
        connecting = Connecting(url=how) if isinstance(how, str) else how
        store = cls(connecting, namespace=namespace, partitions=partitions)
        try:
            await store.claim_place(environment=environment, found=found)
        except BaseException:
            await store.aclose()
            raise
        return store

    async def claim_place(self, *, environment: str, found: bool = True) -> None:
        """Compare the store's founding record with ours. Again: the same comparison."""
        keys = self.keys
        if found:
            await self._require_rights()
            raw = await self.meta("meta_create", SCHEMA, MIN_READER, keys.partitions, environment)
        else:
            raw = await self.read(
                lambda c: c.hmget(
                    keys.meta, "schema", "min_reader", "partitions", "environment", "epoch"
                )
            )
            if raw[0] is None:
                return
        schema, min_reader, partitions = (int(x or 0) for x in raw[:3])
        theirs = (raw[3] or b"").decode()
        if min_reader > SCHEMA:
            raise WrongStoreError(
                f"the registry at {self.where} has schema {schema} and needs a client of at "
                f"least {min_reader}, while this build knows {SCHEMA}; upgrade checkpointd here"
            )
        if partitions != keys.partitions:
            raise WrongStoreError(
                f"the registry {keys.namespace!r} at {self.where} was founded with {partitions} "
                f"partitions and registry.partitions asks for {keys.partitions}; set "
                f"registry.partitions = {partitions}, or another registry.namespace"
            )
        if theirs != environment:
            raise WrongStoreError(
                f"the registry {keys.namespace!r} at {self.where} belongs to the environment "
                f"{theirs!r} and registry.environment is {environment!r}; point redis.url to the "
                "right store, or correct registry.environment"
            )

    async def _require_rights(self) -> None:
        """``StoreRefusedError`` if a script would be denied something half-way."""
        denied = await self.meta("rights", turn="rights")
        if denied:
            names = ", ".join(name.decode() for name in denied)
            raise StoreRefusedError(
                "work with its registry", f"NOPERM this user may not run {names}"
            )

    # Scripts -----------------------------------------------------------------------------------

    async def at(
        self, partition: int, name: str, more_keys: Sequence[str], args: Sequence[Arg]
    ) -> Any:
        """Run a partition's script; its seven keys come first."""
        return await self.scripts.run(name, (*self.keys.all[partition], *more_keys), args)

    async def on_thread(self, name: str, thread_id: str, *args: Arg, lease_of: str = "") -> Any:
        """Run a script over a thread, and the lease of one of its refs where it needs it."""
        keys = self.keys
        more = [keys.thread(thread_id)]
        if lease_of:
            more.append(keys.lease(thread_id, lease_of))
        return await self.at(keys.index(thread_id), name, more, args)

    async def meta(self, name: str, *args: Arg, turn: str = "") -> Any:
        """Run a script over the store-wide record."""
        keys = [self.keys.meta, self.keys.meta_audit]
        if turn:
            keys.append(self.keys.turn_of(turn))
        return await self.scripts.run(name, keys, args)

    # Reads -------------------------------------------------------------------------------------

    async def read(self, ask: Callable[[Client], Awaitable[Any]]) -> Any:
        """What a read answers; it may be sent again by the client. Errors as ``Scripts.run``."""
        try:
            return await ask(self._reads)
        except (rx.RedisError, OSError, TimeoutError) as error:
            raise await self._trouble(self._reads, "read", error, "answer a read") from error

    async def _trouble(
        self, client: Client, operation: str, error: Exception, what: str
    ) -> StoreError:
        """Told and classed; and connections that may lead to the wrong server are dropped."""
        self._on_error(operation)
        if leads_elsewhere(error):
            await drop_idle(client)
        return classed(error, self.where, what)

    async def read_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """The answers to many reads, in one round trip a node. Any error fails them all."""

        async def ask(client: Client) -> list[Any]:
            replies = await many(client, commands)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies

        if not commands:
            return []
        replies: list[Any] = await self.read(ask)
        return replies

    async def write(self, ask: Callable[[Client], Awaitable[Any]]) -> Any:
        """Do a single write that is idempotent by itself; it is not sent again."""
        try:
            return await ask(self._writes)
        except (rx.RedisError, OSError, TimeoutError) as error:
            raise await self._trouble(self._writes, "write", error, "take a write") from error

    async def members(self, key: str) -> list[bytes]:
        """All members of an index, in its order."""
        found: list[bytes] = await self.read(lambda c: c.zrange(key, 0, -1))
        return found

    async def now(self) -> datetime:
        """The store's clock, which judges all ages."""
        seconds, micros = await self.time()
        return from_us(seconds * 1_000_000 + micros)

    async def time(self) -> tuple[int, int]:
        """The store's clock as ``TIME`` gives it."""
        seconds, micros = await self.read(lambda c: c.time())
        return int(seconds), int(micros)

    async def threads(self, count: int = 500) -> AsyncIterator[list[str]]:
        """Every thread id, in bounded lots, by SCAN. For verify, export and the recount only.

        A thread may come twice, as SCAN promises; one that is there throughout comes at least once.
        """
        pattern = self.keys.threads_pattern()
        lot: list[str] = []
        scan = self._reads.scan_iter(match=pattern, count=count)
        try:
            async for key in scan:
                lot.append(self.keys.thread_of_key(key))
                if len(lot) >= count:
                    yield lot
                    lot = []
        except (rx.RedisError, OSError, TimeoutError) as error:
            raise await self._trouble(self._reads, "read", error, "walk its keys") from error
        if lot:
            yield lot

    def tell_errors(self, told: Callable[[str], None]) -> None:
        """Tell ``read``, ``write`` or ``lease`` for each call that fails from now on."""
        self._on_error = self.scripts.on_error = told

    @property
    def client(self) -> Client:
        """The client for single writes that are idempotent by themselves (turn states)."""
        return self._writes

    async def info(self, section: str) -> dict[str, Any]:
        """``INFO section``, of one node on a cluster."""
        return dict(await self.read(lambda c: c.info(section)))

    async def ping(self) -> None:
        """Return if the store answers; ``StoreUnreachableError`` if not."""
        await self.time()

    async def aclose(self) -> None:
        """Wait for round trips under way and close both clients. Again: nothing."""
        await self.scripts.settle()
        for client in (self._reads, self._writes):
            await close(client)
