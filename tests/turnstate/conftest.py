"""Claims, turns and ports that name only what matters to a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checkpointd.domain.turn import PauseClaims
from checkpointd.turnstate.memory import MemoryCommandPort

CLAIMS = PauseClaims(
    run_id="run-1",
    session_id="session-1",
    thread_id='a:b{c}|"d" é👩‍💻',
    checkpoint_id="checkpoint-1",
    scope_hash="0123456789abcdef",
    tool_call_id="call_1",
    interrupt_id="i-1",
    name="ask_user",
    jti="mint-1",
)


@pytest.fixture
def claimed() -> Callable[..., PauseClaims]:
    """``claimed(jti="x")``: the claims of a pause that differ in that."""
    return lambda **changes: replace(CLAIMS, **changes)


@pytest.fixture
def claims() -> PauseClaims:
    return CLAIMS


@pytest.fixture
def port() -> MemoryCommandPort:
    return MemoryCommandPort()
