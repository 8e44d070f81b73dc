"""Overdue refs: against a bare script, and with a hundred times as many settled refs beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import redis.asyncio as aioredis

from benchmarks.figures import Figure, in_turns, median, quantile, ratios
from benchmarks.loading import CREATED_US, expired_again, overdue, send, settled
from benchmarks.servers import client_of, url_of
from checkpointd.domain.states import CRASH_EXPIRY_REASON
from checkpointd.passes.reconcile import Reconcile
from checkpointd.registry.control import Control
from checkpointd.registry.expiry import BATCH, Expiry
from checkpointd.registry.keys import split_member
from checkpointd.registry.scripts import Arg
from checkpointd.registry.store import Store

REFS = 10_000
SETTLED = 10_000
TIMES = 100
GRACE = timedelta(hours=1)

SLOW_US = 500
"""What the server logs as slow: every script of a whole batch, and nothing that loads."""

BARE = """
local done = 0
for i = 2, #KEYS do
  if redis.call('HGET', KEYS[i], 'state') == 'open' then
    redis.call('HSET', KEYS[i], 'state', 'expired')
    redis.call('ZREM', KEYS[1], ARGV[i - 1])
    done = done + 1
  end
end
return done
"""
"""A peek's members, checked and set, and nothing of ours: no reason, time, counter or audit, and
no word on which of them it was."""


class Registry:
    """A registry on one database of the server, and a pass over the overdue refs put into it."""

    def __init__(self, store: Store, path: str, db: int) -> None:
        self.store, self.path, self.db = store, path, db
        self._lots = count()

    @classmethod
    async def opened(cls, path: str, db: int, *, settled_refs: int = 0) -> Registry:
        """The registry, founded on an empty database, with so many settled refs in it."""
        registry = cls(await Store.open(url_of(path, db)), path, db)
        send(path, settled(registry.store.keys, settled_refs), db=db)
        return registry

    @contextmanager
    def filled(self, refs: int) -> Iterator[None]:
        """So many overdue refs for the length of the body, and their remains taken away again."""
        lot = next(self._lots)
        threads = [f"overdue-{lot}-{i}" for i in range(refs)]
        send(self.path, overdue(self.store.keys, threads), db=self.db)
        yield
        send(self.path, expired_again(self.store.keys, threads), db=self.db)

    async def pass_s(self, refs: int = REFS) -> float:
        """How long one reconcile pass takes to expire so many, all that is around it included."""
        reconcile = Reconcile(
            Expiry(self.store),
            Control(self.store),
            grace=GRACE,
            max_expiries=refs,
            replica="bench",
        )
        with self.filled(refs):
            began = time.perf_counter()
            report = await reconcile.run()
            took_s = time.perf_counter() - began
        assert len(report.expired) == refs, f"{len(report.expired)} of {refs} expired"
        return took_s

    async def steps_s(self, refs: int = REFS) -> float:
        """How long the steps of such a pass take by themselves: each peek, and each script."""
        store = self.store
        expiry = Expiry(store)
        grace_us, done = int(GRACE.total_seconds() * 1_000_000), 0
        with self.filled(refs):
            began = time.perf_counter()
            for partition in range(expiry.partitions):
                while True:
                    members = await expiry.due_in(
                        partition, limit_us=CREATED_US, skip=0, most=BATCH
                    )
                    if not members:
                        break
                    threads = [store.keys.thread(split_member(m)[0]) for m in members]
                    args: list[Arg] = [grace_us, "bench", CRASH_EXPIRY_REASON, *members]
                    answers = await store.at(partition, "expire_overdue", threads, args)
                    done += sum(answer[:1] in b"kl" for answer in answers[1:])
                    if len(members) < BATCH:
                        break
            took_s = time.perf_counter() - began
        assert done == refs, f"the steps expired {done} of {refs}"
        return took_s

    async def script_times(self, refs: int) -> list[float]:
        """The time of each expire script in a pass, as its caller sees it, in milliseconds."""
        took: list[float] = []
        expiry = Expiry(self.store)
        run = self.store.scripts.run

        async def timed(name, keys, args):  # type: ignore[no-untyped-def] # as the method it wraps
            began = time.perf_counter()
            reply = await run(name, keys, args)
            if name == "expire_overdue":
                took.append((time.perf_counter() - began) * 1000)
            return reply

        with self.filled(refs):
            self.store.scripts.run = timed  # type: ignore[method-assign] # a stop-watch, taken off
            try:
                now = await expiry.now()
                for partition in range(expiry.partitions):
                    async for _ in expiry.expire_overdue(
                        partition, now=now, grace=GRACE, actor="bench", reason="bench"
                    ):
                        pass
            finally:
                self.store.scripts.run = run  # type: ignore[method-assign]
        return took


class Bare:
    """The same refs as a hash a thread and an index a partition, and the script over them."""

    def __init__(self, path: str, db: int, partitions: int) -> None:
        self.path, self.db, self.partitions = path, db, partitions
        self.client = aioredis.Redis(unix_socket_path=path, db=db)

    async def pass_s(self, refs: int = REFS) -> float:
        """How long the bare script takes to expire so many, in batches of ours."""
        send(self.path, self._overdue(refs), db=self.db)
        sha = await self.client.script_load(BARE)
        began, done = time.perf_counter(), 0
        for partition in range(self.partitions):
            index = f"{{{partition}}}:open"
            while True:
                members: list[Any] = await self.client.zrangebyscore(
                    index, "-inf", 1, start=0, num=BATCH
                )
                if not members:
                    break
                threads = [f"{{{partition}}}:{m.decode()}" for m in members]
                done += await self.client.evalsha(sha, 1 + len(threads), index, *threads, *members)
                if len(members) < BATCH:
                    break
        took_s = time.perf_counter() - began
        assert done == refs, f"the bare script did {done} of {refs}"
        await self.client.flushdb()
        return took_s

    def _overdue(self, refs: int) -> Iterator[tuple[str | int, ...]]:
        for i in range(refs):
            partition = i % self.partitions
            yield ("HSET", f"{{{partition}}}:overdue-{i}", "state", "open")
            yield ("ZADD", f"{{{partition}}}:open", 1, f"overdue-{i}")


async def measured(path: str, *, rounds: int, large: int = SETTLED * TIMES) -> list[Figure]:
    """The three figures of expiry."""
    small = await Registry.opened(path, 1, settled_refs=SETTLED)
    began = time.perf_counter()
    big = await Registry.opened(path, 2, settled_refs=large)
    loaded_s = time.perf_counter() - began
    bare = Bare(path, 3, small.store.keys.partitions)
    try:
        took = await in_turns(
            {
                "steps": small.steps_s,
                "bare": bare.pass_s,
                "pass": small.pass_s,
                "large": big.pass_s,
            },
            rounds=rounds,
        )
        shares = ratios(took["bare"], took["pass"])
        steps = ratios(took["bare"], took["steps"])
        growth = ratios(took["large"], took["pass"])
        seen = [ms for _ in range(3) for ms in await small.script_times(40 * BATCH)]
        with client_of(path) as client:
            client.config_set("slowlog-log-slower-than", SLOW_US)
            client.config_set("slowlog-max-len", 10_000)
            client.slowlog_reset()
            for _ in range(3):
                await small.script_times(40 * BATCH)
            inside = _script_ms(client)
            client.config_set("slowlog-log-slower-than", -1)
    finally:
        await bare.client.aclose()
        for registry in (small, big):
            with client_of(path, registry.db) as client:
                client.flushdb()
            await registry.store.aclose()
    rate = {name: round(REFS / median(times)) for name, times in took.items()}
    return [
        Figure(
            name="expiry, a whole pass with its report, as a share of the bare script's rate",
            value=median(shares),
            keeps=">=",
            target=0.5,
            unit="x",
            rounds=shares,
            facts={
                "refs_a_second": rate["pass"],
                "bare_refs_a_second": rate["bare"],
                "peeks_and_scripts_alone_refs_a_second": rate["steps"],
                "peeks_and_scripts_alone_share": round(median(steps), 3),
            },
        ),
        Figure(
            name=f"p99 of an expiry script of {BATCH} refs, in the server (its slow log)",
            value=quantile(inside, 0.99),
            keeps="<",
            target=5.0,
            unit="ms",
            rounds=[median(inside), max(inside)],
            facts={
                "scripts": len(inside),
                "at_the_caller_median_ms": round(median(seen), 3),
                "at_the_caller_p99_ms": round(quantile(seen, 0.99), 3),
            },
        ),
        Figure(
            name=f"{REFS:,} expiries beside {large:,} settled refs, against {SETTLED:,}",
            value=median(growth),
            keeps="<=",
            target=1.3,
            unit="x",
            rounds=growth,
            facts={
                "refs_a_second": rate["large"],
                "loaded_in_s": round(loaded_s, 1),
                "settled_refs": large,
            },
        ),
    ]


def _script_ms(client) -> list[float]:  # type: ignore[no-untyped-def] # redis-py types it loosely
    """What the server's slow log says of each script of a whole batch, in milliseconds."""
    entries = client.slowlog_get(10_000)
    return [
        entry["duration"] / 1000
        for entry in entries
        if entry["command"].upper().startswith(b"EVALSHA")
    ]
