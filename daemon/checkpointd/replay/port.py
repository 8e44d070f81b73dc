"""What a replayer promises: continue a legacy turn as a kernel checkpoint.

Delivery is at-least-once for its effects and exactly-once for the link: a lock
cannot protect what a replay writes elsewhere. So every request carries a key
derived from the thread, the legacy checkpoint and the boundary; a replayer that
writes under that key, or compares the rising fence, repeats nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from checkpointd.domain.legacy import LegacyState
from checkpointd.domain.refs import SafeBoundaryMarker, derived_id


def replay_key(thread_id: str, legacy_checkpoint_id: str, boundary_id: str) -> str:
    """The idempotency key of a replay, and the built-in replayer's new checkpoint id."""
    return derived_id("replay", thread_id, legacy_checkpoint_id, boundary_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """One legacy ref to be continued."""

    thread_id: str
    legacy_checkpoint_id: str
    boundary: SafeBoundaryMarker
    state: LegacyState | None
    """What the source holds; ``None`` where no source is configured."""
    attempt: int
    """1 for the first."""
    fence: int
    deadline: datetime
    """Past it the replay is cancelled."""
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The kernel checkpoint that now continues the thread."""

    checkpoint_id: str


class Replayer(Protocol):
    """Continues legacy turns.

    Raises ``TransientReplayError`` (tried again), ``ReplayerUnreachableError`` (the drain
    waits, nobody loses an attempt) or ``PermanentReplayError`` (quarantined).
    """

    async def replay(self, request: ReplayRequest) -> Replayed:
        """Produce the kernel checkpoint; a second call with the same key gives the same one."""
        ...

    async def aclose(self) -> None:
        """Let go of what it holds."""
        ...
