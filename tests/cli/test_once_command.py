"""One pass by hand, and its rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.server


class TestOnceAdopt:
    def test_adopts_the_sample(self, command: Any, source: Path) -> None:
        report = command.json("once", "adopt")
        assert (report["threads"], report["adopted"], report["outcome"]) == (25, 26, "success")

    def test_again_changes_nothing(self, command: Any, source: Path) -> None:
        command("once", "adopt")
        assert command.json("once", "adopt")["adopted"] == 0

    def test_never_alters_the_source(self, command: Any, source: Path) -> None:
        before = source.read_bytes()
        command("once", "adopt")
        assert source.read_bytes() == before

    def test_without_a_source_is_a_matter_of_configuration(self, command: Any, store: str) -> None:
        assert command("once", "adopt").exit_code == 78

    def test_of_a_source_that_is_not_there_fails(
        self, command: Any, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CHECKPOINTD_SOURCE__URL", "sqlite:///nowhere/at-all.sqlite")
        result = command("once", "adopt")
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1


class TestOnceAdoptRehearsed:
    @pytest.fixture
    def storeless(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CHECKPOINTD_REDIS__URL", "unix:///nowhere/none.sock")

    def test_needs_no_store(self, command: Any, storeless: None) -> None:
        report = command.json("once", "adopt", "--dry-run")
        assert report["dry_run"] is True
        assert report["verdicts"] == {"CLOSED": 10, "PAUSED": 8, "OPEN": 6, "FAILED": 1}
        assert report["blockers"] == {"unanswered_call": 1}

    def test_shows_verdicts_reasons_losses_and_ids(self, command: Any, storeless: None) -> None:
        said = command("once", "adopt", "--dry-run").stdout
        for word in ("CLOSED", "unanswered_call", "t:_:abandoned_pause", "lost", "a second"):
            assert word in said
        assert max(map(len, said.splitlines()[1:])) <= 80

    def test_names_five_ids_at_most(self, command: Any, storeless: None) -> None:
        samples = command.json("once", "adopt", "--dry-run")["samples"]
        assert max(map(len, samples.values())) == 5


class TestOnceReconcile:
    def test_expires_what_is_overdue(self, command: Any, registered: Any) -> None:
        registered("a", "1", finalized=False)
        report = command.json("once", "reconcile")
        assert [ref["thread_id"] for ref in report["expired"]] == ["a"]
        assert (report["overdue"], report["inspected"]) == (1, 1)

    def test_rehearsed_lists_it_and_expires_nothing(self, command: Any, registered: Any) -> None:
        registered("a", "1", finalized=False)
        said = command("once", "reconcile", "--dry-run").stdout
        assert said.startswith("1 ref would be expired")
        assert "a  1" in said
        assert command.json("status")["refs"]["open"] == 1

    def test_held_by_an_operator_says_so(self, command: Any, registered: Any) -> None:
        registered("a", "1", finalized=False)
        command("pause", "--pass", "reconcile", "--reason", "look first")
        result = command("once", "reconcile")
        assert result.exit_code == 0
        assert "look first" in result.stdout

    def test_names_some_and_counts_the_rest(self, command: Any, registered: Any) -> None:
        for n in range(22):
            registered(f"t{n}", "1", finalized=False)
        assert "… and 2 more" in command("once", "reconcile").stdout


class TestOnceDrain:
    def test_before_a_freeze_claims_nothing(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        result = command("once", "drain")
        assert result.exit_code == 0
        assert "checkpointd freeze" in result.stdout

    def test_while_paused_says_what_lets_it_go_on(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        command("freeze", "--reason", "r")
        command("pause", "--reason", "r")
        assert "checkpointd resume" in command("once", "drain").stdout

    def test_replays_what_is_due(self, command: Any, source: Path) -> None:
        command("once", "adopt")
        command("freeze", "--reason", "r")
        report = command.json("once", "drain")
        assert report["outcomes"]["migrated"] == 9
        assert report["failures"] == {"unanswered_call": 1}

    def test_rehearsed_needs_no_freeze_and_says_what_would_block(
        self, command: Any, source: Path
    ) -> None:
        command("once", "adopt")
        report = command.json("once", "drain", "--dry-run")
        assert report["failures"] == {"unanswered_call": 1}
        assert command.json("status")["refs"]["migrated"] == 0
        assert "blocked by unanswered_call" in command("once", "drain", "--dry-run").stdout

    def test_rehearsed_calls_no_replayer(
        self, command: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command("once", "adopt")
        (tmp_path / "their_replayer.py").write_text(
            "class Replayer:\n    def replay(self, request):\n        open('called', 'w').close()\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("CHECKPOINTD_REPLAY__URL", "python:their_replayer:Replayer")
        assert command("once", "drain", "--dry-run").exit_code == 0
        assert not (tmp_path / "called").exists()


class TestOnceCensus:
    def test_tells_the_drains_state(self, command: Any, store: str) -> None:
        assert command("once", "census").stdout.startswith("idle")

    def test_is_the_first_to_see_the_end(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "r")
        report = command.json("once", "census")
        assert (report["marked"], report["status"]["state"]) == ("drained", "drained")
        assert command.json("status")["drained_at"] is not None

    def test_rehearsed_only_looks(self, command: Any, store: str) -> None:
        command("freeze", "--reason", "r")
        assert command.json("once", "census", "--dry-run")["dry_run"] is True
        assert command.json("status")["drained_at"] is None


class TestWhatPassesLeaveBehind:
    def test_status_tells_how_they_ended(self, command: Any, source: Path) -> None:
        command("once", "adopt")
        row = command.json("status")["passes"]["adopt"]
        assert row["outcome"] == "success"
        assert row["duration_s"] > 0
        assert row["last_run"].endswith("Z")
