"""What a census reads from the store in one go, as plain numbers, and the word it comes to.

Every field has a default, so that one names only what matters; a default says
"none of these", never "not looked at": a store that cannot be read gives no tally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from checkpointd.domain.refs import EPOCH, IssuanceFreeze
from checkpointd.domain.states import (
    DrainState,
    ExpiryKind,
    FailureReason,
    HoldReason,
    PassName,
    RefState,
    StallCause,
    ThrottleReason,
    WriterLine,
)

TTF_BOUNDS_S: tuple[float, ...] = (
    1.0,
    5.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    7200.0,
    14400.0,
    inf,
)
"""Upper bounds of the time-to-finalize buckets, seconds; dense below the default grace of an hour."""

CATCH_UP = "catch_up"
WRITTEN_AFTER_FREEZE = "written_after_freeze"
DISCOVERY_SOURCES: tuple[str, ...] = (CATCH_UP, WRITTEN_AFTER_FREEZE)
"""Why a legacy ref came after the baseline: found late, or written by someone who missed the freeze."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTally:
    """The whole store at one instant of its own clock, summed over the partitions."""

    at: datetime = EPOCH
    """The store's clock when it was read."""
    clock_offset_s: float = 0.0
    """This process's clock minus the store's."""

    legacy: Mapping[RefState, int] = field(default_factory=dict)
    """Legacy refs by their eight states."""
    kernel: Mapping[RefState, int] = field(default_factory=dict)
    """Kernel refs: open, finalized, expired."""
    blocked: Mapping[FailureReason, int] = field(default_factory=dict)
    """Quarantined refs by reason."""
    due: int = 0
    """Legacy refs that a claim would take now."""

    open_in_grace: int = 0
    open_overdue: int = 0
    open_future: int = 0
    """Open refs whose ``created_at`` the store's clock has not reached; never expired."""
    oldest_open: datetime | None = None
    oldest_pending: datetime | None = None
    expired: Mapping[ExpiryKind, int] = field(default_factory=dict)
    """Refs ever expired, both lines, by who did it; never falls."""
    late_finalizations: int = 0
    ttf_buckets: Mapping[float, int] = field(default_factory=dict)
    """Finalized refs by time to finalize: a count for each upper bound, not cumulative."""
    ttf_sum_s: float = 0.0
    grace: timedelta | None = None
    held: HoldReason | None = None
    """Why expiry is held, if it is."""

    refused: Mapping[WriterLine, int] = field(default_factory=dict)
    """Issuances ever refused by a freeze; never falls."""
    frozen: IssuanceFreeze | None = None
    freeze_in_force_at: datetime | None = None
    """When the last partition had acknowledged the freeze; ``None`` until then."""
    copies_declared: int = 0
    """Partitions that should carry the control word of the highest epoch."""
    copies_carrying: int = 0

    baseline: int = 0
    """What was unfinished when the freeze came into force."""
    discovered: Mapping[str, int] = field(default_factory=dict)
    """Refs that came after a baseline, ever, by ``DISCOVERY_SOURCES``; never falls."""
    discovered_since_freeze: int = 0
    written_since_freeze: int = 0
    """Of these, the ones that were written after the freeze."""
    reopened: int = 0
    """Times that late state reopened a finished drain; never falls."""
    last_progress: datetime | None = None
    drained_at: datetime | None = None
    drained_births: int = 0
    """``births`` when the drain last ended; more of them since, and late state came."""
    reopened_at: datetime | None = None
    throttled: ThrottleReason | None = None

    scan_started: datetime | None = None
    scan_completed: datetime | None = None
    scan_young: int = 0
    """Heads that the last scan found too young to judge."""
    unregistrable: int = 0
    """Threads of the source that the registry cannot name."""
    births: int = 0
    """Legacy refs that came into being, and supersessions, ever; each voids a clean scan."""
    clean_scan_start: datetime | None = None
    clean_scan_births: int | None = None
    """``births`` as the last clean scan saw them."""
    transitions: int = 0
    """Changes of legacy refs, ever: a recount holds while this stands still."""
    recounted: bool = False
    """Whether every partition's recount agrees with the counters as they are."""
    on_hold: int = 0
    """Pending refs that are not due yet: they await a scan, or their head's end."""
    paused: Mapping[PassName, str] = field(default_factory=dict)
    """Why an operator holds a pass, for each that is held."""
    halted_reason: str = ""
    """Why the breaker halted the drain; empty if it did not."""
    replays_failed: int = 0
    replays_ended: int = 0
    """Replays since the breaker was last cleared; failed are those for reasons of their own."""
    epoch: int = 0
    """The control word's."""
    resumed_at: datetime | None = None
    """When the drain was last let go on."""

    memory_ratio: float | None = None
    """Used memory over ``maxmemory``; ``None`` where the store has no limit or does not say."""

    @property
    def paused_reason(self) -> str:
        """Why an operator paused the drain; empty if none did."""
        return self.paused.get(PassName.DRAIN, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStatus:
    """The drain as a whole: one word, and beside it a sentence on what it waits for."""

    state: DrainState
    cause: StallCause | None = None
    sentence: str = ""
    progress: float | None = None
    """0 to 1; ``None`` while idle or unknown."""
    eta_s: float | None = None
    """``None`` when it cannot be told honestly."""
