"""What a pass says of itself. ``telemetry.record`` turns these into numbers and log lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import (
    AdoptOutcome,
    FailureReason,
    HoldReason,
    PassOutcome,
    ReplayOutcome,
)
from checkpointd.domain.tally import DrainStatus, StoreTally


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """One reconcile pass."""

    at: datetime
    grace_s: float
    inspected: int = 0
    """Crash windows open when the pass began."""
    overdue: int = 0
    expired: tuple[CheckpointRef, ...] = ()
    held: HoldReason | None = None
    troubles: tuple[str, ...] = ()
    """One sentence for each partition that failed; the others were done."""
    skipped: str = ""
    """Why the pass did nothing (paused), else empty."""
    dry_run: bool = False

    @property
    def outcome(self) -> PassOutcome:
        if self.skipped or self.held:
            return PassOutcome.HELD
        return PassOutcome.ERROR if self.troubles else PassOutcome.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptReport:
    """One adoption pass: a scan, or the part of one that fitted in."""

    at: datetime
    threads: int = 0
    outcomes: Mapping[AdoptOutcome, int] = field(default_factory=dict)
    fallbacks: int = 0
    """Ancestors registered beside heads that may have crashed; not counted in ``outcomes``."""
    too_young: int = 0
    losses: Mapping[str, int] = field(default_factory=dict)
    """Messages' losses by kind."""
    verdicts: Mapping[str, int] = field(default_factory=dict)
    blockers: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Up to five thread ids for each verdict, blocker and outcome."""
    complete: bool = False
    clean: bool = False
    took_s: float = 0.0
    troubles: tuple[str, ...] = ()
    skipped: str = ""
    held: bool = False
    dry_run: bool = False

    @property
    def adopted(self) -> int:
        """Refs that came into the registry by this pass."""
        return self.outcomes.get(AdoptOutcome.NEW, 0) + self.fallbacks

    @property
    def outcome(self) -> PassOutcome:
        if self.held:
            return PassOutcome.HELD
        if self.skipped:
            return PassOutcome.SKIPPED
        return PassOutcome.ERROR if self.troubles else PassOutcome.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEnd:
    """How one claimed ref left the drain's hands; reported as it happens."""

    thread_id: str
    checkpoint_id: str
    outcome: ReplayOutcome
    fence: int = 0
    attempt: int = 0
    took_s: float = 0.0
    reason: FailureReason | None = None
    detail: str = ""
    became: str = ""
    lost_phase: str = ""
    """``before_commit`` or ``at_commit`` where the lease was lost, else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """One drain pass."""

    at: datetime
    outcomes: Mapping[ReplayOutcome, int] = field(default_factory=dict)
    failures: Mapping[FailureReason, int] = field(default_factory=dict)
    acquired: int = 0
    busy: int = 0
    claim_errors: int = 0
    took_s: float = 0.0
    troubles: tuple[str, ...] = ()
    waiting_for: str = ""
    """Why nothing was claimed (not frozen, paused, halted, a source out of reach), else empty."""
    held: bool = False
    dry_run: bool = False

    @property
    def outcome(self) -> PassOutcome:
        if self.held:
            return PassOutcome.HELD
        return PassOutcome.ERROR if self.troubles else PassOutcome.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusReport:
    """One census: what the store counts, and the word it comes to."""

    at: datetime
    tally: StoreTally
    status: DrainStatus
    completed_copies: bool = False
    """Whether it completed a control change that somebody left half-copied."""
    marked: str = ""
    """``drained`` or ``reopened`` if this census was the first to see it."""
    halted: bool = False
    """Whether the breaker tripped."""
    dry_run: bool = False

    @property
    def outcome(self) -> PassOutcome:
        return PassOutcome.SUCCESS
