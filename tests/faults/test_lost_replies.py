"""Replies that never come: an allowance is not exceeded by them, and no error is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.passes.world import KERNEL, World, ref

from checkpointd.domain.errors import StoreUnreachableError
from checkpointd.registry.ledger import unattended

from .conftest import Worlds, a_world
from .proxy import Proxy, Weather


@pytest.fixture
async def proxy(redis_server: Any) -> AsyncIterator[Proxy]:
    made = Proxy(redis_server.path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def far(worlds: Worlds, proxy: Proxy) -> AsyncIterator[World]:
    """A process whose every byte goes through the proxy."""
    async with a_world(f"redis://127.0.0.1:{proxy.port}/0", worlds.namespace) as world:
        yield world


async def _allowed(world: World) -> int:
    return int((await world.control.read()).raw.get("allowed") or 0)


class TestAnAllowance:
    async def test_given_back_with_its_reply_lost_is_given_back_once(
        self, proxy: Proxy, far: World
    ) -> None:
        await far.expiry.allow(count=10, reason="looked at it", actor="me")
        assert await far.expiry.take_allowed(6) == 6
        proxy.lose_replies(1)
        await far.expiry.give_allowed(2)
        assert proxy.replies_lost == 1
        assert await _allowed(far) == 6
        await far.expiry.give_allowed(2)
        assert await _allowed(far) == 8

    async def test_whose_use_nobody_was_told_of_is_not_given_back(
        self, far: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(4):
            await far.registry.register(ref(f"t-{n}", line=KERNEL), finalized=False)
        await far.expiry.allow(count=4, reason="looked at it", actor="me")
        expires = far.expiry.expire_members

        async def unheard(*args: Any, **kwargs: Any) -> Any:
            await expires(*args, **kwargs)
            raise StoreUnreachableError("the test", "the reply is lost for good")

        monkeypatch.setattr(far.expiry, "expire_members", unheard)
        report = await far.reconciling(max_expiries=0).run()
        assert report.troubles
        monkeypatch.undo()
        expired = sum((await far.tally()).expired.values())
        assert expired >= 1
        assert expired + await _allowed(far) <= 4


class TestARelease:
    async def test_that_fails_after_everybody_has_gone_is_nobodys_forgotten_error(
        self, proxy: Proxy, far: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        await far.registry.register(ref("t"))
        async with proxy.under(Weather.CUT), asyncio.timeout(20):
            release = unattended(far.ledger.release_tokens([("t", "c1", "token")]))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(release), 0)
            await asyncio.wait([release])
        del release
        gc.collect()
        assert "never retrieved" not in caplog.text
