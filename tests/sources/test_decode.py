"""Bytes to plain data, whatever the bytes are."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.plain import Broken, Named
from checkpointd.sources.decode import UndecodableError, decode
from checkpointd.sources.rows import Cell


def read(blob: bytes, kind: str | None = "msgpack") -> Any:
    return decode(Cell(kind, blob, len(blob)), limit=1_000_000)


class TestDecode:
    def test_a_class_becomes_its_name_beside_its_data(self, build: Any) -> None:
        value = read(build.pack([build.named("os", "system", "true", code=0)]))
        assert value == [Named("os", "system", "true")]

    def test_named_values_may_hold_named_values(self, build: Any) -> None:
        inner = build.named("uuid", "UUID", "ab", code=0)
        assert read(build.pack(build.named("a", "B", {"id": inner}))) == Named(
            "a", "B", {"id": Named("uuid", "UUID", "ab")}
        )

    def test_what_is_broken_inside_breaks_only_itself(self, build: Any) -> None:
        value = read(build.pack({"good": 1, "bad": build.extension(5, b"\xc1")}))
        assert value["good"] == 1
        assert isinstance(value["bad"], Broken)

    def test_extensions_may_not_nest_without_end(self, build: Any) -> None:
        value: Any = 1
        for _ in range(200):
            value = build.extension(5, build.pack(["m", "N", value]))
        value = read(build.pack(value))
        for _ in range(300):
            if not isinstance(value, Named):
                break
            value = value.data
        assert isinstance(value, Broken)

    def test_an_array_is_named_and_not_built(self, build: Any) -> None:
        array = build.extension(6, build.pack(["<f8", [2, 2], "C", b"\0" * 32]))
        assert read(build.pack(array)) == Named(
            "numpy", "ndarray", {"dtype": "<f8", "shape": [2, 2]}
        )

    def test_json_constructors_are_data(self) -> None:
        blob = b'{"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["true"]}'
        assert read(blob, "json") == Named("os", "system", "true")

    def test_a_format_that_nobody_wrote_down_is_guessed(self) -> None:
        assert read(b'{"a": 1}', None) == {"a": 1}
        assert read(b"\x81\xa1a\x01", None) == {"a": 1}

    def test_json_may_hold_not_a_number(self) -> None:
        assert math.isnan(read(b"[NaN]", "json")[0])

    @pytest.mark.parametrize("kind", ["pickle", "msgpack+aes", "", "nonsense"])
    def test_other_formats_are_refused(self, kind: str) -> None:
        with pytest.raises(UndecodableError):
            read(b"\xc1", kind)

    @pytest.mark.parametrize(
        "blob", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    )
    def test_a_promise_of_four_billion_items_costs_no_memory(self, blob: bytes) -> None:
        with pytest.raises(UndecodableError):
            read(blob)

    @given(blob=st.binary(max_size=200), kind=st.sampled_from(["msgpack", "json", None]))
    def test_any_bytes_decode_or_are_refused(self, blob: bytes, kind: str | None) -> None:
        with suppress(UndecodableError):
            read(blob, kind)
