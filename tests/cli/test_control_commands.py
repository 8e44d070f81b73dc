"""Freezing, thawing, holding and letting go."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.server


class TestFreeze:
    def test_is_in_force_when_it_returns(self, command: Any, store: str) -> None:
        result = command("freeze", "--reason", "cut-over")
        assert result.exit_code == 0
        frozen = command.json("status")["frozen"]
        assert frozen["in_force"] is True
        assert frozen["reason"] == "cut-over"

    def test_closes_legacy_only_unless_told_otherwise(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "r")
        assert command.json("status")["frozen"]["lines"] == ["legacy"]

    def test_closes_both_lines_where_all_are_meant(self, command: Any, store: str) -> None:
        document = command.json("freeze", "--reason", "r", "--line", "all")
        assert document["frozen"]["lines"] == ["legacy", "kernel"]

    def test_says_that_the_old_writer_must_be_stopped_too(self, command: Any, store: str) -> None:
        assert "stop the old writer itself" in command("freeze", "--reason", "r").stdout

    def test_again_keeps_the_first_reason(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "first")
        document = command.json("freeze", "--reason", "second")
        assert document["frozen"]["reason"] == "first"
        assert document["declared_before"] is True

    @pytest.mark.parametrize(("first", "then"), [("legacy", "all"), ("all", "legacy")])
    def test_of_other_lines_is_refused_while_one_is_declared(
        self, command: Any, store: str, first: str, then: str
    ) -> None:
        command("freeze", "--reason", "r", "--line", first)
        result = command("freeze", "--reason", "r", "--line", then)
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1
        assert "thaw that first" in result.stderr

    def test_wants_a_reason_that_says_something(self, command: Any, store: str) -> None:
        assert command("freeze", "--reason", "  ").exit_code == 2
        assert command.json("status")["frozen"] is None


class TestThaw:
    def test_opens_issuance_again(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "r")
        assert command.json("thaw", "--reason", "r")["thawed"] is True
        assert command.json("status")["frozen"] is None

    def test_of_nothing_frozen_is_no_failure(self, command: Any, store: str) -> None:
        result = command("thaw", "--reason", "r")
        assert result.exit_code == 0
        assert "Nothing was frozen" in result.stdout


class TestPauseAndResume:
    def test_hold_the_drain_unless_another_pass_is_named(self, command: Any, store: str) -> None:
        command("pause", "--reason", "provider down")
        assert command.json("status")["paused"] == {"drain": "provider down"}
        command("resume")
        assert command.json("status")["paused"] == {}

    @pytest.mark.parametrize("name", ["reconcile", "adopt"])
    def test_hold_another_pass(self, command: Any, store: str, name: str) -> None:
        assert f"--pass {name}" in command("pause", "--reason", "r", "--pass", name).stdout
        assert name in command.json("status")["paused"]
        command("resume", "--pass", name)
        assert command.json("status")["paused"] == {}

    def test_the_census_is_never_held(self, command: Any, store: str) -> None:
        assert command("pause", "--reason", "r", "--pass", "census").exit_code == 2

    def test_again_keeps_the_first_reason(self, command: Any, store: str) -> None:
        command("pause", "--reason", "first")
        assert "paused before" in command("pause", "--reason", "second").stdout
        assert command.json("status")["paused"] == {"drain": "first"}

    def test_of_nothing_held_is_no_failure(self, command: Any, store: str) -> None:
        result = command("resume")
        assert (result.exit_code, result.stdout) == (0, "Nothing held the drain pass.\n")

    def test_a_canary_is_told_how_many_refs_it_has(self, command: Any, store: str) -> None:
        assert "for 20 refs, then pauses" in command("resume", "--refs", "20").stdout

    def test_a_canary_of_another_pass_is_refused(self, command: Any, store: str) -> None:
        assert command("resume", "--pass", "adopt", "--refs", "2").exit_code == 2


class TestExpiriesAllow:
    def test_allows_all_that_is_overdue(self, command: Any, registered: Any) -> None:
        for thread in ("a", "b"):
            registered(thread, "1", finalized=False)
        assert command.json("expiries", "allow", "--reason", "r") == {"allowed": 2, "overdue": 2}

    def test_allows_as_many_as_are_named(self, command: Any, registered: Any) -> None:
        registered("a", "1", finalized=False)
        assert command.json("expiries", "allow", "--reason", "r", "--count", "7")["allowed"] == 7

    def test_lets_a_held_expiry_go_on(
        self, command: Any, registered: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CHECKPOINTD_RECONCILE__MAX_EXPIRIES", "1")
        for thread in ("a", "b", "c"):
            registered(thread, "1", finalized=False)
        held = command("once", "reconcile")
        assert "expiries allow" in held.stdout
        assert command.json("status")["refs"]["expired"] == 0
        command("expiries", "allow", "--reason", "they are gone")
        assert len(command.json("once", "reconcile")["expired"]) == 3

    def test_of_nothing_overdue_allows_nothing(self, command: Any, store: str) -> None:
        assert "Nothing is overdue" in command("expiries", "allow", "--reason", "r").stdout
