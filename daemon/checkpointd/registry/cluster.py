"""A cluster as one client: each command to the primary of its slot, several in one round trip a node.

redis-py's own cluster client is not used for this, for what it was seen to do on 8.1: it sends
ASKING and the command it is meant for on two connections of its pool; it closes the connections
of all other tasks when one of them meets a moved slot or a lost node; its pools fail where they
should wait; and a pipeline without retries never learns that a primary has gone. Its connections,
pools, parsers and slot arithmetic are.

What a node says decides what happens to a command:

``MOVED``, ``ASK``           not done: sent to the node that was named, ASKING on the same connection
``TRYAGAIN``, ``CLUSTERDOWN``  not done: sent again after a pause, a few times; then it is the answer
no answer                    not known: for reads sent again, for others it is the answer; either
                             way the map of the slots is read anew before the next command
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import redis.asyncio as aioredis
import redis.exceptions as rx
from redis.commands import AsyncCoreCommands
from redis.crc import key_slot
from typing_extensions import override

Address = tuple[str, int]
Command = tuple[Any, ...]
NodeMaker = Callable[[Address], aioredis.Redis]

SLOTS = 16384

KEYLESS = frozenset({"TIME", "INFO", "PING", "ACL", "CONFIG", "CLUSTER", "COMMAND", "CLIENT"})

TURNS = 6
"""How often a command is sent where nodes send it elsewhere or ask for patience."""

PAUSE_S = 0.02
"""Before it is sent again to a node that asked for patience; doubled each time: 0.6 s in all."""

NOT_DONE_YET = (rx.TryAgainError, rx.ClusterDownError, rx.ReadOnlyError)
LOST = (rx.ConnectionError, rx.TimeoutError, OSError, TimeoutError)


class Cluster(AsyncCoreCommands):  # the commands by name; all end in ``execute_command``
    """Sends commands where they belong. All keys of a command share a slot.

    ``seeds`` are asked for the map while no node of it answers; ``node`` makes the client of one
    node; ``retries`` is how often a command that got no answer is sent again.
    """

    _event_dispatcher: Any = None  # the commands declare it, and none that is used here asks it

    def __init__(self, seeds: Sequence[Address], node: NodeMaker, *, retries: int) -> None:
        self._seeds = tuple(seeds)
        self._make = node
        self._retries = retries
        self._nodes: dict[Address, aioredis.Redis] = {}
        self._owners: list[Address | None] = []
        """The primary of each slot, ``None`` if no node serves it; empty until the map was read."""
        self._silent: set[Address] = set()
        """Nodes that did not answer since the map was read."""
        self._stale = True
        self._reading: asyncio.Task[None] | None = None

    # Commands ------------------------------------------------------------------------------------

    @override
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """One command's reply. ``target_nodes`` is not needed and not heeded."""
        options.pop("target_nodes", None)
        (reply,) = await self.many([args], **options)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def many(self, commands: Sequence[Command], **options: Any) -> list[Any]:
        """A reply or an exception for each command, in one round trip a node where all goes well."""
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        asking: dict[int, Address] = {}
        retries, pause_s = self._retries, PAUSE_S
        for turn in range(1, TURNS + 1):
            try:
                await self._know()
            except (rx.RedisError, *LOST) as error:
                for i in left:
                    replies[i] = error
            else:
                await self._one_turn(commands, left, asking, replies, options)
            asking = self._redirected(commands, left, replies)
            impatient = [i for i in left if isinstance(replies[i], NOT_DONE_YET)]
            lost = [i for i in left if _is_lost(replies[i])]
            self._stale |= bool(impatient or lost)
            again = impatient + [i for i in left if isinstance(replies[i], rx.AskError)]
            if lost and retries > 0:
                retries -= 1
                again += lost
            left = sorted(again)
            if not left or turn == TURNS:
                break
            if impatient or lost:
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - spreads clients
                pause_s *= 2
        return replies

    async def _one_turn(
        self,
        commands: Sequence[Command],
        left: Iterable[int],
        asking: dict[int, Address],
        replies: list[Any],
        options: dict[str, Any],
    ) -> None:
        lots: dict[Address, list[int]] = {}
        for i in left:
            address = asking.get(i) or self._owner(commands[i])
            if address is None:
                replies[i] = rx.ClusterDownError("CLUSTERDOWN no node serves this slot")
            else:
                lots.setdefault(address, []).append(i)
        answers = await asyncio.gather(
            *(
                self._ask(address, [commands[i] for i in lot], [i in asking for i in lot], options)
                for address, lot in lots.items()
            )
        )
        for lot, got in zip(lots.values(), answers, strict=True):
            for i, reply in zip(lot, got, strict=True):
                replies[i] = reply

    async def _ask(
        self,
        address: Address,
        commands: Sequence[Command],
        asking: Sequence[bool],
        options: dict[str, Any],
    ) -> list[Any]:
        """One node's answers, on one connection."""
        client = self._node(address)
        try:
            if len(commands) == 1 and not asking[0]:
                return [await _sent(client, *commands[0], **options)]
            async with client.pipeline(transaction=False) as pipe:
                for command, first in zip(commands, asking, strict=True):
                    if first:
                        pipe.execute_command("ASKING")
                    pipe.execute_command(*command, **options)
                got = iter(await pipe.execute(raise_on_error=False))
        except (rx.RedisError, *LOST) as error:
            if _is_lost(error):
                self._silent.add(address)
            return [error for _ in commands]
        return [(next(got), next(got))[1] if first else next(got) for first in asking]

    def _redirected(
        self, commands: Sequence[Command], left: Iterable[int], replies: list[Any]
    ) -> dict[int, Address]:
        """Learn from MOVED, and say where ASK sends a command this once."""
        asking: dict[int, Address] = {}
        for i in left:
            reply = replies[i]
            if isinstance(reply, rx.MovedError):
                # Just this slot: a map read now may come from a node that has not heard of it.
                self._owners[reply.slot_id] = (reply.host, reply.port)
            elif isinstance(reply, rx.AskError):
                asking[i] = (reply.host, reply.port)
        return asking

    def _owner(self, command: Command) -> Address | None:
        name = str(command[0]).split(" ", 1)[0]
        if name in KEYLESS:
            return random.choice(self.primaries)  # noqa: S311 - any will do
        key = command[3] if name in ("EVAL", "EVALSHA") else command[1]
        return self._owners[key_slot(key if isinstance(key, bytes) else str(key).encode())]

    # The map -------------------------------------------------------------------------------------

    @property
    def primaries(self) -> tuple[Address, ...]:
        """Each node that serves slots, once."""
        return tuple(dict.fromkeys(owner for owner in self._owners if owner))

    async def _know(self) -> None:
        """Read the map if it is not known or doubted; one reading serves all who wait."""
        if not self._stale:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_map(), name="cluster-map")
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._reading)

    async def _read_map(self) -> None:
        """Ask node after node, those that failed last; the first full map is taken, else the fullest."""
        self._stale = False
        told: Exception = rx.ConnectionError("no node of the cluster answers")
        fullest: list[Address | None] = []
        known = [*self.primaries, *self._nodes, *self._seeds]
        random.shuffle(known)
        for address in sorted(dict.fromkeys(known), key=self._silent.__contains__):
            try:
                slots = await _sent(self._node(address), "CLUSTER SLOTS")
            except (rx.RedisError, *LOST) as error:
                told = error
                continue
            fullest = max(
                fullest,
                _owners(slots, address),
                key=lambda owners: len(owners) - owners.count(None),
            )
            if None not in fullest:
                break
        self._silent.clear()
        if any(fullest):
            self._owners = fullest
            await self._let_go()
        else:
            self._stale = True
            raise told if not fullest else rx.ClusterDownError("CLUSTERDOWN no node serves slots")

    def _node(self, address: Address) -> aioredis.Redis:
        if address not in self._nodes:
            self._nodes[address] = self._make(address)
        return self._nodes[address]

    async def _let_go(self) -> None:
        """Close what is idle to nodes that serve no slots any more."""
        for address in set(self._nodes) - set(self._owners):
            await self._nodes[address].connection_pool.disconnect(inuse_connections=False)

    # All nodes -----------------------------------------------------------------------------------

    @override
    async def scan_iter(  # type: ignore[override] # redis-py's own are two that disagree
        self, *, match: str, count: int
    ) -> AsyncIterator[Any]:
        """Every key of every primary; ``TryAgainError`` if slots moved meanwhile.

        A key that moves behind a walk's back may be missed, and whoever counts by a walk would
        count wrong.
        """
        self._stale = True
        await self._know()
        before = await self._layout()
        for address in self.primaries:
            async for key in self._node(address).scan_iter(match=match, count=count):
                yield key
        self._stale = True
        await self._know()
        if await self._layout() != before:
            raise rx.TryAgainError("TRYAGAIN slots moved while the keys were walked")

    async def _layout(self) -> tuple[Address | None, ...]:
        """Who owns what; ``TryAgainError`` while any slot is on its way."""
        for address in self.primaries:
            told = await _sent(self._node(address), "CLUSTER NODES")
            if any(node["migrations"] for node in told.values()):
                raise rx.TryAgainError("TRYAGAIN slots are moving, and the keys cannot be walked")
        return tuple(self._owners)

    async def drop_idle(self) -> None:
        """Close idle connections, and doubt the map."""
        self._stale = True
        for client in tuple(self._nodes.values()):
            await client.connection_pool.disconnect(inuse_connections=False)

    async def aclose(self) -> None:
        """Close every connection. Again: nothing."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        for client in tuple(self._nodes.values()):
            await client.aclose()
            await client.connection_pool.disconnect()


async def _sent(client: aioredis.Redis, *command: Any, **options: Any) -> Any:
    return await client.execute_command(*command, **options)  # type: ignore[no-untyped-call]


def _is_lost(reply: Any) -> bool:
    """Whether nobody answered. A refusal by name is an answer, whatever redis-py derives it from."""
    return isinstance(reply, LOST) and not getattr(reply, "status_code", None)


def _owners(slots: Any, asked: Address) -> list[Address | None]:
    """The primary of each slot, from ``CLUSTER SLOTS``; without a host it is the one asked."""
    owners: list[Address | None] = [None] * SLOTS
    for first, last, (host, port, *_), *_ in slots:
        told = host.decode() if isinstance(host, bytes) else str(host or "")
        address = (told if told not in ("", "?") else asked[0], int(port))
        owners[first : last + 1] = [address] * (last + 1 - first)
    return owners
