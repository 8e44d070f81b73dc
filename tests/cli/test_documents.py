"""Values as JSON says them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from checkpointd.cli import documents
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.reports import AdoptReport, ReconcileReport
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import AdoptOutcome, RefState, WriterLine

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass(frozen=True)
class Pair:
    left: object
    right: object


class TestPlain:
    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (None, None),
            (True, True),
            (3, 3),
            (0.5, 0.5),
            (float("nan"), None),
            (float("inf"), None),
            ("text", "text"),
            (RefState.OPEN, "open"),
            (NOW, "2026-01-02T00:00:00Z"),
            (timedelta(minutes=1), 60.0),
            ({RefState.OPEN: (1, 2)}, {"open": [1, 2]}),
            (Pair(1, [RefState.OPEN]), {"left": 1, "right": ["open"]}),
            (Path("/a"), "/a"),
        ],
    )
    def test_says_what_json_can_say(self, value: Any, said: Any) -> None:
        assert documents.plain(value) == said
        json.dumps(documents.plain(value), allow_nan=False)


class TestRecordDocument:
    def test_is_flat_and_says_null_for_what_there_is_not(self) -> None:
        ref = CheckpointRef("t", "c", WriterLine.LEGACY, NOW)
        document = documents.record_document(RefRecord(ref=ref, state=RefState.PENDING))
        assert (document["thread_id"], document["state"], document["became"]) == (
            "t",
            "pending",
            None,
        )
        assert not any(isinstance(value, dict | list) for value in document.values())


class TestReportDocument:
    def test_says_in_one_word_how_the_pass_ended(self) -> None:
        report = ReconcileReport(at=NOW, grace_s=1, skipped="paused: r")
        assert documents.report_document(report)["outcome"] == "held"

    def test_of_a_scan_says_how_many_refs_came(self) -> None:
        report = AdoptReport(at=NOW, outcomes={AdoptOutcome.NEW: 25}, fallbacks=1)
        assert documents.report_document(report)["adopted"] == 26
