"""The status document's keys and shapes are an interface."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from checkpointd.domain.drain import DrainRules, assess
from checkpointd.domain.refs import IssuanceFreeze
from checkpointd.domain.states import (
    KERNEL_STATES,
    LEGACY_STATES,
    FailureReason,
    PassName,
    RefState,
    ThrottleReason,
    WriterLine,
)
from checkpointd.domain.status import iso, status_document
from checkpointd.domain.tally import StoreTally

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PROMISED = {
    "state",
    "cause",
    "sentence",
    "progress",
    "baseline",
    "discovered",
    "written_after_freeze",
    "eta_seconds",
    "frozen",
    "refs",
    "kernel",
    "blocked",
    "throttled",
    "drained_at",
    "reopened_at",
    "passes",
}


def document(tally: StoreTally | None) -> dict[str, object]:
    made = status_document(tally, assess(tally, DrainRules()), {})
    assert json.loads(json.dumps(made)) == made
    return made


class TestDocument:
    @pytest.mark.parametrize("tally", [None, StoreTally(at=NOON)], ids=["unreadable", "empty"])
    def test_every_promised_key_is_always_there(self, tally: StoreTally | None) -> None:
        assert document(tally).keys() >= PROMISED

    def test_of_a_store_that_cannot_be_read_nothing_is_said_but_that(self) -> None:
        made = document(None)
        assert made["state"] == "unknown"
        nothing = ("progress", "baseline", "discovered", "refs", "kernel", "eta_seconds", "at")
        assert [made[key] for key in nothing] == [None] * len(nothing)

    def test_refs_have_all_eight_words_and_kernel_its_three(self) -> None:
        made = document(StoreTally(at=NOON, legacy={RefState.PENDING: 2}))
        assert made["refs"] == {str(s): 2 if s == "pending" else 0 for s in LEGACY_STATES}
        assert made["kernel"] == {str(s): 0 for s in KERNEL_STATES}

    def test_only_reasons_that_block_something_are_listed(self) -> None:
        blocked = {FailureReason.ABSENT: 2, FailureReason.OTHER: 0}
        assert document(StoreTally(at=NOON, blocked=blocked))["blocked"] == {"absent": 2}

    def test_a_freeze_says_why_since_when_for_whom_and_whether_it_is_in_force(self) -> None:
        freeze = IssuanceFreeze("retiring it", NOON, (WriterLine.LEGACY,))
        made = document(StoreTally(at=NOON, frozen=freeze, copies_declared=4, copies_carrying=3))
        assert made["frozen"] == {
            "reason": "retiring it",
            "at": "2026-01-01T12:00:00Z",
            "lines": ["legacy"],
            "in_force": False,
            "in_force_at": None,
            "partitions": {"carrying": 3, "declared": 4},
        }
        assert document(StoreTally(at=NOON))["frozen"] is None

    def test_a_throttle_and_pauses_are_named(self) -> None:
        made = document(
            StoreTally(
                at=NOON, throttled=ThrottleReason.SOURCE, paused={PassName.ADOPT: "maintenance"}
            )
        )
        assert made["throttled"] == "source"
        assert made["paused"] == {"adopt": "maintenance"}

    def test_times_are_iso_in_utc(self) -> None:
        made = document(StoreTally(at=NOON, drained_at=NOON + timedelta(microseconds=5)))
        assert made["drained_at"] == "2026-01-01T12:00:00.000005Z"


class TestTimes:
    def test_absence_is_null(self) -> None:
        assert iso(None) is None

    def test_another_zone_is_told_in_utc(self) -> None:
        east = NOON.astimezone(timezone(timedelta(hours=2)))
        assert iso(east) == "2026-01-01T12:00:00Z"
