"""One word for the drain, its progress and its ETA, decided from numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.drain import (
    DrainRules,
    assess,
    breaker_trips,
    eta_s,
    only_operator_can_help,
    progress,
    scan_owed,
)
from checkpointd.domain.refs import IssuanceFreeze
from checkpointd.domain.states import (
    LEGACY_STATES,
    UNFINISHED,
    DrainState,
    FailureReason,
    HoldReason,
    PassName,
    RefState,
    StallCause,
    ThrottleReason,
    WriterLine,
)
from checkpointd.domain.tally import StoreTally

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SETTLE = timedelta(seconds=30)
RULES = DrainRules(has_source=True, settle=SETTLE)
FREEZE = IssuanceFreeze("retiring it", NOON - HOUR, (WriterLine.LEGACY,))


def tally(refs: Mapping[str, int] | None = None, **changes: Any) -> StoreTally:
    """An hour after a freeze, all scanned, counted and due, but for ``changes``."""
    legacy = {RefState(word): n for word, n in (refs or {}).items()}
    left = sum(legacy.get(state, 0) for state in UNFINISHED)
    given: dict[str, Any] = {
        "at": NOON,
        "legacy": legacy,
        "frozen": FREEZE,
        "freeze_in_force_at": NOON - HOUR,
        "copies_declared": 16,
        "copies_carrying": 16,
        "baseline": max(left, 100),
        "due": legacy.get(RefState.PENDING, 0),
        "last_progress": NOON,
        "clean_scan_start": NOON,
        "clean_scan_births": 7,
        "births": 7,
        "recounted": True,
    }
    return StoreTally(**{**given, **changes})


class TestWord:
    def test_a_store_that_cannot_be_read_is_unknown_never_drained(self) -> None:
        status = assess(None, RULES)
        assert status.state is DrainState.UNKNOWN
        assert (status.progress, status.eta_s) == (None, None)

    @pytest.mark.parametrize(
        ("seen", "word", "cause"),
        [
            (tally({}), "drained", None),
            (tally({"migrated": 5, "waived": 2, "expired": 1}), "drained", None),
            (tally({}, frozen=None, freeze_in_force_at=None), "idle", None),
            (tally({}, freeze_in_force_at=None), "idle", None),
            (
                tally({}, frozen=IssuanceFreeze("r", NOON, (WriterLine.KERNEL,))),
                "idle",
                None,
            ),
            (tally({"pending": 3}), "draining", None),
            (tally({"replaying": 1}), "draining", None),
            (tally({"retryable": 1}), "draining", None),
            (tally({"pending": 1, "quarantined": 4}), "draining", None),
            (tally({"open": 1}), "settling", None),
            (tally({"pending": 2}, on_hold=2, due=0), "settling", None),
            (tally({"open": 1, "quarantined": 1}), "settling", None),
            (tally({"quarantined": 2}), "stalled", "quarantine"),
            (tally({}, recounted=False), "settling", None),
            (tally({}, clean_scan_start=None), "settling", None),
            (tally({}, clean_scan_start=NOON - HOUR), "settling", None),
            (tally({}, births=8), "settling", None),
            (tally({}, unregistrable=1), "settling", None),
            (tally({"pending": 1}, last_progress=NOON - HOUR), "stalled", "no_progress"),
            (tally({"pending": 1}, last_progress=None), "stalled", "no_progress"),
        ],
    )
    def test_it_is_the_first_that_applies(
        self, seen: StoreTally, word: str, cause: str | None
    ) -> None:
        status = assess(seen, RULES)
        assert status.state is DrainState(word)
        assert status.cause is (StallCause(cause) if cause else None)
        assert status.sentence.endswith(".")

    def test_paused_comes_before_everything_but_idle(self) -> None:
        paused = {PassName.DRAIN: "a release"}
        for seen in (tally({}, paused=paused), tally({"pending": 1}, paused=paused)):
            assert assess(seen, RULES).state is DrainState.PAUSED
        idle = tally({}, paused=paused, frozen=None, freeze_in_force_at=None)
        assert assess(idle, RULES).state is DrainState.IDLE

    def test_another_pass_being_paused_is_not_the_drains_pause(self) -> None:
        seen = tally({"pending": 1}, paused={PassName.ADOPT: "r"})
        assert assess(seen, RULES).state is DrainState.DRAINING

    def test_halted_comes_before_drained(self) -> None:
        assert assess(tally({}, halted_reason="30 of 50"), RULES).state is DrainState.HALTED

    def test_without_a_source_no_scan_is_owed(self) -> None:
        seen = tally({}, clean_scan_start=None, clean_scan_births=None, unregistrable=3)
        assert assess(seen, DrainRules()).state is DrainState.DRAINED

    def test_unregistrable_threads_may_be_accepted(self) -> None:
        accepting = DrainRules(has_source=True, settle=SETTLE, accept_unregistrable=True)
        assert assess(tally({}, unregistrable=1), accepting).state is DrainState.DRAINED

    @given(
        st.dictionaries(st.sampled_from(LEGACY_STATES), st.integers(0, 3)),
        st.booleans(),
        st.booleans(),
        st.integers(0, 3),
    )
    def test_drained_is_never_said_over_anything_unfinished(
        self, legacy: dict[RefState, int], scanned: bool, recounted: bool, on_hold: int
    ) -> None:
        seen = tally(
            legacy,
            clean_scan_start=NOON if scanned else None,
            recounted=recounted,
            on_hold=on_hold,
        )
        done = not any(legacy.get(state) for state in UNFINISHED) and scanned and recounted
        assert (assess(seen, RULES).state is DrainState.DRAINED) is done


class TestNoProgress:
    def test_it_takes_the_whole_of_stall_after(self) -> None:
        just = timedelta(minutes=30)
        seen = tally({"pending": 1}, last_progress=NOON - just)
        assert assess(seen, RULES).state is DrainState.STALLED
        seen = tally({"pending": 1}, last_progress=NOON - just + timedelta(seconds=1))
        assert assess(seen, RULES).state is DrainState.DRAINING

    def test_a_throttled_drain_is_not_stalled(self) -> None:
        seen = tally({"pending": 1}, last_progress=NOON - HOUR, throttled=ThrottleReason.SOURCE)
        assert assess(seen, RULES).state is DrainState.DRAINING

    def test_what_is_not_due_yet_is_not_late(self) -> None:
        seen = tally({"retryable": 1}, last_progress=NOON - HOUR, due=0)
        assert assess(seen, RULES).state is DrainState.DRAINING

    def test_a_resume_begins_the_wait_anew(self) -> None:
        seen = tally({"pending": 1}, last_progress=NOON - HOUR, resumed_at=NOON)
        assert assess(seen, RULES).state is DrainState.DRAINING


class TestSentence:
    def test_it_says_what_is_left_by_state(self) -> None:
        sentence = assess(tally({"pending": 1200, "replaying": 2}), RULES).sentence
        assert sentence == "1,202 refs left: 2 replaying, 1200 pending."

    def test_a_quarantine_is_told_by_its_reasons(self) -> None:
        seen = tally({"quarantined": 3}, blocked={FailureReason.ABSENT: 2, FailureReason.OTHER: 1})
        assert "2 absent, 1 other" in assess(seen, RULES).sentence

    def test_a_half_copied_freeze_says_how_far_it_came(self) -> None:
        seen = tally({}, freeze_in_force_at=None, copies_carrying=3)
        assert "3 of 16" in assess(seen, RULES).sentence

    def test_held_pauses_wait_for_a_scan_and_say_so(self) -> None:
        seen = tally({"pending": 2}, on_hold=2, due=0, clean_scan_start=None)
        assert "clean scan" in assess(seen, RULES).sentence

    @pytest.mark.parametrize("held", HoldReason)
    def test_a_held_expiry_is_named(self, held: HoldReason) -> None:
        assert f"held ({held})" in assess(tally({"open": 9}, held=held), RULES).sentence

    def test_young_heads_are_named(self) -> None:
        seen = tally({}, clean_scan_start=None, scan_young=2)
        assert "2 heads are too young" in assess(seen, RULES).sentence

    def test_a_throttle_is_named_first(self) -> None:
        seen = tally({"pending": 2}, throttled=ThrottleReason.REPLAYER)
        assert assess(seen, RULES).sentence.startswith("Throttled (replayer).")


class TestProgress:
    def test_nothing_of_nothing_is_all(self) -> None:
        assert progress(tally({}, baseline=0)) == 1.0

    def test_it_is_what_is_not_unfinished_any_more(self) -> None:
        seen = tally({"pending": 10, "migrated": 500}, baseline=30, discovered_since_freeze=10)
        assert progress(seen) == pytest.approx(0.75)

    def test_it_falls_when_more_is_discovered(self) -> None:
        before = progress(tally({"pending": 5}, baseline=10))
        after = progress(tally({"pending": 10}, baseline=10, discovered_since_freeze=5))
        assert before is not None
        assert after is not None
        assert after < before

    def test_it_is_null_while_idle(self) -> None:
        assert progress(tally({"pending": 1}, frozen=None)) is None

    @given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 200))
    def test_it_stays_between_none_and_all(self, base: int, more: int, left: int) -> None:
        seen = tally({"pending": left}, baseline=base, discovered_since_freeze=more)
        share = progress(seen)
        assert share is not None
        assert 0 <= share <= 1
        assert share < 1 or left == 0


class TestEta:
    def test_it_goes_on_as_it_went(self) -> None:
        seen = tally({"pending": 75}, baseline=100)
        assert eta_s(seen, DrainState.DRAINING) == pytest.approx(3 * 3600)

    @pytest.mark.parametrize("state", set(DrainState) - {DrainState.DRAINING, DrainState.SETTLING})
    def test_it_is_absent_unless_the_drain_moves(self, state: DrainState) -> None:
        assert eta_s(tally({"pending": 50}), state) is None

    def test_it_is_absent_while_throttled(self) -> None:
        seen = tally({"pending": 50}, throttled=ThrottleReason.LATENCY)
        assert eta_s(seen, DrainState.DRAINING) is None

    def test_it_is_absent_below_one_percent(self) -> None:
        assert eta_s(tally({"pending": 996}, baseline=1000), DrainState.DRAINING) is None
        assert eta_s(tally({"pending": 990}, baseline=1000), DrainState.DRAINING) is not None

    def test_it_is_absent_in_the_instant_of_the_freeze(self) -> None:
        seen = tally({"pending": 50}, freeze_in_force_at=NOON)
        assert eta_s(seen, DrainState.DRAINING) is None


class TestOwedScan:
    def test_none_is_owed_before_the_freeze_is_in_force(self) -> None:
        assert not scan_owed(in_force_at=None, settle=SETTLE, clean_start=None)

    def test_one_begun_when_it_had_settled_will_do(self) -> None:
        assert not scan_owed(in_force_at=NOON, settle=SETTLE, clean_start=NOON + SETTLE)

    def test_one_begun_sooner_will_not(self) -> None:
        sooner = NOON + SETTLE - timedelta(microseconds=1)
        assert scan_owed(in_force_at=NOON, settle=SETTLE, clean_start=sooner)


class TestNothingLeftToWaitFor:
    @pytest.mark.parametrize(
        ("seen", "nothing"),
        [
            (tally({"quarantined": 1}), True),
            (tally({"quarantined": 1}, clean_scan_start=None), False),
            (tally({}, unregistrable=1), True),
            (tally({}, unregistrable=1, recounted=False), True),
            (tally({"pending": 1}, unregistrable=1), False),
            (tally({"open": 1}, open_in_grace=1), False),
            (tally({"open": 1}, open_overdue=1), False),
            (tally({"open": 9}, open_overdue=9, held=HoldReason.MASS), True),
            (tally({"open": 9}, open_overdue=9, held=HoldReason.STORE_GAP), False),
            (tally({"open": 9}, open_overdue=8, open_in_grace=1, held=HoldReason.MASS), False),
            (tally({"open": 9, "pending": 1}, open_overdue=9, held=HoldReason.MASS), False),
            (tally({}, recounted=False), False),
            (tally({"pending": 1}, last_progress=NOON - HOUR), False),
            (tally({"pending": 1}, halted_reason="r"), True),
            (tally({"pending": 1}, paused={PassName.DRAIN: "r"}), True),
            (tally({"pending": 1}, frozen=None), True),
            (tally({}), False),
        ],
    )
    def test_only_a_person_can_move_it_on(self, seen: StoreTally, nothing: bool) -> None:
        assert only_operator_can_help(assess(seen, RULES), seen, RULES) is nothing


class TestBreaker:
    @pytest.mark.parametrize(
        ("failed", "ended", "trips"),
        [
            (0, 0, None),
            (49, 49, None),
            (25, 50, True),
            (24, 50, False),
            (50, 101, False),
            (51, 101, True),
        ],
    )
    def test_half_of_at_least_fifty_trips_it(
        self, failed: int, ended: int, trips: bool | None
    ) -> None:
        assert breaker_trips(failed=failed, ended=ended) is trips
