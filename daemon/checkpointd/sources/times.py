"""When a checkpoint was made: by its own word, else by the time inside its id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from checkpointd.domain.refs import EPOCH

_GREGORIAN = datetime(1582, 10, 15, tzinfo=UTC)


def created_at(ts: object, checkpoint_id: str) -> datetime:
    """The time of ``ts`` (ISO 8601), else that of the id, else 1970: aware UTC throughout."""
    if isinstance(ts, str):
        try:
            said = datetime.fromisoformat(ts)
            return (said if said.tzinfo else said.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    return time_of_id(checkpoint_id) or EPOCH


def time_of_id(checkpoint_id: str) -> datetime | None:
    """The time that a time-based UUID carries; ``None`` for any other id.

    Savers order checkpoints by version 6 ids, whose time comes first in the text.
    """
    try:
        uuid = UUID(checkpoint_id)
        match uuid.version:
            case 1:
                return _GREGORIAN + timedelta(microseconds=uuid.time // 10)
            case 6:
                high, low = uuid.int >> 80, (uuid.int >> 64) & 0x0FFF
                return _GREGORIAN + timedelta(microseconds=((high << 12) | low) // 10)
            case 7:
                return EPOCH + timedelta(milliseconds=uuid.int >> 80)
            case _:
                return None
    except (ValueError, OverflowError):
        return None
