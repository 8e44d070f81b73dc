"""The whole way by hand, as an operator goes it: every command a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.server


def configure(path: Path, **settings: str) -> None:
    """Edit a written configuration as a person would: the line of each setting, by its section."""
    text = path.read_text()
    for name, value in settings.items():
        section, key = name.split("__")
        pattern = rf"(\[{section}\]\n(?:(?!\n\[).)*?\n{key} = )[^\n]*"
        text, changed = re.subn(pattern, rf'\g<1>"{value}"', text, count=1, flags=re.S)
        assert changed == 1, name
    path.write_text(text)


class TestTheWholeWay:
    @pytest.fixture(params=["redis", "embedded"])
    def store_url(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        if request.param == "embedded":
            return f"embedded://{tmp_path}/store"
        url: str = request.getfixturevalue("redis_server").url
        return url

    def test_from_init_to_drained(
        self, shell: Any, database: Path, store_url: str, tmp_path: Path
    ) -> None:
        before = database.read_bytes()
        assert shell("init").returncode == 0
        configure(
            tmp_path / "checkpointd.toml",
            redis__url=store_url,
            registry__namespace=f"by-hand-{tmp_path.name}",
            source__url=f"sqlite://{database}",
            reconcile__grace="1s",
            drain__settle="0s",
            endpoint__listen="127.0.0.1:0",
        )
        assert shell.json("once", "adopt")["adopted"] == 26
        assert len(shell.json("once", "reconcile")["expired"]) == 7
        assert shell("freeze", "--reason", "x").returncode == 0

        until_drained = ("run", "--until", "drained", "--timeout", "60s")
        stuck = shell(*until_drained)
        assert stuck.returncode == 3
        assert "unanswered_call" in stuck.stdout
        assert "t:_:abandoned_pause" in stuck.stdout

        assert shell("quarantine", "waive", "--all", "--reason", "y").returncode == 0
        done = shell(*until_drained)
        assert done.returncode == 0
        status = shell.json("status")
        assert status["state"] == "drained"
        assert status["refs"]["migrated"] == 18
        assert status["refs"]["waived"] == 1
        assert shell("status", "--require", "drained").returncode == 0
        assert shell.json("verify")["clean"] is True
        assert database.read_bytes() == before


class TestTheModule:
    def test_is_the_command_too(self, shell: Any) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "checkpointd", "check-config", "--json"],
            cwd=shell.directory,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("{")

    def test_names_itself_as_the_command(self, shell: Any) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "checkpointd", "--help"],
            cwd=shell.directory,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("Usage: checkpointd ")


class TestTheDemo:
    def test_ends_by_itself_within_a_minute(self, shell: Any) -> None:
        done = shell("demo", "--json", timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert list(shell.directory.iterdir()) == []
