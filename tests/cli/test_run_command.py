"""The daemon's command: what is asked of it, and the code with which it ends."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from checkpointd.app.daemon import Ended

pytestmark = pytest.mark.server


class TestRunUntilDrained:
    @pytest.fixture
    def frozen(self, command: Any, source: Path) -> None:
        for words in (["once", "adopt"], ["once", "reconcile"], ["freeze", "--reason", "r"]):
            assert command(*words).exit_code == 0

    def test_ends_with_3_and_names_the_blocker(self, command: Any, frozen: None) -> None:
        result = command("run", "--until", "drained", "--timeout", "50s")
        assert result.exit_code == 3
        assert result.stdout.startswith("stalled (quarantine)")
        assert "t:_:abandoned_pause" in result.stdout
        assert "unanswered_call" in result.stdout
        assert "checkpointd quarantine waive" in result.stdout

    def test_ends_with_0_once_that_was_waived(self, command: Any, frozen: None) -> None:
        command("run", "--until", "drained", "--timeout", "50s")
        command("quarantine", "waive", "--all", "--reason", "r")
        result = command("run", "--until", "drained", "--timeout", "50s", "--json")
        assert result.exit_code == 0
        assert command.json("status")["state"] == "drained"

    def test_without_a_freeze_has_nothing_to_wait_for(self, command: Any, source: Path) -> None:
        result = command("run", "--until", "drained", "--timeout", "50s")
        assert result.exit_code == 3
        assert result.stdout.startswith("idle")


class FakeDaemon:
    """Ends at once, as it was told to."""

    ended = Ended()
    asked: ClassVar[dict[str, Any]] = {}

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def run(self, **asked: Any) -> Ended:
        type(self).asked = asked
        return self.ended


STATUS: dict[str, Any] = {
    "state": "draining",
    "cause": None,
    "sentence": "9 refs left.",
    "progress": 0.1,
    "baseline": 10,
    "discovered": 0,
    "eta_seconds": 90.0,
    "refs": None,
    "kernel": None,
    "blocked": {},
    "frozen": None,
    "written_after_freeze": 2,
    "throttled": "source",
    "drained_at": None,
    "reopened_at": "2026-01-01T00:00:00.5Z",
    "passes": {},
}


class TestTheCode:
    @pytest.mark.parametrize(
        ("drained", "timed_out", "code"),
        [(True, False, 0), (False, False, 3), (None, False, 3), (False, True, 4)],
    )
    def test_says_how_the_wait_ended(
        self,
        command: Any,
        monkeypatch: pytest.MonkeyPatch,
        drained: bool | None,
        timed_out: bool,
        code: int,
    ) -> None:
        ended = Ended(drained=drained, timed_out=timed_out, status=STATUS)
        monkeypatch.setattr(FakeDaemon, "ended", ended)
        monkeypatch.setattr("checkpointd.cli.run.Daemon", FakeDaemon)
        result = command("run", "--until", "drained", "--timeout", "30m")
        assert result.exit_code == code
        assert "9 refs left" in result.stdout
        assert "ETA 1m30s" in result.stdout
        assert FakeDaemon.asked["until_drained"] is True
        assert FakeDaemon.asked["give_up_after"] == timedelta(minutes=30)

    def test_of_a_daemon_that_was_told_to_stop_is_0(
        self, command: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FakeDaemon, "ended", Ended(status=STATUS))
        monkeypatch.setattr("checkpointd.cli.run.Daemon", FakeDaemon)
        result = command("run")
        assert (result.exit_code, result.stdout) == (0, "")
        assert FakeDaemon.asked["until_drained"] is False

    def test_a_timeout_without_a_wait_is_a_wrong_command_line(self, command: Any) -> None:
        assert command("run", "--timeout", "5s").exit_code == 2
