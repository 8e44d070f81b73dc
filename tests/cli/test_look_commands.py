"""Status, one conversation's story, the audit, the check of all."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from checkpointd.cli import look
from checkpointd.cli.look import is_met

pytestmark = pytest.mark.server

KEYS = {
    *("state", "cause", "sentence", "progress", "baseline", "discovered", "written_after_freeze"),
    *("eta_seconds", "frozen", "refs", "kernel", "blocked", "throttled", "drained_at"),
    *("reopened_at", "passes"),
}


class TestStatus:
    def test_of_an_empty_store_is_idle(self, command: Any, store: str) -> None:
        result = command("status")
        assert result.exit_code == 0
        assert result.stdout.startswith("idle")

    def test_writes_nothing_to_an_empty_store(self, command: Any, store: str) -> None:
        command("status")
        from redis import Redis

        with Redis(unix_socket_path=store.removeprefix("unix://")) as client:
            import os

            namespace = os.environ["CHECKPOINTD_REGISTRY__NAMESPACE"]
            assert client.keys(f"*{namespace}*") == []

    def test_as_json_has_every_promised_key(self, command: Any, store: str) -> None:
        document = command.json("status")
        assert document.keys() >= KEYS
        assert set(document["refs"]) == {
            *("open", "pending", "replaying", "retryable"),
            *("quarantined", "waived", "migrated", "expired"),
        }
        assert set(document["kernel"]) == {"open", "finalized", "expired"}

    def test_has_eighty_columns(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        command("freeze", "--reason", "r")
        said = command("status").stdout.splitlines()
        assert max(map(len, said[1:])) <= 80

    def test_names_what_blocks(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "unreadable")
        assert "unreadable 1" in command("status").stdout

    def test_shows_a_reason_as_it_was_written(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "[bold]x[/bold] :smile:")
        assert "[bold]x[/bold] :smile:" in command("status").stdout

    def test_requires_what_is_asked(self, command: Any, store: str) -> None:
        assert command("status", "--require", "drained").exit_code == 3
        command("freeze", "--reason", "r")
        command("once", "census")
        result = command("status", "--require", "drained")
        assert (result.exit_code, result.stdout.split()[0]) == (0, "drained")

    def test_requires_it_for_as_long_as_is_asked(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "r")
        command("once", "census")
        assert command("status", "--require", "drained", "--for", "168h").exit_code == 3
        assert command("status", "--require", "drained", "--for", "1us").exit_code == 0

    def test_a_span_without_a_requirement_is_a_wrong_command_line(self, command: Any) -> None:
        assert command("status", "--for", "168h").exit_code == 2


class TestIsMet:
    WEEK = timedelta(hours=168)

    def drained(self, *, since: str | None, now: str | None) -> dict[str, Any]:
        return {"state": "drained", "drained_at": since, "at": now}

    def test_nothing_demanded_is_met_by_anything(self) -> None:
        assert is_met(None, {"state": "unknown"})

    def test_drained_is_demanded_and_not_so(self) -> None:
        assert not is_met(timedelta(0), {"state": "settling"})

    def test_exactly_as_long_as_demanded_is_enough(self) -> None:
        document = self.drained(since="2026-01-01T00:00:00Z", now="2026-01-08T00:00:00Z")
        assert is_met(self.WEEK, document)

    def test_a_second_less_is_not(self) -> None:
        document = self.drained(since="2026-01-01T00:00:01Z", now="2026-01-08T00:00:00Z")
        assert not is_met(self.WEEK, document)

    def test_an_end_that_no_census_has_seen_is_too_young_for_any_span(self) -> None:
        document = self.drained(since=None, now="2026-01-08T00:00:00Z")
        assert is_met(timedelta(0), document)
        assert not is_met(self.WEEK, document)


class TestWatch:
    @pytest.fixture
    def rounds(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Watching waits for nothing here, and is interrupted in the third round."""
        waited: list[float] = []
        real = asyncio.sleep

        async def sleep(seconds: float) -> None:
            if seconds != look.WATCH_EVERY_S:
                await real(seconds)
                return
            waited.append(seconds)
            if len(waited) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(look.asyncio, "sleep", sleep)
        return waited

    def test_goes_on_until_it_is_interrupted(
        self, command: Any, store: str, rounds: list[float]
    ) -> None:
        result = command("status", "--watch")
        assert result.exit_code == 0
        assert len(result.stdout.splitlines()) == 3

    def test_as_json_prints_a_document_a_line(
        self, command: Any, store: str, rounds: list[float]
    ) -> None:
        lines = command("status", "--watch", "--json").stdout.splitlines()
        assert [json.loads(line)["state"] for line in lines] == ["idle"] * 3

    def test_that_is_interrupted_before_its_end_has_not_met_the_demand(
        self, command: Any, store: str, rounds: list[float]
    ) -> None:
        assert command("status", "--watch", "--require", "drained").exit_code == 3

    def test_ends_when_what_is_required_is_so(
        self, command: Any, store: str, rounds: list[float]
    ) -> None:
        command("freeze", "--reason", "r")
        command("once", "census")
        assert command("status", "--watch", "--require", "drained").exit_code == 0
        assert rounds == []

    def test_goes_on_while_the_store_is_away(
        self, command: Any, store: str, rounds: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from checkpointd.domain.errors import StoreUnreachableError

        async def away(_: object) -> None:
            raise StoreUnreachableError("redis://h", "gone")

        monkeypatch.setattr(look, "_status_of", away)
        result = command("status", "--watch")
        assert [line.split()[0] for line in result.stdout.splitlines()] == ["unknown"] * 3


class TestExplain:
    def test_an_unknown_thread_is_an_answer(self, command: Any, store: str) -> None:
        result = command("explain", "nobody")
        assert result.exit_code == 0
        assert "never seen" in result.stdout
        assert command.json("explain", "nobody")["standing"] == "unknown"

    def test_an_open_turn_says_since_when(self, command: Any, registered: Any) -> None:
        registered("a", "1", finalized=False)
        assert "A turn has been open since" in command("explain", "a").stdout

    def test_a_blocked_one_says_why_and_what_to_do(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "unanswered_call")
        said = command("explain", "a").stdout
        assert "unanswered_call: seen by a test" in said
        assert "release or waive" in said

    def test_a_waived_one_names_who_did_it(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "absent")
        command("quarantine", "waive", "--all", "--reason", "user left", "--as", "anna")
        said = command("explain", "a").stdout
        assert "anna" in said
        assert "user left" in said

    def test_an_expired_one_says_when_and_why(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        command("refs", "expire", "a", "1", "--reason", "a test turn")
        assert "a test turn" in command("explain", "a").stdout

    def test_a_kernel_one_can_be_resumed(self, command: Any, registered: Any) -> None:
        registered("a", "1", line="kernel")
        assert "It can be resumed from checkpoint 1." in command("explain", "a").stdout

    def test_one_that_waits_says_for_what(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        assert "waits for the drain" in command("explain", "a").stdout

    def test_the_story_holds_the_audit_of_that_thread_only(
        self, command: Any, registered: Any
    ) -> None:
        for thread in ("a", "b"):
            registered(thread, "1")
        entries = command.json("explain", "a")["audit"]
        assert {entry["thread_id"] for entry in entries} == {"a"}

    def test_an_id_is_shown_and_not_obeyed(self, command: Any, registered: Any) -> None:
        thread = 'a:b{c}|"d" [red]é\u202e👩\u200d💻'
        registered(thread, "1")
        said = command("explain", thread).stdout
        assert 'a:b{c}|"d" [red]é\\u202e👩\u200d💻' in said
        assert command.json("explain", thread)["thread_id"] == thread


class TestAudit:
    def test_lists_who_did_what_in_order(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "r", "--as", "anna")
        command("thaw", "--reason", "s", "--as", "ben")
        entries = command.json("audit")["entries"]
        assert [entry["by"] for entry in entries] == ["anna", "ben"]
        assert [entry["reason"] for entry in entries] == ["r", "s"]

    def test_is_bounded_by_what_is_asked(self, command: Any, registered: Any) -> None:
        for thread in "abcdefgh":
            registered(thread, "1")
        assert len(command.json("audit", "--limit", "3")["entries"]) == 3

    def test_begins_where_it_is_told_to(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "r")
        assert len(command.json("audit", "--since", "1h")["entries"]) == 1
        assert command.json("audit", "--since", "2099-01-01T00:00:00Z")["entries"] == []

    @pytest.mark.parametrize("since", ["yesterday", "2026-01-01", "30"])
    def test_a_time_that_cannot_be_told_is_refused(self, command: Any, since: str) -> None:
        assert command("audit", "--since", since).exit_code == 2

    def test_of_nothing_says_so(self, command: Any, store: str) -> None:
        assert "Nothing is on record" in command("audit").stdout


class TestVerify:
    def test_a_registry_that_adds_up_is_clean(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        result = command("verify")
        assert result.exit_code == 0
        assert command.json("verify")["clean"] is True

    def test_what_does_not_add_up_is_named_and_a_failure(
        self, command: Any, registered: Any, inside: Any
    ) -> None:
        registered("a", "1")

        async def break_it(rooms: Any) -> None:
            await rooms.store.client.delete(rooms.store.keys.of("a").due)

        inside(break_it)
        result = command("verify")
        assert result.exit_code == 1
        assert "instead of" in result.stdout
        assert command.json("verify")["findings"][0]["thread_id"] == "a"
