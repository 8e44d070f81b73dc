"""Values as JSON says them. The keys are an interface: scripts outside the project rely on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from math import isfinite
from typing import Any, assert_never

from checkpointd.domain.refs import CheckpointRef, Explanation
from checkpointd.domain.reports import AdoptReport, CensusReport, DrainReport, ReconcileReport
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.status import iso, status_document

Report = ReconcileReport | AdoptReport | DrainReport | CensusReport


def plain(value: Any) -> Any:
    """``value`` as JSON can say it: times ISO 8601 in UTC, durations in seconds, enumerations
    their words, a dataclass its fields. NaN and infinities become ``null``.
    """
    match value:
        case None | bool() | int():
            return value
        case Enum():
            return plain(value.value)
        case str():
            return value
        case float():
            return value if isfinite(value) else None
        case datetime():
            return iso(value)
        case timedelta():
            return value.total_seconds()
        case RefRecord():
            return record_document(value)
        case Mapping():
            return {str(plain(key)): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return str(value)


def record_document(record: RefRecord) -> dict[str, Any]:
    """A ref and its story, flat."""
    ref, link = record.ref, record.link
    return {
        "thread_id": ref.thread_id,
        "checkpoint_id": ref.checkpoint_id,
        "writer_line": str(ref.writer_line),
        "state": str(record.state),
        "created_at": iso(ref.created_at),
        "changed_at": iso(record.changed_at),
        "by": record.by,
        "reason": record.reason,
        "code": str(record.code) if record.code else None,
        "detail": record.detail,
        "attempts": record.attempts,
        "resumable": record.is_resumable,
        "became": link.checkpoint_id if link else None,
        "boundary_id": record.boundary_id or None,
        "migrated_at": iso(link.at) if link else None,
        "replay_of": record.replay_of or None,
        "stands_in_for": record.stands_in_for or None,
        "fallback": record.fallback or None,
        "hold": str(record.hold) or None,
        "opened_at": iso(record.opened_at),
        "grace_seconds": record.grace_s,
        "late_at": iso(record.late_at),
        "confirmed_at": iso(record.confirmed_at),
    }


def ref_document(ref: CheckpointRef | None) -> dict[str, Any] | None:
    """The registry's own value of a ref."""
    if ref is None:
        return None
    document: dict[str, Any] = plain(ref)
    return document


def report_document(report: Report) -> dict[str, Any]:
    """What a pass said of itself, and how it ended in one word."""
    document: dict[str, Any] = plain(report)
    document["outcome"] = str(report.outcome)
    match report:
        case AdoptReport():
            document["adopted"] = report.adopted
        case CensusReport():
            del document["tally"]
            document["status"] = status_document(report.tally, report.status, {})
        case ReconcileReport() | DrainReport():
            pass
        case never:
            assert_never(never)
    return document


def explanation_document(explanation: Explanation, sentence: str) -> dict[str, Any]:
    """What an application tells its user about a thread."""
    return {
        "thread_id": explanation.thread_id,
        "standing": str(explanation.standing),
        "sentence": sentence,
        "ref": ref_document(explanation.ref),
        "reason": explanation.reason,
        "at": iso(explanation.at),
    }
