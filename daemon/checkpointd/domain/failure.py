"""What an exception out of a replay means for its ref. Pure, so that each row can be read and tested."""

from __future__ import annotations

from dataclasses import dataclass

from checkpointd.domain.errors import (
    CommitRefusedError,
    PermanentReplayError,
    ReplayerUnreachableError,
    SourceUnreachableError,
    StoreRefusedError,
    TransientReplayError,
    UnreadableStateError,
)
from checkpointd.domain.states import FailureReason, ThrottleReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The meaning: a word, whether it is for good, and whose fault it is."""

    reason: FailureReason
    detail: str
    permanent: bool = False
    throttle: ThrottleReason | None = None
    """A dependency as a whole is out of reach: the attempt is given back."""
    retry_after_s: float | None = None


def meaning_of(error: BaseException, *, timed_out: bool = False) -> Failure:
    """What this exception means for the ref that was being replayed.

    Anything a replayer raises that is none of the named errors is its own trouble,
    ``replay_error``, and tried again: an unknown error is no proof that it will last.
    """
    detail = str(error) or type(error).__name__
    if timed_out:
        return Failure(reason=FailureReason.TIMEOUT, detail="the replay passed its deadline")
    match error:
        case SourceUnreachableError():
            return Failure(
                reason=FailureReason.OTHER, detail=detail, throttle=ThrottleReason.SOURCE
            )
        case ReplayerUnreachableError():
            return Failure(
                reason=FailureReason.REPLAY_ERROR, detail=detail, throttle=ThrottleReason.REPLAYER
            )
        case TransientReplayError():
            return Failure(
                reason=FailureReason.REPLAY_ERROR, detail=detail, retry_after_s=error.retry_after_s
            )
        case PermanentReplayError():
            return Failure(
                reason=_word(error.reason), detail=error.detail or detail, permanent=True
            )
        case UnreadableStateError():
            return Failure(reason=FailureReason.UNREADABLE, detail=detail, permanent=True)
        case CommitRefusedError():
            return Failure(reason=_word(error.reason), detail=detail, permanent=True)
        case StoreRefusedError():
            return Failure(reason=FailureReason.STORE_REFUSED, detail=detail)
        case _:
            return Failure(
                reason=FailureReason.REPLAY_ERROR, detail=f"{type(error).__name__}: {detail}"
            )


def _word(reason: str) -> FailureReason:
    try:
        return FailureReason(reason)
    except ValueError:
        return FailureReason.OTHER
