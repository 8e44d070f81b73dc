"""Ends a piece of work at its n-th wait for the store, the source or the replayer.

Three ends: cancelled, told that the store cannot be reached, or killed, after which nothing that
the process still tries has any effect. Each either before the call was made, or after it was done
and before its answer was heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.passes.world import World

from checkpointd.domain.errors import StoreUnreachableError


class End(StrEnum):
    """How it ends."""

    CANCELLED = "cancelled"
    UNREACHABLE = "unreachable"
    KILLED = "killed"


class Moment(StrEnum):
    """Beside the call."""

    BEFORE = "before"
    AFTER = "after"


class KilledError(BaseException):
    """The process is no more; whoever catches this is a ghost."""


@dataclass
class Interrupter:
    """Counts the waits of one world, and ends its work at one of them."""

    at: int = 0
    """Which wait, from 1; 0 only counts."""
    end: End = End.CANCELLED
    moment: Moment = Moment.BEFORE
    waits: int = 0
    struck: bool = False
    dead: bool = False
    _main: asyncio.Task[Any] | None = field(default=None, repr=False)

    def wires(self, world: World) -> None:
        """Every way out of this world goes through here from now on."""
        store: Any = world.store
        store.scripts.run = self._through(store.scripts.run)
        store.read = self._through(store.read)
        store.write = self._through(store.write)
        for room, names in (
            (world.source, ("page", "head", "state")),
            (world.replayer, ("replay",)),
        ):
            for name in names:
                setattr(room, name, self._through(getattr(room, name)))

    async def runs(self, work: Awaitable[Any]) -> Any:
        """The work's result, or ``None`` if it was ended."""
        self._main = asyncio.ensure_future(work)
        try:
            return await self._main
        except (asyncio.CancelledError, KilledError, StoreUnreachableError):
            if not self.struck:
                raise
            return None

    def _through(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise KilledError
            self.waits += 1
            strikes = not self.struck and self.waits == self.at
            if strikes and self.moment is Moment.BEFORE:
                await self._strike()
            answer = await call(*args, **kwargs)
            if self.dead:
                raise KilledError
            if strikes and self.moment is Moment.AFTER:
                await self._strike()
            return answer

        return counted

    async def _strike(self) -> None:
        self.struck = True
        match self.end:
            case End.UNREACHABLE:
                raise StoreUnreachableError("the test", "the call is interrupted")
            case End.KILLED:
                self.dead = True
                if self._main is not None and self._main is not asyncio.current_task():
                    self._main.cancel()
                raise KilledError
            case End.CANCELLED:
                for task in {self._main, asyncio.current_task()}:
                    if task is not None:
                        task.cancel()
                await asyncio.sleep(0)
