"""The command port: where turn states are kept. Three implementations, one contract suite."""

from __future__ import annotations

from typing import Protocol


class CommandPort(Protocol):
    """Named values at a checkpoint of a thread."""

    async def write_metadata(
        self, thread_id: str, checkpoint_id: str, key: str, value: bytes, task_id: str
    ) -> None:
        """Keep ``value``, readable by any process when this returns; else raise.

        Again with the same bytes: a success. With other bytes: they replace the first, or
        the call raises; they are never dropped in silence. ``task_id`` says who
        writes and is no part of the name.
        """
        ...

    async def read_metadata(self, thread_id: str, checkpoint_id: str, key: str) -> object:
        """What is kept there, ``None`` if nothing is. A port that cannot be read raises.

        Not always bytes: older builds wrote other values beside ours.
        """
        ...
