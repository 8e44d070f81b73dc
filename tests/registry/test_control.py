"""The control word: declared once, copied by epoch, in force when all carry it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.passes.world import KERNEL, LEGACY, PARTITIONS, World, many, opened, ref

from checkpointd.domain.errors import IssuanceFrozenError, StoreRefusedError, StoreUnreachableError
from checkpointd.domain.states import PassName
from checkpointd.registry.control import HalfCopiedError, ThawedMeanwhileError

pytestmark = pytest.mark.server

_NUMBERS = itertools.count()


@pytest.fixture
def namespace() -> str:
    return f"control-{next(_NUMBERS)}"


@pytest.fixture
async def world(redis_server: Any, namespace: str) -> AsyncIterator[World]:
    async with opened(redis_server.url, namespace) as made:
        yield made


@pytest.fixture
async def peer(redis_server: Any, namespace: str, world: World) -> AsyncIterator[World]:
    async with opened(redis_server.url, namespace, actor="peer") as made:
        yield made


def failing(world: World, partitions: set[int], error: Exception) -> Any:
    """Let these partitions refuse control copies; return what puts them right again."""
    at = world.store.at

    async def fails(partition: int, name: str, *args: Any) -> Any:
        if partition in partitions and name.startswith("control_"):
            raise error
        return await at(partition, name, *args)

    world.store.at = fails  # type: ignore[method-assign]

    def mend() -> None:
        world.store.at = at  # type: ignore[method-assign]

    return mend


class TestFreeze:
    async def test_every_partition_refuses_when_it_returns(self, world: World, peer: World) -> None:
        await world.freeze()
        refusals = await asyncio.gather(
            *(peer.registry.register(ref(t)) for t in many(20)), return_exceptions=True
        )
        assert {type(r) for r in refusals} == {IssuanceFrozenError}

    async def test_legacy_alone_leaves_the_new_line_open(self, world: World) -> None:
        await world.freeze()
        await world.registry.register(ref(line=KERNEL))
        word = await world.control.read()
        assert word.legacy_frozen
        assert word.freeze is not None
        assert word.freeze.lines == (LEGACY,)

    async def test_a_freeze_of_the_new_line_opens_no_drain(self, world: World) -> None:
        await world.freeze(KERNEL)
        assert not (await world.control.read()).legacy_frozen

    async def test_two_operators_at_once_make_one_freeze(self, world: World, peer: World) -> None:
        await asyncio.gather(world.freeze(), peer.freeze())
        assert (await world.control.read()).epoch == 1

    async def test_one_that_did_not_reach_all_says_of_how_many(self, world: World) -> None:
        mend = failing(world, {0}, StoreUnreachableError("there", "cut"))
        with pytest.raises(HalfCopiedError) as caught:
            await world.freeze()
        assert (caught.value.carried, caught.value.partitions) == (PARTITIONS - 1, PARTITIONS)
        assert f"{PARTITIONS - 1} of {PARTITIONS} partitions" in str(caught.value)
        assert (await world.control.read()).in_force_at is None
        mend()
        await world.freeze()
        assert (await world.control.read()).legacy_frozen

    async def test_one_that_reached_none_is_the_stores_own_trouble(self, world: World) -> None:
        mend = failing(world, set(range(PARTITIONS)), StoreRefusedError("copy", "OOM"))
        with pytest.raises(StoreRefusedError):
            await world.freeze()
        mend()

    async def test_a_thaw_in_the_middle_of_a_freeze_wins(self, world: World, peer: World) -> None:
        everywhere = world.control._everywhere
        thawed: list[bool] = []

        async def thaws_first(name: str, *args: Any) -> Any:
            if name == "control_enforce" and not thawed:
                thawed.append(await peer.control.thaw(reason="stop", actor="op"))
            return await everywhere(name, *args)

        world.control._everywhere = thaws_first  # type: ignore[method-assign]
        with pytest.raises(ThawedMeanwhileError, match="nothing is frozen"):
            await world.control.freeze(reason="r", lines=(LEGACY,), actor="op")
        assert thawed == [True]
        assert (await world.control.read()).freeze is None
        await world.registry.register(ref())

    async def test_a_freeze_of_no_line_is_refused(self, world: World) -> None:
        with pytest.raises(ValueError, match="no line"):
            await world.control.freeze(reason="r", lines=(), actor="op")


class TestPauseAndResume:
    @pytest.mark.parametrize("which", [PassName.RECONCILE, PassName.ADOPT, PassName.DRAIN])
    async def test_a_pass_is_paused_once_with_its_first_reason(
        self, world: World, which: PassName
    ) -> None:
        assert await world.control.pause(which, reason="first", actor="op")
        assert not await world.control.pause(which, reason="second", actor="op")
        assert (await world.control.read()).paused == {which: "first"}
        assert await world.control.resume(which, actor="op")
        assert not await world.control.resume(which, actor="op")
        assert (await world.control.read()).paused == {}

    async def test_a_pause_without_words_still_has_a_reason(self, world: World) -> None:
        await world.control.pause(PassName.DRAIN, reason="", actor="op")
        assert (await world.control.read()).paused[PassName.DRAIN]

    async def test_resuming_one_pass_leaves_the_others_paused(self, world: World) -> None:
        await world.control.pause(PassName.ADOPT, reason="a", actor="op")
        await world.control.pause(PassName.DRAIN, reason="d", actor="op")
        await world.control.resume(PassName.DRAIN, actor="op")
        assert (await world.control.read()).paused == {PassName.ADOPT: "a"}

    async def test_a_pause_takes_a_canary_away(self, world: World) -> None:
        await world.control.resume(PassName.DRAIN, actor="op", refs=5)
        word = await world.control.read()
        assert (word.canary, word.canary_left) == (str(word.epoch), 5)
        await world.control.pause(PassName.DRAIN, reason="r", actor="op")
        assert (await world.control.read()).canary == ""


class TestCanary:
    async def test_no_more_is_granted_than_there_is(self, world: World) -> None:
        await world.control.resume(PassName.DRAIN, actor="op", refs=5)
        grants = await asyncio.gather(*(world.control.take_canary(2) for _ in range(4)))
        assert sorted(grants) == [0, 1, 2, 2]

    async def test_what_was_not_used_may_be_given_back_within_its_epoch_only(
        self, world: World
    ) -> None:
        await world.control.resume(PassName.DRAIN, actor="op", refs=5)
        epoch = (await world.control.read()).canary
        await world.control.take_canary(5)
        await world.control.give_canary(3, epoch=epoch)
        assert (await world.control.read()).canary_left == 3
        await world.control.resume(PassName.DRAIN, actor="op", refs=1)
        await world.control.give_canary(2, epoch=epoch)
        assert (await world.control.read()).canary_left == 1


class TestHalt:
    async def test_it_is_judged_on_one_epoch(self, world: World) -> None:
        epoch = (await world.control.read()).epoch
        await world.control.resume(PassName.DRAIN, actor="op", refs=1)
        assert not await world.control.halt(reason="30 of 50", actor="census", epoch=epoch)
        epoch = (await world.control.read()).epoch
        assert await world.control.halt(reason="30 of 50", actor="census", epoch=epoch)
        assert not await world.control.halt(reason="again", actor="census", epoch=epoch)
        assert (await world.control.read()).halted == "30 of 50"
