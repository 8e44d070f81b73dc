"""Whether the daemon is alive, judged from outside of the event loop.

A task in the loop beats. Another thread (the endpoint's, or a watchdog's) looks at the age
of the last beat, so a blocked loop is seen although it cannot say so itself. A loop that
turns while a pass hangs is no better: each pass has a time within which it must show a sign
of life, an end of a run or a page of a long scan.

The store is not asked: a daemon whose store is away must not be restarted for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from checkpointd.domain.durations import format_duration
from checkpointd.domain.states import PassName
from checkpointd.telemetry.metrics import Metrics

BEAT_EVERY_S = 0.5
SILENCE_S = 2.0
"""How old the last beat may be. Four beats: a long garbage collection is no death."""


@dataclass(frozen=True, slots=True)
class _Watch:
    within_s: float
    last_s: float


class Heartbeat:
    """Beats in the event loop; judged from any thread.

    ``metrics``, if given, show its lag as of each scrape: a loop that is stuck shows a rising
    one. ``clock`` is monotonic. State is replaced, never changed in place, so a reader in another
    thread needs no lock.
    """

    def __init__(
        self,
        *,
        metrics: Metrics | None = None,
        beat_every_s: float = BEAT_EVERY_S,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beat_every_s = beat_every_s
        self._silence_s = silence_s
        self._clock = clock
        self._beat_s = clock()
        self._lag_s = 0.0
        self._watched: dict[PassName, _Watch] = {}
        if metrics is not None:
            metrics.event_loop_lag.set_function(self.lag_s)

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            due_s = self._clock() + self._beat_every_s
            await asyncio.sleep(self._beat_every_s)
            self._lag_s = max(0.0, self._clock() - due_s)
            self.beat()

    def beat(self) -> None:
        """The loop turned just now."""
        self._beat_s = self._clock()

    def lag_s(self) -> float:
        """How late the loop is: at its last beat, or by now if the next one is overdue."""
        overdue_s = self._clock() - self._beat_s - self._beat_every_s
        return max(self._lag_s, overdue_s, 0.0)

    def expect(self, name: PassName, *, within: timedelta) -> None:
        """The pass will show a sign of life at least this often, from now on."""
        self._watched = {
            **self._watched,
            name: _Watch(within_s=within.total_seconds(), last_s=self._clock()),
        }

    def sign(self, name: PassName) -> None:
        """The pass ended a run, or a piece of a long one. Without ``expect``: nothing."""
        if (watch := self._watched.get(name)) is not None:
            self._watched = {**self._watched, name: replace(watch, last_s=self._clock())}

    def forget(self, name: PassName) -> None:
        """Nothing more is expected of the pass."""
        self._watched = {k: v for k, v in self._watched.items() if k is not name}

    def live(self) -> tuple[bool, str]:
        """Whether the loop turns and no pass is overdue; if not, a sentence for each."""
        now_s = self._clock()
        complaints: list[str] = []
        silent_s = now_s - self._beat_s
        if silent_s > self._silence_s:
            complaints.append(
                f"the event loop has not turned for {silent_s:.1f} s "
                f"({self._silence_s:g} s are allowed)"
            )
        for name, watch in self._watched.items():
            quiet_s = now_s - watch.last_s
            if quiet_s > watch.within_s:
                allowed = format_duration(timedelta(seconds=watch.within_s))
                complaints.append(
                    f"the {name} pass has shown no sign of life for {quiet_s:.0f} s "
                    f"({allowed} are allowed)"
                )
        return not complaints, "; ".join(
            complaints
        ) or "the event loop turns and no pass is overdue"
