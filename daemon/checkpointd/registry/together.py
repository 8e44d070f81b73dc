"""Steps on single refs that go as one script: those of one turn of the loop, a partition at a time.

A script has a cost of its own, on either side, which a step on one ref is small against.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from checkpointd.domain.errors import StoreError
from checkpointd.registry.scripts import Arg
from checkpointd.registry.store import Store

MOST = 64
"""Steps in one script: a millisecond or two of the store's time."""

_Step = tuple[Sequence[str], Sequence[Arg], asyncio.Future[Any]]


class Together:
    """Gathers the steps of one script, whose keys and arguments repeat for each step."""

    def __init__(self, store: Store, name: str, *shared: Arg) -> None:
        self._store = store
        self._name = name
        self._shared = shared
        """The arguments that come once, before those of the steps."""
        self._waiting: dict[int, list[_Step]] = {}
        self._sent: set[asyncio.Task[None]] = set()

    async def run(self, partition: int, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """The script's answer to this step. Errors and cancellation as ``Scripts.run``.

        An error of the store is that of every step that went with it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.setdefault(partition, []).append((keys, args, future))
        return await future

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for partition, steps in waiting.items():
            for at in range(0, len(steps), MOST):
                task = asyncio.get_running_loop().create_task(
                    self._send(partition, steps[at : at + MOST]), name=f"{self._name}-together"
                )
                self._sent.add(task)
                task.add_done_callback(self._sent.discard)

    async def _send(self, partition: int, steps: Sequence[_Step]) -> None:
        keys = [key for keys, _, _ in steps for key in keys]
        args = [*self._shared, *(arg for _, args, _ in steps for arg in args)]
        try:
            answers = await self._store.at(partition, self._name, keys, args)
        except StoreError as error:
            for *_, future in steps:
                if not future.done():
                    future.set_exception(error)
        except asyncio.CancelledError:
            for *_, future in steps:
                future.cancel()
            raise
        else:
            for (*_, future), answer in zip(steps, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
