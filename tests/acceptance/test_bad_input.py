"""What a command makes of what it cannot use: one sentence, the documented code, in time."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.server


def one_sentence(done: Any) -> str:
    """What stderr says, which is one line of ours."""
    said: str = done.stderr
    assert said.startswith("checkpointd: ")
    assert said.count("\n") == 1
    assert "Traceback" not in said
    return said


class TestConfiguration:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[redis\nurl = 1", "it is not TOML"),
            ('[redis]\nurll = "x"\n', "did you mean redis.url?"),
            ("[reconcile]\ngrace = 30\n", "30 of what?"),
            ('[source]\nurl = "legacy.sqlite"\n', "no scheme"),
        ],
    )
    def test_is_refused_with_78(self, shell: Any, text: str, said: str) -> None:
        (shell.directory / "checkpointd.toml").write_text(text)
        done = shell("status")
        assert done.returncode == 78
        assert said in one_sentence(done)


class TestSource:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "there is no such file"),
            (b"", "sqlite"),
            (b"this is a text, and long enough to be taken for a header of a file", "not a SQLite"),
            ("truncated", "damaged or truncated"),
        ],
    )
    @pytest.mark.parametrize("words", ["once adopt", "once adopt --dry-run"])
    def test_that_cannot_be_read_fails(
        self, ready: Any, database: Path, words: str, content: bytes | str | None, said: str
    ) -> None:
        if content is None:
            database.unlink()
        elif isinstance(content, str):
            database.write_bytes(database.read_bytes()[:5000])
        else:
            database.write_bytes(content)
        done = ready(*words.split())
        assert done.returncode == 1
        assert said in one_sentence(done)


class TestStore:
    def test_that_is_down_is_69_in_time(self, ready: Any, tmp_path: Path) -> None:
        ready.set(redis__url=f"unix://{tmp_path}/none.sock")
        began = time.monotonic()
        done = ready("status")
        assert time.monotonic() - began < 5
        assert done.returncode == 69
        one_sentence(done)

    def test_that_hangs_is_69_in_time(self, ready: Any, start_server: Any) -> None:
        with start_server() as server:
            ready.set(redis__url=server.url)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                done = ready("status")
                took_s = time.monotonic() - began
            finally:
                os.kill(server.pid, signal.SIGCONT)
        assert done.returncode == 69
        assert took_s < 5
        one_sentence(done)

    def test_of_another_environment_is_78(self, ready: Any) -> None:
        ready("once", "adopt")
        ready.set(registry__environment="production")
        done = ready("once", "reconcile")
        assert done.returncode == 78
        assert "production" in one_sentence(done)

    def test_embedded_in_a_file_is_69(self, ready: Any, tmp_path: Path) -> None:
        (tmp_path / "store").write_text("a file")
        ready.set(redis__url="embedded://store")
        done = ready("status")
        assert done.returncode == 69
        assert "it is a file" in one_sentence(done)


class TestPort:
    def test_in_use_is_one_sentence(self, ready: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            ready.set(endpoint__listen=f"127.0.0.1:{taken.getsockname()[1]}")
            done = ready("run")
        assert done.returncode == 1
        assert "another process has the port" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


class TestOutput:
    def test_that_nobody_reads_is_no_complaint(self, ready: Any) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = ready("once", "adopt", "--json", stdout=writer)
        finally:
            os.close(writer)
        assert done.stderr == ""
        assert done.returncode == 1

    def test_in_a_terminal_without_unicode_is_escaped(self, ready: Any) -> None:
        ready.environ |= {"PYTHONIOENCODING": "ascii"}
        ready("freeze", "--reason", "é")
        done = ready("status")
        assert done.returncode == 0
        assert "\\xe9" in done.stdout
