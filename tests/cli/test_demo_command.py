"""The demo: what is promised of the sample, by name and number."""

from __future__ import annotations

from typing import Any

import pytest

from checkpointd.registry.embedded import server_binary

pytestmark = [pytest.mark.server]

MESSAGES = {
    "closed": [6],
    "parallel": [5],
    "resumed": [4],
    "fork": [4],
    "exit": [4],
    "long": [100],
    "messages": [10],
    "delta": [8],
    "subgraph_done": [4],
    "paused_in_tool": [2],
    "paused_parallel": [3],
    "paused_two": [2, 2],
    "ask_user": [2],
    "ask_user_ns": [2],
    "generic": [1],
    "generic_ns": [1],
    "subgraph_paused": [2],
    "crash_model_turn2": [2],
}


@pytest.fixture
def needs_a_server(needs: Any) -> None:
    if server_binary() is None:
        needs("redis-server")


@pytest.mark.usefixtures("needs_a_server")
class TestDemo:
    def test_counts_what_is_promised(self, command: Any) -> None:
        document = command.json("demo")
        outcomes = document.pop("outcomes")
        assert document == {
            "threads": 25,
            "adopted": 26,
            "migrated": 18,
            "expired": 7,
            "quarantined": 1,
            "records": 19,
            "discovered_again": 0,
        }
        ends = {o["thread_id"].removeprefix("t:_:"): o for o in outcomes}
        assert {t: o["messages"] for t, o in ends.items() if o["end"] == "migrated"} == MESSAGES
        blocked = ends["abandoned_pause"]
        assert (blocked["verdict"], blocked["end"], blocked["reason"]) == (
            "CLOSED",
            "quarantined",
            "unanswered_call",
        )
        assert {t for t, o in ends.items() if o["end"] == "expired"} == {
            *("crash_tool", "crash_parallel", "crash_model", "crash_after_resume"),
            *("error", "interrupt_before"),
        }
        assert ends["error"]["verdict"] == "FAILED"

    def test_shows_it_and_says_how_to_go_on(self, command: Any) -> None:
        result = command("demo")
        assert result.exit_code == 0
        assert result.stderr == ""
        said = result.stdout
        for promised in (
            "26 refs adopted",
            "7 refs expired",
            "/metrics",
            "crash_model_turn2",
            "unanswered_call",
            "checkpointd quarantine waive --thread t:_:abandoned_pause",
            "checkpointd init",
        ):
            assert promised in said
        table = [line for line in said.splitlines() if line.startswith("t:_:")]
        assert len(table) == 25
        assert max(map(len, table)) <= 80
