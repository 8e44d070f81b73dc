"""Requests and legacy states that name only what matters to a test."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from checkpointd.domain.legacy import Identity, LegacyState, Verdict
from checkpointd.domain.refs import SafeBoundaryMarker
from checkpointd.domain.states import WriterLine
from checkpointd.replay.port import ReplayRequest, replay_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
THREAD = "tenant:_:é👩‍💻"
LEGACY = "1f0-legacy"


@pytest.fixture
def legacy() -> Callable[..., LegacyState]:
    """``legacy(verdict=…, questions=…)``: a closed thread that differs in that."""

    def build(**changes: Any) -> LegacyState:
        given: dict[str, Any] = {
            "thread_id": THREAD,
            "checkpoint_id": LEGACY,
            "created_at": NOW,
            "verdict": Verdict.CLOSED,
            "messages": ({"role": "user", "content": "hello"},),
            "identity": Identity(run_id="run-1", session_id="é👩‍💻", scope_hash="0123456789abcdef"),
        }
        return LegacyState(**{**given, **changes})

    return build


@pytest.fixture
def asked() -> Callable[..., ReplayRequest]:
    """``asked(state)``: the request to replay that state, at its boundary."""

    def build(state: LegacyState | None, **changes: Any) -> ReplayRequest:
        boundary = SafeBoundaryMarker(
            boundary_id="boundary-1",
            thread_id=THREAD,
            sequence=3,
            digest="digest",
            writer_line=WriterLine.LEGACY,
            created_at=NOW,
        )
        given: dict[str, Any] = {
            "thread_id": THREAD,
            "legacy_checkpoint_id": LEGACY,
            "boundary": boundary,
            "state": state,
            "attempt": 1,
            "fence": 7,
            "deadline": NOW,
            "idempotency_key": replay_key(THREAD, LEGACY, "boundary-1"),
        }
        return ReplayRequest(**{**given, **changes})

    return build
