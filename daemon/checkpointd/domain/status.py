"""The status as a document: what ``status --json`` and ``/status.json`` both say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from checkpointd.domain.states import KERNEL_STATES, LEGACY_STATES
from checkpointd.domain.tally import DrainStatus, StoreTally


def iso(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC, or ``None``."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def status_document(
    tally: StoreTally | None, drain: DrainStatus, passes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything that an operator asks first. Its keys are an interface: scripts rely on them.

    ``passes`` holds for each pass ``last_run`` (ISO), ``outcome`` and ``duration_s``.
    Without a tally only the drain's word and sentence are known.
    """
    t = tally or StoreTally()
    known = tally is not None
    frozen = None
    if t.frozen is not None:
        frozen = {
            "reason": t.frozen.reason,
            "at": iso(t.frozen.at),
            "lines": [str(line) for line in t.frozen.lines],
            "in_force": t.freeze_in_force_at is not None,
            "in_force_at": iso(t.freeze_in_force_at),
            "partitions": {"carrying": t.copies_carrying, "declared": t.copies_declared},
        }
    return {
        "state": str(drain.state),
        "cause": str(drain.cause) if drain.cause else None,
        "sentence": drain.sentence,
        "progress": None if drain.progress is None else round(drain.progress, 6),
        "baseline": t.baseline if known else None,
        "discovered": t.discovered_since_freeze if known else None,
        "written_after_freeze": t.written_since_freeze if known else None,
        "eta_seconds": None if drain.eta_s is None else round(drain.eta_s, 1),
        "frozen": frozen,
        "refs": {str(s): t.legacy.get(s, 0) for s in LEGACY_STATES} if known else None,
        "kernel": {str(s): t.kernel.get(s, 0) for s in KERNEL_STATES} if known else None,
        "blocked": {str(r): n for r, n in sorted(t.blocked.items()) if n},
        "due": t.due,
        "on_hold": t.on_hold,
        "throttled": str(t.throttled) if t.throttled else None,
        "paused": {str(p): reason for p, reason in t.paused.items()},
        "halted": t.halted_reason or None,
        "expiry": {
            "held": str(t.held) if t.held else None,
            "in_grace": t.open_in_grace,
            "overdue": t.open_overdue,
            "future": t.open_future,
            "expired": {str(k): n for k, n in t.expired.items()},
            "late_finalizations": t.late_finalizations,
        },
        "scan": {
            "started_at": iso(t.scan_started),
            "completed_at": iso(t.scan_completed),
            "unregistrable": t.unregistrable,
            "too_young": t.scan_young,
        },
        "last_progress_at": iso(t.last_progress),
        "drained_at": iso(t.drained_at),
        "reopened_at": iso(t.reopened_at),
        "passes": {name: dict(row) for name, row in passes.items()},
        "at": iso(t.at) if known else None,
    }
