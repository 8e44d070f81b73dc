"""How fast a drain goes: it begins low, doubles while all is well, and halves when it is not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.pace import FIRST_LIMIT, JUDGED_ENDS, Pace, backoff
from checkpointd.domain.states import ThrottleReason

SECOND = timedelta(seconds=1)
CAP = timedelta(minutes=5)
DEPENDENCIES = [ThrottleReason.SOURCE, ThrottleReason.REPLAYER]


class TestBackOff:
    @pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300)])
    def test_it_doubles_with_each_attempt_up_to_the_cap(self, attempt: int, seconds: int) -> None:
        longest = backoff(attempt, base=SECOND, cap=CAP, draw=1.0)
        assert longest == timedelta(seconds=seconds)

    @given(st.integers(0, 10_000), st.floats(0, 1))
    def test_full_jitter_is_between_nothing_and_the_cap(self, attempt: int, draw: float) -> None:
        assert timedelta(0) <= backoff(attempt, base=SECOND, cap=CAP, draw=draw) <= CAP


class TestRampUp:
    def test_it_begins_low_whatever_the_ceiling(self) -> None:
        assert Pace(ceiling=100).room(0, now=0) == FIRST_LIMIT

    def test_it_never_begins_above_the_ceiling(self) -> None:
        assert Pace(ceiling=2).room(0, now=0) == 2

    def test_it_doubles_with_each_fast_answer_up_to_the_ceiling(self) -> None:
        pace = Pace(ceiling=30)
        limits = []
        for now in range(4):
            pace.answered(0.001, now=float(now))
            limits.append(pace.limit)
        assert limits == [8, 16, 30, 30]

    def test_what_runs_takes_of_the_room(self) -> None:
        pace = Pace(ceiling=4)
        assert [pace.room(n, now=0) for n in (0, 3, 4, 9)] == [4, 1, 0, 0]

    def test_a_lowered_ceiling_holds_at_once(self) -> None:
        pace = Pace(ceiling=8, limit=8)
        pace.ceiling = 3
        assert pace.room(2, now=0) == 1


class TestSlowStore:
    def test_the_limit_halves_when_answers_take_twice_as_long(self) -> None:
        pace = Pace(ceiling=64, limit=64)
        pace.answered(0.050, now=1)
        for i in range(10):
            pace.answered(0.200, now=2 + i * 0.01)
        assert pace.limit == 32
        assert pace.throttled is ThrottleReason.LATENCY

    def test_it_halves_once_a_second_down_to_one(self) -> None:
        pace = Pace(ceiling=8, limit=8)
        pace.answered(0.050, now=0)
        for i in range(1, 20):
            pace.answered(1.0, now=float(i))
        assert pace.limit == 1

    def test_twice_as_long_is_no_sign_where_both_are_fast(self) -> None:
        pace = Pace(ceiling=64, limit=64)
        pace.answered(0.001, now=0)
        for i in range(10):
            pace.answered(0.010, now=float(i))
        assert pace.limit == 64
        assert pace.throttled is None

    def test_it_recovers_with_the_store(self) -> None:
        pace = Pace(ceiling=8, limit=8)
        pace.answered(0.050, now=0)
        for i in range(1, 4):
            pace.answered(0.5, now=float(i))
        assert pace.throttled is ThrottleReason.LATENCY
        for i in range(4, 30):
            pace.answered(0.050, now=float(i))
        assert (pace.throttled, pace.limit) == (None, 8)


class TestFailingReplays:
    def test_most_of_a_window_ending_badly_halves_the_limit(self) -> None:
        pace = Pace(ceiling=8, limit=8)
        for i in range(JUDGED_ENDS):
            pace.ended(well=i % 2 == 0, now=10)
        assert (pace.limit, pace.throttled) == (4, ThrottleReason.ERROR_RATE)

    def test_fewer_than_half_do_not(self) -> None:
        pace = Pace(ceiling=8, limit=8)
        for i in range(JUDGED_ENDS):
            pace.ended(well=i > JUDGED_ENDS // 2 - 2, now=10)
        assert (pace.limit, pace.throttled) == (8, None)

    def test_a_good_window_ends_the_throttle(self) -> None:
        pace = Pace(ceiling=8, limit=8)
        for well in (False, True):
            for _ in range(JUDGED_ENDS):
                pace.ended(well=well, now=10)
        assert pace.throttled is None


class TestDependencyOutOfReach:
    @pytest.mark.parametrize("reason", DEPENDENCIES)
    def test_nothing_is_begun_until_one_ref_may_probe_it(self, reason: ThrottleReason) -> None:
        pace = Pace(ceiling=8, limit=8)
        pace.unreachable(reason, now=100)
        assert pace.room(0, now=100.9) == 0
        assert pace.room(0, now=101) == 1
        assert pace.room(1, now=101) == 0

    def test_each_failed_probe_doubles_the_distance_up_to_a_cap(self) -> None:
        pace = Pace(ceiling=8)
        now, distances = 0.0, []
        for _ in range(8):
            pace.unreachable(ThrottleReason.SOURCE, now=now)
            began = now
            while not pace.room(0, now=now):
                now += 0.5
            distances.append(now - began)
        assert distances == [1, 2, 4, 8, 16, 30, 30, 30]

    def test_replays_that_were_under_way_when_it_went_double_nothing(self) -> None:
        pace = Pace(ceiling=32, limit=32)
        for i in range(32):
            pace.unreachable(ThrottleReason.REPLAYER, now=100 + i / 100)
        assert pace.room(0, now=101) == 1

    def test_an_answer_resumes_from_the_beginning_of_the_ramp(self) -> None:
        pace = Pace(ceiling=64, limit=64)
        pace.unreachable(ThrottleReason.SOURCE, now=0)
        pace.reached()
        assert (pace.throttled, pace.room(0, now=0)) == (None, FIRST_LIMIT)

    def test_the_next_outage_is_probed_soon_again(self) -> None:
        pace = Pace(ceiling=8)
        for now in (0, 10, 20):
            pace.unreachable(ThrottleReason.SOURCE, now=now)
        pace.reached()
        pace.unreachable(ThrottleReason.SOURCE, now=1000)
        assert pace.room(0, now=1001) == 1

    def test_an_answer_says_nothing_of_a_slow_store(self) -> None:
        pace = Pace(ceiling=8, limit=2, throttled=ThrottleReason.LATENCY)
        pace.reached()
        assert (pace.throttled, pace.limit) == (ThrottleReason.LATENCY, 2)
