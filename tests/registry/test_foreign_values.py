"""Whatever lies on a lease's key: who does not hold it neither prolongs nor removes it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.passes.world import PARTITIONS, World, ref

from checkpointd.domain.refs import Lease
from checkpointd.registry.keys import member
from checkpointd.registry.store import Store

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()
MINE, OTHER = "a" * 32, "b" * 32
TTL_MS, LEFT_MS = 15_000, 5_000
STEPS = ("renew", "release", "release_tokens")

VALUES = st.one_of(
    st.none(),
    st.builds(
        "{}:{}".format,
        st.integers(1, 12),
        st.sampled_from([MINE, OTHER, MINE[:-1], MINE + "a", "", f":{MINE}", "é"]),
    ),
    st.sampled_from([MINE, OTHER, "", ":"]),
    st.text(max_size=40),
)
"""What an earlier holder, a failover or a stranger may have left there."""


@contextmanager
def a_world(url: str) -> Iterator[tuple[asyncio.Runner, World]]:
    """One for all examples: what they differ in is the value of the key."""
    with asyncio.Runner() as runner:
        name = f"foreign-{next(_NUMBERS)}"
        store = runner.run(Store.open(url, namespace=name, partitions=PARTITIONS))
        try:
            yield runner, World(store)
        finally:
            runner.run(store.aclose())


async def taken(world: World) -> Lease:
    await world.registry.register(ref())
    await world.freeze()
    claim = await world.ledger.claim(
        world.store.keys.index("t"), [("t", "c1", MINE)], most=1, max_attempts=9
    )
    return claim.leases[0]


class TestAForeignValue:
    def test_is_touched_by_neither_renewal_nor_release(self, redis_server: Any) -> None:
        with a_world(redis_server.url) as (runner, world):
            lease = runner.run(taken(world))
            record = runner.run(world.record())

            @given(value=VALUES, step=st.sampled_from(STEPS))
            def is_left_alone(value: str | None, step: str) -> None:
                runner.run(self.step(world, lease, value, step))
                if value is None or MINE not in value:
                    assert runner.run(world.record()) == record

            is_left_alone()

    async def step(self, world: World, lease: Lease, value: str | None, step: str) -> None:
        client, key = world.store.client, world.store.keys.lease("t", "c1")
        thread = world.store.keys.thread("t")
        before = await client.hgetall(thread)
        await client.delete(key)
        if value is not None:
            await client.set(key, value, px=LEFT_MS)
        match step:
            case "renew":
                did, mine = await world.ledger.renew(lease), value == lease.value
            case "release":
                did, mine = await world.ledger.release(lease), value == lease.value
            case _:
                did = await world.ledger.release_tokens([("t", "c1", MINE)]) == 1
                fence, colon, token = (value or "").partition(":")
                mine = value is not None and (token if colon else fence) == MINE
        assert did == mine
        left, ttl_ms = await client.get(key), await client.pttl(key)
        if not mine:
            assert left == (None if value is None else value.encode())
            assert value is None or 0 < ttl_ms <= LEFT_MS
        elif step == "renew":
            assert left == lease.value.encode()
            assert LEFT_MS < ttl_ms <= TTL_MS
        else:
            assert left is None
        # The next example begins where this one did.
        await client.hset(thread, mapping=before)
        due = world.store.keys.of("t").due
        await client.zadd(due, {member("t", "c1"): 1})
