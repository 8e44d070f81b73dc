"""Local time for deadlines: forward only, and through a suspend."""

from __future__ import annotations

import time

import pytest

from checkpointd.leases.clock import boottime


class TestBoottime:
    def test_goes_forward_only(self) -> None:
        readings = [boottime() for _ in range(1000)]
        assert readings == sorted(readings)

    @pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
    def test_counts_the_time_that_the_machine_slept(self) -> None:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert before <= boottime() <= time.clock_gettime(time.CLOCK_BOOTTIME)

    def test_is_monotonic_time_where_the_system_counts_no_sleep(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
        before = time.monotonic()
        assert before <= boottime() <= time.monotonic()
