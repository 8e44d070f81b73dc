"""What a row's key says by itself: when, and whose."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from checkpointd.sources.identity import identity_of
from checkpointd.sources.times import created_at, time_of_id


def scope(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TestTimes:
    def test_the_time_inside_a_version_6_id(self) -> None:
        found = time_of_id("1f1ed0e3-3b3f-609d-8001-e483cc4a12e5")
        assert found is not None
        assert abs(found - datetime(2026, 11, 30, 22, 34, 27, 795153, UTC)) < timedelta(
            milliseconds=5
        )

    def test_the_time_inside_other_versions(self) -> None:
        first = time_of_id(str(uuid.uuid1()))
        assert first is not None
        assert abs(first - datetime.now(UTC)) < timedelta(minutes=1)
        assert time_of_id("019d0000-0000-7000-8000-000000000000") is not None

    @pytest.mark.parametrize("text", ["", "x", str(uuid.uuid4()), "a" * 36])
    def test_other_ids_hold_none(self, text: str) -> None:
        assert time_of_id(text) is None
        assert created_at(None, text).year == 1970

    def test_the_checkpoints_own_word_comes_first_and_is_utc(self) -> None:
        said = created_at("2026-01-02T03:04:05+02:00", "x")
        assert said == datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)
        assert said.tzinfo is UTC

    @pytest.mark.parametrize("ts", ["soon", 5, None, "0001-01-01T00:00:00+23:59"])
    def test_a_word_that_is_no_time_leaves_the_id(self, ts: object) -> None:
        assert created_at(ts, "1f1ed0e3-3b3f-609d-8001-e483cc4a12e5").year == 2026


class TestIdentity:
    def test_it_is_read_from_the_thread_id(self) -> None:
        identity = identity_of("acme:_:s:1", {})
        assert (identity.session_id, identity.scope_hash) == ("s:1", scope("acme:_:_"))
        assert identity_of("acme:sub:s", {}).scope_hash == scope("acme:sub:_")

    def test_channels_are_preferred(self) -> None:
        values = {
            "tenant_id": "a:b",
            "sub_tenant_id": "sub",
            "namespace": "ns",
            "run_id": "r",
        }
        identity = identity_of("a:b:sub:session", values)
        assert identity.scope_hash == scope("a:b:sub:ns")
        assert (identity.session_id, identity.run_id) == ("session", "r")

    def test_values_that_are_no_text_are_passed_over(self) -> None:
        assert identity_of("t:_:s", {"tenant_id": None, "run_id": 5}) == identity_of("t:_:s", {})

    def test_another_form_of_id_is_a_session(self) -> None:
        assert identity_of("just-an-id", {}).session_id == "just-an-id"
