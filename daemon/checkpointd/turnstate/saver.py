"""Turn states in a LangGraph saver: pending writes at the checkpoint that paused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from checkpointd.domain.errors import StoreRefusedError, shortened
from checkpointd.domain.refs import derived_id


class Saver(Protocol):
    """The part of LangGraph's ``BaseCheckpointSaver`` that is used: no import, any saver."""

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str
    ) -> None: ...

    async def aget_tuple(self, config: Any) -> Any: ...

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str) -> None: ...

    def get_tuple(self, config: Any) -> Any: ...


class LangGraphCommandPort:
    """A command port over any LangGraph saver, at checkpoints that the saver has.

    Savers key a pending write by task and by its place in the call, not by its channel,
    and keep the first: two values written under one task id would be one value. So each
    key is written under a task id of its own, derived from both.

    Savers also take writes for a checkpoint that they do not have and then never return
    them. So each write is read back, and one that is not there raises.
    """

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    async def write_metadata(
        self, thread_id: str, checkpoint_id: str, key: str, value: bytes, task_id: str
    ) -> None:
        """Keep ``value``; ``StoreRefusedError`` if another one is there, or no checkpoint is."""
        config = _config(thread_id, checkpoint_id)
        row = derived_id(task_id, key)
        try:
            await self._saver.aput_writes(config, [(key, value)], row)
        except NotImplementedError:
            await asyncio.to_thread(self._saver.put_writes, config, [(key, value)], row)
        kept = await self.read_metadata(thread_id, checkpoint_id, key)
        if kept != value:
            why = (
                "the saver does not have that checkpoint"
                if kept is None
                else "the saver keeps the value that was written first"
            )
            raise StoreRefusedError(
                f"keep {shortened(key)} at checkpoint {shortened(checkpoint_id)} of thread "
                f"{shortened(thread_id)}",
                why,
            )

    async def read_metadata(self, thread_id: str, checkpoint_id: str, key: str) -> object:
        """What was written there first, by whichever task; ``None`` if nothing was."""
        config = _config(thread_id, checkpoint_id)
        try:
            found = await self._saver.aget_tuple(config)
        except NotImplementedError:
            found = await asyncio.to_thread(self._saver.get_tuple, config)
        writes = (found.pending_writes if found else None) or ()
        return next((value for _, channel, value in writes if channel == key), None)


def _config(thread_id: str, checkpoint_id: str) -> dict[str, dict[str, str]]:
    """The address of a root checkpoint; without ``checkpoint_ns`` real savers raise ``KeyError``."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": "",
            "checkpoint_id": checkpoint_id,
        }
    }
