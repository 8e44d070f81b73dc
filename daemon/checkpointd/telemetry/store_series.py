"""What the census read, as metrics: one table, swapped in whole.

A collector and not a set of gauges, for two reasons: a scrape in another thread must not
see half a census, and store totals are counters that this process never increments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf, nan
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry
from typing_extensions import override

from checkpointd.domain.states import (
    ALL_LINES,
    LEGACY_STATES,
    DrainState,
    ExpiryKind,
    FailureReason,
    HoldReason,
    StallCause,
)
from checkpointd.domain.tally import (
    CATCH_UP,
    DISCOVERY_SOURCES,
    TTF_BOUNDS_S,
    WRITTEN_AFTER_FREEZE,
    DrainStatus,
    StoreTally,
)

TIME_TO_FINALIZE = "checkpointd_expiry_time_to_finalize_seconds"
_TIME_TO_FINALIZE_HELP = (
    "Time from issue to finalize; grows when a writer finalizes, anywhere. Store-wide."
)


@dataclass(frozen=True, slots=True)
class Census:
    """One reading of the store, with the word it comes to."""

    tally: StoreTally
    drain: DrainStatus


Word = TypeVar("Word", bound=str)
Reading = Callable[[Census], Sequence[float]]
"""A value for each word of a series, in their order."""


@dataclass(frozen=True, slots=True)
class GaugeSeries:
    """A store-wide gauge: NaN until a census has succeeded, and after one has failed."""

    name: str
    help: str
    read: Reading
    label: str = ""
    words: tuple[str, ...] = ("",)

    def family(self, census: Census | None, *, lost: bool) -> Metric:
        if census is not None:
            values = tuple(self.read(census))
        else:
            # A store that cannot be read is the one thing known of the drain then.
            values = tuple(1.0 if lost and w == DrainState.UNKNOWN else nan for w in self.words)
        family = GaugeMetricFamily(self.name, self.help, labels=[self.label] if self.label else [])
        for word, value in zip(self.words, values, strict=True):
            family.add_metric([word] if self.label else [], value)
        return family


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """A total that the store keeps; absent before the first census, then never falling."""

    name: str
    help: str
    read: Reading
    label: str = ""
    words: tuple[str, ...] = ("",)

    def family(self, census: Census | None) -> Metric:
        family = CounterMetricFamily(
            self.name, self.help, labels=[self.label] if self.label else []
        )
        if census is not None:
            for word, value in zip(self.words, self.read(census), strict=True):
                family.add_metric([word] if self.label else [], value)
        return family


def _stamp(moment: datetime | None) -> tuple[float]:
    """Unix seconds; NaN where there is no such moment, so that no alert compares with 1970."""
    return (moment.timestamp() if moment is not None else nan,)


def _one_of(word: str | None, words: Sequence[str]) -> tuple[float, ...]:
    return tuple(float(word == w) for w in words)


def _of(counts: Mapping[Word, int], words: Sequence[Word]) -> tuple[float, ...]:
    return tuple(float(counts.get(w, 0)) for w in words)


_STATES = tuple(DrainState)
_CAUSES = tuple(StallCause)
_REASONS = tuple(FailureReason)
_HOLDS = tuple(HoldReason)
_KINDS = tuple(ExpiryKind)

GAUGES: tuple[GaugeSeries, ...] = (
    GaugeSeries(
        "checkpointd_redis_memory_ratio",
        "The store's used memory over its limit, at the last census; NaN without a limit.",
        lambda c: (nan if c.tally.memory_ratio is None else c.tally.memory_ratio,),
    ),
    GaugeSeries(
        "checkpointd_expiry_open_refs",
        "Open refs of both lines by age, at the last census; store-wide, aggregate with max.",
        lambda c: (c.tally.open_in_grace, c.tally.open_overdue, c.tally.open_future),
        "age",
        ("in_grace", "overdue", "future"),
    ),
    GaugeSeries(
        "checkpointd_expiry_oldest_open_timestamp_seconds",
        "When the oldest open ref was created; NaN if none is open.",
        lambda c: _stamp(c.tally.oldest_open),
    ),
    GaugeSeries(
        "checkpointd_expiry_grace_seconds",
        "The grace in force; changes with the configuration.",
        lambda c: (nan if c.tally.grace is None else c.tally.grace.total_seconds(),),
    ),
    GaugeSeries(
        "checkpointd_expiry_held",
        "1 while expiry is held for this reason, until an operator allows it or the doubt passes.",
        lambda c: _one_of(c.tally.held, _HOLDS),
        "reason",
        _HOLDS,
    ),
    GaugeSeries(
        "checkpointd_issuance_frozen",
        "1 while issuance of the line is frozen and every partition has acknowledged it.",
        lambda c: tuple(
            float(
                c.tally.frozen is not None
                and c.tally.freeze_in_force_at is not None
                and line in c.tally.frozen.lines
            )
            for line in ALL_LINES
        ),
        "line",
        ALL_LINES,
    ),
    GaugeSeries(
        "checkpointd_freeze_partitions",
        "Partitions that should carry the last control change, and that do.",
        lambda c: (c.tally.copies_declared, c.tally.copies_carrying),
        "copy",
        ("declared", "carrying"),
    ),
    GaugeSeries(
        "checkpointd_adopt_scan_started_timestamp_seconds",
        "When the last scan of the source began, by any replica; NaN if there was none.",
        lambda c: _stamp(c.tally.scan_started),
    ),
    GaugeSeries(
        "checkpointd_adopt_scan_completed_timestamp_seconds",
        "When the last complete scan of the source ended; NaN if there was none.",
        lambda c: _stamp(c.tally.scan_completed),
    ),
    GaugeSeries(
        "checkpointd_adopt_unregistrable_threads",
        "Threads of the source whose ids the registry cannot hold, at the last scan.",
        lambda c: (c.tally.unregistrable,),
    ),
    GaugeSeries(
        "checkpointd_drain_state",
        "1 for the word that the drain as a whole comes to, 0 for the others.",
        lambda c: _one_of(c.drain.state, _STATES),
        "state",
        _STATES,
    ),
    GaugeSeries(
        "checkpointd_drain_stalled",
        "1 while the drain is stalled for this cause.",
        lambda c: _one_of(c.drain.cause, _CAUSES),
        "cause",
        _CAUSES,
    ),
    GaugeSeries(
        "checkpointd_drain_refs",
        "Legacy refs by state, at the last census; store-wide, aggregate with max.",
        lambda c: _of(c.tally.legacy, LEGACY_STATES),
        "state",
        LEGACY_STATES,
    ),
    GaugeSeries(
        "checkpointd_drain_blocked_refs",
        "Quarantined refs by reason, at the last census; each waits for an operator.",
        lambda c: _of(c.tally.blocked, _REASONS),
        "reason",
        _REASONS,
    ),
    GaugeSeries(
        "checkpointd_drain_baseline_refs",
        "Legacy refs that were unfinished when the freeze came into force.",
        lambda c: (c.tally.baseline,),
    ),
    GaugeSeries(
        "checkpointd_drain_frozen_timestamp_seconds",
        "When the freeze came into force; NaN while none is.",
        lambda c: _stamp(c.tally.freeze_in_force_at),
    ),
    GaugeSeries(
        "checkpointd_drain_last_progress_timestamp_seconds",
        "When a legacy ref last migrated, on any replica; NaN if none has.",
        lambda c: _stamp(c.tally.last_progress),
    ),
    GaugeSeries(
        "checkpointd_drain_completed_timestamp_seconds",
        "When the drain came to its end; NaN while it has not.",
        lambda c: _stamp(c.tally.drained_at),
    ),
    GaugeSeries(
        "checkpointd_drain_oldest_pending_timestamp_seconds",
        "When the oldest unfinished legacy ref was created; NaN if there is none.",
        lambda c: _stamp(c.tally.oldest_pending),
    ),
    GaugeSeries(
        "checkpointd_drain_eta_seconds",
        "How long the drain will take at its present rate; NaN when that cannot be told honestly.",
        lambda c: (nan if c.drain.eta_s is None else c.drain.eta_s,),
    ),
)

COUNTERS: tuple[CounterSeries, ...] = (
    CounterSeries(
        "checkpointd_expiry_refs_expired",
        "Refs expired, each once, in the script that expires it. Store-wide, aggregate with max.",
        lambda c: _of(c.tally.expired, _KINDS),
        "reason",
        _KINDS,
    ),
    CounterSeries(
        "checkpointd_expiry_late_finalizations",
        "Writers that came back to a ref after it had expired. Store-wide.",
        lambda c: (c.tally.late_finalizations,),
    ),
    CounterSeries(
        "checkpointd_issuance_refused",
        "Issuances that a freeze refused, in any process. Store-wide.",
        lambda c: (sum(c.tally.refused.values()),),
    ),
    CounterSeries(
        "checkpointd_drain_discovered_refs",
        "Legacy refs that came after the baseline: found late, or written despite the freeze.",
        lambda c: _of(c.tally.discovered, DISCOVERY_SOURCES),
        "source",
        (CATCH_UP, WRITTEN_AFTER_FREEZE),
    ),
    CounterSeries(
        "checkpointd_drain_reopened",
        "Times that late legacy state reopened a finished drain. Store-wide.",
        lambda c: (c.tally.reopened,),
    ),
)


class StoreSeries(Collector):
    """The store-wide metrics of the last census, given to scrapes of ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seen: tuple[Census | None, Census | None, bool] = (None, None, False)
        registry.register(self)

    def show(self, tally: StoreTally, drain: DrainStatus) -> None:
        """Show this census from now on, all of it at once."""
        census = Census(tally, drain)
        self._seen = (census, census, False)

    def lose(self) -> None:
        """The census failed: gauges are NaN, the drain's state ``unknown``, totals stay. Again: same."""
        _, totals, _ = self._seen
        self._seen = (None, totals, True)

    @override
    def collect(self) -> Iterator[Metric]:
        current, totals, lost = self._seen
        for gauge in GAUGES:
            yield gauge.family(current, lost=lost)
        for counter in COUNTERS:
            yield counter.family(totals)
        yield _time_to_finalize(totals)

    def describe(self) -> Iterator[Metric]:
        """The families without a value: names are then known before anything is read."""
        for gauge in GAUGES:
            yield GaugeMetricFamily(gauge.name, gauge.help)
        for counter in COUNTERS:
            yield CounterMetricFamily(counter.name, counter.help)
        yield HistogramMetricFamily(TIME_TO_FINALIZE, _TIME_TO_FINALIZE_HELP)


def _time_to_finalize(census: Census | None) -> Metric:
    family = HistogramMetricFamily(TIME_TO_FINALIZE, _TIME_TO_FINALIZE_HELP)
    if census is not None:
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound in TTF_BOUNDS_S:
            below += census.tally.ttf_buckets.get(bound, 0)
            buckets.append(("+Inf" if bound == inf else str(bound), below))
        family.add_metric([], buckets, sum_value=census.tally.ttf_sum_s)
    return family
