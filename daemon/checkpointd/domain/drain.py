"""The state of the drain as one word and one sentence, its progress and its end. All pure.

What is true of the store comes as a ``StoreTally``; what only the asker knows (is a source
configured, how long may a drain stand still) comes as ``DrainRules``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from checkpointd.domain.states import (
    UNFINISHED,
    DrainState,
    HoldReason,
    RefState,
    StallCause,
    WriterLine,
)
from checkpointd.domain.tally import DrainStatus, StoreTally

BREAKER_REPLAYS = 50
"""So many replays are judged together: fewer say too little."""

BREAKER_SHARE = 0.5
"""From this share of failures for reasons of their own, the drain halts."""

ETA_FLOOR = 0.01
"""Below this progress an estimate would be a guess."""

_HELD = {
    HoldReason.MASS: "Expiry is held (mass); `expiries allow` lets it go on.",
    HoldReason.STORE_GAP: "Expiry is held (store_gap) for one grace.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRules:
    """What the asker's configuration says of the drain's end."""

    has_source: bool = False
    stall_after: timedelta = timedelta(minutes=30)
    settle: timedelta = timedelta(seconds=30)
    accept_unregistrable: bool = False


def unfinished(tally: StoreTally) -> int:
    """Legacy refs that stand between the drain and its end."""
    return sum(tally.legacy.get(state, 0) for state in UNFINISHED)


def is_frozen(tally: StoreTally) -> bool:
    """Whether legacy issuance is closed, everywhere."""
    return (
        tally.frozen is not None
        and WriterLine.LEGACY in tally.frozen.lines
        and tally.freeze_in_force_at is not None
    )


def total(tally: StoreTally) -> int:
    """All that this drain has to deal with: the baseline, and what was discovered since."""
    return tally.baseline + tally.discovered_since_freeze


def progress(tally: StoreTally) -> float | None:
    """Between 0 and 1; ``None`` while idle. It may fall: what is discovered adds to the work.

    Done is what is not unfinished any more: migrated, waived or expired since the freeze.
    """
    if not is_frozen(tally):
        return None
    whole = total(tally)
    left = unfinished(tally)
    if whole <= 0:
        return 1.0 if left == 0 else 0.0
    return min(1.0, max(0.0, (whole - left) / whole))


def eta_s(tally: StoreTally, state: DrainState) -> float | None:
    """Seconds to the end at the pace so far, or ``None`` where that cannot be told honestly."""
    done = progress(tally)
    if (
        state not in (DrainState.DRAINING, DrainState.SETTLING)
        or tally.throttled is not None
        or done is None
        or done < ETA_FLOOR
        or tally.freeze_in_force_at is None
    ):
        return None
    elapsed = (tally.at - tally.freeze_in_force_at).total_seconds()
    if elapsed <= 0:
        return None
    return elapsed * (1 - done) / done


def scan_owed(
    *, in_force_at: datetime | None, settle: timedelta, clean_start: datetime | None
) -> bool:
    """Whether a clean scan begun after the freeze had settled is still missing."""
    if in_force_at is None:
        return False
    return clean_start is None or clean_start < in_force_at + settle


def assess(tally: StoreTally | None, rules: DrainRules) -> DrainStatus:
    """The first word that applies, and a sentence on what the drain waits for.

    ``None`` for a store that cannot be read: ``unknown``, never ``drained``.
    """
    if tally is None:
        return DrainStatus(
            state=DrainState.UNKNOWN,
            sentence="The store cannot be read, so nothing is known of the drain.",
        )
    state, cause, sentence = _word(tally, rules)
    return DrainStatus(
        state=state,
        cause=cause,
        sentence=sentence,
        progress=progress(tally),
        eta_s=eta_s(tally, state),
    )


def _word(tally: StoreTally, rules: DrainRules) -> tuple[DrainState, StallCause | None, str]:
    left = unfinished(tally)
    if not is_frozen(tally):
        if tally.frozen is not None and WriterLine.LEGACY in tally.frozen.lines:
            carried = f"{tally.copies_carrying} of {tally.copies_declared} partitions carry it"
            return DrainState.IDLE, None, f"The freeze is not in force yet: {carried}."
        sentence = f"Legacy issuance is not frozen; {_refs(left)} would be drained after a freeze."
        return DrainState.IDLE, None, sentence
    if tally.paused_reason:
        return DrainState.PAUSED, None, f"An operator paused it ({tally.paused_reason})."
    if tally.halted_reason:
        sentence = f"The breaker halted it ({tally.halted_reason}); `resume` clears it."
        return DrainState.HALTED, None, sentence
    quarantined = tally.legacy.get(RefState.QUARANTINED, 0)
    waiting = _waiting_for(tally, rules, left)
    if not waiting:
        return DrainState.DRAINED, None, "Nothing legacy is left; the old format can go."
    if quarantined and left == quarantined:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(tally.blocked.items()) if n)
        what = f"Only {_refs(left)} in quarantine left ({reasons}): release or waive."
        return DrainState.STALLED, StallCause.QUARANTINE, what
    if _stands_still(tally, rules):
        return DrainState.STALLED, StallCause.NO_PROGRESS, _no_progress(tally, rules)
    if left == 0 or _active(tally) == 0:
        return DrainState.SETTLING, None, waiting
    return DrainState.DRAINING, None, waiting


def _active(tally: StoreTally) -> int:
    """Refs that the drain itself can move now or later, without a scan or a grace passing."""
    legacy = tally.legacy
    moving = legacy.get(RefState.REPLAYING, 0) + legacy.get(RefState.RETRYABLE, 0)
    return moving + max(0, legacy.get(RefState.PENDING, 0) - tally.on_hold)


def _stands_still(tally: StoreTally, rules: DrainRules) -> bool:
    if tally.throttled is not None or tally.due == 0:
        return False
    began = tally.freeze_in_force_at
    last = max((t for t in (tally.last_progress, tally.resumed_at, began) if t), default=None)
    return last is not None and tally.at - last >= rules.stall_after


def _no_progress(tally: StoreTally, rules: DrainRules) -> str:
    minutes = rules.stall_after.total_seconds() / 60
    return f"{_refs(tally.due)} due and none migrated for {minutes:g} minutes."


def _scan_missing(tally: StoreTally, rules: DrainRules) -> bool:
    """Whether a clean scan is owed that the daemon can still make by itself."""
    return rules.has_source and (
        scan_owed(
            in_force_at=tally.freeze_in_force_at,
            settle=rules.settle,
            clean_start=tally.clean_scan_start,
        )
        or tally.clean_scan_births != tally.births
    )


def _unregistrable(tally: StoreTally, rules: DrainRules) -> bool:
    return rules.has_source and tally.unregistrable > 0 and not rules.accept_unregistrable


def _scan_sentence(tally: StoreTally, rules: DrainRules) -> str:
    if _unregistrable(tally, rules):
        n = tally.unregistrable
        return (
            f"{n} thread{'s' if n != 1 else ''} of the source cannot be registered; "
            "drain.accept_unregistrable lets the drain end without them."
        )
    if tally.scan_young > 0:
        return f"{tally.scan_young} heads are too young to judge; the next scan will."
    return "Waiting for a clean scan of the source, begun after the freeze had settled."


def _waiting_for(tally: StoreTally, rules: DrainRules, left: int) -> str:
    """What stands between now and drained, or nothing."""
    if left:
        legacy = tally.legacy
        parts = [
            f"{legacy[state]} {state}"
            for state in (
                RefState.REPLAYING,
                RefState.PENDING,
                RefState.RETRYABLE,
                RefState.OPEN,
                RefState.QUARANTINED,
            )
            if legacy.get(state)
        ]
        sentence = f"{_refs(left)} left: {', '.join(parts)}."
        if tally.throttled is not None:
            return f"Throttled ({tally.throttled}). {sentence}"
        if tally.held is not None and legacy.get(RefState.OPEN):
            return f"{sentence} {_HELD[tally.held]}"
        if tally.on_hold and _active(tally) == 0 and _scan_missing(tally, rules):
            return f"{sentence} {_scan_sentence(tally, rules)}"
        return sentence
    if _scan_missing(tally, rules) or _unregistrable(tally, rules):
        return _scan_sentence(tally, rules)
    if not tally.recounted:
        return "Nothing legacy is left by the counters; a recount is confirming it."
    return ""


def _refs(n: int) -> str:
    return f"{n:,} ref{'s' if n != 1 else ''}"


def only_operator_can_help(status: DrainStatus, tally: StoreTally, rules: DrainRules) -> bool:
    """Whether nothing is left to wait for: only a person can move this drain on."""
    match status.state:
        case DrainState.IDLE | DrainState.PAUSED | DrainState.HALTED:
            return True
        case DrainState.STALLED:
            return status.cause is StallCause.QUARANTINE and not _scan_missing(tally, rules)
        case DrainState.SETTLING if not _scan_missing(tally, rules):
            if unfinished(tally) == 0:
                return _unregistrable(tally, rules)
            return _expiry_waits_for_a_word(tally)
        case _:
            return False


def _expiry_waits_for_a_word(tally: StoreTally) -> bool:
    """Whether the brake holds every open ref, and nothing but open refs is left to move."""
    all_overdue = tally.open_overdue > 0 and tally.open_in_grace == tally.open_future == 0
    return tally.held is HoldReason.MASS and all_overdue and _active(tally) == 0


def breaker_trips(*, failed: int, ended: int) -> bool | None:
    """Whether so many replays of a window failed that the drain must halt.

    ``None`` while the window is too small to judge.
    """
    if ended < BREAKER_REPLAYS:
        return None
    return failed >= BREAKER_SHARE * ended
