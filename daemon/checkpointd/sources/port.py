"""What a source of legacy state promises. One screen; one contract suite tests every source.

1. Nothing is written, altered or migrated in the store that is read.
2. Nothing that the data names is imported or called.
3. Ids come by the store's own paged query; memory is bounded by a page and one thread.
4. One thread's bad state raises ``UnreadableStateError`` for nobody: ``head`` and ``state``
   give it the verdict ``UNREADABLE`` with ``blocker=unreadable``. Only a store that cannot
   be read as a whole raises, ``SourceUnreachableError``.
"""

from __future__ import annotations

from typing import Protocol

from checkpointd.domain.legacy import HeadReading, LegacyState, SourcePage


class LegacySource(Protocol):
    """A store of legacy threads, read-only."""

    @property
    def identity(self) -> str:
        """A stable name of the store read, without secrets; compared with the registry's."""
        ...

    async def page(self, after: str, limit: int) -> SourcePage:
        """Up to ``limit`` threads with ids greater than ``after``; ``""`` begins."""
        ...

    async def head(self, thread_id: str) -> HeadReading | None:
        """The thread's head, judged; ``None`` if the thread has no root checkpoint."""
        ...

    async def state(self, thread_id: str, checkpoint_id: str) -> LegacyState | None:
        """One checkpoint, judged; ``None`` if it is not there any more."""
        ...

    async def aclose(self) -> None:
        """Let go of the store; a second call does nothing."""
        ...
