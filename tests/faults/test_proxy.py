"""The instrument itself: what the proxy does to the bytes between a client and the store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio as aioredis
import redis.exceptions as rx
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from .proxy import Proxy, Weather

TIMEOUT_S = 0.3


@pytest.fixture
async def proxy(redis_server: Any) -> AsyncIterator[Proxy]:
    made = Proxy(redis_server.path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def far(proxy: Proxy) -> AsyncIterator[aioredis.Redis]:
    """A client that sends nothing twice, behind the proxy."""
    client = aioredis.Redis(port=proxy.port, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0))
    yield client
    await client.aclose()


@pytest.fixture
async def near(redis_server: Any) -> AsyncIterator[aioredis.Redis]:
    client = aioredis.Redis(unix_socket_path=redis_server.path)
    yield client
    await client.aclose()


@pytest.fixture
def key() -> str:
    return f"proxy-{secrets.token_hex(4)}"


class TestTheProxy:
    async def test_loses_one_reply_and_the_request_was_done(
        self, proxy: Proxy, far: aioredis.Redis, near: aioredis.Redis, key: str
    ) -> None:
        await far.ping()
        proxy.lose_replies(1)
        with pytest.raises(rx.ConnectionError):
            await far.incr(key)
        assert await near.get(key) == b"1"
        assert await far.incr(key) == 2
        assert proxy.replies_lost == 1

    async def test_delivers_late_what_its_sender_has_given_up(
        self, proxy: Proxy, far: aioredis.Redis, near: aioredis.Redis, key: str
    ) -> None:
        await far.ping()
        async with proxy.under(Weather.LATE):
            with pytest.raises(rx.TimeoutError):
                await far.incr(key)
            await far.aclose()
            assert await near.get(key) is None
        async with asyncio.timeout(20):
            while await near.get(key) != b"1":  # noqa: ASYNC110 - the store has no event for it
                await asyncio.sleep(0.02)

    async def test_holds_back_only_what_was_meant(
        self, proxy: Proxy, far: aioredis.Redis, key: str
    ) -> None:
        async with proxy.under(Weather.LATE, only=(b"INCR",)):
            assert await far.set(key, 1)
            with pytest.raises(rx.TimeoutError):
                await far.incr(key)
        assert proxy.held_back == 1

    async def test_swallows_for_good_what_falls_into_a_hole(
        self, proxy: Proxy, far: aioredis.Redis, near: aioredis.Redis, key: str
    ) -> None:
        async with proxy.under(Weather.HOLE):
            with pytest.raises(rx.TimeoutError):
                await far.incr(key)
        assert await far.incr(key) == 1

    async def test_cuts_lines_and_lets_them_be_made_again(
        self, proxy: Proxy, far: aioredis.Redis
    ) -> None:
        await far.ping()
        async with proxy.under(Weather.CUT):
            with pytest.raises(rx.ConnectionError):
                await far.ping()
        assert await far.ping()
