from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.durations import (
    LARGEST,
    LONGEST,
    QuantityError,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from checkpointd.domain.errors import CheckpointdError


class TestADuration:
    @pytest.mark.parametrize(
        ("text", "meant"),
        [
            ("15m", timedelta(minutes=15)),
            ("1h30m", timedelta(hours=1, minutes=30)),
            ("250ms", timedelta(milliseconds=250)),
            ("1.5h", timedelta(minutes=90)),
            ("0s", timedelta(0)),
            ("168h", timedelta(days=7)),
            ("2w", timedelta(days=14)),
            (" 1h 5s ", timedelta(hours=1, seconds=5)),
            ("1m1ms", timedelta(minutes=1, milliseconds=1)),
        ],
    )
    def test_is_read_with_its_units(self, text: str, meant: timedelta) -> None:
        assert parse_duration(text) == meant

    @pytest.mark.parametrize("bare", [30, "30", 1.5, " 30 ", 0, "-3"])
    def test_a_bare_number_is_asked_for_its_unit(self, bare: object) -> None:
        with pytest.raises(QuantityError, match=r"of what\? write"):
            parse_duration(bare)

    @pytest.mark.parametrize(
        "text", ["", "soon", "5 minutes", "-5s", "5S", "1h-5m", "٣s", "1e3s", "1h\n5"]
    )
    def test_other_text_is_refused(self, text: str) -> None:
        with pytest.raises(QuantityError):
            parse_duration(text)

    def test_a_unit_named_twice_is_refused(self) -> None:
        with pytest.raises(QuantityError, match="twice"):
            parse_duration("1m2m")

    @pytest.mark.parametrize("text", ["99999999d", f"{'9' * 400}s"])
    def test_one_of_more_than_ten_years_is_refused(self, text: str) -> None:
        with pytest.raises(QuantityError, match="ten years"):
            parse_duration(text)

    @pytest.mark.parametrize("given", [True, None, ["1s"], {}])
    def test_what_is_no_text_is_refused(self, given: object) -> None:
        with pytest.raises(QuantityError):
            parse_duration(given)

    @given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST))
    def test_is_read_back_as_it_is_shown(self, duration: timedelta) -> None:
        assert parse_duration(format_duration(duration)) == duration

    def test_a_negative_one_can_be_shown(self) -> None:
        assert format_duration(timedelta(minutes=-90)) == "-1h30m"


class TestASize:
    @pytest.mark.parametrize(
        ("text", "meant"), [("64MiB", 64 << 20), ("1 kib", 1024), ("7B", 7), ("2GiB", 2 << 30)]
    )
    def test_is_read_with_its_unit(self, text: str, meant: int) -> None:
        assert parse_size(text) == meant

    @pytest.mark.parametrize("bare", [5, "5", 5.0])
    def test_a_bare_number_is_asked_for_its_unit(self, bare: object) -> None:
        with pytest.raises(QuantityError, match=r"5.* of what"):
            parse_size(bare)

    @pytest.mark.parametrize(
        "given", ["64MB", "", "1.5MiB", "-1B", None, "9999GiB", "9" * 400 + "B"]
    )
    def test_anything_else_is_refused(self, given: object) -> None:
        with pytest.raises(QuantityError):
            parse_size(given)

    @given(st.integers(min_value=0, max_value=LARGEST))
    def test_is_read_back_as_it_is_shown(self, size: int) -> None:
        assert parse_size(format_size(size)) == size


def test_a_refused_quantity_is_an_error_of_ours_and_a_value_error() -> None:
    assert issubclass(QuantityError, CheckpointdError)
    assert issubclass(QuantityError, ValueError)
