"""Turn states in this process: the model of the port, and for embedding."""

from __future__ import annotations


class MemoryCommandPort:
    """A command port over one mapping; gone with its process."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], bytes] = {}

    async def write_metadata(
        self, thread_id: str, checkpoint_id: str, key: str, value: bytes, task_id: str
    ) -> None:
        """Keep ``value``; the last write stands."""
        self._values[thread_id, checkpoint_id, key] = value

    async def read_metadata(self, thread_id: str, checkpoint_id: str, key: str) -> object:
        """What was written last, or ``None``."""
        return self._values.get((thread_id, checkpoint_id, key))
