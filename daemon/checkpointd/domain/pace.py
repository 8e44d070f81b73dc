"""How fast a drain goes: back-off of one ref, and how many refs at once. All pure.

A start with very many refs due must not fall on a slow store, so the limit begins low, doubles
while all is well, and halves when the store's answers take twice as long as they did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from checkpointd.domain.states import ThrottleReason

FIRST_LIMIT = 4
SLOW_FLOOR_S = 0.02
"""Below this, an answer is fast whatever it was before: doubling noise is no sign."""

JUDGED_ENDS = 20
ERROR_SHARE = 0.5


def backoff(attempt: int, *, base: timedelta, cap: timedelta, draw: float) -> timedelta:
    """Full jitter: between nothing and ``base`` doubled for each attempt after the first, capped.

    ``draw`` is a number from 0 to 1. Full jitter spreads refs that failed together
    furthest apart.
    """
    doubled: timedelta = base * float(2 ** min(max(0, attempt - 1), 30))
    return min(cap, doubled) * draw


@dataclass(slots=True)
class Pace:
    """How many refs this replica replays at once, between 1 and ``ceiling``."""

    ceiling: int
    limit: int = 0
    throttled: ThrottleReason | None = None
    _usual_s: float = 0.0
    _recent_s: float = 0.0
    _changed_at: float = 0.0
    _ends: list[bool] = field(default_factory=list)
    _probe_after: float = 0.0
    _probe_wait_s: float = 1.0

    PROBE_CAP_S = 30.0

    def __post_init__(self) -> None:
        self.limit = self.limit or min(FIRST_LIMIT, self.ceiling)

    def room(self, running: int, *, now: float) -> int:
        """How many more may be begun now. While a dependency is out of reach: one, to probe it."""
        if self.throttled in (ThrottleReason.SOURCE, ThrottleReason.REPLAYER):
            return 1 if running == 0 and now >= self._probe_after else 0
        return max(0, min(self.limit, self.ceiling) - running)

    def unreachable(self, reason: ThrottleReason, *, now: float) -> None:
        """A dependency as a whole is out of reach: probe it, at a doubling distance.

        Replays that were under way when it went are no probes: they double nothing.
        """
        if self.throttled is not reason:
            self._probe_wait_s = 1.0
        elif now < self._probe_after:
            return
        else:
            self._probe_wait_s = min(self.PROBE_CAP_S, self._probe_wait_s * 2)
        self._probe_after = now + self._probe_wait_s
        self.throttled = reason

    def reached(self) -> None:
        """A dependency answered: go on, from the beginning of the ramp."""
        if self.throttled in (ThrottleReason.SOURCE, ThrottleReason.REPLAYER):
            self.throttled = None
            self.limit = min(FIRST_LIMIT, self.ceiling)

    def ended(self, *, well: bool, now: float) -> None:
        """One replay ended; most of the last ones ending badly halves the limit."""
        self._ends.append(well)
        if len(self._ends) < JUDGED_ENDS:
            return
        bad = self._ends.count(False)
        self._ends.clear()
        if bad >= ERROR_SHARE * JUDGED_ENDS:
            self._slower(ThrottleReason.ERROR_RATE, now)
        elif self.throttled is ThrottleReason.ERROR_RATE:
            self.throttled = None

    def answered(self, seconds: float, *, now: float) -> None:
        """The store answered a claim after so long: the sign of how it bears the load."""
        if not self._usual_s:
            self._usual_s = self._recent_s = seconds
        self._recent_s += 0.3 * (seconds - self._recent_s)
        slow = self._recent_s > max(SLOW_FLOOR_S, 2 * self._usual_s)
        if slow:
            self._slower(ThrottleReason.LATENCY, now)
            return
        self._usual_s += 0.02 * (self._recent_s - self._usual_s)
        if self.throttled is ThrottleReason.LATENCY:
            self.throttled = None
        if self.throttled is None:
            self.limit = min(self.ceiling, self.limit * 2)

    def _slower(self, reason: ThrottleReason, now: float) -> None:
        self.throttled = self.throttled or reason
        if now - self._changed_at >= 1.0:
            self._changed_at = now
            self.limit = max(1, self.limit // 2)
